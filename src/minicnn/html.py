"""HTML and SVG: tables, curves and strips for notebooks, and pages of one file, in the colours of light or dark.

Letters and lines have the colour of the text around them; areas have middle tones that can be seen on both. Everything
that comes from outside is escaped, and nothing of it is run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.files import write_named

# M. Okabe, K. Ito, Color Universal Design, 2008: colours that people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

# A file has no text around it: it follows the reader's setting.
_ALONE = (
    "<style>svg{color:#1c1d21;background:#fdfdfe}"
    "@media(prefers-color-scheme:dark){svg{color:#e6e7ea;background:#15171b}}</style>"
)


_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG, which a notebook shows.

    Attributes:
        title: What it shows.
        width: Width in pixels.
        height: Height in pixels.
        body: The elements.
    """

    title: str
    width: int
    height: int
    body: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an SVG file.

        Raises:
            ValueError: If the path has another ending.
            OSError: If it cannot be written.
        """
        write_named(path, "A drawing", "svg", self._svg(_ALONE).encode())

    def _svg(self, style: str = "") -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        font = 'font-family="sans-serif" font-size="11" fill="currentColor" role="img"'
        title = f"<title>{escape(self.title)}</title>"
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{title}{style}{self.body}</svg>'

    def _repr_html_(self) -> str:
        return self._svg()

    def __repr__(self) -> str:
        return f"<Drawing of {self.title}, {self.width} x {self.height}: save('figure.svg') writes it>"


def escape(text: Any) -> str:
    """Text as it stands between tags and within quotes; characters that XML lacks are replaced."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", html.escape(str(text)))


# Each ink has a contrast of at least 4.5 on paper and on cards, in light and in dark.
_PAGE_STYLE = """
:root{--ink:#1c1d21;--soft:#5a5d66;--paper:#fdfdfe;--card:#f1f2f5;--line:#d3d5da;--link:#0b5ea8;--mark:#b04a00;
--forward:#0072b2;--backward:#b04a00;--update:#007a57;--given:#8a3f70;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#e6e7ea;--soft:#a9adb6;--paper:#15171b;--card:#1f2228;--line:#3a3d44;
--link:#7db8f0;--mark:#f0a35e;--forward:#6db9ea;--backward:#f0a35e;--update:#4fc79f;--given:#e0a1c8}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:84rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.2;margin:.2rem 0}h2{font-size:1.1rem;margin:1rem 0 .3rem}
a{color:var(--link)}
button,input,select{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:.35rem;padding:.25rem .6rem}
button{cursor:pointer}button[aria-pressed=true]{border-color:var(--link);box-shadow:inset 0 0 0 1px var(--link)}
:focus-visible{outline:2px solid var(--link);outline-offset:1px}
.soft{color:var(--soft);font-size:.9rem}
code,.code{font:.9em/1.4 ui-monospace,monospace;overflow-wrap:anywhere;unicode-bidi:isolate}
"""


def document(
    title: str, body: str, *, style: str = "", script: str = "", data: Any = None, asks_itself: bool = False
) -> str:
    """A page in one file that reads nothing else; a browser is told to run only its script and to ask no network.

    Args:
        title: Title.
        body: HTML, in which what comes from outside is escaped already.
        style: Style sheet, after that of all pages.
        script: JavaScript; reads `data` from the element "data".
        data: Plain data.
        asks_itself: Whether its script may ask the server that the page comes from.
    """
    # What a browser may run is named by its hash, so that no name within the page can become a script.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    policy += "; connect-src 'self'" * asks_itself
    plain = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    scripts = f'<script type="application/json" id="data">{plain}</script><script>{script}</script>' if script else ""
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}{style}</style></head>\n<body>{body}"
        f"{scripts}</body></html>\n"
    )


def block(title: str, *parts: str) -> str:
    """A title and parts that are HTML already."""
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]], most: int = 500) -> str:
    """A table; numbers, and columns of them, are on the right.

    Args:
        header: Titles of the columns.
        rows: Cells; text is escaped.
        most: Rows that are shown.
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:most])
    rest = f"<tr><td colspan={len(header)}>and {len(rows) - most} more</td></tr>" if len(rows) > most else ""
    titles = "".join(f"<th>{escape(title)}</th>" for title in header)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}{rest}</tbody></table>"


def paragraph(text: str) -> str:
    """A line of text below a table."""
    return f"<p>{escape(text)}</p>"


def folded(title: str, inside: str) -> str:
    """Something that is seen when one clicks at its title."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def _cell(value: Any) -> str:
    text = escape(value)
    side = "right" if text[:1].isdigit() or text[:1] == "-" else "left"
    return f'<td style="text-align:{side}">{text}</td>'


def curves(title: str, x: Sequence[float], panels: Mapping[str, Mapping[str, Sequence[Any]]]) -> Drawing:
    """Lines over x, a panel for each group of them.

    Args:
        title: What they show.
        x: Places of the points.
        panels: By title, lines by name; what is no finite number is left out.
    """
    width, height = 300, 170
    parts = [
        f'<g transform="translate({width * i + 8} 8)">{_panel(name, x, lines, width - 24, height - 24)}</g>'
        for i, (name, lines) in enumerate(panels.items())
    ]
    return Drawing(title, max(width * len(panels), 60), height, "".join(parts))


def _panel(title: str, x: Sequence[float], lines: Mapping[str, Sequence[Any]], width: int, height: int) -> str:
    points = {n: [(at, float(v)) for at, v in zip(x, ys, strict=False) if math.isfinite(v)] for n, ys in lines.items()}
    known = [p for line in points.values() for p in line] or [(0.0, 0.0)]
    (left, right), (low, high) = ((min(side), max(side)) for side in zip(*known, strict=True))
    down, across = (high - low) or 1.0, (right - left) or 1.0
    top, inner, start = 28, height - 44, 44

    def place(at: float, value: float) -> str:
        return f"{start + (at - left) / across * (width - start - 6):.1f},{top + (high - value) / down * inner:.1f}"

    drawn = [f'<path d="M{start} {top}v{inner}h{width - start}" fill="none" stroke="currentColor" opacity="0.4"/>']
    drawn.append(f'<text x="0" y="10" font-weight="bold">{escape(title)}</text>')
    for y, value in ((top + 4, high), (top + inner, low)):
        drawn.append(f'<text x="{start - 4}" y="{y}" text-anchor="end">{value:.3g}</text>')
    for x_pixel, value in ((start, left), (width - 6, right)):
        drawn.append(f'<text x="{x_pixel}" y="{height - 2}" text-anchor="middle">{value:g}</text>')
    key = start
    for (name, line), colour in zip(points.items(), COLOURS * (len(points) // len(COLOURS) + 1), strict=False):
        where = " ".join(place(*p) for p in line)
        drawn.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if len(line) == 1:
            x_only, y_only = where.split(",")
            drawn.append(f'<circle cx="{x_only}" cy="{y_only}" r="3" fill="{colour}"/>')
        drawn.append(_key(key, 23, name, colour))
        key += 24 + 6 * len(name)
    return "".join(drawn)


def _key(x: int, y: int, name: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}"><tspan fill="{colour}">\N{BLACK SQUARE}</tspan> {escape(name)}</text>'


def strip(title: str, amounts: Sequence[Mapping[str, int]], unit: str) -> Drawing:
    """Stacked amounts by kind over a row of moments.

    Args:
        title: What it shows.
        amounts: For each moment the amounts by kind, of which all have the same kinds.
        unit: What is counted.
    """
    width, height = 600, 70  # pixels
    most = max((sum(a.values()) for a in amounts), default=0) or 1
    step = width / max(len(amounts), 1)
    drawn, key = [], 0
    below = [0.0] * len(amounts)
    for kind, colour in zip(amounts[0] if amounts else (), COLOURS, strict=False):
        above = [b + a[kind] * height / most for a, b in zip(amounts, below, strict=True)]
        upper = "".join(f"V{16 + height - y:.1f}H{(i + 1) * step:.1f}" for i, y in enumerate(above))
        lower = "".join(f"V{16 + height - y:.1f}H{i * step:.1f}" for i, y in reversed(list(enumerate(below))))
        drawn.append(f'<path d="M0 {16 + height}{upper}{lower}Z" fill="{colour}"/>')
        drawn.append(_key(key, 11, kind, colour))
        key, below = key + 24 + 6 * len(kind), above
    drawn.append(f'<text x="{width}" y="11" text-anchor="end">at most {most:,} {escape(unit)}</text>')
    return Drawing(title, width, height + 20, "".join(drawn))
