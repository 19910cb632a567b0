"""The strategy of convolution: three maps that compute what conv2d and its gradients promise, another way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from minicnn.ops.convolution import NO_PADDING, join, split
from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.windows import Axes, Padding, Pair, Window, image_size
from minicnn.program.graph import ITEMSIZE, Node

Direction = Literal["forward", "input gradient", "weight gradient"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "input gradient", "weight gradient")

# The primitive that each direction is, and that a strategy can take the place of.
PRIMITIVES: dict[str, Direction] = {
    "conv2d": "forward",
    "conv2d_input_gradient": "input gradient",
    "conv2d_weight_gradient": "weight gradient",
}


@dataclass(frozen=True)
class Problem:
    """The sizes of one convolution.

    Attributes:
        batch: Images N.
        image: (H, W).
        channels: C.
        filters: F.
        kernel: (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)).
        dilation: (DH, DW).
        groups: Parts of the channels that are convolved apart.
        data_format: Order of the axes of images: "NHWC", "NCHW" or "HWCN".
        dtype: Floating-point type.
    """

    batch: int
    image: Pair
    channels: int
    filters: int
    kernel: Pair
    strides: Pair = (1, 1)
    padding: Padding = NO_PADDING
    dilation: Pair = (1, 1)
    groups: int = 1
    data_format: str = "NHWC"
    dtype: str = "float32"

    @classmethod
    def of(cls, node: Node) -> Problem:
        """The convolution that a node of one of `PRIMITIVES` computes, or whose gradient it is."""
        direction = PRIMITIVES[node.op.name]
        a, b = node.inputs
        attrs = {k: node.attrs[k] for k in ("strides", "padding", "dilation", "groups", "data_format")}
        axes = Axes.of(attrs["data_format"])
        if direction == "forward":
            image, channels, filters, kernel = image_size(a.spec, axes), a.shape[axes.c], b.shape[3], b.shape[:2]
        elif direction == "input gradient":
            image, channels, filters = node.attrs["image"], b.shape[2] * attrs["groups"], b.shape[3]
            kernel = b.shape[:2]
        else:
            image, channels, filters = image_size(b.spec, axes), b.shape[axes.c], a.shape[axes.c]
            kernel = node.attrs["kernel"]
        return cls(a.shape[axes.n], image, channels, filters, (kernel[0], kernel[1]), dtype=a.dtype, **attrs)

    @property
    def window(self) -> Window:
        """Window of the convolution."""
        return Window(self.kernel, self.strides, self.padding, self.dilation)

    @property
    def axes(self) -> Axes:
        """Positions of the axes of images."""
        return Axes.of(self.data_format)

    @property
    def output(self) -> Pair:
        """Output positions (OH, OW)."""
        return self.window.output_size("conv2d", *self.image)

    @property
    def padded(self) -> Pair:
        """Height and width of the padded image."""
        return self.image[0] + sum(self.padding[0]), self.image[1] + sum(self.padding[1])

    @property
    def attrs(self) -> dict[str, Any]:
        """Keyword arguments of conv2d."""
        return {
            "strides": self.strides, "padding": self.padding, "dilation": self.dilation, "groups": self.groups,
            "data_format": self.data_format,
        }  # fmt: skip

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of the images."""
        return self.axes.shape(self.batch, *self.image, self.channels)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return self.axes.shape(self.batch, *self.output, self.filters)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the kernel (KH, KW, C / groups, F)."""
        return (*self.kernel, self.channels // self.groups, self.filters)

    @property
    def flops(self) -> int:
        """Multiplications and additions by the definition: 2 N OH OW F KH KW C / groups, in every direction."""
        return 2 * math.prod(self.y_shape) * math.prod(self.w_shape[:3])

    def nbytes(self, elements: int) -> int:
        """Bytes of that many elements."""
        return elements * ITEMSIZE[self.dtype]

    def result_bytes(self, direction: Direction) -> int:
        """Bytes of the result in one direction."""
        shape = {"forward": self.y_shape, "input gradient": self.x_shape, "weight gradient": self.w_shape}[direction]
        return self.nbytes(math.prod(shape))

    def one_group(self) -> Problem:
        """The convolution of one group."""
        return replace(self, channels=self.channels // self.groups, filters=self.filters // self.groups, groups=1)


class Strategy:
    """A way to compute a convolution and its two gradients on the arrays of any library.

    A strategy computes one group; what is common to all, such as groups, is done here. `conv2d`,
    `conv2d_input_gradient` and `conv2d_weight_gradient` take what the primitives' references take.

    Attributes:
        name: Name to choose it by.
        title: One line for tables and figures.
        error: How many times `minicnn.tolerance` the largest error may be, relative to the largest result.
        keeps_order: Whether images stay in the order of axes that they are given in; else a backend may change it.
    """

    name: str
    title: str
    error: float = 1.0
    keeps_order: bool = False

    # What a strategy defines ----------------------------------------------------------------------

    def refusal(self, problem: Problem, xp: Namespace) -> str | None:
        """Why the strategy cannot compute a problem on arrays of a namespace; None if it can."""
        return None

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        """The result y (N, OH, OW, F) of x (N, H, W, C) and w (KH, KW, C, F), images in the order of `axes`."""
        raise NotImplementedError

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        """The gradient dx (N, H, W, C) of dy (N, OH, OW, F) and w (KH, KW, C, F)."""
        raise NotImplementedError

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        """The gradient dw (KH, KW, C, F) of dy (N, OH, OW, F) and x (N, H, W, C)."""
        raise NotImplementedError

    def peak(self, problem: Problem, direction: Direction) -> int | None:
        """Most bytes at a time beside the operands, the result included, for a problem of one group.

        Counted operation by operation, each making its result in new memory, as NumPy and PyTorch do; a library that
        compiles several into one needs less. None where a library does not say what it needs.
        """
        raise NotImplementedError

    # What users call ------------------------------------------------------------------------------

    def workspace(self, problem: Problem, direction: Direction) -> int | None:
        """Bytes by which the most memory at a time exceeds operands and result; None where that is not known."""
        part = problem.one_group()
        peak, result = self.peak(part, direction), problem.result_bytes(direction)
        if peak is None:
            return None
        if problem.groups > 1:  # they run one after the other, and in the end are joined
            peak = max(result - part.result_bytes(direction) + peak, 2 * result)
        return peak - result

    def conv2d(
        self, x: Array, w: Array, *, strides: Pair = (1, 1), padding: Padding = NO_PADDING, dilation: Pair = (1, 1),
        groups: int = 1, data_format: str = "NHWC", xp: Namespace,
    ) -> Array:  # fmt: skip
        """As the reference of `minicnn.ops.conv2d`."""
        axes = Axes.of(data_format)
        window = Window((w.shape[0], w.shape[1]), strides, padding, dilation)
        # Group by group: no library has to know groups, and memory is that of one group at a time.
        pairs = zip(split(x, groups, axes.c), split(w, groups, 3), strict=True)
        return join([self.forward(xg, wg, window, axes, xp) for xg, wg in pairs], axes.c, xp)

    def conv2d_input_gradient(
        self, dy: Array, w: Array, *, image: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
        dilation: Pair = (1, 1), groups: int = 1, data_format: str = "NHWC", xp: Namespace,
    ) -> Array:  # fmt: skip
        """As the reference of `minicnn.ops.conv2d_input_gradient`."""
        axes = Axes.of(data_format)
        window = Window((w.shape[0], w.shape[1]), strides, padding, dilation)
        pairs = zip(split(dy, groups, axes.c), split(w, groups, 3), strict=True)
        return join([self.input_gradient(g, wg, window, image, axes, xp) for g, wg in pairs], axes.c, xp)

    def conv2d_weight_gradient(
        self, dy: Array, x: Array, *, kernel: Pair, strides: Pair = (1, 1), padding: Padding = NO_PADDING,
        dilation: Pair = (1, 1), groups: int = 1, data_format: str = "NHWC", xp: Namespace,
    ) -> Array:  # fmt: skip
        """As the reference of `minicnn.ops.conv2d_weight_gradient`."""
        axes = Axes.of(data_format)
        window = Window(kernel, strides, padding, dilation)
        pairs = zip(split(dy, groups, axes.c), split(x, groups, axes.c), strict=True)
        return join([self.weight_gradient(g, xg, window, axes, xp) for g, xg in pairs], 3, xp)

    def kernel(self, node: Node, xp: Namespace) -> Any:
        """A function of a node's input arrays, or the reason why there is none."""
        if node.op.name not in PRIMITIVES:
            return f"{node.op.name} is no convolution"
        reason = self.refusal(Problem.of(node), xp)
        if reason is not None:
            return f"{self.name}: {reason}"
        return partial(getattr(self, node.op.name), **node.attrs, xp=xp)


def sizes(x: Array, axes: Axes) -> Pair:
    """Height and width of an array of images."""
    return x.shape[axes.h], x.shape[axes.w]


def library(xp: Namespace) -> str:
    """Name of the library of a namespace, such as "numpy"."""
    return str(getattr(xp, "__name__", type(xp).__name__)).removeprefix("array_api_compat.")
