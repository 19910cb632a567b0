"""Convolution and pooling, one element of the result at a time: the plainest kernels, and what the others mean.

Each maker gets a type T, the images x and y, the window, and functions x(p, i) that give element i of an array; the
function that it makes gives element i of the result.
"""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, device, index, signed
from minicnn.backends.numba_cuda.kernels.geometry import Image, Window
from minicnn.backends.numba_cuda.kernels.scalars import larger


def conv2d(T: Any, X: Image, Y: Image, S: Window, groups: int, x: Function, w: Function) -> Function:
    """Sum over taps and channels of x * w."""
    C, F, YC = X.C // groups, Y.C // groups, Y.C
    KH, KW, SH, SW, PT, PL, DH, DW, H, W = S.KH, S.KW, S.SH, S.SW, S.PT, S.PL, S.DH, S.DW, X.H, X.W
    zero, place, at = T(0), Y.place(), X.at()

    @device
    def element(p: Any, i: Any) -> Any:
        n, oh, ow, f = place(i)
        first = f // F * C
        total = zero
        for a in range(KH):
            h = oh * SH + a * DH - PT
            if h >= 0 and h < H:
                for b in range(KW):
                    q = ow * SW + b * DW - PL
                    if q >= 0 and q < W:
                        for c in range(C):
                            weight = T(w(p, index(((a * KW + b) * C + c) * YC + f)))
                            total += T(x(p, at(n, h, q, first + c))) * weight
        return total

    return element


def conv2d_input_gradient(T: Any, X: Image, Y: Image, S: Window, groups: int, dy: Function, w: Function) -> Function:
    """Sum over the positions of y that an element of x goes into, and their filters, of dy * w."""
    C, F, YC, at = X.C // groups, Y.C // groups, Y.C, Y.at()

    @device
    def add(p: Any, total: Any, n: Any, u: Any, v: Any, c: Any, tap: Any) -> Any:
        first = c // C * F
        for f in range(F):
            weight = T(w(p, index((tap * C + c % C) * YC + first + f)))
            total += T(dy(p, at(n, u, v, first + f))) * weight
        return total

    return _over_windows(T, X, Y, S, add)


def conv2d_weight_gradient(T: Any, X: Image, Y: Image, S: Window, groups: int, dy: Function, x: Function) -> Function:
    """Sum over images and positions of x * dy."""
    C, F, YC, N = X.C // groups, Y.C // groups, Y.C, X.N
    _, KW, SH, SW, PT, PL, DH, DW = S
    XH, XW, YH, YW = X.H, X.W, Y.H, Y.W
    zero, x_at, y_at = T(0), X.at(), Y.at()

    @device
    def element(p: Any, i: Any) -> Any:
        f, c = i % YC, i // YC % C
        b, a = i // (YC * C) % KW, i // (YC * C * KW)
        total = zero
        for n in range(N):
            for u in range(YH):
                h = u * SH + a * DH - PT
                if h >= 0 and h < XH:
                    for v in range(YW):
                        q = v * SW + b * DW - PL
                        if q >= 0 and q < XW:
                            total += T(x(p, x_at(n, h, q, f // F * C + c))) * T(dy(p, y_at(n, u, v, f)))
        return total

    return element


def depthwise_conv2d_weight_term(T: Any, X: Image, Y: Image, S: Window, dy: Function, x: Function) -> Function:
    """Function term(p, i, r): what position r of dy adds to element i; positions are as they lie in memory.

    Each channel is a group of its own; kernel (KH, KW, C, M), result channels c * M + m.
    """
    M, YC, N, IMAGES_LAST = Y.C // X.C, Y.C, Y.N, Y.layout == "HWCN"
    _, KW, SH, SW, PT, PL, DH, DW = S
    XH, XW, YW, AREA = X.H, X.W, Y.W, Y.H * Y.W
    zero, x_at, y_at = T(0), X.at(), Y.at()

    @device
    def term(p: Any, i: Any, r: Any) -> Any:
        f, b, a = i % YC, i // YC % KW, i // (YC * KW)
        n = r % N if IMAGES_LAST else r // AREA
        at = r // N if IMAGES_LAST else r % AREA
        u, v = at // YW, at % YW
        h, q = signed(u * SH + a * DH - PT), signed(v * SW + b * DW - PL)
        real = h >= 0 and h < XH and q >= 0 and q < XW
        value = T(x(p, x_at(n, h, q, f // M) if real else index(0))) * T(dy(p, y_at(n, u, v, f)))
        return value if real else zero

    return term


def depthwise_conv2d_weight_gradient(T: Any, X: Image, Y: Image, S: Window, dy: Function, x: Function) -> Function:
    """See `conv2d_weight_gradient`."""
    TERMS, zero, term = Y.N * Y.H * Y.W, T(0), depthwise_conv2d_weight_term(T, X, Y, S, dy, x)

    @device
    def element(p: Any, i: Any) -> Any:
        total = zero
        for r in range(TERMS):
            total += term(p, i, index(r))
        return total

    return element


# Pooling --------------------------------------------------------------------------------------------------------


def _tap(T: Any, X: Image, S: Window, x: Function) -> Function:
    """Function tap(p, n, u, v, c, a, b): what is under a tap of window (u, v); minus infinity in the padding."""
    H, W, SH, SW, PT, PL = X.H, X.W, S.SH, S.SW, S.PT, S.PL
    lowest, at = T(-float("inf")), X.at()

    @device
    def tap(p: Any, n: Any, u: Any, v: Any, c: Any, a: Any, b: Any) -> Any:
        h, w = u * SH + a - PT, v * SW + b - PL
        real = h >= 0 and h < H and w >= 0 and w < W
        value = T(x(p, at(n, h, w, c) if real else index(0)))
        return value if real else lowest

    return tap


def _hit(T: Any, X: Image, S: Window, x: Function) -> Function:
    """Function hit(p, n, u, v, c): number of the first tap that holds the maximum; beside a NaN of the last.

    Elements are compared with each other, never with a maximum that was computed elsewhere: x may be computed anew
    wherever it is read, with other roundings.
    """
    KH, KW, tap = S.KH, S.KW, _tap(T, X, S, x)

    @device
    def hit(p: Any, n: Any, u: Any, v: Any, c: Any) -> Any:
        found = 0
        best = tap(p, n, u, v, c, 0, 0)
        for t in range(1, KH * KW):
            value = tap(p, n, u, v, c, t // KW, t % KW)
            larger = not value <= best
            best = value if larger else best
            found = t if larger else found
        return found

    return hit


def max_pool2d(T: Any, X: Image, Y: Image, S: Window, x: Function) -> Function:
    """Largest element under each window."""
    KH, KW, lowest, place, tap = S.KH, S.KW, T(-float("inf")), Y.place(), _tap(T, X, S, x)

    @device
    def element(p: Any, i: Any) -> Any:
        n, u, v, c = place(i)
        best = lowest
        for a in range(KH):
            for b in range(KW):
                best = larger(best, tap(p, n, u, v, c, a, b))
        return best

    return element


def max_pool2d_index(T: Any, X: Image, Y: Image, S: Window, x: Function) -> Function:
    """Function element(p, i): number of the tap that holds the maximum of window i."""
    place, hit = Y.place(), _hit(T, X, S, x)

    @device
    def element(p: Any, i: Any) -> Any:
        n, u, v, c = place(i)
        return hit(p, n, u, v, c)

    return element


def _over_windows(T: Any, X: Image, Y: Image, S: Window, add: Function) -> Function:
    """Function element(p, i): a sum over the windows (u, v) that element i of x is in, each time under another tap.

    add(p, total, n, u, v, c, tap) is the total with what is added for one of them.
    """
    KH, KW, SH, SW, PT, PL, DH, DW, H, W = S.KH, S.KW, S.SH, S.SW, S.PT, S.PL, S.DH, S.DW, Y.H, Y.W
    zero, place = T(0), X.place()

    @device
    def element(p: Any, i: Any) -> Any:
        n, xh, xw, c = place(i)
        total = zero
        for a in range(KH):
            h = xh + PT - a * DH
            if h >= 0 and h % SH == 0 and h // SH < H:
                for b in range(KW):
                    q = xw + PL - b * DW
                    if q >= 0 and q % SW == 0 and q // SW < W:
                        total = add(p, total, n, h // SH, q // SW, c, a * KW + b)
        return total

    return element


def max_pool2d_gradient(T: Any, X: Image, Y: Image, S: Window, dy: Function, x: Function) -> Function:
    """Sum of dy over the windows whose maximum an element is."""
    hit, at = _hit(T, X, S, x), Y.at()

    @device
    def add(p: Any, total: Any, n: Any, u: Any, v: Any, c: Any, tap: Any) -> Any:
        return total + T(dy(p, at(n, u, v, c))) if hit(p, n, u, v, c) == tap else total

    return _over_windows(T, X, Y, S, add)


def max_pool2d_scatter(T: Any, X: Image, Y: Image, S: Window, dy: Function, taps: Function) -> Function:
    """The same from the number of the tap that holds the maximum of each window."""
    KH, KW, H, W = S.KH, S.KW, Y.H, Y.W
    zero, place, at = T(0), X.place(), Y.at()

    @device
    def apart(p: Any, i: Any) -> Any:  # no overlap: one window, and no branches
        n, xh, xw, c = place(i)
        u, v = xh // KH, xw // KW
        real = u < H and v < W
        j = at(n, u, v, c) if real else index(0)
        value = T(dy(p, j))
        return value if real and taps(p, j) == xh % KH * KW + xw % KW else zero

    @device
    def add(p: Any, total: Any, n: Any, u: Any, v: Any, c: Any, tap: Any) -> Any:
        j = at(n, u, v, c)
        return total + T(dy(p, j)) if taps(p, j) == tap else total

    overlap = (KH, KW, 0, 0) != (S.SH, S.SW, S.PT, S.PL)
    return _over_windows(T, X, Y, S, add) if overlap else apart


def _elements(T: Any, X: Image, S: Window, count_padding: bool) -> Function:
    """Function elements(u, v): how many elements window (u, v) averages."""
    KH, KW, SH, SW, PT, PL, H, W = S.KH, S.KW, S.SH, S.SW, S.PT, S.PL, X.H, X.W

    @device
    def elements(u: Any, v: Any) -> Any:
        h, w = u * SH - PT, v * SW - PL
        rows, columns = min(h + KH, H) - max(h, 0), min(w + KW, W) - max(w, 0)
        return T(KH * KW) if count_padding else T(rows * columns)

    return elements


def average_pool2d(T: Any, X: Image, Y: Image, S: Window, count_padding: bool, x: Function) -> Function:
    """Mean under each window."""
    KH, KW, SH, SW, PT, PL, H, W = S.KH, S.KW, S.SH, S.SW, S.PT, S.PL, X.H, X.W
    zero, place, at, elements = T(0), Y.place(), X.at(), _elements(T, X, S, count_padding)

    @device
    def element(p: Any, i: Any) -> Any:
        n, u, v, c = place(i)
        total = zero
        for a in range(KH):
            for b in range(KW):
                h, w = u * SH + a - PT, v * SW + b - PL
                if h >= 0 and h < H and w >= 0 and w < W:
                    total += T(x(p, at(n, h, w, c)))
        return total / elements(u, v)

    return element


def average_pool2d_gradient(T: Any, X: Image, Y: Image, S: Window, count_padding: bool, dy: Function) -> Function:
    """Sum of dy over the windows that an element is in, each divided by the window's count."""
    at, elements = Y.at(), _elements(T, X, S, count_padding)

    @device
    def add(p: Any, total: Any, n: Any, u: Any, v: Any, c: Any, tap: Any) -> Any:
        return total + T(dy(p, at(n, u, v, c))) / elements(u, v)

    return _over_windows(T, X, Y, S, add)
