"""Checks of kernels: one compiled by Numba for the CPU, and one for the GPU in Numba's CUDA simulator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from minicnn import backends, ops
from minicnn.exercises.checks import Array, faster
from minicnn.exercises.exercise import WrongError
from minicnn.program import Program

Names = Sequence[str] | None

SHAPES = ((1, 1), (5, 3), (64, 33))  # N, C
LARGE = (4096, 512)
BAR = 0.8  # of the time of NumPy, which makes two passes


# Bias and ReLU on the CPU ---------------------------------------------------------------------------


def _drawn(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, dtype="float32")


def _bias_relu(given: ModuleType, shape: tuple[int, int], right: Array) -> None:
    x, bias, out = _drawn(*shape), _drawn(shape[1]), np.full(shape, np.nan, "float32")
    given.bias_relu(x, bias, out)
    if not np.array_equal(x, _drawn(*shape)):
        raise WrongError(f"x of shape {shape} has been changed: write to out only")
    if not np.array_equal(out, right):
        place = tuple(int(i) for i in np.argwhere(~(out == right))[0])
        raise WrongError(f"out{list(place)} is {out[place]:.6g} and should be {right[place]:.6g} (x of shape {shape})")


def compiled(given: ModuleType, names: Names) -> str:
    """Numba has compiled the function, without Python objects."""
    from numba.core.dispatcher import Dispatcher

    if not isinstance(given.bias_relu, Dispatcher):
        raise WrongError("bias_relu is a plain Python function: keep the decorator @njit")
    given.bias_relu(_drawn(2, 2), _drawn(2), _drawn(2, 2))
    if not given.bias_relu.nopython_signatures:
        raise WrongError("bias_relu falls back to Python objects: use @njit")
    return "bias_relu is machine code"


def bias_relu_values(given: ModuleType, names: Names) -> str:
    """The elements are those of NumPy, bit for bit."""
    for shape in SHAPES:
        _bias_relu(given, shape, np.maximum(_drawn(*shape) + _drawn(shape[1]), np.float32(0)))
    return f"{len(SHAPES)} shapes: the same bits as NumPy's"


def bias_relu_parity(given: ModuleType, names: Names) -> str:
    """The elements are those of the library's own kernel, bit for bit."""
    shape = SHAPES[-1]
    program = Program("bias and relu")
    x, bias = program.input("x", shape), program.input("bias", shape[1:], kind="parameter")
    program.outputs["y"] = ops.relu(x + bias)
    run = backends.get_backend("numba").compile(program)
    _bias_relu(given, shape, run({"x": _drawn(*shape), "bias": _drawn(shape[1])})["y"])
    return "the same bits as the kernel of the numba backend"


def bias_relu_speed(given: ModuleType, names: Names) -> str:
    """One pass takes less time than NumPy's two."""
    x, bias, out = _drawn(*LARGE), _drawn(LARGE[1]), np.empty(LARGE, "float32")
    call = partial(given.bias_relu, x, bias, out)
    _bias_relu(given, LARGE, np.maximum(x + bias, np.float32(0)))  # a time counts only if the results are right
    return faster("bias_relu", call, BAR, "NumPy's two passes", lambda: np.maximum(x + bias, np.float32(0)))


# A matrix product on the GPU ------------------------------------------------------------------------

FACTOR = 0.75  # of its side: how many times fewer reads than by the naive kernel are asked for


class _Watched:
    """A matrix in the GPU's memory that counts the elements read from it, and knows where it ends."""

    def __init__(self, array: Array) -> None:
        self._array, self._counter = array, itertools.count()  # a step of it is atomic, and threads take turns
        self.shape, self.dtype, self.ndim, self.size = array.shape, array.dtype, array.ndim, array.size

    def __getitem__(self, at: Any) -> Any:
        self._within(at)
        found = self._array[at]
        for _ in range(np.size(found)):
            next(self._counter)
        return found

    def __setitem__(self, at: Any, value: Any) -> None:
        self._within(at)
        self._array[at] = value

    def _within(self, at: Any) -> None:
        for axis, i in enumerate(at if isinstance(at, tuple) else (at,)):
            if isinstance(i, int | np.integer) and not 0 <= i < self.shape[axis]:
                raise WrongError(
                    f"index {i} is outside an axis of {self.shape[axis]}: on a GPU this reads or writes anything"
                )

    @property
    def reads(self) -> int:
        """Elements read so far."""
        return int(repr(self._counter).partition("(")[2][:-1])


def _product(given: ModuleType, n: int, k: int, m: int) -> int:
    """Launch a product of (n, k) and (k, m), check it, and return how many elements were read."""
    from minicnn.backends.numba_cuda.simulator import simulate

    side = given.SIDE
    if not isinstance(side, int) or not 2 <= side <= 8:
        raise WrongError(f"SIDE, the side of a block, is an integer from 2 to 8. It is {side!r}")
    rng = np.random.default_rng((n, k, m))
    a, b = (rng.integers(-4, 5, shape).astype("float32") for shape in ((n, k), (k, m)))  # sums of integers are exact
    c = np.full((n, m), np.nan, "float32")
    watched = [_Watched(array) for array in (a, b, c)]
    simulate(given.matmul, (-(-m // side), -(-n // side)), (side, side), watched)  # type: ignore[arg-type]  # any block
    if not np.array_equal(c, a @ b):
        i, j = (int(p) for p in np.argwhere(~(c == a @ b))[0])
        raise WrongError(f"c[{i}, {j}] is {c[i, j]:.6g} and should be {(a @ b)[i, j]:.6g} (a of {n}x{k}, b of {k}x{m})")
    return sum(matrix.reads for matrix in watched)


def matmul_values(given: ModuleType, names: Names) -> str:
    """Products of matrices whose sides are multiples of the block's."""
    side = given.SIDE
    _product(given, side, side, side)
    _product(given, 2 * side, 3 * side, side)
    return "two products whose sides are multiples of SIDE are right"


def matmul_edges(given: ModuleType, names: Names) -> str:
    """Products of matrices of any sides, without an access beyond their ends."""
    side = given.SIDE
    _product(given, side + 1, side - 1, 2 * side - 1)
    _product(given, 1, 2 * side + 1, 1)
    return "products of any sides are right, and no access is beyond a matrix"


def matmul_reads(given: ModuleType, names: Names) -> str:
    """Each element is read from the GPU's memory once a block, not once a thread."""
    n = k = m = 3 * given.SIDE
    reads, naive = _product(given, n, k, m), 2 * n * m * k
    said = f"{reads:,} elements are read from memory, {naive / reads:.2g} times fewer than by the naive kernel"
    if naive < FACTOR * given.SIDE * reads:
        raise WrongError(f"{said}; with tiles in shared memory it is up to SIDE = {given.SIDE}")
    return said
