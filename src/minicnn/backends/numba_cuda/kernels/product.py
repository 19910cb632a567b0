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
    """Sizes of a product (M, K) x (K, N) and its tile; TA, TB: whether a and b are stored transposed."""

    M: int
    N: int
    K: int
    TA: bool
    TB: bool
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
        a: a(p, row, column), an element of the first matrix as it is stored.
        b: b(p, row, column) of the second.
        out: out(p, part, i, sum) for each element i of the product.
    """
    M, N, K, TA, TB, BM, BN, BK = tile.M, tile.N, tile.K, tile.TA, tile.TB, tile.BM, tile.BN, tile.BK
    TM, TN, PARTS = tile.TM, tile.TN, tile.PARTS
    GN, GM = BN // TN, BM // TM
    THREADS, COLUMNS = GN * GM, -(-N // BN)
    terms = -(-K // PARTS)
    RUN = -(-terms // BK) * BK  # terms of a part
    LEFT, RIGHT = -(-BK * BM // THREADS), -(-BK * BN // THREADS)
    A_ROW, B_ROW = BM + 4, BN + 4
    AS, BS, OWN = BK * A_ROW, BK * B_ROW, TM * TN
    WHOLE_M, WHOLE_N, STEP = M % BM == 0, N % BN == 0, min(SLAB, BK)
    zero, start = T(0), index(0)

    @device
    def left_place(e: Any) -> Any:
        """(row of the result, term) of load e; neighbouring loads are neighbours in memory."""
        return (e % BM, e // BM) if TA else (e // BK, e % BK)

    @device
    def right_place(e: Any) -> Any:
        return (e // BK, e % BK) if TB else (e % BN, e // BN)

    @device
    def left_term(p: Any, m: Any, k: Any, last: Any) -> Any:
        real = (WHOLE_M | (m < M)) & (k < last)
        row, column = (k, m) if TA else (m, k)
        return choose(real, T(a(p, choose(real, row, start), choose(real, column, start))), zero)

    @device
    def right_term(p: Any, n: Any, k: Any, last: Any) -> Any:
        real = (WHOLE_N | (n < N)) & (k < last)
        row, column = (n, k) if TB else (k, n)
        return choose(real, T(b(p, choose(real, row, start), choose(real, column, start))), zero)

    @device
    def load_left(u: Any, s: Any) -> None:
        p, found, thread, m0, k0, last = s
        m, k = left_place(index(thread + u * THREADS))
        found[u] = left_term(p, index(m0 + m), index(k0 + k), last)

    @device
    def load_right(u: Any, s: Any) -> None:
        p, found, thread, n0, k0, last = s
        n, k = right_place(index(thread + u * THREADS))
        found[u] = right_term(p, index(n0 + n), index(k0 + k), last)

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
        next_left = cuda.local.array(LEFT, T)
        next_right = cuda.local.array(RIGHT, T)
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
                if e < BK * BM:
                    m, k = left_place(e)
                    left[slot(k * A_ROW + m)] = next_left[u]
            for u in range(RIGHT):
                e = index(thread + u * THREADS)
                if e < BK * BN:
                    n, k = right_place(e)
                    right[slot(k * B_ROW + n)] = next_right[u]
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
