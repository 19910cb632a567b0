"""Matrix product by tiles, with whatever follows it element by element: a dense layer, and its gradients.

A block makes BM x BN elements, BK terms at a time, a thread TM x TN of them in registers. While the terms in shared
memory are multiplied, the next are on their way from memory. The terms may be cut into PARTS, so that a product with
few results and many terms fills the GPU; another kernel adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import ALIGNED, Function, block, device, index
from minicnn.backends.numba_cuda.shim import cuda

SLAB = 4  # terms whose products are written out one after the other


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
    zero = T(0)

    @device
    def left_place(e: Any) -> Any:
        """(row of the result, term) of load e; neighbouring loads are neighbours in memory."""
        return (e % BM, e // BM) if TA else (e // BK, e % BK)

    @device
    def right_place(e: Any) -> Any:
        return (e // BK, e % BK) if TB else (e % BN, e // BN)

    @device
    def left_term(p: Any, m: Any, k: Any, last: Any) -> Any:
        real = m < M and k < last
        row, column = (k, m) if TA else (m, k)
        value = T(a(p, index(row) if real else index(0), index(column) if real else index(0)))
        return value if real else zero

    @device
    def right_term(p: Any, n: Any, k: Any, last: Any) -> Any:
        real = n < N and k < last
        row, column = (n, k) if TB else (k, n)
        value = T(b(p, index(row) if real else index(0), index(column) if real else index(0)))
        return value if real else zero

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
        first = part * RUN
        last = min(first + RUN, K)
        for k0 in range(first - BK, last, BK):
            if k0 >= first:
                cuda.syncthreads()
                for u in range(LEFT):
                    e = thread + u * THREADS
                    if e < BK * BM:
                        m, k = left_place(index(e))
                        left[index(k * A_ROW + m)] = next_left[u]
                for u in range(RIGHT):
                    e = thread + u * THREADS
                    if e < BK * BN:
                        n, k = right_place(index(e))
                        right[index(k * B_ROW + n)] = next_right[u]
                cuda.syncthreads()
            for u in range(LEFT):  # the terms of the next round
                m, k = left_place(index(thread + u * THREADS))
                next_left[u] = left_term(p, m0 + m, k0 + BK + k, last)
            for u in range(RIGHT):
                n, k = right_place(index(thread + u * THREADS))
                next_right[u] = right_term(p, n0 + n, k0 + BK + k, last)
            if k0 >= first:
                for slab in range(0, BK, SLAB):
                    for u in range(SLAB):
                        row, column = (slab + u) * A_ROW + gm * TM, (slab + u) * B_ROW + gn * TN
                        for n in range(TN):
                            wide[n] = right[index(column) + n]
                        for m in range(TM):
                            one = left[index(row) + m]
                            for n in range(TN):
                                sums[m * TN + n] += one * wide[n]
        for m in range(TM):
            for n in range(TN):
                row, column = m0 + gm * TM + m, n0 + gn * TN + n
                if row < M and column < N:
                    out(p, part, index(row * N + column), sums[m * TN + n])

    return run
