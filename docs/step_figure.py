"""Draw how a training step of `kernels` becomes launches: docs/figures/kernels-launches.svg.

    python docs/step_figure.py

What is drawn is what `minicnn plan kernels --gpu h200 --json` says; a test compares the two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from minicnn import zoo
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.figures import DARK, GRID, INK, PALETTE, PAPER
from minicnn.optimizers import SGD

FIGURE = Path(__file__).resolve().parent / "figures" / "kernels-launches.svg"
COMMAND = ("plan", "kernels", "--gpu", "h200", "--json")
SOFT = {"light": "#5a5d66", "dark": "#a2a6b0"}

# One colour a family; an operation belongs to the first whose beginnings or endings it has.
FAMILIES = (
    ("convolution or matrix product", PALETTE[0], ("conv2d", "depthwise", "matmul"), ()),
    ("loss and metrics", PALETTE[2], ("softmax", "argmax", "equal", "cast"), ()),
    ("sum", PALETTE[1], ("sum", "reduce"), ()),
    ("optimizer", PALETTE[3], (), ("_update",)),
    ("element by element", PALETTE[8], ("",), ()),
)
WIDTH, LEFT, CHIPS, BARS, SCALE = 760, 34, 34, 540, 15.0  # pixels; SCALE is pixels a microsecond
LETTER, LINE, CHIP, GAP = 6.05, 21, 17, 5  # of a monospaced font of 10 pixels


def facts() -> dict[str, Any]:
    """What the command says of the step."""
    done = subprocess.run([sys.executable, "-m", "minicnn", *COMMAND], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def family(name: str) -> tuple[str, str]:
    """Name and colour of the family of an operation."""
    return next((f, c) for f, c, heads, tails in FAMILIES if name.startswith(heads) or name.endswith(tails))


def rows_of(nodes: list[str]) -> list[list[tuple[float, str, str]]]:
    """Lines of chips for the operations of a launch: left edge, text, colour."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    x = float(CHIPS)
    for name, count in Counter(nodes).items():
        text = name if count == 1 else f"{count} {name}"
        if lines[-1] and x + width(text) > BARS - 24:
            lines.append([])
            x = float(CHIPS)
        lines[-1].append((x, text, family(name)[1]))
        x += width(text) + GAP
    return lines


def width(text: str) -> float:
    """Pixels of a chip."""
    return LETTER * len(text) + 10


def operations() -> int:
    """How many nodes the Program has of which the command tells the launches."""
    model = zoo.get_model("kernels", preprocessing=[Rescaling(1 / 255)], input_dtype="uint8")
    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return len(model.program("train", batch_size=64).nodes)


def draw(found: dict[str, Any]) -> str:
    """The figure, whose colours follow the reader's light or dark setting."""
    launches, totals = found["launches"], found["totals"]
    share = sum(sorted(launch["modelled_s"] for launch in launches)[-3:]) / totals["modelled_s"]
    title = f"{operations()} operations become {len(launches)} launches; three of them take {share:.0%} of the time"
    body = [text(LEFT - 24, 22, title, "title")]
    x = LEFT - 24.0
    for name, colour, *_ in FAMILIES:
        body.append(f'<rect x="{x:.0f}" y="34" width="10" height="10" rx="2" fill="{colour}"/>')
        body.append(text(x + 14, 43, name, "soft"))
        x += 14 + 6.1 * len(name) + 18
    body.append(text(LEFT - 24, 70, "launch and the operations of the Program that it computes", "soft"))
    body.append(text(BARS, 70, "modelled time, us; solid: least", "soft"))
    y = 80
    for number, launch in enumerate(launches):
        lines = rows_of(launch["nodes"])
        height = LINE * len(lines)
        body.append(f'<line x1="10" x2="{WIDTH - 10}" y1="{y}" y2="{y}" class="grid"/>')
        body.append(text(LEFT - 24, y + 15, str(number), "number"))
        if launch["goes_on_beside"]:
            body.append(text(BARS - 45, y + 15, "beside", "soft"))
        for k, line in enumerate(lines):
            for left, word, colour in line:
                top, wide = y + 2 + k * LINE, width(word)
                box = f'x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{CHIP}" rx="3"'
                body.append(f'<rect {box} fill="{colour}" fill-opacity="0.18" stroke="{colour}"/>')
                body.append(text(left + 5, top + 12, word, "chip"))
        taken, least = (launch[key] * 1e6 for key in ("modelled_s", "roof_s"))
        body.append(f'<rect x="{BARS}" y="{y + 4}" width="{taken * SCALE:.1f}" height="13" class="bar"/>')
        body.append(f'<rect x="{BARS}" y="{y + 4}" width="{least * SCALE:.1f}" height="13" class="roof"/>')
        body.append(text(BARS + taken * SCALE + 5, y + 15, f"{taken:.1f}", "value"))
        y += height
    note = (
        f"minicnn plan kernels --gpu h200: batch 64, float32, {totals['flops'] / 1e9:.2f} GFLOP, "
        f"{totals['modelled_s'] * 1e6:.0f} us by the model. The least is by the H200's peak rates."
    )
    body.append(f'<line x1="10" x2="{WIDTH - 10}" y1="{y}" y2="{y}" class="grid"/>')
    body.append(text(LEFT - 24, y + 20, note, "soft"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 32}" width="{WIDTH}" height="{y + 32}" '
        f'role="img">\n<title>{escape(title)}</title>\n{style()}\n'
        f'<rect width="100%" height="100%" class="paper"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str) -> str:
    """A line of text that begins at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def style() -> str:
    """Rules of the classes, light and dark."""

    def colours(tones: dict[str, str]) -> str:
        return ":root{" + "".join(f"--{name}:{tone};" for name, tone in tones.items()) + "}"

    light = {"ink": INK, "paper": PAPER, "grid": GRID, "soft": SOFT["light"], "bar": "#8fb8d6"}
    dark = {"ink": DARK[INK], "paper": DARK[PAPER], "grid": DARK[GRID], "soft": SOFT["dark"], "bar": "#3d6480"}
    fonts = "font-family:system-ui,Helvetica,Arial,sans-serif"
    return (
        f"<style>{colours(light)}@media(prefers-color-scheme:dark){{{colours(dark)}}}\n"
        f"text{{{fonts};font-size:11px;fill:var(--ink)}}.title{{font-size:15px;font-weight:600}}"
        ".number{font-weight:600}.soft{fill:var(--soft)}.chip{font:10px ui-monospace,Menlo,Consolas,monospace}"
        ".paper{fill:var(--paper)}.grid{stroke:var(--grid)}.bar{fill:var(--bar)}"
        f".roof{{fill:{PALETTE[0]}}}</style>"
    )


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(draw(facts()), "utf-8")
