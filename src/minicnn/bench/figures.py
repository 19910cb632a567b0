"""Figures: real units, error bars, colours for any colour vision, and SVGs that follow a light or dark page.

A panel draws into one matplotlib axes, with the helpers below or by itself. Lines and letters are drawn in INK on
PAPER; in the SVGs both are variables that follow the reader's setting.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minicnn.bench.candidates import on_gpu
from minicnn.bench.page import Figure, Panel
from minicnn.bench.timing import Spread
from minicnn.extras import install

INK, PAPER, GRID = "#1c1d21", "#fdfdfe", "#d8dade"
DARK = {INK: "#e6e7ea", PAPER: "#15171b", GRID: "#3a3d44"}
NAMES = {INK: "--ink", PAPER: "--paper", GRID: "--grid"}

# Colours that people with any colour vision can tell apart, on light and dark paper: M. Okabe, K. Ito, Color
# Universal Design, 2008, without black and yellow, and three by P. Tol, Colour Schemes, 2021.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#AA3377", "#888888")
CANDIDATES = {
    "numpy": "#888888", "numba": "#D55E00", "cupy": "#E69F00", "numba_cuda": "#CC79A7", "torch": "#0072B2",
    "jax": "#AA3377", "torch.nn": "#56B4E9", "torch.nn-loader": "#009E73", "jax.lax": "#999933",
}  # fmt: skip
MARKERS = "osD^v<>Pp"
WIDTH, HEIGHT = 4.6, 3.3  # inches of a panel
BAR = 0.2  # inches for each bar, where there are many
FEW = 25  # points up to which each is marked

Series = Mapping[str, tuple[Sequence[float], ...]]


def color(name: str, among: Iterable[str] = ()) -> str:
    """Colour of a candidate, whatever its device; of another name by its place among the names of the figure."""
    if _library(name) in CANDIDATES:
        return CANDIDATES[_library(name)]
    others = [n for n in among if _library(n) not in CANDIDATES]
    return PALETTE[others.index(name) % len(PALETTE) if name in others else 0]


def dashes(name: str) -> str:
    """Line style of a candidate: dashed on a GPU."""
    return "--" if on_gpu(name.partition(" / ")[0]) else "-"


def _library(name: str) -> str:
    return name.partition(" / ")[0].partition(":")[0]


def style(axes: Any, xlabel: str, ylabel: str) -> None:
    """Labels, a faint grid, no frame."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def lines(axes: Any, series: Series, xlabel: str, ylabel: str, *, legend: bool = True) -> None:
    """Draw a line for each name.

    Args:
        axes: Where to draw.
        series: For each name (xs, ys), or (xs, ys, lows, highs) for lines with a band.
        xlabel: What runs to the right, with its unit.
        ylabel: What runs upwards, with its unit.
        legend: Whether the names are shown.
    """
    for i, (name, (xs, ys, *band)) in enumerate(series.items()):
        tone = color(name, series)
        mark = MARKERS[i % len(MARKERS)] if len(xs) <= FEW else ""
        width = 1.3 + 0.6 * (len(series) - 1 - i)  # where lines lie on each other, the edges of the lower ones show
        axes.plot(xs, ys, color=tone, linestyle=dashes(name), marker=mark, markersize=4, linewidth=width, label=name)
        if band:
            axes.fill_between(xs, *band, color=tone, alpha=0.2, linewidth=0)
    style(axes, xlabel, ylabel)
    if legend and series:
        axes.legend(fontsize=8)
    if series and all(float(x).is_integer() for xs, *_ in series.values() for x in xs):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def bars(axes: Any, values: Mapping[str, Spread | float], label: str, template: str = "{:.3g}") -> None:
    """Draw a horizontal bar for each name, with its number beside it and its quartiles as an error bar.

    Args:
        axes: Where to draw.
        values: Length of the bars.
        label: What the length means, with its unit.
        template: How numbers are written.
    """
    names = list(values)
    spreads = [v if isinstance(v, Spread) else Spread(v, v, v, 1) for v in values.values()]
    medians = [s.median for s in spreads]
    axes.barh(names, medians, color=[color(n, names) for n in names], height=0.62)
    errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
    if any(s.count > 1 for s in spreads):
        axes.errorbar(medians, names, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    for i, s in enumerate(spreads):
        axes.annotate(template.format(s.median), (s.high, i), (5, 0), textcoords="offset points", va="center", size=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    style(axes, label, "")
    axes.grid(axis="y", visible=False)


def stacked(axes: Any, values: Mapping[str, Mapping[str, float]], label: str, template: str = "{:.3g}") -> None:
    """Draw horizontal bars of parts, each with its total beside it.

    Args:
        axes: Where to draw.
        values: For each bar the lengths of its parts by name.
        label: What the length means, with its unit.
        template: How totals are written.
    """
    parts = list(dict.fromkeys(part for bar in values.values() for part in bar))
    starts = dict.fromkeys(values, 0.0)
    for i, part in enumerate(parts):
        lengths = [values[bar].get(part, 0.0) for bar in values]
        axes.barh(
            list(values), lengths, left=list(starts.values()), color=PALETTE[i % len(PALETTE)], height=0.62, label=part,
            edgecolor=PAPER, linewidth=0.5,
        )  # fmt: skip
        starts = {bar: starts[bar] + n for bar, n in zip(values, lengths, strict=True)}
    for i, total in enumerate(starts.values()):
        axes.annotate(template.format(total), (total, i), (5, 0), textcoords="offset points", va="center", size=8)
    axes.invert_yaxis()
    axes.margins(x=0.2 if template else 0.0)  # room for the totals
    style(axes, label, "")
    axes.grid(axis="y", visible=False)
    if parts:
        axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))


# Files --------------------------------------------------------------------------------------------


def to_svg(figure: Figure, panels: Sequence[Panel] | None = None) -> str:
    """SVG of a figure, or of some of its panels, whose colours follow the reader's light or dark setting."""
    text = _render(figure, panels or figure.panels, "svg").decode()
    for tone, name in NAMES.items():
        text = text.replace(tone, f"var({name}, {tone})")
    light = "".join(f"{name}:{tone};" for tone, name in NAMES.items())
    dark = "".join(f"{NAMES[tone]}:{other};" for tone, other in DARK.items())
    rules = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    start = text.index("<svg")
    return text[start:].replace("<defs>", f"{rules}<defs>", 1)


def to_png(figure: Figure) -> bytes:
    """PNG of a figure, on light paper."""
    return _render(figure, figure.panels, "png")


def _render(figure: Figure, panels: Sequence[Panel], form: str) -> bytes:
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        message = f"Figures need matplotlib: {install('cli')}."
        raise ImportError(message, name="matplotlib") from error
    columns = min(len(panels), 2)
    rows = math.ceil(len(panels) / columns)
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": figure.name, "font.size": 9, "axes.titlesize": 10, "text.color": INK,
        "font.family": ["DejaVu Sans"], "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.facecolor": PAPER,
        "legend.edgecolor": GRID, "legend.framealpha": 0.8, "axes.titleweight": "bold",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        height = max(HEIGHT, *(BAR * (panel.bars + 4) for panel in panels))
        drawing = Drawing(figsize=(WIDTH * columns, height * rows), dpi=150, layout="constrained")
        FigureCanvasAgg(drawing)  # no window system, no global state
        for place, panel in enumerate(panels, start=1):
            axes = drawing.add_subplot(rows, columns, place)
            panel.draw(axes)
            axes.set_title(panel.title, loc="left")
        file = io.BytesIO()
        drawing.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()
