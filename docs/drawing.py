"""Parts of the pictures of these pages: text, arrows, images and tables of numbers as SVG."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn import data
from minicnn.html import escape

STYLE = (
    "<style>svg{--ink:#1c1d21;--soft:#5a5d66;--paper:#fdfdfe;--card:#f1f2f5;--line:#b9bcc4;--blue:#0072b2;"
    "--orange:#b04a00;--green:#007a57;--pink:#8a3f70;color:var(--ink);background:var(--paper)}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6e7ea;--soft:#a9adb6;--paper:#15171b;--card:#1f2228;--line:#50545d;"
    "--blue:#6db9ea;--orange:#f0a35e;--green:#4fc79f;--pink:#e0a1c8}}"
    ".bold{font-weight:700}.soft{fill:var(--soft)}.big{font-size:15px}.mono{font-family:monospace}"
    ".box{fill:var(--card);stroke:var(--line)}.band{fill:var(--card)}.layer,.spec{fill:var(--soft)}"
    ".step rect{fill:var(--paper);stroke:currentColor}.step text{fill:var(--ink)}.step .spec{fill:var(--soft)}"
    ".given{color:var(--pink)}.forward{color:var(--blue)}.backward{color:var(--orange)}.update{color:var(--green)}"
    "text.given,text.forward,text.backward,text.update{fill:currentColor}"
    ".edge{fill:none;stroke:var(--soft);stroke-opacity:.5}.arrow{fill:none;stroke:var(--soft);stroke-width:1.5}</style>"
)
HEAD = (
    '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:var(--soft)"/></marker></defs>'
)


def svg(title: str, width: float, height: float, body: str) -> str:
    """A picture, whose colours follow the reader's light or dark setting."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    font = 'font-family="sans-serif" font-size="12" fill="currentColor" role="img"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><title>{escape(title)}</title>{STYLE}{HEAD}{body}'
        "</svg>\n"
    )


def text(x: float, y: float, words: Any, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    where = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f"<text {where}{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(words)}</text>"


def arrow(*points: tuple[float, float]) -> str:
    """A line with a head at its end."""
    return f'<path class="arrow" marker-end="url(#to)" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def grey(pixel: int) -> str:
    """The colour of a pixel."""
    return f"#{int(pixel):02x}{int(pixel):02x}{int(pixel):02x}"


def pixels(image: Any, x: float, y: float, side: float) -> str:
    """A grey image (H, W) as squares; neighbours of one colour are one."""
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{side * image.shape[1]:g}" height="{side * len(image):g}"/>']
    for i, row in enumerate(np.asarray(image) // 17 * 17):
        j = 0
        while j < len(row):
            end = j + 1
            while end < len(row) and row[end] == row[j]:
                end += 1
            if row[j]:
                box = f'x="{x + side * j:g}" y="{y + side * i:g}" width="{side * (end - j):g}" height="{side:g}"'
                parts.append(f'<rect {box} fill="{grey(row[j])}"/>')
            j = end
    return f'<g shape-rendering="crispEdges" fill="#000">{"".join(parts)}</g>'


def numbers(
    table: Any, x: float, y: float, side: float, form: str = "{:.0f}", fills: Any = None, wide: float = 0
) -> str:
    """A table of numbers in boxes of a height, which are squares unless a width is given."""
    parts, wide = [], wide or side
    for i, row in enumerate(np.asarray(table)):
        for j, value in enumerate(row):
            fill = "none" if fills is None else fills[i][j]
            box = f'x="{x + wide * j:g}" y="{y + side * i:g}" width="{wide:g}" height="{side:g}"'
            number = form.format(value).replace("-", "−")
            parts.append(f'<rect {box} fill="{fill}" stroke="var(--line)"/>')
            parts.append(text(x + wide * (j + 0.5), y + side * (i + 0.5) + 4, number, "mono", "middle"))
    return "".join(parts)


def frame(x: float, y: float, wide: float, high: float, tone: str = "orange") -> str:
    """A box that marks a part of a table."""
    box = f'x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"'
    return f'<rect {box} style="fill:var(--{tone});stroke:var(--{tone})" fill-opacity=".16" stroke-width="2.5"/>'


def digit() -> Any:
    """The digit of the first step."""
    return data.load("synthetic_digits", n_train=64, n_test=16).x_train[0, :, :, 0]
