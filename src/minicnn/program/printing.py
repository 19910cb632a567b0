"""A Program as a readable table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicnn.program.graph import Node, Program, Value


def table(program: Program) -> str:
    """One line for each node: result, operation with its inputs, shape, dtype, FLOPs, bytes, phase and scope."""
    rows = [("result", "operation", "shape", "FLOPs", "bytes", "phase", "scope")]
    for node in program.nodes:
        cost = node.cost
        rows.append(
            (
                ", ".join(v.name for v in node.outputs),
                operation(node),
                ", ".join(str(v.spec) for v in node.outputs),
                engineering(cost.flops),
                engineering(cost.bytes),
                node.phase,
                node.scope,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = {3, 4}
    lines = [f"Program {program.name!r}"]
    lines += [f"  {value.kind} {value.name}: {value.spec}" for value in program.inputs]
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines += [f"  output {name} = {value.name}" for name, value in program.outputs.items()]
    lines += [f"  update {name} <- {value.name}" for name, value in program.updates.items()]
    sent = f", {engineering(program.bytes_sent)}B sent" if program.bytes_sent else ""
    lines.append(
        f"{len(program.nodes)} nodes, {engineering(program.flops)}FLOP, {engineering(program.bytes_moved)}B moved{sent}"
    )
    return "\n".join(lines)


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
