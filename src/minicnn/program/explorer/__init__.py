"""A Program as a page to explore: its nodes as a list and as a drawing, and what there is to know of each.

The drawing has a row for each layer and a column for each phase. The forward pass goes down, the backward pass beside
it goes up, and the lines between the two are the values that have to be kept for it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minicnn import html
from minicnn.program.explorer.layout import draw
from minicnn.program.printing import counts, engineering, operation

if TYPE_CHECKING:
    from minicnn.program.graph import Node, Program, Value
    from minicnn.trace import TracedValue

PIXELS = 400  # of a picture's longer side, at most
MOST_PICTURE_BYTES = 1 << 24  # of all pictures of a page: a browser has to hold them at once
ELSEWHERE = "another node, which a pass of the backend puts in its place"
PHASES = ("given", "forward", "backward", "update")


def explorer(
    program: Program, run_by: Iterable[tuple[Node, str]] = (), trace: Mapping[str, TracedValue] | None = None
) -> str:
    """The page as HTML.

    Args:
        program: The Program.
        run_by: What runs each node, as `Backend.explain` says.
        trace: Values by their names in the Program, for statistics and pictures.
    """
    kernels = _kernels(program, list(run_by))
    steps = [
        *(_Entry((v,), (), None) for v in program.inputs),
        *(_Entry(n.outputs, n.inputs, n) for n in program.nodes),
    ]
    numbers = {id(v): i for i, step in enumerate(steps) for v in step.results}
    becomes: dict[int, list[str]] = {}
    for what, values in (("output", program.outputs), ("new value of", program.updates)):
        for name, value in values.items():
            becomes.setdefault(id(value), []).append(f"{what} {name}")
    pictures = _Pictures(trace or {})
    described = []
    for step in steps:
        reads = [(_argument(v), numbers.get(id(v), -1)) for v in step.reads]
        results = [
            {"name": v.name, "spec": str(v.spec), "bytes": f"{engineering(v.nbytes)}B",
             "becomes": becomes.get(id(v), []), **pictures.of(v)}
            for v in step.results
        ]  # fmt: skip
        described.append({**step.about(kernels), "reads": reads, "values": results, "read": []})
    for i, entry in enumerate(described):
        for _, source in entry["reads"]:
            if source >= 0 and i not in described[source]["read"]:
                described[source]["read"].append(i)
    total = max(program.flops, 1), max(program.bytes_moved, 1)
    title = f"Program {program.name!r}"
    body = (
        f"<main><h1>{html.escape(title)}</h1><p class=soft>{html.escape(counts(program))}; "
        f"{engineering(program.memory().peak_bytes)}B at the moment when most is held</p>{_CONTROLS}"
        f"<div class=panes><div class=views><div id=list>{_list(described, total)}</div><div id=graph hidden>"
        f"{draw(program)}</div></div><aside id=detail aria-live=polite aria-label='The chosen node'></aside></div>"
        "</main>"
    )
    from importlib.resources import files  # loads much, and only who writes pages needs it

    here = files("minicnn.program.explorer")
    style, script = ((here / name).read_text("utf-8") for name in ("page.css", "page.js"))
    return html.document(title, body, style=style, script=script, data=described)


_CONTROLS = (
    "<div class=bar role=toolbar aria-label='What is shown'><button id=as-list aria-pressed=true>List</button>"
    "<button id=as-graph aria-pressed=false>Graph</button>"
    + "".join(f"<button class={p} data-phase={p} aria-pressed=true>{p}</button>" for p in PHASES)
    + "<input id=search type=search placeholder='name, operation, layer' aria-label='Show only what contains'></div>"
    "<p class=soft>Point at a node or choose it; the arrow keys go to the next one, to what it reads (left) and to "
    "what reads it (right).</p>"
)


def _kernels(program: Program, run_by: Sequence[tuple[Node, str]]) -> dict[str, str]:
    """Kernel of each node, by the name of its first result."""
    if not run_by:
        return {}
    named = {node.outputs[0].name: how for node, how in run_by}

    def kernel(node: Node) -> str:
        # A pass of the backend may have put others in its place: of the same operation, or of a part of it.
        alike = {
            how for n, how in run_by
            if (n.scope, n.phase) == (node.scope, node.phase) and n.op.name.startswith(node.op.name)
        }  # fmt: skip
        return named.get(node.outputs[0].name) or " or ".join(sorted(alike)) or ELSEWHERE

    return {node.outputs[0].name: kernel(node) for node in program.nodes}


class _Entry:
    """An entry of the page: a node, or an input of the Program."""

    def __init__(self, results: Sequence[Value], reads: Sequence[Value], node: Node | None) -> None:
        self.results, self.reads, self._node = results, reads, node

    def about(self, kernels: Mapping[str, str]) -> dict[str, Any]:
        """Facts on it besides its values."""
        node, value = self._node, self.results[0]
        if node is None:
            return {"title": value.name, "phase": "given", "scope": value.kind, "says": "", "flops": "", "moved": "",
                    "cost": [0, 0], "ratio": "", "kernel": ""}  # fmt: skip
        cost, lines = node.cost, (node.op.__doc__ or "").strip().splitlines()
        return {
            "title": operation(node), "phase": node.phase, "scope": node.scope, "says": lines[0] if lines else "",
            "flops": f"{engineering(cost.flops)}FLOP", "moved": f"{engineering(cost.bytes)}B",
            "cost": [cost.flops, cost.bytes],
            "ratio": f"{cost.flops / cost.bytes:.3g} FLOP a byte" if cost.bytes else "",
            "kernel": kernels.get(value.name, ""),
        }  # fmt: skip


class _Pictures:
    """Statistics and pictures of the values of a trace, as long as there is room for them."""

    def __init__(self, trace: Mapping[str, TracedValue]) -> None:
        self._trace, self._room = trace, MOST_PICTURE_BYTES

    def of(self, value: Value) -> dict[str, Any]:
        if not self._trace:
            return {}
        traced = self._trace[value.name]
        said = {"statistics": str(traced.statistics)}
        if value.shape == ():
            return {"statistics": f"{traced.array[()]:.6g}"}
        try:
            picture = traced.picture()
        except ValueError:  # of more than four axes, or without elements
            return said
        every = -(-max(picture.pixels.shape) // PIXELS)
        png = type(picture)(picture.pixels[::every, ::every], picture.caption)._repr_png_()
        if len(png) > self._room:
            return said
        self._room -= len(png)
        return {**said, "picture": base64.b64encode(png).decode(), "caption": picture.caption}


def _argument(value: Value) -> str:
    return value.name if value.kind != "constant" or value.shape == () else f"constant {value.spec}"


def _list(steps: Sequence[Mapping[str, Any]], total: tuple[int, int]) -> str:
    """A list for each phase, which can be read without the script as well."""
    parts = []
    for phase in PHASES:
        rows = [(i, step) for i, step in enumerate(steps) if step["phase"] == phase]
        if not rows:
            continue
        flops, moved = (sum(step["cost"][k] for _, step in rows) for k in (0, 1))
        said = f"{engineering(flops)}FLOP, {engineering(moved)}B" if phase != "given" else "inputs, weights and state"
        items = "".join(_item(i, step, total) for i, step in rows)
        parts.append(
            f"<section data-phase={phase}><h2 class={phase}>{phase} <span class=soft>{len(rows)}: {said}</span></h2>"
            f"<ol>{items}</ol></section>"
        )
    return "".join(parts)


def _item(number: int, step: Mapping[str, Any], total: tuple[int, int]) -> str:
    names = ", ".join(v["name"] for v in step["values"])
    title = step["title"] if step["phase"] == "given" else f"{names} = {step['title']}"
    shapes = ", ".join(v["spec"] for v in step["values"])
    bars = "".join(
        f"<i style='width:{100 * cost / whole:.1f}%'></i>" for cost, whole in zip(step["cost"], total, strict=True)
    )
    return (
        f"<li><button class=step data-step={number}><span class=code>{html.escape(title)}</span>"
        f"<span class=soft>{html.escape(step['scope'])} <span class=code>{html.escape(shapes)}</span></span>"
        f"<span class=share aria-hidden=true>{bars}</span></button></li>"
    )
