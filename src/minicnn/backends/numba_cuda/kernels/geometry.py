"""Geometry of images and windows: places of elements, and windows that slide over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from minicnn.backends.numba_cuda.kernels.decorators import Function, choose, device, index, signed


@dataclass(frozen=True)
class Image:
    """An image of shape (N, H, W, C) whose elements are stored in the order of the format."""

    layout: str
    N: int
    H: int
    W: int
    C: int

    def at(self) -> Function:
        """The function of (n, h, w, c) that gives the element's number."""
        N, H, W, C = self.N, self.H, self.W, self.C

        @device
        def nhwc(n: Any, h: Any, w: Any, c: Any) -> Any:
            return index(((n * H + h) * W + w) * C + c)

        @device
        def nchw(n: Any, h: Any, w: Any, c: Any) -> Any:
            return index(((n * C + c) * H + h) * W + w)

        @device
        def hwcn(n: Any, h: Any, w: Any, c: Any) -> Any:
            return index(((h * W + w) * C + c) * N + n)

        return {"NHWC": nhwc, "NCHW": nchw, "HWCN": hwcn}[self.layout]

    def place(self) -> Function:
        """The function of an element's number i that gives (n, h, w, c)."""
        N, H, W, C = self.N, self.H, self.W, self.C

        @device
        def nhwc(i: Any) -> Any:
            return i // (H * W * C), i // (W * C) % H, i // C % W, i % C

        @device
        def nchw(i: Any) -> Any:
            return i // (C * H * W), i // W % H, i % W, i // (H * W) % C

        @device
        def hwcn(i: Any) -> Any:
            return i % N, i // (W * C * N), i // (C * N) % W, i // N % C

        return {"NHWC": nhwc, "NCHW": nchw, "HWCN": hwcn}[self.layout]


class Window(NamedTuple):
    """Taps KH x KW, strides, zeros before the image, distance between taps."""

    KH: int
    KW: int
    SH: int
    SW: int
    PT: int
    PL: int
    DH: int = 1
    DW: int = 1


def tuples(x: Function, width: int) -> Function:
    """Function (p, i) that gives a tuple of so many elements, of x(p, i) that gives one element or a tuple of four."""

    @device
    def one(p: Any, i: Any) -> Any:
        return (x(p, i),)

    return x if width == 4 else one


def masked(T: Any, width: int) -> Function:
    """Function (real, values): a tuple of so many elements, 1 or 4, or zeros if they are not real."""
    zero = T(0)

    @device
    def one(real: Any, values: Any) -> Any:
        return (choose(real, T(values[0]), zero),)

    @device
    def four(real: Any, values: Any) -> Any:
        a, b, c, d = values
        return (choose(real, T(a), zero), choose(real, T(b), zero), choose(real, T(c), zero), choose(real, T(d), zero))

    return four if width == 4 else one


def padded(T: Any, image: Image, x: Function, width: int = 1) -> Function:
    """Function source(p, n, h, w, c): a tuple of so many channels, 1 or 4, of an image with zeros around it.

    Args:
        T: Type of the elements.
        image: The image.
        x: x(p, i): one element, or a tuple of four.
        width: Which of these.
    """
    N, H, W, first, at, mask, x = image.N, image.H, image.W, index(0), image.at(), masked(T, width), tuples(x, width)

    @device
    def source(p: Any, n: Any, h: Any, w: Any, c: Any) -> Any:
        n, h, w = signed(n), signed(h), signed(w)
        real = (n < N) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        return mask(real, x(p, choose(real, at(n, h, w, c), first)))

    return source


def spread(T: Any, image: Image, x: Function, SH: int, SW: int, width: int = 1) -> Function:
    """The same of an image with strides - 1 zeros between its elements."""
    N, H, W, first, at, mask, x = image.N, image.H, image.W, index(0), image.at(), masked(T, width), tuples(x, width)

    @device
    def source(p: Any, n: Any, h: Any, w: Any, c: Any) -> Any:
        row, column = index(h) // SH, index(w) // SW
        inside = (signed(n) < N) & (signed(h) >= 0) & (signed(w) >= 0) & (row < H) & (column < W)
        real = inside & (index(h) % SH == 0) & (index(w) % SW == 0)
        return mask(real, x(p, choose(real, at(n, row, column, c), first)))

    return source
