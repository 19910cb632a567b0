"""Random numbers of a layer's own, drawn while it is traced: uniform, normal, and 0 or 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from numbers import Real
from typing import Any

from minicnn.ops.elementwise import abs, as_float, less, less_equal, log, maximum, minimum, sqrt, square, where
from minicnn.ops.random import drawn
from minicnn.program.graph import Value

# Algorithm PPND7 of M. Wichura, Applied Statistics 37, 1988 (AS 241): ratios of polynomials, lowest power first, near
# the middle and towards the ends.
_MIDDLE = ((3.3871327179, 50.434271938, 159.29113202, 59.109374720), (1.0, 17.895169469, 78.757757664, 67.187563600))
_ENDS = ((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (1.0, 0.73700164250, 0.12021132975))


def normal(uniform: Value) -> Value:
    """Standard normal numbers of uniform ones, multiples of 2^-24: the inverse of the distribution, to 7 digits."""
    q = uniform - 0.5
    middle = q * _ratio(_MIDDLE, 0.180625 - square(q))
    least = maximum(minimum(uniform, 1.0 - uniform), 2.0**-25)
    size = _ratio(_ENDS, sqrt(-log(least)) - 1.6)
    ends = where(less(q, 0.0), -size, size)
    return where(less_equal(abs(q), 0.425), middle, ends)


def _ratio(polynomials: tuple[Sequence[float], Sequence[float]], x: Value) -> Value:
    over, under = (reduce(lambda sum_, c: sum_ * x + c, reversed(p), x * 0.0) for p in polynomials)
    return over / under


def random_normal(
    shape: Sequence[int],
    mean: Any = 0.0,
    stddev: Any = 1.0,
    *,
    seed: int | None = None,
    per_sample: bool | None = None,
) -> Value:
    """Draw normal numbers within a layer's `call` or a Lambda: see `random_uniform`.

    Args:
        shape: Shape of the result.
        mean: Mean, a number or a Value.
        stddev: Standard deviation, likewise.
        seed: Seed; the model's if None.
        per_sample: See `Layer.random_uniform`; if None, whether the first axis is as long as the batch.
    """
    numbers = normal(drawn(shape, seed, per_sample))
    return numbers * stddev + mean if isinstance(mean, Value) or mean else numbers * stddev


def random_bernoulli(
    shape: Sequence[int], probability: Any = 0.5, *, seed: int | None = None, per_sample: bool | None = None
) -> Value:
    """Draw 1 with a probability and else 0, as floating-point numbers: see `random_uniform`.

    Args:
        shape: Shape of the result.
        probability: Of a 1, a number or a Value that broadcasts to the shape.
        seed: Seed; the model's if None.
        per_sample: See `random_normal`.

    Raises:
        ValueError: If the probability is a number, but none from 0 to 1.
    """
    if not isinstance(probability, Value) and not (isinstance(probability, Real) and 0.0 <= float(probability) <= 1.0):
        raise ValueError(f"A probability is from 0 to 1. Received: probability={probability!r}.")
    uniform = drawn(shape, seed, per_sample)
    return as_float(less(uniform, probability), uniform.dtype)
