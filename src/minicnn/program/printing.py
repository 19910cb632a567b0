"""A Program as a readable table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minicnn import html

if TYPE_CHECKING:
    from minicnn.program.graph import Node, Program, Value


def table(program: Program) -> str:
    """One line for each node: result, operation with its inputs, shape, dtype, FLOPs, bytes, phase and scope."""
    rows = [_HEADER, *(_row(node) for node in program.nodes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {3, 4}
    lines = [f"Program {program.name!r}"]
    lines += [f"  {value.kind} {value.name}: {value.spec}" for value in program.inputs]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines += [f"  output {name} = {value.name}" for name, value in program.outputs.items()]
    lines += [f"  update {name} <- {value.name}" for name, value in program.updates.items()]
    return "\n".join([*lines, counts(program)])


_HEADER = ("result", "operation", "shape", "FLOPs", "bytes", "phase", "scope")


def _row(node: Node) -> tuple[str, ...]:
    cost = node.cost
    return (
        ", ".join(v.name for v in node.outputs), operation(node), ", ".join(str(v.spec) for v in node.outputs),
        engineering(cost.flops), engineering(cost.bytes), node.phase, node.scope,
    )  # fmt: skip


def counts(program: Program) -> str:
    """Count of a Program's nodes and operations, and of the bytes that it moves, as text."""
    sent = f", {engineering(program.bytes_sent)}B sent" if program.bytes_sent else ""
    flops, moved = engineering(program.flops), engineering(program.bytes_moved)
    return f"{len(program.nodes)} nodes, {flops}FLOP, {moved}B moved{sent}"


def page(program: Program) -> str:
    """HTML: counts, memory from node to node, and the tables of inputs and nodes to unfold."""
    inputs: list[tuple[Any, ...]] = [(v.name, v.kind, v.spec) for v in program.inputs]
    results = [(f"{what} {name}", v.name, v.spec) for what, values in (("output", program.outputs),
               ("update", program.updates)) for name, v in values.items()]  # fmt: skip
    return html.block(
        f"Program {program.name!r}: {counts(program)}",
        program.memory().strip()._repr_html_(),
        html.folded("inputs and results", html.table(("name", "kind", "shape"), inputs + results)),
        html.folded("nodes", html.table(_HEADER, [_row(node) for node in program.nodes])),
    )


def operation(node: Node) -> str:
    """`name(inputs, attributes)`, attributes that have their default value left out."""
    defaults = node.op.attr_defaults
    attrs = [f"{k}={_short(v)}" for k, v in node.attrs.items() if k not in defaults or defaults[k] != v]
    return f"{node.op.name}({', '.join([*(_argument(v) for v in node.inputs), *attrs])})"


def _argument(value: Value) -> str:
    return value.name if value.kind != "constant" or value.shape == () else f"{value.name}:{value.spec}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).replace(" ", "")


def engineering(n: float) -> str:
    """A count with three digits and k, M, G or T."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= 0.9995 * factor:  # three digits would round up to the next letter
            return f"{n / factor:.3g} {letter}"
    return f"{n:.3g} "
