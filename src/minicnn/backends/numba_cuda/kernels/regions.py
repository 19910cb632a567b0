"""Row-wise regions: a block takes some rows of a batch through everything that concerns a row alone, in shared memory.

A region goes level by level, with a barrier behind each. On a level are loops over the elements of its values
(`elements`), in which several threads may share the sum of a product (`lane_sum`), maxima and sums of exponentials of
rows (`row_statistics`), and sums over the rows of all tiles that a block takes, in registers (`row_sums`).

What functions are given as p ends with shared memory as float32 (p[-3]), the first row of the tile (p[-2]) and the row
of the queue (p[-1]).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block, choose, device, index, slot, unrolled
from minicnn.backends.numba_cuda.kernels.elementary import exp
from minicnn.backends.numba_cuda.kernels.filling import fill
from minicnn.backends.numba_cuda.kernels.scalars import larger
from minicnn.backends.numba_cuda.shim import cuda

AT_ONCE = 16  # terms of a sum that are under way together
MOST_SLICES = 32  # threads that share a sum over rows


def elements(COUNT: int, THREADS: int, COLUMNS: int, LANES: int, body: Function) -> Function:
    """Function run(p, thread, rows) that calls body(p, q, c, e, i, real, thread) for each element of a tile.

    Args:
        COUNT: Elements of a whole tile.
        THREADS: Threads of a block.
        COLUMNS: Elements of a row.
        LANES: Neighbouring threads that do an element together.
        body: What is done to the element in row q of the tile and column c, number e of the tile and i of the batch;
            it stores what it made if `real`.
    """
    STEP, zero = THREADS // LANES, index(0)

    @block
    def run(p: Any, thread: Any, rows: Any) -> None:
        for first in range(0, COUNT, STEP):
            k = index(first + thread // LANES)
            real = k < index(rows * COLUMNS)
            e = choose(real, k, zero)
            if LANES > 1 or real:  # threads that share a sum have barriers in common
                body(p, e // COLUMNS, e % COLUMNS, e, index(p[-2] * COLUMNS + e), real & (thread % LANES == 0), thread)

    return run


def lane_sum(T: Any, N: int, LANES: int, AT: int, term: Function) -> Function:
    """Function total(p, q, c, i, thread): the sum of term(p, q, c, i, r) over r < N, by LANES neighbouring threads.

    They put their partial sums in shared memory from AT on, so that all threads of a block have to call it.
    """
    OWN, zero = N // LANES, T(0)
    RUN = max(1, min(OWN, AT_ONCE))

    @device
    def load(u: Any, s: Any) -> None:
        p, q, c, i, values, r = s
        values[slot(u)] = T(term(p, q, c, i, index(r + u * LANES)))

    load_all = unrolled(RUN, load)

    @block
    def total(p: Any, q: Any, c: Any, i: Any, thread: Any) -> Any:
        values = cuda.local.array(RUN, T)
        lane = index(thread % LANES)
        sum_ = zero
        for first in range(0, OWN // RUN * RUN, RUN):
            load_all((p, q, c, i, values, index(lane + first * LANES)))
            for u in range(RUN):
                sum_ += values[slot(u)]
        r = index(lane + OWN // RUN * RUN * LANES)
        while r < N:
            sum_ += T(term(p, q, c, i, r))
            r = index(r + LANES)
        if LANES > 1:
            shared = p[-3]
            shared[slot(AT + thread)] = sum_
            cuda.syncthreads()
            # Each of the threads adds all partial sums in the same order, so that every one of them holds the sum and
            # nothing has to hand it on.
            sum_ = zero
            for k in range(LANES):
                sum_ += shared[slot(AT + thread - lane + k)]
            cuda.syncthreads()
        return sum_

    return total


def staged(T: Any, SIZE: int, THREADS: int, AT: int, x: Function) -> Function:
    """Function filled(p, 0, shared, thread) that copies x(p, i), i < SIZE, to shared memory from AT on."""

    def load(p: Any, at: Any, k: Any) -> Any:
        return T(x(p, k))

    def place(k: Any) -> Any:
        return AT + k

    return fill(T, SIZE, THREADS, load, place)


# Rows -----------------------------------------------------------------------------------------------------------


def _statistics(T: Any, k: int, row: Function) -> Function:
    """Function statistics(p, i): the maximum of a row, and the sum of exponentials below it."""
    zero = T(0)

    @device
    def statistics(p: Any, i: Any) -> Any:
        # The maximum is subtracted, so that no exponential overflows.
        top = T(row(p, i, 0))
        for r in range(1, k):
            top = larger(top, T(row(p, i, r)))
        total = zero
        for r in range(k):
            total += exp(T(row(p, i, r)) - top)
        return top, total

    return statistics


def row_statistics(T: Any, K: int, ROWS: int, THREADS: int, AT: int, x: Function) -> Function:
    """Function run(p, thread, rows): the maximum of each row of x(p, i), and the sum of exponentials below it.

    They go to shared memory from AT on: ROWS maxima, then ROWS sums.
    """

    @device
    def element(p: Any, start: Any, c: Any) -> Any:
        return x(p, index(start + c))

    statistics_of = _statistics(T, K, element)

    @device
    def run(p: Any, thread: Any, rows: Any) -> None:
        for first in range(0, ROWS, THREADS):
            q = index(first + thread)
            if q < rows:
                p[-3][slot(AT + q)], p[-3][slot(AT + ROWS + q)] = statistics_of(p, index((p[-2] + q) * K))

    return run


# Sums over rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSums:
    """Sums over the rows of all tiles of a block: of many, each is one thread's; of few, several threads share each.

    Attributes:
        count: Registers of a thread for its sums.
        clear: clear(totals): set them to zero.
        add: add(p, totals, thread, rows): the rows of a tile.
        share: share(p, totals, thread): put them into shared memory, behind the last tile.
        finish: finish(p, totals, thread, number): hand the sums out, behind a barrier.
    """

    count: int
    clear: Function
    add: Function
    share: Function
    finish: Function


def clearing(T: Any, count: int) -> Function:
    """Function (values) that sets so many numbers to zero."""
    zero = T(0)

    @device
    def clear(values: Any) -> None:
        for k in range(count):
            values[slot(k)] = zero

    return clear


def row_sums(T: Any, O: int, MOST: int, FOLD: int, THREADS: int, AT: int, term: Function, out: Function) -> RowSums:  # noqa: E741
    """O sums of term(p, r, o) over the rows r of each tile; out(p, number, o, total) takes them.

    Args:
        T: Type of the sums.
        O: How many.
        MOST: Terms of a whole tile.
        FOLD: Terms of a row.
        THREADS: Threads of a block.
        AT: Where in shared memory threads share their sums.
        term: One term, r counted within the tile.
        out: What takes sum o of the block of a number.
    """
    # Of few sums each is shared by several threads, which would have nothing to do otherwise.
    COLUMNS = min(THREADS, O)
    SLICES = 1 << min(THREADS // COLUMNS, MOST_SLICES, MOST).bit_length() - 1
    EACH, WHOLE, zero = -(-O // COLUMNS), MOST % SLICES == 0, T(0)

    @device
    def add_one(u: Any, s: Any) -> None:
        p, totals, thread, rows = s
        o, first, last = index(thread % COLUMNS + u * COLUMNS), thread // COLUMNS, index(rows * FOLD)
        if (o < O) & (first < SLICES):
            total = totals[slot(u)]
            # A whole tile's number of terms is a constant, for which the compiler unrolls the loop.
            if WHOLE and last == MOST:
                for k in range(MOST // SLICES):
                    total += T(term(p, index(first + k * SLICES), o))
            else:
                for r in range(first, last, SLICES):
                    total += T(term(p, index(r), o))
            totals[slot(u)] = total

    @device
    def share(p: Any, totals: Any, thread: Any) -> None:
        if SLICES > 1 and thread < COLUMNS * SLICES:
            p[-3][slot(AT + thread)] = totals[slot(0)]

    @device
    def finish_one(u: Any, s: Any) -> None:
        p, totals, thread, number = s
        o = index(thread + u * COLUMNS)
        if (thread < COLUMNS) & (o < O):
            total = totals[slot(u)]
            if SLICES > 1:
                total = zero
                for k in range(SLICES):
                    total += p[-3][slot(AT + k * COLUMNS + thread)]
            out(p, number, o, total)

    add = unrolled(EACH, add_one, "p, totals, thread, rows")
    finish = unrolled(EACH, finish_one, "p, totals, thread, number")
    return RowSums(EACH, clearing(T, EACH), add, share, finish)
