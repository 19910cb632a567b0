"""The gradient of a convolution's weights by tiles.

A block makes KB rows of taps x CB channels x FB filters from every PARTS-th strip of TH rows of dy, and leaves a part
of the sum in memory; another kernel adds the parts. A thread does one channel and FX filters, from every SLICES-th run
of PX positions of a strip; its piece of x slides along in registers. At the end the slices are added by halves.
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
    signed,
    slot,
    unrolled,
)
from minicnn.backends.numba_cuda.kernels.filling import fill
from minicnn.backends.numba_cuda.kernels.geometry import Image, Window, masked, tuples
from minicnn.backends.numba_cuda.shim import cuda


class WeightTile(NamedTuple):
    """Sizes of a tile, by the names above; C and F are those of one group.

    Attributes:
        WX: Neighbouring channels of x that are loaded at once, 1 or 4.
        WY: Neighbouring filters of dy, likewise.
    """

    WX: int
    WY: int
    X: Image
    Y: Image
    S: Window
    C: int
    F: int
    KB: int
    CB: int
    FB: int
    TH: int
    PX: int
    FX: int
    SLICES: int
    PARTS: int


def weight_gradient(T: Any, tile: WeightTile, x: Function, dy: Function, out: Function) -> Function:
    """The function of a block, which calls out(p, part, i, sum) for each element i of the gradient.

    x(p, i) and dy(p, i) give an element, or a tuple of four if WX or WY is 4.
    """
    WX, WY, X, Y, S, C, F, KB, CB, FB, TH, PX, FX, SLICES, PARTS = tile
    XRUN, YRUN, mask_x, mask_y = CB // WX, FB // WY, masked(T, WX), masked(T, WY)
    x, dy = tuples(x, WX), tuples(dy, WY)
    KH, KW, SH, SW, PT, PL, DH, DW = S
    XH, XW, YH, YW, YC = X.H, X.W, Y.H, Y.W, Y.C
    FG = FB // FX
    THREADS = FG * CB * SLICES
    TW = -(-YW // PX) * PX
    IH, IW = (TH - 1) * SH + (KB - 1) * DH + 1, (TW - 1) * SW + (KW - 1) * DW + 1
    ROWS = -(-YH // TH)
    STRIPS = Y.N * ROWS
    K_PARTS, C_PARTS, F_PARTS = -(-KH // KB), -(-C // CB), -(-F // FB)
    LANES, OWN = FG * CB, KB * KW * FX
    XS, DS = -(-IH * IW * CB // 4) * 4, TH * TW * FB
    # The pieces of x and dy are over when the slices are added, which takes their place.
    SHARED = max(XS + DS, SLICES // 2 * LANES * OWN)
    RUNS, SPAN, WIDE = TW // PX, (PX - 1) * SW + (KW - 1) * DW + 1, PX * FX
    WHOLE_C, WHOLE_F = C % CB == 0, F % FB == 0
    ROUNDS = SLICES.bit_length() - 1
    zero, start, x_at, y_at = T(0), index(0), X.at(), Y.at()

    def load_x(p: Any, at: Any, k: Any) -> Any:
        n, h0, a0, c0, group = at
        c, w, h = k % XRUN * WX, signed(k // XRUN % IW - PL), signed(h0 * SH + a0 * DH + k // (XRUN * IW) - PT)
        real = (WHOLE_C | (index(c0 + c) < C)) & (h >= 0) & (h < XH) & (w >= 0) & (w < XW)
        return mask_x(real, x(p, choose(real, x_at(n, h, w, group * C + c0 + c), start)))

    def load_dy(p: Any, at: Any, k: Any) -> Any:
        n, h0, f0, group = at
        f, w, h = k % YRUN * WY, k // YRUN % TW, h0 + k // (YRUN * TW)
        real = (WHOLE_F | (index(f0 + f) < F)) & (index(h) < YH) & (w < YW)
        return mask_y(real, dy(p, choose(real, y_at(n, h, w, group * F + f0 + f), start)))

    def place_x(k: Any) -> Any:
        return k * WX

    def place_dy(k: Any) -> Any:
        return XS + k * WY

    fill_x = fill(T, IH * IW * XRUN, THREADS, load_x, place_x, WX)
    fill_dy = fill(T, DS // WY, THREADS, load_dy, place_dy, WY)

    @device
    def run_of_positions(shared: Any, sums: Any, row: Any, wide: Any, h: Any, w: Any, c: Any, fg: Any) -> None:
        first = XS + (h * TW + w) * FB + fg * FX
        for q in range(PX):
            for f in range(FX):
                wide[q * FX + f] = shared[slot(first + q * FB + f)]
        for a in range(KB):
            corner = ((h * SH + a * DH) * IW + w * SW) * CB + c
            for q in range(SPAN):
                row[q] = shared[slot(corner + q * CB)]
            for b in range(KW):
                for q in range(PX):
                    for f in range(FX):
                        sums[(a * KW + b) * FX + f] += row[q * SW + b * DW] * wide[q * FX + f]

    @block
    # By halves, in a fixed order: atomic additions would need one pass, but give other bits in each run.
    def add_half(k: Any, s: Any) -> None:
        shared, sums, piece, lane = s
        half = SLICES >> (k + 1)
        cuda.syncthreads()
        if piece >= half and piece < 2 * half:
            for u in range(OWN):
                shared[slot(((piece - half) * OWN + u) * LANES + lane)] = sums[u]
        cuda.syncthreads()
        if piece < half:
            for u in range(OWN):
                sums[u] += shared[slot((piece * OWN + u) * LANES + lane)]

    add_slices = unrolled(ROUNDS, add_half)

    @block
    def run(p: Any, number: Any) -> None:
        shared = cuda.shared.array(SHARED, T, ALIGNED)
        sums = cuda.local.array(OWN, T)
        row = cuda.local.array(SPAN, T)
        wide = cuda.local.array(WIDE, T)
        thread = cuda.threadIdx.x
        part, rest = number % PARTS, number // PARTS
        f0 = rest % F_PARTS * FB
        c0 = rest // F_PARTS % C_PARTS * CB
        a0 = rest // (F_PARTS * C_PARTS) % K_PARTS * KB
        group = rest // (F_PARTS * C_PARTS * K_PARTS)
        fg, c, piece = thread % FG, thread // FG % CB, thread // LANES
        for k in range(OWN):
            sums[k] = zero
        for strip in range(part, STRIPS, PARTS):
            n, h0 = strip // ROWS, strip % ROWS * TH
            cuda.syncthreads()
            fill_x(p, (n, h0, a0, c0, group), shared, thread)
            fill_dy(p, (n, h0, f0, group), shared, thread)
            cuda.syncthreads()
            # Slices take turns, so that their shares differ by one run at most.
            place = index(piece)
            while place < TH * RUNS:
                h, w = place // RUNS, place % RUNS * PX
                run_of_positions(shared, sums, row, wide, h, w, c, fg)
                place = index(place + SLICES)
        if SLICES > 1:  # in each round the upper half hands its sums to the lower
            add_slices((shared, sums, piece, thread % LANES))
        if piece == 0:
            for a in range(KB):
                for b in range(KW):
                    for f in range(FX):
                        filter_ = f0 + fg * FX + f
                        real = (WHOLE_C | (index(c0 + c) < C)) & (WHOLE_F | (index(filter_) < F))
                        if real & (index(a0 + a) < KH):
                            i = (((a0 + a) * KW + b) * C + c0 + c) * YC + group * F + filter_
                            out(p, part, index(i), sums[(a * KW + b) * FX + f])

    return run
