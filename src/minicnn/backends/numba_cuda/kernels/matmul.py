"""The textbook tiled matrix product: what `xp.matmul` runs.

A block makes SIDE x SIDE elements. In each round its threads load one square of each matrix into shared memory, one
element a thread, and then each adds SIDE products: every number is read from memory once a block instead of SIDE times.
"""

from __future__ import annotations

from typing import Any

from minicnn.backends.numba_cuda.kernels.decorators import Function, block
from minicnn.backends.numba_cuda.shim import SIMULATED, cuda

SIDE = 2 if SIMULATED else 16


def matmul(T: Any) -> Function:
    """The function of a block for elements of type T."""
    side, square = SIDE, (SIDE, SIDE)
    zero = T(0)

    @block
    def run(
        a: Any, b: Any, out: Any, a_first: Any, b_first: Any, out_first: Any,
        n: Any, m: Any, k: Any, a_row: Any, a_column: Any, b_row: Any, b_column: Any,
    ) -> None:  # fmt: skip
        """out[n, m] = a[n, k] @ b[k, m], for matrices that begin anywhere, with any steps between rows and columns."""
        left = cuda.shared.array(square, T)
        right = cuda.shared.array(square, T)
        thread = cuda.threadIdx.x
        x, y = thread % side, thread // side
        row, column = cuda.blockIdx.y * side + y, cuda.blockIdx.x * side + x
        total = zero
        for first in range(0, k, side):
            inside = row < n and first + x < k
            left[y, x] = T(a[a_first + row * a_row + (first + x) * a_column]) if inside else zero
            inside = column < m and first + y < k
            right[y, x] = T(b[b_first + (first + y) * b_row + column * b_column]) if inside else zero
            cuda.syncthreads()
            for term in range(side):
                total += left[y, term] * right[term, x]
            cuda.syncthreads()
        if row < n and column < m:
            out[out_first + row * m + column] = total

    return run
