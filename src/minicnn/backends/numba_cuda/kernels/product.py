"""Matrix product by tiles, with whatever follows it element by element: a dense layer, and its gradients.

A block makes BM x BN elements, BK terms at a time, a thread TM x TN of them in registers. While the terms in shared
memory are multiplied, the next are on their way from memory. The terms may be cut into PARTS, so that a product with
few results and many terms fills the GPU; another kernel adds the parts.
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
from minicnn.backends.numba_cuda.kernels.filling import keeping
from minicnn.backends.numba_cuda.kernels.geometry import masked
from minicnn.backends.numba_cuda.shim import cuda

SLAB = 16  # terms whose products are written out one after the other


class ProductTile(NamedTuple):
    """Sizes of a product (M, K) x (K, N) and its tile.

    Attributes:
        TA: Whether a is stored transposed.
        TB: Whether b is.
        WA: Neighbours of a row of a, as it is stored, that are loaded at once: 1 or 4.
        WB: The same of b.
        PARTS: Pieces into which the terms are cut.
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


def side(
    T: Any, LIMIT: int, SIZE: int, BK: int, ALONG: bool, W: int, ROW: int, THREADS: int, get: Function, unpack: Any
) -> tuple[Function, Function, int, Any]:
    """Functions by which a block's threads bring a piece of a matrix into shared memory, SIZE results x BK terms.

    Args:
        T: Type of the elements.
        LIMIT: Results along this side.
        SIZE: Those of a block.
        BK: Terms in shared memory.
        ALONG: Whether results, rather than terms, are neighbours in memory.
        W: Neighbours that are loaded at once.
        ROW: Length of a term's row in shared memory.
        THREADS: Threads of a block.
        get: get(p, row, column): a tuple of W neighbours, or of one word that holds them.
        unpack: None, or unpack(word, w): one of them. They stay packed until they are stored, because a conversion
            waits for what it converts.

    Returns:
        load((p, fetched, thread, first, k0, last)), which asks for the piece that begins at a result and at term k0;
        store((fetched, shared, thread, k0, last)), which puts it into shared memory, when it has come; how much a
        thread has on the way, and of which type.
    """
    LOADS, RUN = BK * SIZE // W, (SIZE if ALONG else BK) // W
    EACH, STEP, SLOTS = -(-LOADS // THREADS), 1 if ALONG else ROW, 1 if unpack else W
    WHOLE, ALL = LIMIT % SIZE == 0, LOADS % THREADS == 0
    zero, start, kind = T(0), index(0), index if unpack else T
    keep, mask = keeping(SLOTS), masked(kind, SLOTS)

    @device
    def place(e: Any) -> Any:
        """(result, term) of load e; neighbouring loads are neighbours in memory."""
        one, other = e % RUN * W, e // RUN
        return (one, other) if ALONG else (other, one)

    @device
    def load_one(u: Any, s: Any) -> None:
        p, fetched, thread, first, k0, last = s
        e = index(thread + u * THREADS)
        at, term = place(e)
        m, k = index(first + at), index(k0 + term)
        real = (WHOLE | (m < LIMIT)) & (k < last) & (ALL | (e < LOADS))
        row, column = (k, m) if ALONG else (m, k)
        # What lies outside is read at element 0 and masked afterwards: a branch around each load would keep them from
        # being under way together.
        keep(fetched, u, mask(real, get(p, choose(real, row, start), choose(real, column, start))))

    @device
    def loaded(fetched: Any, u: Any, w: Any, inside: Any) -> Any:
        return fetched[slot(u * SLOTS + w)]

    @device
    def unpacked(fetched: Any, u: Any, w: Any, inside: Any) -> Any:
        return choose(inside, T(unpack(fetched[slot(u)], w)), zero)

    element = unpacked if unpack else loaded

    @device
    def store_one(u: Any, s: Any) -> None:
        fetched, shared, thread, k0, last = s
        e = index(thread + u * THREADS)
        if ALL or e < LOADS:
            at, term = place(e)
            for w in range(W):
                inside = index(k0 + term) < last
                shared[slot(term * ROW + at + w * STEP)] = element(fetched, u, w, inside)

    return unrolled(EACH, load_one), unrolled(EACH, store_one), EACH * SLOTS, kind


def multiply(
    T: Any, tile: ProductTile, a: Function, b: Function, out: Function, unpack_a: Any = None, unpack_b: Any = None
) -> Function:
    """The function of a block.

    Args:
        T: Type of the elements.
        tile: Sizes.
        a: a(p, row, column), WA elements of the first matrix as it is stored, from that column on.
        b: b(p, row, column), WB of the second.
        out: out(p, part, i, sum) for each element i of the product.
        unpack_a: None, or what makes elements of the first matrix from words; see `side`.
        unpack_b: The same of the second.
    """
    M, N, K, TA, TB, WA, WB, BM, BN, BK, TM, TN, PARTS = tile
    GN, GM = BN // TN, BM // TM
    THREADS, COLUMNS = GN * GM, -(-N // BN)
    RUN = -(-K // (PARTS * BK)) * BK  # terms of a part
    # Rows a little longer than the tile, so that a column's elements are not all in the same bank; B's still begin at
    # multiples of four, for loads of four numbers.
    A_ROW, B_ROW = BM + min(TM, 4), -(-BN // 4) * 4 + 4  # of shared memory
    load_left, store_left, LEFT, LEFT_KIND = side(T, M, BM, BK, TA, WA, A_ROW, THREADS, a, unpack_a)
    load_right, store_right, RIGHT, RIGHT_KIND = side(T, N, BN, BK, not TB, WB, B_ROW, THREADS, b, unpack_b)
    AS, BS, OWN = BK * A_ROW, BK * B_ROW, TM * TN
    WHOLE_M, WHOLE_N, STEP = M % BM == 0, N % BN == 0, min(SLAB, BK)
    zero = T(0)

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

    multiply_terms = unrolled(STEP, multiply_term)

    @block
    def run(p: Any, number: Any) -> None:
        left = cuda.shared.array(AS, T, ALIGNED)
        right = cuda.shared.array(BS, T, ALIGNED)
        next_left = cuda.local.array(LEFT, LEFT_KIND)
        next_right = cuda.local.array(RIGHT, RIGHT_KIND)
        sums = cuda.local.array(OWN, T)
        wide = cuda.local.array(TN, T)
        thread = cuda.threadIdx.x
        part, rest = number % PARTS, number // PARTS
        n0, m0 = rest % COLUMNS * BN, rest // COLUMNS * BM
        gn, gm = thread % GN, thread // GN
        for k in range(OWN):
            sums[k] = zero
        k0 = index(part * RUN)
        last = index(min(part * RUN + RUN, K))
        load_left((p, next_left, thread, m0, k0, last))
        load_right((p, next_right, thread, n0, k0, last))
        while k0 < last:
            cuda.syncthreads()
            store_left((next_left, left, thread, k0, last))
            store_right((next_right, right, thread, k0, last))
            cuda.syncthreads()
            k0 = index(k0 + BK)
            # They are asked for before this round is multiplied: memory is at work meanwhile.
            if RUN > BK:  # the terms of the next round
                load_left((p, next_left, thread, m0, k0, last))
                load_right((p, next_right, thread, n0, k0, last))
            for slab in range(0, BK, STEP):
                multiply_terms((left, right, sums, wide, gm, gn, slab))
        for m in range(TM):
            for n in range(TN):
                row, column = index(m0 + gm * TM + m), index(n0 + gn * TN + n)
                if (WHOLE_M | (row < M)) & (WHOLE_N | (column < N)):
                    out(p, part, index(row * N + column), sums[m * TN + n])

    return run
