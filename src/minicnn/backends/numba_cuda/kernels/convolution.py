"""Convolution by tiles: the forward pass and, on a gradient with zeros around it, the gradient of the input.

A block makes FB filters at TH x TW positions of NB images; it loads the piece of the images and the weights that these
need into shared memory, CC channels at a time, by loads of four numbers where four lie side by side. A thread makes FX
filters at PY x PX neighbouring positions and holds these sums in registers: every number that it takes from shared
memory meets several others. What follows a convolution element by element (bias, activation), and a max-pooling, are
done on the registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from minicnn.backends.numba_cuda.kernels.decorators import (
    ALIGNED,
    Function,
    block,
    choose,
    device,
    index,
    slot,
    unrolled,
)
from minicnn.backends.numba_cuda.kernels.filling import fill
from minicnn.backends.numba_cuda.kernels.geometry import Image, Window, masked, tuples
from minicnn.backends.numba_cuda.shim import cuda


class ConvTile(NamedTuple):
    """Sizes of a tile, by the names above."""

    WX: int  # neighbouring channels of the image that are loaded at once, 1 or 4
    WW: int  # neighbouring weights, likewise
    ALONG: bool  # whether these are of neighbouring filters, rather than channels
    Y: Image  # the result, with all its channels, of which the first EH x EW positions are made
    S: Window  # the window
    C: int  # channels of one group
    F: int  # filters of one group
    EH: int
    EW: int
    NB: int
    TH: int
    TW: int
    FB: int
    CC: int
    PY: int
    PX: int
    FX: int


def convolve(T: Any, tile: ConvTile, source: Function, weight: Function, where: Function, finish: Function) -> Function:
    """The function of a block.

    Args:
        T: Type of the elements.
        tile: Sizes.
        source: source(p, n, h, w, c), a tuple of WX channels of the image, zeros outside of it.
        weight: weight(p, i): one of the weights, or a tuple of four if WW is 4.
        where: where(group, a, b, c, f): the place of a weight, channel and filter counted within the group.
        finish: finish(p, sums, n, h, w, f) for the sums of a thread, which begin at (h, w) and filter f.
    """
    WX, WW, ALONG, Y, S, C, F, EH, EW, NB, TH, TW, FB, CC, PY, PX, FX = tile
    KH, KW, SH, SW, PT, PL, DH, DW = S
    N = Y.N
    FG, GY, GX = FB // FX, TH // PY, TW // PX
    THREADS = FG * GY * GX * NB
    IH, IW = (TH - 1) * SH + (KH - 1) * DH + 1, (TW - 1) * SW + (KW - 1) * DW + 1
    PLANE, TAPS = (NB * IH * IW) | 1, KH * KW  # odd, so that neighbouring channels are in different banks
    ROWS, COLUMNS, PARTS = -(-EH // TH), -(-EW // TW), -(-F // FB)
    BLOCKS = -(-N // NB) * ROWS * COLUMNS * PARTS
    SPAN = (PX - 1) * SW + (KW - 1) * DW + 1
    # A thread keeps all columns that its positions touch in registers: a tap is then a choice of register, not a read.
    XS, WS, OWN, ROW = CC * PLANE, CC * TAPS * FB, PY * PX * FX, PY * SPAN
    WHOLE_C, WHOLE_F = C % CC == 0, F % FB == 0
    zero = T(0)

    XRUN, FSTEP, CSTEP = CC // WX, WW if ALONG else 1, 1 if ALONG else WW
    FRUN, CRUN = FB // FSTEP, CC // CSTEP
    mask_x, mask_w, weight = masked(T, WX), masked(T, WW), tuples(weight, WW)

    def load_x(p: Any, at: Any, k: Any) -> Any:
        n0, h0, w0, c0, first = at
        c, place = k % XRUN * WX, k // XRUN  # channels lie next to each other in memory
        w, h, n = place % IW, place // IW % IH, place // (IW * IH)
        if WHOLE_C:
            return source(p, n0 + n, h0 * SH + h - PT, w0 * SW + w - PL, first + c0 + c)
        real = index(c0 + c) < C
        return mask_x(real, source(p, n0 + n, h0 * SH + h - PT, w0 * SW + w - PL, first + choose(real, c0 + c, 0)))

    def place_x(k: Any) -> Any:
        return k % XRUN * WX * PLANE + k // XRUN

    @device
    def place_of(k: Any) -> Any:
        """(filter, tap, channel) of a load; neighbouring loads are neighbours in memory."""
        if ALONG:
            return k % FRUN * FSTEP, k // FRUN % TAPS, k // (FRUN * TAPS)
        return k // CRUN % FB, k // (CRUN * FB), k % CRUN * CSTEP

    def load_w(p: Any, at: Any, k: Any) -> Any:
        f0, c0, group = at
        f, tap, c = place_of(k)
        real = (WHOLE_F | (index(f0 + f) < F)) & (WHOLE_C | (index(c0 + c) < C))
        place = where(group, tap // KW, tap % KW, choose(real, c0 + c, 0), choose(real, f0 + f, 0))
        return mask_w(real, weight(p, index(place)))

    def place_w(k: Any) -> Any:
        f, tap, c = place_of(k)
        return (c * TAPS + tap) * FB + f

    fill_x = fill(T, NB * IH * IW * XRUN, THREADS, load_x, place_x, WX, PLANE)
    fill_w = fill(T, WS // WW, THREADS, load_w, place_w, WW, 1 if ALONG else TAPS * FB)

    @device
    def row_of_taps(a: Any, s: Any) -> None:
        xs, ws, sums, row, wide, corner, fg, c = s
        start = c * PLANE + corner + a * DH * IW
        for y in range(PY):
            for x in range(SPAN):
                row[y * SPAN + x] = xs[slot(start + y * SH * IW + x)]
        for b in range(KW):
            first = (c * TAPS + a * KW + b) * FB + fg * FX
            for f in range(FX):
                wide[f] = ws[slot(first + f)]
            for y in range(PY):
                for x in range(PX):
                    for f in range(FX):
                        sums[(y * PX + x) * FX + f] += row[y * SPAN + x * SW + b * DW] * wide[f]

    all_taps = unrolled(KH, row_of_taps)

    @block
    def run(p: Any, number: Any) -> None:
        xs = cuda.shared.array(XS, T)
        ws = cuda.shared.array(WS, T, ALIGNED)
        sums = cuda.local.array(OWN, T)
        row = cuda.local.array(ROW, T)
        wide = cuda.local.array(FX, T)
        thread = cuda.threadIdx.x
        group = number // BLOCKS
        rest = number % BLOCKS
        f0 = rest % PARTS * FB
        w0 = rest // PARTS % COLUMNS * TW
        h0 = rest // (PARTS * COLUMNS) % ROWS * TH
        n0 = rest // (PARTS * COLUMNS * ROWS) * NB
        fg, gx, gy, image = thread % FG, thread // FG % GX, thread // (FG * GX) % GY, thread // (FG * GX * GY)
        for k in range(OWN):
            sums[k] = zero
        # Bounds are looked at when the image is brought in, where zeros are put for the border; below this the loops
        # know none.
        corner = (image * IH + gy * PY * SH) * IW + gx * PX * SW
        for c0 in range(0, C, CC):
            if c0 > 0:
                cuda.syncthreads()
            fill_x(p, (n0, h0, w0, c0, group * C), xs, thread)
            fill_w(p, (f0, c0, group), ws, thread)
            cuda.syncthreads()
            for c in range(CC):
                all_taps((xs, ws, sums, row, wide, corner, fg, c))
        if n0 + image < N:
            finish(p, sums, n0 + image, h0 + gy * PY, w0 + gx * PX, group, f0 + fg * FX)

    return run


def each(tile: ConvTile, write: Function) -> Function:
    """Function finish for `convolve` that calls write(p, i, sum) for each position inside of the image."""
    PY, PX, FX, F, H, W, at = tile.PY, tile.PX, tile.FX, tile.F, tile.Y.H, tile.Y.W, tile.Y.at()
    WHOLE = H % tile.TH == 0 and W % tile.TW == 0 and F % tile.FB == 0

    @device
    def finish(p: Any, sums: Any, n: Any, h: Any, w: Any, group: Any, first: Any) -> None:
        for y in range(PY):
            for x in range(PX):
                for f in range(FX):
                    if WHOLE or (index(h + y) < H) & (index(w + x) < W) & (index(first + f) < F):
                        write(p, at(n, h + y, w + x, group * F + first + f), sums[(y * PX + x) * FX + f])

    return finish


def each_pooled(T: Any, tile: ConvTile, pooled: Image, KH: int, KW: int, before: Function, write: Function) -> Function:
    """Function finish that pools over windows KH x KW without overlap.

    Args:
        T: Type of the elements.
        tile: Sizes.
        pooled: The pooled image.
        KH: Rows of a window.
        KW: Columns of a window.
        before: before(p, i, sum), what is pooled.
        write: write(p, i, maximum, tap), where tap is the place of the maximum in its window.
    """
    PY, PX, FX, F, at, to = tile.PY, tile.PX, tile.FX, tile.F, tile.Y.at(), pooled.at()
    H, W, TAPS, lowest = pooled.H, pooled.W, KH * KW, T(-float("inf"))

    @device
    def finish(p: Any, sums: Any, n: Any, h: Any, w: Any, group: Any, first: Any) -> None:
        for y in range(0, PY, KH):
            for x in range(0, PX, KW):
                row, column = index(h + y) // KH, index(w + x) // KW
                for f in range(FX):
                    if (row < H) & (column < W) & (index(first + f) < F):
                        channel = group * F + first + f
                        top, tap = lowest, TAPS - 1
                        for t in range(TAPS):
                            a, b = y + t // KW, x + t % KW
                            value = before(p, at(n, h + a, w + b, channel), sums[(a * PX + b) * FX + f])
                            # Not-a-number wins and stays, as in NumPy's maximum; of equal values the first does.
                            better = (value > top) | ((value != value) & (top == top))
                            top, tap = choose(better, value, top), choose(better, t, tap)
                        write(p, to(n, row, column, channel), top, choose(top == top, tap, TAPS - 1))

    return finish
