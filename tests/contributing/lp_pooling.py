"""A pooling that is added as CONTRIBUTING.md says: the primitive, and one entry that is its kernel on every engine."""

from __future__ import annotations

from typing import Any

from minicnn import ops
from minicnn.kernels.elements import Rule
from minicnn.kernels.expressions import Body, Call, Element, Expr
from minicnn.kernels.windows import C, H, N, U, V, W, Windows
from minicnn.ops import primitive
from minicnn.ops.convolution import NO_PADDING
from minicnn.ops.pooling import pooled_spec
from minicnn.ops.windows import Axes, Padding, Pair, Window, image_size, pad_image
from minicnn.program import Node, Value
from minicnn.program.graph import Spec

Array = Any


@primitive
def lp_pool2d(
    x: Array, *, p: float, kernel: Pair, strides: Pair, padding: Padding = NO_PADDING, data_format: str = "NHWC",
    xp: Any,
) -> Array:  # fmt: skip
    """The p-norm of each window: (sum of |x|^p)^(1/p), as in arXiv:1204.3968.

    Args:
        x: Images (N, H, W, C).
        p: At least 1.
        kernel: Window (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)) of zeros.
        data_format: Order of the axes of x and y.

    Returns:
        y (N, OH, OW, C).
    """
    axes, window = Axes.of(data_format), Window(kernel, strides, padding)
    size = window.output_size("lp_pool2d", *image_size(x, axes))
    taps = window.taps(pad_image(xp.abs(x) ** p, padding, axes, xp, 0.0), axes, size)
    return sum(taps[1:], start=taps[0]) ** (1 / p)


@lp_pool2d.shape
def _(x: Spec, *, p: float, kernel: Pair, strides: Pair, padding: Padding, data_format: str) -> Spec:
    if p < 1:
        raise ValueError(f"lp_pool2d takes p of at least 1, with which it is a norm. Received: p={p}.")
    return pooled_spec("lp_pool2d", x, Window(kernel, strides, padding), data_format)


@lp_pool2d.gradient
def _(node: Node, dy: Value) -> Value:
    """dx = sign(x) |x|^(p - 1) times the sum of dy y^(1 - p) over windows; 0 where all of a window is 0."""
    (x,), (y,) = node.inputs, node.outputs
    attrs = dict(node.attrs)
    p = attrs.pop("p")
    taps = attrs["kernel"][0] * attrs["kernel"][1]
    share = ops.where(ops.greater(y, 0.0), dy * ops.power(y + ops.cast(ops.equal(y, 0.0), dtype=y.dtype), 1 - p), 0.0)
    image = image_size(x, Axes.of(attrs["data_format"]))
    spread = ops.average_pool2d_gradient(share * taps, image=image, count_padding=True, **attrs)
    return ops.sign(x) * ops.power(ops.abs(x), p - 1) * spread


@lp_pool2d.cost
def _(node: Node) -> int:
    rows, columns = node.attrs["kernel"]
    return int(node.outputs[0].size * rows * columns * 3)


def element(node: Node, result: int) -> Body:
    """Element i: the sum over the window of |x|^p, and its root."""
    windows, p = Windows(node), node.attrs["p"]

    def power(x: Expr, exponent: float) -> Expr:
        return Call("power", (x, windows.number(exponent)), windows.dtype)

    def term(_: Expr) -> tuple[Any, ...]:
        x = Element(0, windows.x.at(N, H, W, C))
        return (windows.added(power(Call("abs", (x,), windows.dtype), p)),)

    rows = windows.sliding(0, lambda a: windows.sliding(1, term))
    total = windows.summed(*windows.y.coordinates(N, U, V, C), *rows)
    return Body(total.statements, power(total.result, 1 / p), windows.dtype)


ENTRY: dict[str, Rule] = {"lp_pool2d": element}
