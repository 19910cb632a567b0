"""Files of figures: SVGs that follow a light or dark page, with the places that answer to the pointer, and PNGs."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.extras import needing
from minicnn.measure.figures import DARK, GRID, HEIGHT, INK, NAMES, PAPER, SPOTS, WIDTH
from minicnn.measure.page import Figure, Panel

BAR = 0.22  # inches for each bar, where there are many
LEAST = 2.0  # inches of the lowest panel
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
    columns = min(len(panels), figure.columns)
    rows = math.ceil(len(panels) / columns)
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": figure.name, "font.size": 9, "axes.titlesize": 10, "text.color": INK,
        "font.family": ["DejaVu Sans"], "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "figure.facecolor": PAPER, "axes.facecolor": PAPER, "legend.facecolor": PAPER,
        "legend.edgecolor": GRID, "legend.framealpha": 0.8, "axes.titleweight": "bold",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        height = max(max(LEAST, BAR * (panel.bars + 4)) if panel.bars else HEIGHT for panel in panels)
        drawing = Drawing(figsize=(2 * WIDTH, height * rows), dpi=150, layout="constrained")
        FigureCanvasAgg(drawing)  # no window system, no global state
        for place, panel in enumerate(panels, start=1):
            axes = drawing.add_subplot(rows, columns, place)
            panel.draw(axes)
            if len(panels) > 1:
                axes.set_title(panel.title, loc="left")
        if len(panels) == 1:
            drawing.suptitle(panels[0].title, x=0.01, ha="left", weight="bold", size=10.5)
        file = io.BytesIO()
        drawing.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
        return file.getvalue(), _spots(drawing)
