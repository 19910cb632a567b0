"""Scalar functions: one element of an elementwise operation, given those of its operands.

Functions with a type in their name compute in that type: `elu_float32`. They are made once for each by `typed`, because
a constant must have the type of the numbers that it meets, or all become float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.kernels import elementary
from minicnn.backends.numba_cuda.kernels.decorators import Function, choose, device
from minicnn.backends.numba_cuda.kernels.elementary import copysign, exp, fmod, log1p
from minicnn.backends.numba_cuda.printer import NAMES as SPELLED
from minicnn.backends.numba_cuda.texts import define
from minicnn.kernels.expressions import Call, Name, Number, Select
from minicnn.kernels.printing import Printer
from minicnn.kernels.scalars import FUNCTIONS

# Any type -------------------------------------------------------------------------------------------------------


@device
def larger(a: Any, b: Any) -> Any:
    """The larger; NaN if either is, as in the Array API."""
    return choose((a > b) | (a != a), a, b)


@device
def smaller(a: Any, b: Any) -> Any:
    """The smaller; NaN if either is."""
    return choose((a < b) | (a != a), a, b)


@device
def absolute(x: Any) -> Any:
    """|x|; for a float the number without its sign bit, so that -0 becomes 0."""
    return abs(x)


@device
def signum(x: Any) -> Any:
    """-1, 0 or 1, and NaN for NaN."""
    return x if x != x else 1 if x > 0 else -1 if x < 0 else 0


@device
def log_of_sum(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)) that does not overflow."""
    top = a if a > b else b
    low = b if a > b else a
    return top + log1p(exp(low - top)) if top - top == 0 else top + low if top != top or low != low else top


@device
def remainder(a: Any, b: Any) -> Any:
    """The remainder of a float that is divided by another, with the sign of that one."""
    rest = fmod(a, b)
    return choose(rest != 0, choose((b < 0) != (rest < 0), rest + b, rest), copysign(rest, b))


@device
def whole_power(x: Any, n: Any) -> Any:
    """An integer to the power of another, by squares."""
    result, square, left = x * 0 + 1, x * 1, n * 1
    while left > 0:
        result = result * choose(left % 2 == 1, square, square * 0 + 1)
        square = square * square
        left = left // 2
    return result


_ANY_TYPE = {f.__name__: f for f in (larger, smaller, absolute, signum, log_of_sum, remainder, whole_power)}


# Defined as expressions ------------------------------------------------------------------------------------------


class _Scalars(Printer):
    """The body of a scalar function that computes in type T; where nothing is gained by a branch there is none."""

    def _number(self, x: Number) -> tuple[str, int]:
        return f"T({x.value!r})", 9

    def _select(self, x: Select) -> tuple[str, int]:
        parts = [self.text(part) for part in (x.condition, x.yes, x.no)]
        if all(isinstance(part, Name | Number) for part in (x.yes, x.no)):
            return f"choose({', '.join(parts)})", 9
        return "({1} if {0} else {2})".format(*parts), 9

    def _call(self, x: Call) -> tuple[str, int]:
        return f"{SPELLED.get(x.function, x.function)}({', '.join(map(self.text, x.arguments))})", 9


def _defined(names: dict[str, Any]) -> dict[str, Function]:
    """The functions that are defined as expressions.

    Args:
        names: What their text sees, the type T among it; the functions are added.
    """
    printer = _Scalars()
    for name, function in FUNCTIONS.items():
        lines = [f"    {local} = {printer.text(x)}\n" for local, x in function.first.items()]
        lines.append(f"    return {printer.text(function.result)}\n")
        define(f"def {name}({', '.join(function.parameters)}):\n{''.join(lines)}", names)
        names[name] = device(names[name])
    return {name: names[name] for name in FUNCTIONS}


# One type -------------------------------------------------------------------------------------------------------


def typed(T: Any) -> dict[str, Function]:
    """The functions that compute in a floating-point type, by name."""
    unit = T(2.0**-24)

    @device
    def erf(x: Any) -> Any:
        return T(math.erf(x))

    @device
    def erfc(x: Any) -> Any:
        return T(math.erfc(x))

    @device
    def floor_(x: Any) -> Any:
        return T(math.floor(x))

    @device
    def random_uniform(i: Any, step: Any, stream: Any, key0: Any, key1: Any) -> Any:
        """Element i of Philox4x32-10 with the counter (i / 4, 0, step, stream), a multiple of 2^-24 from 0 to 1.

        In 64-bit integers, which hold the products of 32-bit words, so that it is the same in the simulator.
        """
        c0, c1, c2, c3 = np.uint64(i // 4), np.uint64(0), np.uint64(step), np.uint64(stream)
        k0, k1 = np.uint64(key0), np.uint64(key1)
        low, word = np.uint64(0xFFFFFFFF), np.uint64(32)
        for _ in range(10):
            first = c0 * np.uint64(0xD2511F53)
            second = c2 * np.uint64(0xCD9E8D57)
            c0 = (second >> word) ^ c1 ^ k0
            c1 = second & low
            c2 = (first >> word) ^ c3 ^ k1
            c3 = first & low
            k0 = (k0 + np.uint64(0x9E3779B9)) & low
            k1 = (k1 + np.uint64(0xBB67AE85)) & low
        at = i % 4
        chosen = c0 if at == 0 else c1 if at == 1 else c2 if at == 2 else c3
        return T(chosen >> np.uint64(8)) * unit

    special = {"erf": erf, "erfc": erfc, "floor_": floor_, "random_uniform": random_uniform}
    functions = special | _defined({**elementary.NAMES, **_ANY_TYPE, **special, "choose": choose, "T": T})
    return {f"{name}_{np.dtype(T).name}": function for name, function in functions.items()}


NAMES: dict[str, Any] = {**_ANY_TYPE, **typed(np.float32), **typed(np.float64)}
