"""Convolutions by their references, block after block, so that what is unfolded stays in a processor's cache.

An unfolded image is as large as the image times the taps of the kernel. Written to memory and read again it takes
longer than the product that it is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.windows import Axes, Padding, Window
from minicnn.program.graph import ITEMSIZE, Node

# Of an unfolded block: between the second-level caches of today, 1 to 2 MB, and a core's share of the third. Products
# of much smaller blocks are slow, and 1 to 4 MB took the same time for images of 14 to 64 pixels and 1 to 64 channels.
BLOCK_BYTES = 2**22


@dataclass(frozen=True)
class _Blocks:
    """Cuts of a convolution along the outermost axis of its images: rows of pixels, or samples.

    Attributes:
        node: The convolution, or one of its gradients.
        axes: The layout of its images.
        window: The windows of all of it.
        length: Rows of pixels of x.
        total: Output rows, or samples.
        step: How many a block has.
    """

    node: Node
    axes: Axes
    window: Window
    length: int
    total: int
    step: int

    def __iter__(self) -> Iterator[tuple[slice, slice, Padding]]:
        """For each block: where it is in y, where the elements of x are that it reads, and its padding."""
        _, sides = padding = self.window.padding
        reach = _reach(self.window)
        for first in range(0, self.total, self.step):
            last = min(first + self.step, self.total)
            if self.axes.n == 0:
                yield slice(first, last), slice(first, last), padding
                continue
            top = first * self.window.strides[0] - padding[0][0]
            bottom = (last - 1) * self.window.strides[0] - padding[0][0] + reach
            inside = slice(max(top, 0), min(bottom, self.length))
            yield slice(first, last), inside, ((inside.start - top, bottom - inside.stop), sides)


def _reach(window: Window) -> int:
    """Rows from the first to the last tap of a window."""
    return window.dilation[0] * (window.kernel[0] - 1) + 1


def in_blocks(node: Node, xp: Namespace) -> Callable[..., Array] | None:
    """A function that computes a convolution or a gradient of one in blocks; None if it is small, or is none."""
    make = _FUNCTIONS.get(node.op.name)
    blocks = _blocks(node) if make else None
    return partial(make, blocks, xp=xp) if make and blocks else None


def _blocks(node: Node) -> _Blocks | None:
    attrs, axes = node.attrs, Axes.of(node.attrs["data_format"])
    x, y, w = {
        "conv2d": (node.inputs[0], node.outputs[0], node.inputs[1]),
        "conv2d_input_gradient": (node.outputs[0], node.inputs[0], node.inputs[1]),
        "conv2d_weight_gradient": (node.inputs[1], node.inputs[0], node.outputs[0]),
    }[node.op.name]
    kernel = (w.shape[0], w.shape[1])
    window = Window(kernel, attrs["strides"], attrs["padding"], attrs["dilation"])
    if axes.n and max(window.padding[0]) >= _reach(window):
        return None  # a block might lie in the padding alone
    row = math.prod(y.shape[1:]) // y.shape[axes.c] * math.prod(kernel) * x.shape[axes.c] * ITEMSIZE[x.dtype]
    step = max(1, BLOCK_BYTES // max(row, 1))
    if math.prod(kernel) == 1 or step >= y.shape[0]:
        return None
    return _Blocks(node, axes, window, x.shape[axes.h], y.shape[0], step)


def conv2d_in_blocks(blocks: _Blocks, x: Array, w: Array, *, xp: Namespace) -> Array:
    """See `conv2d`."""
    parts = [
        blocks.node.op.reference(x[read], w, xp=xp, **{**blocks.node.attrs, "padding": padding})
        for _, read, padding in blocks
    ]
    return xp.concat(parts, axis=0)


def conv2d_input_gradient_in_blocks(blocks: _Blocks, dy: Array, w: Array, *, xp: Namespace) -> Array:
    """See `conv2d_input_gradient`; where blocks of windows overlap, they are added."""
    value, attrs = blocks.node.outputs[0], blocks.node.attrs
    dx = xp.zeros(value.shape, dtype=dy.dtype)
    for written, read, padding in blocks:
        image = (read.stop - read.start, attrs["image"][1]) if blocks.axes.n else attrs["image"]
        part = blocks.node.op.reference(dy[written], w, xp=xp, **{**attrs, "padding": padding, "image": image})
        dx[read] += part
    return dx


def conv2d_weight_gradient_in_blocks(blocks: _Blocks, dy: Array, x: Array, *, xp: Namespace) -> Array:
    """See `conv2d_weight_gradient`: the sum of those of the blocks."""
    total: Array = 0
    for written, read, padding in blocks:
        total += blocks.node.op.reference(dy[written], x[read], xp=xp, **{**blocks.node.attrs, "padding": padding})
    return total


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "conv2d": conv2d_in_blocks,
    "conv2d_input_gradient": conv2d_input_gradient_in_blocks,
    "conv2d_weight_gradient": conv2d_weight_gradient_in_blocks,
}
