"""Unrolled convolution (im2col): all taps side by side in one matrix, then one matrix product.

(K. Chellapilla, S. Puri, P. Simard, High performance convolutional neural networks for document processing, 2006.)
"""

from __future__ import annotations

import math
from typing import Any

from minicnn.ops.convolution import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from minicnn.ops.primitive import Array, Cost, Namespace
from minicnn.ops.strategies.accounts import outer_scratch, padded, tap_copy
from minicnn.ops.strategies.strategy import PRIMITIVES, Direction, Problem, Strategy
from minicnn.ops.windows import Axes, Pair, Window
from minicnn.program.graph import Node


class Unrolled(Strategy):
    """The references of the primitives: columns (N * OH * OW, KH * KW * C) times w (KH * KW * C, F)."""

    name = "unrolled"
    title = "unrolled (im2col and one product)"

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        return conv2d.reference(x, w, **_attrs(window, axes), xp=xp)

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        return conv2d_input_gradient.reference(dy, w, image=image, **_attrs(window, axes), xp=xp)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        return conv2d_weight_gradient.reference(dy, x, kernel=window.kernel, **_attrs(window, axes), xp=xp)

    def peak(self, problem: Problem, direction: Direction) -> int:
        """See `Strategy.peak`: the columns, beside the padded image while they are gathered."""
        rows, result = math.prod(problem.w_shape[:3]), problem.result_bytes(direction)
        columns = problem.nbytes(problem.batch * math.prod(problem.output) * rows)
        image, making = padded(problem)
        if problem.kernel == (1, 1):  # the image is its own columns
            columns = tap_copy(problem) if direction != "input gradient" or not image else columns
            image, gathered = 0, image
        else:
            gathered = 0
        if direction == "input gradient":
            return columns + result
        if direction == "weight gradient":
            result += outer_scratch(problem, rows, problem.batch, math.prod(problem.output))
        return max(making, image + columns, gathered + columns + result)


def _attrs(window: Window, axes: Axes) -> dict[str, Any]:
    layout = sorted("NHWC", key=lambda a: getattr(axes, a.lower()))
    return {
        "strides": window.strides, "padding": window.padding, "dilation": window.dilation,
        "data_format": "".join(layout),
    }  # fmt: skip


@conv2d.cost
@conv2d_input_gradient.cost
@conv2d_weight_gradient.cost
def _(node: Node) -> Cost:
    """Each output element takes KH * KW * C / groups multiply-adds."""
    problem = Problem.of(node)
    moved = 0
    for value in (*node.inputs, *node.outputs):
        moved += value.nbytes
    return Cost(problem.flops, moved, Unrolled().workspace(problem, PRIMITIVES[node.op.name]) or 0)
