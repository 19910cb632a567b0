"""The drawing of a Program by layers and phases, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minicnn import html

if TYPE_CHECKING:
    from minicnn.program.graph import Program, Value

COLUMNS = ("given", "forward", "backward", "update")
WIDE, HIGH, GAP, APART, TITLE, EDGE = 168, 36, 10, 40, 24, 12  # pixels
LETTERS = 23  # that fit into a box, of a monospaced font of 11 pixels
SHOWN = (
    "input",
    "parameter",
    "statistic",
)  # kinds of inputs; the optimizer's state and single numbers would only clutter it

Box = tuple[float, float]


def draw(program: Program) -> str:
    """SVG with a box for each node and each input that is data or a weight; boxes are numbered as in the list."""
    rows = _rows(program)
    used = [c for c in COLUMNS if any(row[c] for row in rows.values())]
    place = {column: EDGE + i * (WIDE + APART) for i, column in enumerate(used)}
    first = {id(node.outputs[0]): len(program.inputs) + i for i, node in enumerate(program.nodes)}
    numbers = {id(v): i for i, v in enumerate(program.inputs)} | first
    width = EDGE * 2 + len(used) * WIDE + (len(used) - 1) * APART
    boxes: dict[int, Box] = {}
    back, front = [], []
    y = TITLE
    back += [f'<text class="{c}" x="{place[c]}" y="15" font-weight="bold">{c}</text>' for c in used]
    for title, row in rows.items():
        most = max(len(cell) for cell in row.values())
        high = TITLE + most * (HIGH + GAP)
        back.append(f'<rect class="band" x="0" y="{y}" width="{width}" height="{high - 4}" rx="6"/>')
        back.append(f'<text class="layer" x="{EDGE}" y="{y + 17}">{html.escape(title)}</text>')
        for column, cell in row.items():
            # The backward pass goes up: what it computes first stands lowest.
            order = list(reversed(cell)) if column == "backward" else cell
            below = most - len(cell) if column == "backward" else 0
            for k, value in enumerate(order):
                boxes[numbers[id(value)]] = at = (place[column], y + TITLE + (below + k) * (HIGH + GAP))
                front.append(_box(numbers[id(value)], column, value, at))
        y += high
    edges = [_edge(a, b, boxes) for a, b in _reads(program, numbers) if a in boxes and b in boxes]
    size = f'viewBox="0 0 {width} {y}" width="{width}" height="{y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="group" aria-label="The nodes by layer and phase">'
        f"{''.join(back)}<g>{''.join(edges)}</g>{''.join(front)}</svg>"
    )


def _rows(program: Program) -> dict[str, dict[str, list[Value]]]:
    """By layer, in the order in which they are first run, and by phase: the first results of nodes, and inputs."""
    rows: dict[str, dict[str, list[Value]]] = {}

    def row(title: str) -> dict[str, list[Value]]:
        return rows.setdefault(title, {column: [] for column in COLUMNS})

    readers: dict[int, str] = {}
    for node in program.nodes:
        home = node.scope or program.name
        if node.phase == "update":  # beside the layer whose weight it is
            weight = next((v.name.rpartition("/")[0] for v in node.inputs if v.kind == "parameter"), None)
            home = weight if weight in rows else home
        row(home)[node.phase].append(node.outputs[0])
        for value in node.inputs:
            readers.setdefault(id(value), home)
    for value in program.inputs:
        if id(value) in readers and value.kind in SHOWN and value.shape:
            row(readers[id(value)])["given"].append(value)
    return rows


def _reads(program: Program, numbers: dict[int, int]) -> Iterator[tuple[int, int]]:
    for node in program.nodes:
        sources = {id(v.node.outputs[0] if v.node else v): v for v in node.inputs if v.kind != "constant"}
        for source in sources:
            yield numbers[source], numbers[id(node.outputs[0])]


def _box(number: int, column: str, value: Value, at: Box) -> str:
    title = value.node.op.name if value.node else value.name
    label = html.escape(f"{title}, {value.spec}, {value.node.scope if value.node else value.kind}, {column}")
    x, y = at
    return (
        f'<g class="step {column}" data-step="{number}" role="button" tabindex="-1" aria-label="{label}">'
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="5"/>'
        f'<text x="{x + 8}" y="{y + 15}">{html.escape(_short(title))}</text>'
        f'<text class="spec" x="{x + 8}" y="{y + 29}">{html.escape(_short(str(value.spec)))}</text></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _edge(a: int, b: int, boxes: dict[int, Box]) -> str:
    """A line from box to box: along a column by its side unless they are neighbours, and else across."""
    (x0, y0), (x1, y1) = boxes[a], boxes[b]
    middle = HIGH / 2
    if x0 == x1 and abs(y1 - y0) < 2 * HIGH + TITLE:
        down = y1 > y0
        path = f"M{x0 + WIDE / 2:g} {y0 + HIGH * down:g}L{x1 + WIDE / 2:g} {y1 + HIGH * (not down):g}"
    elif x0 == x1:
        out = x0 + WIDE + APART * 0.7
        path = (
            f"M{x0 + WIDE} {y0 + middle:g}C{out:g} {y0 + middle:g} {out:g} {y1 + middle:g} {x1 + WIDE} {y1 + middle:g}"
        )
    else:
        start, end = (x0 + WIDE, x1) if x0 < x1 else (x0, x1 + WIDE)
        bend = (start + end) / 2
        path = f"M{start} {y0 + middle:g}C{bend:g} {y0 + middle:g} {bend:g} {y1 + middle:g} {end} {y1 + middle:g}"
    return f'<path class="edge" data-from="{a}" data-to="{b}" d="{path}"/>'
