"""Figures: real units, error bars, colours for any colour vision, on light or dark paper.

A panel draws into one matplotlib axes, with the helpers below or by itself, and `minicnn.measure.drawing` makes files
of panels. Lines and letters are drawn in INK on PAPER; in the SVGs these and the blues are variables that follow the
reader's setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from minicnn.measure.page import Panel
from minicnn.measure.timing import Spread

INK, PAPER, GRID, DEEP, PALE = "#1c1d21", "#fdfdfe", "#d8dade", "#0b62c4", "#6aa9ee"
DARK = {INK: "#e6e7ea", PAPER: "#15171b", GRID: "#3a3d44", DEEP: "#3f8ef0", PALE: "#a9cff9"}
NAMES = {INK: "--ink", PAPER: "--paper", GRID: "--grid", DEEP: "--deep", PALE: "--pale"}

# Colours that people with any colour vision can tell apart, on light and dark paper: M. Okabe, K. Ito, Color
# Universal Design, 2008, without black and yellow, and three by P. Tol, Colour Schemes, 2021.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#AA3377", "#888888")
# Families of what is compared: a colour each, the same in every figure, on light and on dark paper.
KERNELS, ARRAYS, TORCH, JAX, OWN, PUBLISHED = (
    "minicnn's kernels", "minicnn on a library's arrays", "PyTorch", "JAX", "the study's own", "published",
)  # fmt: skip
FAMILIES = {
    KERNELS: DEEP, ARRAYS: PALE, TORCH: "#d64a5e", JAX: "#2f8f5b", OWN: "#b0761f", PUBLISHED: "#8a909c",
}  # fmt: skip
FAMILY_OF = {
    "numba": KERNELS, "cupy": KERNELS, "numba_cuda": KERNELS, "webgpu": KERNELS, "torch.nn": TORCH,
    "torch.nn-loader": TORCH, "jax.lax": JAX,
}  # fmt: skip
WIDTH, HEIGHT = 4.9, 2.3  # inches of a panel: 470 pixels, so that letters have nine on a screen that is 400 wide
ROWS = 8  # of a panel of dots or bars
DECADE = 8.0  # from this ratio of the largest to the smallest on the axis is logarithmic
LINE = 1.5  # points of every line
LETTERS = 13.0  # points from one line of letters to the next
FEW = 25  # points up to which each is marked
TICKS = 7  # places up to which each has a tick
ACROSS = 32  # letters of all ticks of a panel of dots
ROOM = 0.045  # of the axis' width, for each character of a tick's label
Series = Mapping[str, tuple[Sequence[float], Sequence[float], str]]  # by name: xs, ys and the colour
SPOTS = "minicnn_spots"  # where axes keep what `answer` has told them


@dataclass(frozen=True)
class Mark:
    """A row of `dots`.

    Attributes:
        label: Its name.
        value: What it marks.
        family: One of `FAMILIES`.
        group: What it is shown with, such as the machine that it was measured on.
    """

    label: str
    value: Spread | float
    family: str
    group: str = ""

    @property
    def spread(self) -> Spread:
        """The value with its quartiles."""
        return self.value if isinstance(self.value, Spread) else Spread(self.value, self.value, self.value, 1)


def family(name: str) -> str:
    """Family of a candidate; of a hybrid, that of its first backend."""
    return FAMILY_OF.get(re.split(r" / |[:+]", name)[0], ARRAYS)


def duration(seconds: float) -> str:
    """Seconds in the unit in which a reader would say them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size or unit == "us":
            break
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def quantity(unit: str) -> Callable[[float], str]:
    """A function that writes a number of that unit: "12,300 samples/s"."""
    return lambda value: (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + (f" {unit}" if unit else "")


def answer(axes: Any, text: str, xs: tuple[float, float] | None, ys: tuple[float, float]) -> None:
    """Have a place of the axes answer to the pointer, where the drawing is shown in a report.

    Args:
        axes: The axes.
        text: The answer.
        xs: From where to where it goes to the right, in the axes' units; None for the whole drawing.
        ys: From where to where it goes upwards.
    """
    vars(axes).setdefault(SPOTS, []).append((text, xs, ys))


def said(spread: Spread, best: Spread, say: Callable[[float], str]) -> str:
    """A value with its spread and its ratio to the best, in words."""
    text = say(spread.median)
    if spread.count > 1:
        text += f", quartiles {say(spread.low)} and {say(spread.high)} of {spread.count}"
    return text if spread == best or not best.median else f"{text}; {spread.median / best.median:,.3g} times the best"


def dots(
    axes: Any, marks: Sequence[Mark], say: Callable[[float], str] = duration, *, xlabel: str = "",
    more_is_better: bool = False, across: Sequence[Mark] = (),
) -> None:  # fmt: skip
    """Draw a sorted horizontal dot for each mark, with its number beside it and its quartiles as a thin line.

    Args:
        axes: Where to draw.
        marks: The rows; published ones are hollow.
        say: Writes a value with its unit, beside marks and below the axis.
        xlabel: What runs to the right.
        more_is_better: Whether the largest comes first.
        across: Marks for which the axis has room and the legend a colour, if there are others than the rows'.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    rows = sorted(marks, key=lambda mark: mark.spread.median, reverse=more_is_better)
    for i, mark in enumerate(rows):
        s, tone = mark.spread, FAMILIES[mark.family]
        axes.plot([s.low, s.high], [i, i], color=tone, linewidth=LINE)
        axes.plot(s.median, i, "o", markersize=7, color=tone, markeredgewidth=1.6,
                  markerfacecolor=PAPER if mark.family == PUBLISHED else tone)  # fmt: skip
        ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}  # so that no line of the grid goes through it
        axes.annotate(say(s.median), (s.high, i), (8, 0), textcoords="offset points", va="center", bbox=ground)
        answer(axes, f"{mark.label}: {said(s, rows[0].spread, say)}", None, (i - 0.5, i + 0.5))
    axes.set_yticks(range(len(rows)), [mark.label for mark in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    every = across or rows
    low, high = min(m.spread.low for m in every), max(m.spread.high for m in every)
    if low > 0 and high / low >= DECADE:
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.35)
        ticks = _places(*axes.get_xlim())
        wide = max(len(say(tick)) for tick in ticks) * len(ticks) > ACROSS
        axes.set_xticks(ticks[::2] if wide else ticks)
        axes.minorticks_off()
    else:
        axes.set_xlim(0, 1.3 * high)
        axes.xaxis.set_major_locator(MaxNLocator(4))  # each has its unit
    axes.xaxis.set_major_formatter(lambda value, _: say(value) if value else "0")
    style(axes, xlabel, "")
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    used = [name for name in FAMILIES if any(mark.family == name for mark in every)]
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=6, color=FAMILIES[name],
               markerfacecolor=PAPER if name == PUBLISHED else FAMILIES[name], label=name)
        for name in used
    ]  # fmt: skip
    if len(used) > 1 and not axes.figure.legends:
        axes.figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, handletextpad=0.1,
                           columnspacing=1.0, borderpad=0.1)  # fmt: skip


def grouped(
    marks: Sequence[Mark], xlabel: str, say: Callable[[float], str] = duration, *, more_is_better: bool = False
) -> list[Panel]:
    """A panel of dots for each group of marks, all with the same axis; of many rows the best `ROWS`.

    Args:
        marks: The rows of all panels; the group of the best comes first.
        xlabel: What runs to the right.
        say: Writes a value with its unit.
        more_is_better: Whether the largest comes first.
    """
    panels = []
    ranked = sorted(marks, key=lambda mark: mark.spread.median, reverse=more_is_better)
    for group in dict.fromkeys(mark.group for mark in ranked):
        of_group = [mark for mark in ranked if mark.group == group]
        title = f"{group}, the first {ROWS} of {len(of_group)}" if len(of_group) > ROWS else group
        draw = partial(dots, marks=of_group[:ROWS], say=say, xlabel=xlabel, more_is_better=more_is_better, across=marks)
        panels.append(Panel(title, draw, len(of_group[:ROWS])))
    return panels


def leader(lines: Iterable[Series], *, more_is_better: bool = False) -> str:
    """Which line is the best at the most points, in words: "cupy is the fastest at 9 of 10 points"."""
    pick = max if more_is_better else min
    wins: dict[str, int] = {}
    for series in lines:
        for x in {x for xs, _, _ in series.values() for x in xs}:
            there = {name: ys[list(xs).index(x)] for name, (xs, ys, _) in series.items() if x in xs}
            best = pick(there, key=lambda name: there[name])
            wins[best] = wins.get(best, 0) + 1
    most = max(wins, key=lambda name: wins[name])
    return f"{most} is the fastest at {wins[most]} of {sum(wins.values())} points"


def ends(every: Iterable[Series]) -> tuple[float, float]:
    """From where to where a logarithmic axis goes on which the lines of several panels have room."""
    values = [y for series in every for _, ys, _ in series.values() for y in ys]
    room = (max(values) / min(values)) ** 0.05
    return min(values) / room, max(values) * room


def paths(
    axes: Any, series: Series, xlabel: str, ylabel: str, *, log: str = "", say: Callable[[float], str] | None = None,
    more_is_better: bool = False, upward: tuple[float, float] | None = None, ticks: Sequence[float] = (),
) -> None:  # fmt: skip
    """Draw a line for each name, with the name beside its end; names that would lie on each other move apart.

    Lines of one colour get others.

    A point answers to the pointer with its value, and its ratio to the best where the line of the best has a point.

    Args:
        axes: Where to draw.
        series: The lines.
        xlabel: What runs to the right, with its unit.
        ylabel: What runs upwards, with its unit.
        log: Which axes are logarithmic: "", "x", "y" or "xy".
        say: Writes the ticks of the upward axis, if not as numbers.
        more_is_better: Whether the largest is the best.
        upward: From where to where the upward axis goes; None for as far as the lines do.
        ticks: Ticks of the axis to the right, if not the places of points where these are few, else round numbers.
    """
    series = _recoloured(series, list(series))
    pick = max if more_is_better else min
    best: dict[float, float] = {}
    for xs, ys, _ in series.values():
        for x, y in zip(xs, ys, strict=True):
            best[x] = pick(y, best.get(x, y))
    for name, (xs, ys, tone) in series.items():
        axes.plot(xs, ys, color=tone, linewidth=LINE, marker="o" if len(xs) <= FEW else "", markersize=4, label=name,
                  markerfacecolor=PAPER if tone == FAMILIES[PUBLISHED] else tone)  # fmt: skip
        for x, y in list(zip(xs, ys, strict=True))[:: -(-len(xs) // FEW) or 1]:
            value, first = (Spread(v, v, v, 1) for v in (y, best[x]))
            answer(axes, f"{name} at {x:,g}: {said(value, first, say or quantity(''))}", (x, x), (y, y))
    for letter in log:
        getattr(axes, f"set_{letter}scale")("log")
    style(axes, xlabel, ylabel)
    if not series:
        return
    ticks = sorted(ticks or (best if len(best) <= TICKS else ()))
    if ticks:
        axes.set_xticks(ticks, _spaced(ticks, log="x" in log))
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    if say is not None:
        axes.yaxis.set_major_formatter(lambda value, _: say(value))
        axes.minorticks_off()
    low, high = upward or axes.get_ylim()
    axes.set_ylim(low, high)
    if "y" in log:
        axes.set_yticks(_places(low, high))
        low, high = math.log(low), math.log(high)
    # Names stand in the margin, where no line is; a line in the colour of theirs leads to them from the last point.
    points = 0.68 * HEIGHT * 72  # of the axes' height
    ends_at = sorted((points * ((math.log(ys[-1]) if "y" in log else ys[-1]) - low) / (high - low), name)
                     for name, (_, ys, _) in series.items())  # fmt: skip
    for place, (_, name) in zip(_apart([end for end, _ in ends_at], points), ends_at, strict=True):
        xs, ys, tone = series[name]
        arrow = {"arrowstyle": "-", "color": tone, "linewidth": 0.8, "linestyle": ":", "shrinkA": 0, "shrinkB": 3,
                 "relpos": (0, 0.5)}  # it ends left of the name, not within others  # fmt: skip
        axes.annotate(name, (xs[-1], ys[-1]), (1.04, place / points), textcoords="axes fraction", va="center",
                      arrowprops=arrow)  # fmt: skip


def multiples(
    lines: Mapping[tuple[str, str], Series], ylabel: str, *, log: str, say: Callable[[float], str],
    more_is_better: bool = False, ticks: Sequence[float] = (),
) -> list[Panel]:  # fmt: skip
    """A panel for each title, and what runs to the right in it, all with the same upward axis; see `paths`."""
    upward = ends(lines.values())
    names = list(dict.fromkeys(name for series in lines.values() for name in series))
    return [
        Panel(title, partial(paths, series=_recoloured(series, names), xlabel=xlabel, ylabel=ylabel, log=log, say=say,
                             more_is_better=more_is_better, upward=upward, ticks=ticks))
        for (title, xlabel), series in lines.items()
    ]  # fmt: skip


def _recoloured(series: Series, names: Sequence[str]) -> Series:
    """Lines with colours of their own by their place among names, if two have the same."""
    if len({tone for *_, tone in series.values()}) == len(series):
        return series
    tones = dict(zip(names, cycle(PALETTE), strict=False))
    return {name: (xs, ys, tones[name]) for name, (xs, ys, _) in series.items()}


def _places(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten; also twice and five times these, or even steps, if they are few."""
    from matplotlib.ticker import MaxNLocator

    powers = [10.0**k for k in range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)]
    for parts in ((1.0,), (1.0, 2.0, 5.0)):
        ticks = [tick for power in powers for part in parts if low <= (tick := part * power) <= high]
        if len(ticks) > 2:
            return ticks
    return [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]


def _spaced(places: Sequence[float], *, log: bool) -> list[str]:
    """The numbers at ascending ticks, the last at any rate, without those that would lie on the next."""
    at = [math.log(x) if log else x for x in places]
    room = ROOM * (at[-1] - at[0])
    texts = [f"{x:,g}" for x in places]
    kept = len(texts) - 1
    for i in reversed(range(kept)):
        if at[kept] - at[i] >= room * (len(texts[i]) + len(texts[kept])) / 2:
            kept = i
        else:
            texts[i] = ""
    return texts


def _apart(heights: Sequence[float], top: float) -> list[float]:
    """Heights for the names of lines that end at some heights, ascending: a letter's height apart, none above a top."""
    places: list[float] = []
    for end in heights:
        places.append(max(places[-1] + LETTERS, end) if places else end)
    above = top  # where the name above is
    for i in reversed(range(len(places))):
        places[i] = above = min(places[i], above - (LETTERS if i + 1 < len(places) else 0))
    return places


def style(axes: Any, xlabel: str, ylabel: str) -> None:
    """Labels, a faint grid, no frame."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def stacked(axes: Any, values: Mapping[str, Mapping[str, float]], label: str) -> None:
    """Draw horizontal bars of parts.

    Args:
        axes: Where to draw.
        values: For each bar the lengths of its parts by name.
        label: What the length means, with its unit.
    """
    parts = list(dict.fromkeys(part for bar in values.values() for part in bar))
    starts = dict.fromkeys(values, 0.0)
    for i, part in enumerate(parts):
        lengths = [values[bar].get(part, 0.0) for bar in values]
        axes.barh(
            list(values), lengths, left=list(starts.values()), color=PALETTE[i % len(PALETTE)], height=0.62, label=part,
            edgecolor=PAPER, linewidth=0.5,
        )  # fmt: skip
        for row, (bar, length) in enumerate(zip(values, lengths, strict=True)):
            if length:
                words = f"{bar}, {part}: {length:.3g} of {sum(values[bar].values()):.3g}, {label}"
                answer(axes, words, (starts[bar], starts[bar] + length), (row - 0.31, row + 0.31))
        starts = {bar: starts[bar] + n for bar, n in zip(values, lengths, strict=True)}
    axes.invert_yaxis()
    axes.margins(x=0.0)
    style(axes, label, "")
    axes.grid(axis="y", visible=False)
    if parts and not axes.figure.legends:
        axes.figure.legend(*axes.get_legend_handles_labels(), ncols=3, loc="outside lower left", frameon=False)
