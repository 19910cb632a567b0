"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minicnn.backends.numba_cuda import dtypes
from minicnn.backends.numba_cuda.arrays import Array, empty
from minicnn.backends.numba_cuda.device import kernel
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, contiguous, same_device
from minicnn.backends.numba_cuda.kernels.matmul import SIDE
from minicnn.backends.numba_cuda.manipulation import axis_of, broadcast_shapes, broadcast_to, permute_dims, reshape
from minicnn.backends.numba_cuda.reductions import sum as sum_of

_TEXT = """product = matmul(np.{kind})


def kernel(a, b, out, count, n, m, k, a_row, a_column, b_row, b_column, {steps}):
    for item in range(cuda.blockIdx.z, count, cuda.gridDim.z):
        a_first = 0
        b_first = 0
        rest = item
{places}        product(a, b, out, a_first, b_first, item * n * m, n, m, k, a_row, a_column, b_row, b_column)
        cuda.syncthreads()
"""


def matmul(x1: Array, x2: Array, /) -> Array:
    """Products of matrices, or of stacks of them; a vector counts as a row on the left, a column on the right."""
    kind = dtypes.result_type(x1, x2)
    if kind.kind == "b" or not x1.ndim or not x2.ndim:
        message = (
            "matmul is for matrices and vectors of numbers. "
            f"Received: {x1.dtype}{list(x1.shape)} and {x2.dtype}{list(x2.shape)}."
        )
        raise TypeError(message) if kind.kind == "b" else ValueError(message)
    a = x1.view((1, *x1.shape), (0, *x1.steps)) if x1.ndim == 1 else x1
    b = x2.view((*x2.shape, 1), (*x2.steps, 0)) if x2.ndim == 1 else x2
    (n, k), (rows, m) = a.shape[-2:], b.shape[-2:]
    if k != rows:
        raise ValueError(
            f"The columns of x1 are as many as the rows of x2. Received: shapes {x1.shape} and {x2.shape}."
        )
    outer = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    product = empty((*outer, n, m), kind, same_device((a, b)))
    if product.size:
        _product(a, b, product, outer)
    shape = (*outer, *((n,) if x1.ndim > 1 else ()), *((m,) if x2.ndim > 1 else ()))
    return reshape(product, shape)


def _product(a: Array, b: Array, target: Array, outer: tuple[int, ...]) -> None:
    (n, k), m = a.shape[-2:], b.shape[-1]
    a, b = (contiguous(x) if min(x.steps) < 0 else x for x in (a, b))
    a, b = broadcast_to(a, (*outer, n, k)), broadcast_to(b, (*outer, k, m))
    names, places, values = [], "", []
    for axis in range(len(outer) - 1, -1, -1):
        names += [f"length{axis}", f"a_step{axis}", f"b_step{axis}"]
        values += [outer[axis], a.steps[axis], b.steps[axis]]
        places += (
            f"        a_first += rest % length{axis} * a_step{axis}\n"
            f"        b_first += rest % length{axis} * b_step{axis}\n        rest //= length{axis}\n"
        )
    text = _TEXT.format(kind=target.dtype.name, places=places, steps=", ".join(names)).replace(", )", ")")
    numbers = (math.prod(outer), n, m, k, *a.steps[-2:], *b.steps[-2:], *values)
    signature = (*(f"{x.dtype.name}*" for x in (a, b, target)), *["int64"] * len(numbers))
    blocks = (-(-m // SIDE), -(-n // SIDE), min(math.prod(outer), 1024))
    arguments = (a.pointer, b.pointer, target.pointer, *numbers)
    target.device.launch(kernel(text, signature, SIDE * SIDE), blocks, SIDE * SIDE, arguments)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sums of products over several axes."""
    if isinstance(axes, int):
        left, right = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        left, right = [axis_of(a, x1.ndim) for a in axes[0]], [axis_of(a, x2.ndim) for a in axes[1]]
    if [x1.shape[a] for a in left] != [x2.shape[a] for a in right]:
        raise ValueError(f"Contracted axes have the same lengths. Received: {x1.shape} and {x2.shape} over {axes}.")
    rows = [a for a in range(x1.ndim) if a not in left]
    columns = [a for a in range(x2.ndim) if a not in right]
    terms = math.prod(x1.shape[a] for a in left)
    shape = (*(x1.shape[a] for a in rows), *(x2.shape[a] for a in columns))
    a = reshape(permute_dims(x1, (*rows, *left)), (math.prod(x1.shape[a] for a in rows), terms))
    b = reshape(permute_dims(x2, (*right, *columns)), (terms, math.prod(x2.shape[a] for a in columns)))
    return reshape(matmul(a, b), shape)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sums of products along an axis."""
    product: Any = FUNCTIONS["multiply"](x1, x2)
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"Vectors are of one length. Received: {x1.shape} and {x2.shape} along axis {axis}.")
    return sum_of(product, axis=axis, dtype=product.dtype)


__all__ = ["matmul", "tensordot", "vecdot"]
