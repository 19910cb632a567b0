"""Files of figures: SVGs that follow a light or dark page, with the places that answer to the pointer, and PNGs."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.extras import needing
from minicnn.measure.figures import DARK, GRID, HEIGHT, INK, NAMES, PAPER, SPOTS, WIDTH
from minicnn.measure.page import Figure, Panel

BAR = 0.22  # inches for each bar, where there are many
LEAST = 1.1  # inches of the lowest panel
HEADLINE, LETTERS_OF_A_LINE = 0.2, 52  # inches of a line of the headline, and its letters at most
LEGEND = 0.5  # inches of the names of colours, below rows
POINTER = 14.0  # points that a pointer can hit, at least


@dataclass(frozen=True)
class Spot:
    """A place of a drawing that answers to the pointer.

    Attributes:
        left: Share of the drawing's width that is left of it.
        top: Share of its height that is above it.
        width: Its width, as a share.
        height: Its height, as a share.
        text: What it answers.
    """

    left: float
    top: float
    width: float
    height: float
    text: str


def to_svg(figure: Figure) -> str:
    """SVG of a figure, whose colours follow the reader's light or dark setting."""
    return drawing_of(figure, figure.panels)[0]


def drawing_of(figure: Figure, panels: Sequence[Panel]) -> tuple[str, list[Spot]]:
    """SVG of some panels of a figure, and the places in it that answer to the pointer."""
    data, spots = _render(figure, panels, "svg")
    text = data.decode()
    for tone, name in NAMES.items():
        text = text.replace(tone, f"var({name}, {tone})")
    light = "".join(f"{name}:{tone};" for tone, name in NAMES.items())
    dark = "".join(f"{NAMES[tone]}:{other};" for tone, other in DARK.items())
    rules = f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    start = text.index("<svg")
    return text[start:].replace("<defs>", f"{rules}<defs>", 1), spots


def to_png(figure: Figure) -> bytes:
    """PNG of a figure, on light paper."""
    return _render(figure, figure.panels, "png")[0]


def _spots(drawing: Any) -> list[Spot]:
    """Places in a drawing that `answer` has told its axes, as shares of it; small ones are as large as `POINTER`."""
    box, least = drawing.bbox, POINTER / 72 * drawing.dpi
    spots = []
    for axes in drawing.axes:
        for text, xs, ys in vars(axes).get(SPOTS, ()):
            ends = axes.transData.transform(list(zip(xs or axes.get_xlim(), ys, strict=True)))
            (left, bottom), (right, top) = ends.min(0), ends.max(0)
            if xs is None:
                left, right = 0.0, box.width
            wide, high = max(right - left, least), max(top - bottom, least)
            left, top = (left + right - wide) / 2, (top + bottom + high) / 2
            spots.append(
                Spot(float(left / box.width), float(1 - top / box.height), wide / box.width, high / box.height, text)
            )
    return spots


def _render(figure: Figure, panels: Sequence[Panel], form: str) -> tuple[bytes, list[Spot]]:
    with needing("Figures need", "matplotlib"):
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Drawing
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": figure.name, "font.size": 9, "axes.titlesize": 9.5, "text.color": INK,
        "font.family": ["DejaVu Sans"], "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.facecolor": PAPER,
        "legend.edgecolor": GRID, "legend.framealpha": 0.8, "axes.titleweight": "bold",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        heights = [max(LEAST, BAR * (panel.bars + 3)) if panel.bars else HEIGHT for panel in panels]
        whole = len(panels) == len(figure.panels)
        head = textwrap.fill(figure.title, LETTERS_OF_A_LINE) if whole else ""
        legend = LEGEND * any(panel.bars for panel in panels)
        height = sum(heights) + HEADLINE * len(head.splitlines()) + legend
        drawing = Drawing(figsize=(WIDTH, height), dpi=150, layout="constrained")
        FigureCanvasAgg(drawing)  # no window system, no global state
        every = drawing.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
        if head:
            drawing.suptitle(head, x=0.01, ha="left", weight="bold", size=10.5)
        for axes, panel in zip(every[:, 0], panels, strict=True):
            words = textwrap.fill(panel.title, LETTERS_OF_A_LINE) if len(panels) > 1 or not whole else ""
            axes.set_title("\n".join(" " for _ in words.splitlines()))  # keeps the room: where names fit depends on it
            panel.draw(axes)
            if words:
                at = {"xycoords": ("figure fraction", "axes fraction"), "textcoords": "offset points"}
                title = axes.annotate(words, (0.01, 1), (0, 6), size=9.5, weight="bold", **at)
                title.set_in_layout(False)  # it begins at the left of the drawing, beside which no axes give way
        file = io.BytesIO()
        drawing.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        return file.getvalue(), _spots(drawing)
