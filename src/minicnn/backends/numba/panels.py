"""Panels: what a kernel keeps on the stack for itself, and 16 x 16 floats with rows and columns exchanged."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir

from minicnn.backends.numba.interpreting import VectorInterpreter
from minicnn.backends.numba.operations import BYTE, BYTES, INT, INT32, LANES, VECTOR, VOID, operation, pointer, variable
from minicnn.backends.numba.registers import _at
from minicnn.backends.numba.short import SHORT_BYTES
from minicnn.backends.numba.vector import _INTS, _load, _store


def _exchanged(builder: Any, vectors: list[Any], distance: int) -> list[Any]:
    """Vectors of 16 lanes with rows and columns exchanged, in each run of as many lanes as there are vectors."""
    # Exchanges of blocks of 8, 4, 2, 1 lanes: log2(16) rounds of shuffles instead of 256 single moves.
    while distance:
        for i in range(len(vectors)):
            if not i & distance:
                first = [lane if not lane & distance else LANES + lane - distance for lane in range(LANES)]
                second = [lane + distance if not lane & distance else LANES + lane for lane in range(LANES)]
                x, y = vectors[i], vectors[i + distance]
                vectors[i], vectors[i + distance] = (
                    builder.shuffle_vector(x, y, ir.Constant(_INTS, order)) for order in (first, second)
                )
        distance //= 2
    return vectors


def _transpose(builder: Any, o: Any, x: Any, step: Any, last: Any, x_step: Any = None) -> None:
    rows, x_step = [], ir.Constant(INT, BYTES) if x_step is None else x_step
    for r in range(LANES):
        row = ir.Constant(INT, r)
        # Rows beyond the last are read as the last one, so that no memory beyond the array is touched.
        inside = builder.select(builder.icmp_signed("<", row, last), row, last)
        rows.append(_load(builder, builder.add(x, builder.mul(inside, x_step))))
    for r, one in enumerate(_exchanged(builder, rows, LANES // 2)):
        _store(builder, _at(builder, o, step, r), one)


def _transpose_pairs(builder: Any, o: Any, x: Any, step: Any, last: Any) -> None:
    half = LANES // 2
    kind, rows = ir.VectorType(INT32, half), []
    for r in range(LANES):
        row = ir.Constant(INT, r)
        inside = builder.select(builder.icmp_signed("<", row, last), row, last)
        place = builder.add(x, builder.mul(inside, ir.Constant(INT, SHORT_BYTES)))
        rows.append(builder.load(pointer(builder, place, kind), align=2))
    # Rows r and r + 8 side by side: three rounds exchange rows and columns in both halves at once.
    both = ir.Constant(_INTS, list(range(LANES)))
    vectors = [builder.shuffle_vector(rows[r], rows[r + half], both) for r in range(half)]
    for r, one in enumerate(_exchanged(builder, vectors, half // 2)):
        _store(builder, _at(builder, o, step, r), builder.bitcast(one, VECTOR))


def _sums(builder: Any, x: Any, step: Any) -> Any:
    """Sums of the lanes of 16 vectors, in pairs: each round halves the vectors and doubles the sums in each."""
    vectors = [_load(builder, _at(builder, x, step, r)) for r in range(LANES)]
    width = LANES  # lanes that belong to one of the sums in a vector
    while width > 1:
        width //= 2
        low = [v * LANES + i for v in (0, 1) for i in range(LANES) if not i & width]
        high = [place + width for place in low]
        # Pairs of vectors become one, half of whose lanes belong to each: 15 additions instead of 16 times 4.
        vectors = [
            builder.fadd(*(builder.shuffle_vector(a, b, ir.Constant(_INTS, order)) for order in (low, high)))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


SCRATCH = 1 << 15  # bytes that a kernel may use on the stack


class _Stack(threading.local):
    """The same for interpreted kernels."""

    def __init__(self) -> None:
        self.memory = np.zeros(SCRATCH + BYTES, np.uint8)
        self.address = self.memory.ctypes.data + -self.memory.ctypes.data % BYTES


_STACK = _Stack()


def _stack(builder: Any) -> Any:
    if isinstance(builder, VectorInterpreter):
        return _STACK.address
    place = variable(builder, ir.ArrayType(BYTE, SCRATCH))
    place.align = BYTES
    return builder.ptrtoint(place, INT)


# transpose(o, x, step, last): 16 vectors at x, those after number `last` being that one again, as columns: lane r of
# what is stored at o + s * step is lane s of vector r.
transpose = operation("transpose", VOID, [INT] * 4, _transpose)
# transpose_rows(o, x, step, last, x_step): the same of vectors that are x_step apart.
transpose_rows = operation("transpose_rows", VOID, [INT] * 5, _transpose)
# transpose_pairs(o, x, step, last): the same for rows of 8 pairs of bfloat16 each: what is stored at o + s * step has
# pair s of row r in lane r.
transpose_pairs = operation("transpose_pairs", VOID, [INT] * 4, _transpose_pairs)
# sums(x, step): lane i is the sum of the lanes of the vector at x + i * step.
sums = operation("sums", VECTOR, [INT] * 2, _sums)
# stack(): address of SCRATCH bytes that are the thread's own until the kernel returns.
stack = operation("stack", INT, [], _stack)
