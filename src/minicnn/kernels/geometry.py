"""Convolutions as tiles see them: an input gradient is a convolution without strides, for each phase of its strides."""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.kernels.windows import Image, Window, window
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node


def phases(node: Node) -> tuple[int, int]:
    """Rows and columns of phases of an input gradient: its strides if not dilated.

    Everything else has one phase.
    """
    strides, dilation = node.attrs["strides"], node.attrs["dilation"]
    # Between results of a strided convolution lie zeros of dy: by phases only the taps that meet numbers are computed.
    fits = all(s == 1 or d == 1 for s, d in zip(strides, dilation, strict=True))
    return strides if node.op.name == "conv2d_input_gradient" and fits else (1, 1)


def _seen_by_phases(taps: int, padding: int, stride: int, dilation: int) -> tuple[int, int]:
    """Elements of dy that the phases of an input gradient see along an axis, and those before their place."""
    if stride == 1:
        return taps, (taps - 1) * dilation - padding
    before = (taps - 1 - padding) // stride
    return before + 1 + -(-padding // stride), before


@dataclass(frozen=True)
class Geometry:
    """A convolution as tiles see it: conv2d as it is, the gradient for its input as a convolution without strides."""

    n: int  # images
    oh: int  # rows of the result; of a phase of it
    ow: int  # columns
    f: int  # filters of a group: channels of the result, for each of its phases
    c: int  # channels that are summed over
    kh: int  # rows of taps
    kw: int  # columns of taps
    strides: tuple[int, int]  # from a result to the next
    dilation: tuple[int, int]  # from a tap to the next
    image: Image  # the result, or one of its phases
    window: Window
    groups: int  # how many such convolutions there are

    @classmethod
    def of(cls, node: Node, *, phased: bool) -> Geometry:
        """The geometry of conv2d or conv2d_input_gradient, by phases or with zeros between the elements of dy."""
        attrs = node.attrs
        axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
        y, x = node.outputs[0].shape, node.inputs[0].shape
        (kh, kw), (sh, sw), (dh, dw) = node.inputs[1].shape[:2], attrs["strides"], attrs["dilation"]
        rows, columns = phases(node) if phased else (1, 1)
        shape, seen = list(y), window(node)
        if node.op.name == "conv2d_input_gradient":
            shape[axes.h], shape[axes.w] = -(-y[axes.h] // rows), -(-y[axes.w] // columns)
            (top, _), (left, _) = attrs["padding"]
            (kh, top), (kw, left) = _seen_by_phases(kh, top, rows, dh), _seen_by_phases(kw, left, columns, dw)
            seen = Window((kh, kw), (1, 1), (top, left), (dh, dw))
            sh = sw = 1
        return cls(
            n=y[axes.n],
            oh=shape[axes.h],
            ow=shape[axes.w],
            f=y[axes.c] // groups * rows * columns,
            c=x[axes.c] // groups,
            kh=kh,
            kw=kw,
            strides=(sh, sw),
            dilation=(dh, dw),
            image=Image.of(tuple(shape), attrs["data_format"]),
            window=seen,
            groups=groups,
        )
