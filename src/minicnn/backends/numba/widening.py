"""Programs whose images are stored in bfloat16: everything computes in float32, and reads 16 bits where it can.

A cast to bfloat16 says what is stored, a cast back what is read: `stored` is what memory holds of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicnn import ops
from minicnn.backends.numba.short import SHORT
from minicnn.kernels.elements import widens
from minicnn.program.graph import Node, Program, Spec, Value
from minicnn.program.passes import PRODUCTS, remove_dead_nodes

# What only moves elements, so that they may move as they are stored.
_MOVES = ("reshape", "permute", "concat", "slice_", "repeat")


def stored(value: Value) -> Value:
    """The bfloat16 that a value was widened from, else the value itself."""
    return value.node.inputs[0] if value.node is not None and widens(value.node, SHORT) else value


def rounded_from(value: Value) -> Value:
    """The float32 that a kernel that rounds what it reads may take for a value."""
    cast = stored(value).node
    return value if cast is None or cast.op.name != "cast" else cast.inputs[0]


def before_rounding(value: Value) -> Value:
    """The float32 that a widened value was rounded from, else the value itself."""
    short = stored(value)
    return value if short is value or short.node is None or short.node.op.name != "cast" else short.node.inputs[0]


def is_short(*values: Value) -> bool:
    """True if memory holds all values in bfloat16."""
    return all(stored(v).dtype == SHORT for v in values)


def widen(program: Program) -> None:
    """Rewrite a Program in place so that only casts read and make bfloat16.

    Products take operands that are widened, and are not rounded: their sums are float32 until they are stored.
    """
    if not any(v.dtype == SHORT for node in program.nodes for v in (*node.inputs, *node.outputs)):
        return

    def rule(node: Node) -> Sequence[Value] | None:
        if node.op.name in PRODUCTS and any(v.dtype == SHORT for v in node.inputs):
            operands = [ops.cast(v, dtype="float32") if v.dtype == SHORT else v for v in node.inputs]
            return program.emit(node.op, operands, node.attrs).outputs
        if node.op.name == "cast" and node.attrs["dtype"] == stored(node.inputs[0]).dtype:
            return [stored(node.inputs[0])]
        if node.op.name in _MOVES and node.inputs[0].dtype == "float32" and is_short(*node.inputs):
            (moved,) = program.emit(node.op, [stored(v) for v in node.inputs], node.attrs).outputs
            return [ops.cast(moved, dtype="float32")]
        return None

    _hold_ends_in_float32(program)
    program.replace(rule)
    _read_rounded_maxima(program)
    remove_dead_nodes(program)


def _hold_ends_in_float32(program: Program) -> None:
    """Give and hand back bfloat16 as float32, which loses nothing: NumPy has no arrays of it."""
    short_inputs = {id(v): v for v in program.inputs if v.dtype == SHORT}
    for value in short_inputs.values():
        value.spec = Spec(value.shape, "float32")
    rounded: dict[int, Value] = {}

    def rule(node: Node) -> None:
        for value in node.inputs:
            if id(value) in short_inputs and id(value) not in rounded:
                rounded[id(value)] = ops.cast(value, dtype=SHORT)
        node.inputs = tuple(rounded.get(id(v), v) for v in node.inputs)

    program.replace(rule)
    for results in (program.outputs, program.updates):
        for name, value in results.items():
            if value.dtype == SHORT:
                results[name] = ops.cast(value, dtype="float32")


def _read_rounded_maxima(program: Program) -> None:
    """Have gradients of pooling read maxima as they are stored: of an image in bfloat16 they are rounded already."""
    widened = {id(before_rounding(v)): v for node in program.nodes for v in node.outputs if stored(v) is not v}
    for node in program.nodes:
        if node.op.name == "max_pool2d_gradient" and is_short(node.inputs[1]):
            node.inputs = (*node.inputs[:2], widened.get(id(node.inputs[2]), node.inputs[2]))
