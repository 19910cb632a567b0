"""A region's product of rows of bytes with a matrix, and that of their transpose with the gradient.

A block reads each of its bytes from memory once. They stay in shared memory, four in a word, and serve both products.
Forward a thread makes ROWS / LANES rows with all M columns from every SLICES-th word of them; the slices are added
where an element is read. Backward a thread makes M columns of the gradient for the four bytes of its words; these sums
stay in registers from tile to tile. The bytes of the next tile are on their way meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.kernels.decorators import (
    Function,
    block,
    byte,
    choose,
    device,
    index,
    read,
    read_word,
    read_words,
    slot,
    unrolled,
)
from minicnn.backends.numba_cuda.kernels.filling import fill
from minicnn.backends.numba_cuda.shim import cuda

TOGETHER = 4  # rows whose terms of the gradient are written out one after the other


@dataclass(frozen=True)
class ByteTile:
    """Sizes of a product of N rows of K bytes with a matrix of K x M, ROWS rows at a time.

    Attributes:
        LANES: Threads side by side that have different rows; each has ROWS // LANES.
    """

    N: int
    K: int
    M: int
    ROWS: int
    LANES: int
    THREADS: int

    @property
    def words(self) -> int:
        """Words of a row."""
        return -(-self.K // 4)

    @property
    def pitch(self) -> int:
        """Words from one row to the next: an odd number of fours, so that eight rows are in different banks."""
        return 4 * (-(-self.words // 4) | 1)

    @property
    def slices(self) -> int:
        """Threads that share the terms of a row."""
        return self.THREADS // self.LANES

    @property
    def weights_at(self) -> int:
        """Place of the matrix in shared memory, behind the bytes; in numbers of 4 bytes."""
        return self.ROWS * self.pitch

    @property
    def sums_at(self) -> int:
        """Place of the slices' sums in shared memory."""
        return self.weights_at + 4 * self.words * self.M

    @property
    def sums_pitch(self) -> int:
        """From one slice's sums to the next, which begin in different banks."""
        return self.ROWS * self.M + 1

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return 4 * (self.sums_at + -(-min(self.slices, self.words) * self.sums_pitch // 4) * 4)

    @property
    def words_per_thread(self) -> int:
        """Words of a row that a thread has in the product with the gradient."""
        return -(-self.words // self.THREADS)

    @property
    def width(self) -> int:
        """Words that are loaded at once."""
        return 4 if self.K % 16 == 0 else 1

    @property
    def loads(self) -> int:
        """Loads of a thread for a tile."""
        return -(-self.ROWS * self.words // (self.width * self.THREADS))


@dataclass(frozen=True)
class ByteRows:
    """Functions of a block on its rows of bytes."""

    begin: Function  # begin(p, 0, shared, thread): bring the matrix into shared memory
    load: Function  # load(p, fetched, thread, tile): ask for the bytes of a tile
    store: Function  # store(fetched, words, thread): put them into shared memory, when they have come
    multiply: Function  # multiply(shared, words, thread): the product, slice by slice
    clear: Function  # clear(totals): set the sums of the gradient to zero
    accumulate: Function  # accumulate(shared, words, totals, thread, rows): add the product with the gradient
    finish: Function  # finish(p, totals, thread, number): hand these sums out


def _keeping(width: int) -> Function:
    """Function keep(values, u, fetched): put a tuple of so many words, 1 or 4, into registers, the u-th of such."""

    @device
    def one(values: Any, u: Any, fetched: Any) -> None:
        values[slot(u)] = fetched[0]

    @device
    def four(values: Any, u: Any, fetched: Any) -> None:
        values[slot(u * 4)] = fetched[0]
        values[slot(u * 4 + 1)] = fetched[1]
        values[slot(u * 4 + 2)] = fetched[2]
        values[slot(u * 4 + 3)] = fetched[3]

    return four if width == 4 else one


def byte_rows(tile: ByteTile, x: Function, where: Function, weight: Function, dy: int, out: Function) -> ByteRows:
    """The functions of a tile.

    Args:
        tile: Sizes.
        x: x(p): memory of the bytes, and the number of the first.
        where: where(p, r): which row of the memory is row r of the batch.
        weight: weight(p, i): element i of the matrix.
        dy: Where the gradient of a tile's rows begins in shared memory, in numbers of 4 bytes.
        out: out(p, number, i, total): what takes element i of the product with the gradient, of the block of a number.
    """
    T, zero, none = np.float32, np.float32(0), index(0)
    N, K, M, ROWS, LANES, THREADS = tile.N, tile.K, tile.M, tile.ROWS, tile.LANES, tile.THREADS
    WORDS, PITCH, SLICES, WIDTH, LOADS, OWN = (
        tile.words,
        tile.pitch,
        tile.slices,
        tile.width,
        tile.loads,
        tile.words_per_thread,
    )
    WEIGHTS, SUMS, SUMS_PITCH, PARTS = tile.weights_at, tile.sums_at, tile.sums_pitch, min(tile.slices, tile.words)
    EACH, RUN = ROWS // LANES, WORDS // WIDTH
    MINE, COUNT, TOTALS = EACH * M, RUN * ROWS, OWN * 4 * M

    def load_weight(p: Any, at: Any, k: Any) -> Any:
        real = k < K * M
        return choose(real, T(weight(p, choose(real, k, none))), zero)

    def place_weight(k: Any) -> Any:
        return WEIGHTS + k

    # The matrix stays in shared memory for all tiles of a block, with zeros behind its last row, so that the bytes that
    # fill up a row's last word add nothing to the product.
    begin = fill(T, 4 * WORDS * M, THREADS, load_weight, place_weight)

    # Bytes --------------------------------------------------------------------------------------

    @device
    def four_words(bytes_: Any, at: Any, left: Any) -> Any:
        return read_words(bytes_, at)

    @device
    def one_word(bytes_: Any, at: Any, left: Any) -> Any:
        return (read_word(bytes_, at),)

    @device
    def single_bytes(bytes_: Any, at: Any, left: Any) -> Any:
        word = index(read(bytes_, at))
        # Past the end of a row its first byte of the word is read again: it meets a zero of the matrix, and no address
        # is outside.
        word |= index(read(bytes_, index(at + choose(left > 1, 1, 0)))) << index(8)
        word |= index(read(bytes_, index(at + choose(left > 2, 2, 0)))) << index(16)
        word |= index(read(bytes_, index(at + choose(left > 3, 3, 0)))) << index(24)
        return (word,)

    take, keep = four_words if WIDTH == 4 else one_word if K % 4 == 0 else single_bytes, _keeping(WIDTH)

    @device
    # Loading and storing are two functions, because a tile's bytes stay in registers, on their way, while the tile
    # before it is multiplied.
    def load_one(u: Any, s: Any) -> None:
        p, fetched, thread, tile = s
        e = index(thread + u * THREADS)
        e = choose(e < COUNT, e, none)
        r, w = index(tile * ROWS + e // RUN), e % RUN * WIDTH
        # Behind the last row the last is read once more, where a branch would keep the loads from being under way
        # together.
        row = where(p, choose(r < N, r, index(N - 1)))
        bytes_, first = x(p)
        keep(fetched, u, take(bytes_, index(first + row * K + w * 4), K - w * 4))

    @device
    def store_one(u: Any, s: Any) -> None:
        fetched, words, thread = s
        e = index(thread + u * THREADS)
        if e < COUNT:
            start = e // RUN * PITCH + e % RUN * WIDTH
            for k in range(WIDTH):
                words[slot(start + k)] = fetched[slot(u * WIDTH + k)]

    load = unrolled(LOADS, load_one, "p, fetched, thread, tile")
    store = unrolled(LOADS, store_one, "fetched, words, thread")

    # Forward ------------------------------------------------------------------------------------

    @device
    def multiply_byte(j: Any, s: Any) -> None:
        shared, words_of_lane, wide, sums, w = s
        start = WEIGHTS + (w * 4 + j) * M
        for m in range(M):
            wide[slot(m)] = shared[slot(start + m)]
        for k in range(EACH):
            one = byte(words_of_lane[slot(k)], j)
            for m in range(M):
                sums[slot(k * M + m)] += one * wide[slot(m)]

    multiply_bytes = unrolled(4, multiply_byte)

    @block
    def multiply(shared: Any, words: Any, thread: Any) -> None:
        words_of_lane = cuda.local.array(EACH, index)
        # A row of the matrix is read once from shared memory for all rows of the thread.
        wide = cuda.local.array(M, T)
        sums = cuda.local.array(MINE, T)
        lane, piece = thread % LANES, thread // LANES
        for k in range(MINE):
            sums[slot(k)] = zero
        for w in range(piece, WORDS, SLICES):
            for k in range(EACH):
                words_of_lane[slot(k)] = words[slot((lane + k * LANES) * PITCH + w)]
            multiply_bytes((shared, words_of_lane, wide, sums, w))
        if piece < PARTS:
            start = SUMS + piece * SUMS_PITCH + lane * M
            for k in range(EACH):
                for m in range(M):
                    shared[slot(start + k * LANES * M + m)] = sums[slot(k * M + m)]

    # The gradient -------------------------------------------------------------------------------

    @device
    def add_word(u: Any, s: Any) -> None:
        words, totals, wide, thread, r = s
        w = index(thread + u * THREADS)
        word = words[slot(r * PITCH + choose(w < WORDS, w, none))]
        for j in range(4):
            one = byte(word, index(j))
            for m in range(M):
                totals[slot((u * 4 + j) * M + m)] += one * wide[slot(m)]

    add_words = unrolled(OWN, add_word)

    @device
    # The gradient of a row is read once for all words of the thread.
    def add_row(u: Any, s: Any) -> None:
        shared, words, totals, wide, thread, r = s
        for m in range(M):
            wide[slot(m)] = shared[slot(dy + (r + u) * M + m)]
        add_words((words, totals, wide, thread, index(r + u)))

    add_rows = unrolled(TOGETHER, add_row)

    @block
    def accumulate(shared: Any, words: Any, totals: Any, thread: Any, rows: Any) -> None:
        wide = cuda.local.array(M, T)
        if thread < WORDS:
            r = index(0)
            while r + TOGETHER <= rows:
                add_rows((shared, words, totals, wide, thread, r))
                r = index(r + TOGETHER)
            while r < rows:
                add_row(index(0), (shared, words, totals, wide, thread, r))
                r = index(r + 1)

    @device
    def clear(totals: Any) -> None:
        for k in range(TOTALS):
            totals[slot(k)] = zero

    @device
    def finish_one(u: Any, s: Any) -> None:
        p, totals, thread, number = s
        w = index(thread + u * THREADS)
        for j in range(4):
            if index(w * 4 + j) < K:
                for m in range(M):
                    out(p, number, index((w * 4 + j) * M + m), totals[slot((u * 4 + j) * M + m)])

    finish = unrolled(OWN, finish_one, "p, totals, thread, number")
    return ByteRows(begin, load, store, multiply, clear, accumulate, finish)
