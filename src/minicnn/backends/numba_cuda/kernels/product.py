"""Matrix product by tiles, with whatever follows it element by element: a dense layer, and its gradients.

A block makes BM x BN elements, BK terms at a time, a thread TM x TN of them in registers. While the terms in shared
memory are multiplied, the next are on their way from memory. The terms may be cut into PARTS, so that a product with
few results and many terms fills the GPU; another kernel adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import ALIGNED, Function, block, choose, device, index, slot, unrolled
from minicnn.backends.numba_cuda.shim import cuda

SLAB = 16  # terms whose products are written out one after the other


@dataclass(frozen=True)
class ProductTile:
    """Sizes of a product (M, K) x (K, N) and its tile.

    Attributes:
        TA: Whether a is stored transposed.
        TB: Whether b is.
        WA: Neighbours of a row of a, as it is stored, that are loaded at once: 1 or 4.
        WB: The same of b.
    """

    M: int
    N: int
    K: int
    TA: bool
    TB: bool
    WA: int
    WB: int
    BM: int
    BN: int
    BK: int
    TM: int
    TN: int
    PARTS: int


def multiply(T: Any, tile: ProductTile, a: Function, b: Function, out: Function) -> Function:
    """The function of a block.

    Args:
        T: Type of the elements.
        tile: Sizes.
        a: a(p, row, column), WA elements of the first matrix as it is stored, from that column on.
        b: b(p, row, column), WB of the second.
        out: out(p, part, i, sum) for each element i of the product.
    """
    M, N, K, TA, TB, BM, BN, BK = tile.M, tile.N, tile.K, tile.TA, tile.TB, tile.BM, tile.BN, tile.BK
    TM, TN, PARTS = tile.TM, tile.TN, tile.PARTS
    GN, GM = BN // TN, BM // TM
    THREADS, COLUMNS = GN * GM, -(-N // BN)
    terms = -(-K // PARTS)
    RUN = -(-terms // BK) * BK  # terms of a part
    WA, WB, A_LOADS, B_LOADS = tile.WA, tile.WB, BK * BM // tile.WA, BK * BN // tile.WB
    LEFT, RIGHT = -(-A_LOADS // THREADS), -(-B_LOADS // THREADS)
    A_RUN, B_RUN = (BM if TA else BK) // WA, (BK if TB else BN) // WB  # loads of a row
    A_ROW, B_ROW = BM + min(TM, 4), -(-BN // 4) * 4 + 4  # of shared memory
    A_STEP, B_STEP = 1 if TA else A_ROW, B_ROW if TB else 1
    FOUND_A, FOUND_B = LEFT * WA, RIGHT * WB
    AS, BS, OWN = BK * A_ROW, BK * B_ROW, TM * TN
    WHOLE_M, WHOLE_N, STEP = M % BM == 0, N % BN == 0, min(SLAB, BK)
    WHOLE_LEFT, WHOLE_RIGHT = A_LOADS % THREADS == 0, B_LOADS % THREADS == 0
    zero, start = T(0), index(0)

    @device
    def left_place(e: Any) -> Any:
        """(row of the result, term) of load e; neighbouring loads are neighbours in memory."""
        along, across = e % A_RUN * WA, e // A_RUN
        return (along, across) if TA else (across, along)

    @device
    def right_place(e: Any) -> Any:
        along, across = e % B_RUN * WB, e // B_RUN
        return (across, along) if TB else (along, across)

    @device
    def keep_one(found: Any, u: Any, real: Any, values: Any) -> None:
        found[slot(u)] = choose(real, T(values[0]), zero)

    @device
    def keep_four(found: Any, u: Any, real: Any, values: Any) -> None:
        found[slot(u * 4)] = choose(real, T(values[0]), zero)
        found[slot(u * 4 + 1)] = choose(real, T(values[1]), zero)
        found[slot(u * 4 + 2)] = choose(real, T(values[2]), zero)
        found[slot(u * 4 + 3)] = choose(real, T(values[3]), zero)

    keep_left, keep_right = keep_four if WA == 4 else keep_one, keep_four if WB == 4 else keep_one

    @device
    def load_left(u: Any, s: Any) -> None:
        p, found, thread, m0, k0, last = s
        e = index(thread + u * THREADS)
        at, term = left_place(e)
        m, k = index(m0 + at), index(k0 + term)
        real = (WHOLE_M | (m < M)) & (k < last) & (WHOLE_LEFT | (e < A_LOADS))
        row, column = (k, m) if TA else (m, k)
        keep_left(found, u, real, a(p, choose(real, row, start), choose(real, column, start)))

    @device
    def load_right(u: Any, s: Any) -> None:
        p, found, thread, n0, k0, last = s
        e = index(thread + u * THREADS)
        at, term = right_place(e)
        n, k = index(n0 + at), index(k0 + term)
        real = (WHOLE_N | (n < N)) & (k < last) & (WHOLE_RIGHT | (e < B_LOADS))
        row, column = (n, k) if TB else (k, n)
        keep_right(found, u, real, b(p, choose(real, row, start), choose(real, column, start)))

    @device
    def multiply_term(u: Any, s: Any) -> None:
        left, right, sums, wide, gm, gn, slab = s
        row, column = (slab + u) * A_ROW + gm * TM, (slab + u) * B_ROW + gn * TN
        for n in range(TN):
            wide[n] = right[slot(column + n)]
        for m in range(TM):
            one = left[slot(row + m)]
            for n in range(TN):
                sums[m * TN + n] += one * wide[n]

    load_lefts, load_rights = unrolled(LEFT, load_left), unrolled(RIGHT, load_right)
    multiply_terms = unrolled(STEP, multiply_term)

    @block
    def run(p: Any, number: Any) -> None:
        left = cuda.shared.array(AS, T, ALIGNED)
        right = cuda.shared.array(BS, T, ALIGNED)
        next_left = cuda.local.array(FOUND_A, T)
        next_right = cuda.local.array(FOUND_B, T)
        sums = cuda.local.array(OWN, T)
        wide = cuda.local.array(TN, T)
        thread = cuda.threadIdx.x
        part, rest = number % PARTS, number // PARTS
        n0, m0 = rest % COLUMNS * BN, rest // COLUMNS * BM
        gn, gm = thread % GN, thread // GN
        for k in range(OWN):
            sums[k] = zero
        first = index(part * RUN)
        last = index(min(first + RUN, K))
        load_lefts((p, next_left, thread, m0, first, last))
        load_rights((p, next_right, thread, n0, first, last))
        k0 = first
        while k0 < last:
            cuda.syncthreads()
            for u in range(LEFT):
                e = index(thread + u * THREADS)
                if WHOLE_LEFT or e < A_LOADS:
                    m, k = left_place(e)
                    for w in range(WA):
                        left[slot(k * A_ROW + m + w * A_STEP)] = next_left[u * WA + w]
            for u in range(RIGHT):
                e = index(thread + u * THREADS)
                if WHOLE_RIGHT or e < B_LOADS:
                    n, k = right_place(e)
                    for w in range(WB):
                        right[slot(k * B_ROW + n + w * B_STEP)] = next_right[u * WB + w]
            cuda.syncthreads()
            k0 = index(k0 + BK)
            if RUN > BK:  # the terms of the next round
                load_lefts((p, next_left, thread, m0, k0, last))
                load_rights((p, next_right, thread, n0, k0, last))
            for slab in range(0, BK, STEP):
                multiply_terms((left, right, sums, wide, gm, gn, slab))
        for m in range(TM):
            for n in range(TN):
                row, column = index(m0 + gm * TM + m), index(n0 + gn * TN + n)
                if (WHOLE_M | (row < M)) & (WHOLE_N | (column < N)):
                    out(p, part, index(row * N + column), sums[m * TN + n])

    return run
