"""Errors of the elementary functions in units in the last place, against float64: of some values, at night of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

kernels = pytest.importorskip("minicnn.backends.numba.kernel")

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.no_cover  # compiled: as Python they are run by test_numba_values


def vectors_of(name: str, arguments: int = 1) -> Callable[..., Array]:
    """The compiled operation on arrays whose size is a multiple of 16."""
    inputs = tuple("xy"[:arguments])
    loads = ", ".join(f"vload({x} + 64 * i)" for x in inputs)
    body = ("for i in range(start, stop):", f"    vstore(result + 64 * i, {name}({loads}))")
    function = kernels.callable_of(kernels.KernelCode(name, (*inputs, "result"), body))

    def call(*arrays: Array) -> Array:
        result = np.empty_like(arrays[0])
        table = np.array([a.ctypes.data for a in (*arrays, result)], np.int64)
        function(table.ctypes.data, 0, result.size // 16)
        return result

    return call


def largest_error(result: Array, exact: Array) -> float:
    """In units in the last place of the exact numbers; infinite where a special value is another one."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype("float32")
        finite = np.isfinite(rounded) & np.isfinite(result)
        right = finite | (result == rounded) | (np.isnan(result) & np.isnan(rounded))
        error = np.abs(result - exact) / np.spacing(np.abs(np.where(finite, rounded, np.float32(1))))
    return float(np.where(finite, error, np.where(right, 0, np.inf)).max())


def every(step: int) -> Iterator[Array]:
    """All float32 values but NaN, or of `step` neighbours one."""
    for first in (0, 0x80000000):
        for start in range(first, first + 0x7F800000, step << 20):
            bits = np.arange(start, min(start + (step << 20), first + 0x7F800010), step, dtype=np.int64)
            bits = np.minimum(bits, first + 0x7F800000)  # infinity fills the last vector
            yield np.resize(bits, -(-bits.size // 16) * 16).astype("uint32").view("float32")


def _error_function(function: Callable[[float], float], near: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def on_arrays(x: Array) -> Array:
        exact = np.where(np.abs(x) < 1, near(2 / math.sqrt(math.pi) * (x - x * x * x / 3)), near(np.sign(x)))
        between = (np.abs(x) > 2.0**-13) & (np.abs(x) < 30)
        exact[between] = [function(v) for v in x[between].tolist()]
        return exact

    return on_arrays


# The bounds that `functions` states, and float64 functions.
FUNCTIONS: dict[str, tuple[float, Any]] = {
    "vexp": (1.1, np.exp),
    "vexpm1": (2, np.expm1),
    "vlog": (1, np.log),
    "vlog1p": (3, np.log1p),
    "vtanh": (3, np.tanh),
    "verf": (1.5, _error_function(math.erf, lambda y: y)),
    "verfc": (6, _error_function(math.erfc, lambda y: 1 - y)),
}


def check(name: str, step: int) -> None:
    bound, exact = FUNCTIONS[name]
    function = vectors_of(name)
    for x in every(step):
        with np.errstate(all="ignore"):
            error = largest_error(function(x), exact(x.astype("float64")))
        assert error <= bound, (name, x[0], error)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_bounds(name: str) -> None:
    check(name, 20011)


@pytest.mark.night("tests/backends/numba/test_numba_functions.py::test_error_bounds")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_bounds_of_every_value(name: str) -> None:
    check(name, 1)


POWERS = (0.5, -0.5, 2.0, 3.0, -2.5, 0.75, 100.3, 1000.0)


def check_powers(step: int) -> None:
    power = vectors_of("vpow", 2)
    mantissas = np.arange(0x3F000000, 0x40000000, step, dtype=np.uint32).view("float32")  # 1/2 to 2
    mantissas = mantissas[: mantissas.size // 16 * 16]
    rng = np.random.default_rng(0)
    bases = rng.integers(0, 0x7F800000, mantissas.size, dtype=np.uint32).view("float32")
    with np.errstate(all="ignore"):
        spread = rng.uniform(-100, 100, bases.size) / np.log(bases.astype("float64"))  # every power a float32 can hold
        pairs = [(mantissas, np.full_like(mantissas, y)) for y in POWERS] + [(bases, spread.astype("float32"))]
        pairs.append(tuple(rng.integers(0, 2**32, bases.size, dtype=np.uint32).view("float32") for _ in "xy"))
        for x, y in pairs:
            assert largest_error(power(x, y), np.power(x.astype("float64"), y.astype("float64"))) <= 1.1, y[0]


def test_error_bound_of_powers() -> None:
    check_powers(251)


@pytest.mark.night("tests/backends/numba/test_numba_functions.py::test_error_bound_of_powers")
def test_error_bound_of_powers_of_every_mantissa() -> None:
    check_powers(1)
