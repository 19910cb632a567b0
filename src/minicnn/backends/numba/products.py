"""Geometry of products and convolutions, and their epilogues: what rules for either order of axes need."""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import movement
from minicnn.backends.numba.correlate import Line, Operands, forward_line, gradient_lines
from minicnn.backends.numba.lowering import PLAIN, Key, Lowering, Task
from minicnn.backends.numba.operations import LANES
from minicnn.backends.numba.widening import rounded_from, stored
from minicnn.ops.windows import Window
from minicnn.program.graph import Node, Value

POINT = forward_line(1, 1, 1, 1, 0, 1)


def lines_of(node: Node, x: Value, kernel: tuple[int, int]) -> tuple[Line, Line]:
    """Forward geometry along rows and columns of an operation on images x."""
    a = node.attrs
    dilation = a.get("dilation", (1, 1))
    size = Window(kernel, a["strides"], a["padding"], dilation).output_size(node.op.name, x.shape[1], x.shape[2])
    rows, columns = (
        forward_line(x.shape[1 + i], kernel[i], a["strides"][i], dilation[i], a["padding"][i][0], size[i])
        for i in (0, 1)
    )
    return rows, columns


def all_lines(node: Node) -> list[list[Line]]:
    """Geometries along rows and columns of a convolution, or of its input gradient."""
    (dy, w), dx, a = node.inputs, node.outputs[0], node.attrs
    if not node.op.name.endswith("gradient"):
        return [[line] for line in lines_of(node, dy, (w.shape[0], w.shape[1]))]
    return [
        gradient_lines(
            dx.shape[1 + i], w.shape[i], a["strides"][i], a["dilation"][i], a["padding"][i][0], dy.shape[1 + i]
        )
        for i in (0, 1)
    ]


@dataclass(frozen=True)
class Ending:
    """Epilogue of a product: the operations on its sums before it stores them.

    Attributes:
        bias: Numbers of the channels that they start from.
        addend: Image that is added.
        finish: "relu", "relu6", or "mask": 0 where a value is not positive.
        mask: That value.
    """

    bias: Value | None = None
    addend: Value | None = None
    finish: str = ""
    mask: Value | None = None


NOTHING = Ending()


def ends_of(to: Lowering, ending: Ending) -> list[Key]:
    """Buffers that an ending reads."""
    bias = [] if ending.bias is None else [to.need(ending.bias, PLAIN)]
    images = [stored(v) for v in (ending.addend, ending.mask) if v is not None]
    return bias + [to.need(v, to.form_of_batch) for v in images]


def transposed(to: Lowering, node: Node, w: Value, taps: int, channels: int, filters: int, groups: int) -> Key:
    """The weights (taps, C, groups * F) as (taps, groups, F, C)."""
    key = to.scratch(node, "weights", w.nbytes)
    source = movement.transpose_weights(channels=channels, filters=filters, groups=groups)
    to.tasks.append(Task(node, [to.need(w, PLAIN)], [key], source, taps * groups * -(-filters // LANES)))
    return key


def paired(to: Lowering, node: Node, w: Value, shape: tuple[int, int, int, int], o: Operands) -> Key:
    """The weights (taps, C, groups * F) as pairs along what is summed."""
    taps, channels, filters, groups = shape
    pack = movement.paired_filters if o.flipped else movement.paired_weights
    source, items = pack(taps=taps, channels=channels, filters=filters, groups=groups)
    key = to.scratch(node, "weights", taps * groups * o.terms * o.filters * 4)
    to.tasks.append(Task(node, [to.need(rounded_from(w), PLAIN)], [key], source, items))
    return key
