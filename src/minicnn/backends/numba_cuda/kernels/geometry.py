"""Where the elements of images are, and how windows slide over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Window:
    """Taps KH x KW, strides, zeros before the image, distance between taps."""

    KH: int
    KW: int
    SH: int
    SW: int
    PT: int
    PL: int
    DH: int = 1
    DW: int = 1


def padded(T: Any, image: Image, x: Function) -> Function:
    """Function source(p, n, h, w, c): an element of an image with zeros around it."""
    N, H, W, zero, first, at = image.N, image.H, image.W, T(0), index(0), image.at()

    @device
    def source(p: Any, n: Any, h: Any, w: Any, c: Any) -> Any:
        n, h, w = signed(n), signed(h), signed(w)
        real = (n < N) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        return choose(real, T(x(p, choose(real, at(n, h, w, c), first))), zero)

    return source


def spread(T: Any, image: Image, x: Function, SH: int, SW: int) -> Function:
    """Function source(p, n, h, w, c) of an image with zeros around it and strides - 1 zeros between its elements."""
    N, H, W, zero, first, at = image.N, image.H, image.W, T(0), index(0), image.at()

    @device
    def source(p: Any, n: Any, h: Any, w: Any, c: Any) -> Any:
        row, column = index(h) // SH, index(w) // SW
        inside = (signed(n) < N) & (signed(h) >= 0) & (signed(w) >= 0) & (row < H) & (column < W)
        real = inside & (index(h) % SH == 0) & (index(w) % SW == 0)
        return choose(real, T(x(p, choose(real, at(n, row, column, c), first))), zero)

    return source
