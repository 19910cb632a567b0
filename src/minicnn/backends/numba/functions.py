"""Elementary functions on vectors of 16 float32: polynomials, right to a few units in the last place.

Each is one operation, written in LLVM instructions. NaN stays NaN and infinities have their limits. The
largest errors, over all float32 values, are said at each; subnormal results count in units of 2^-149.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import LANES, VECTOR, Operation, operation
from minicnn.backends.numba.vector import _INTS, _filled, _of_vectors
from minicnn.ops.activations import _ERFC, _ERFC_TERMS_32

# log 2 in two parts, the first with few bits, so that a multiple of it up to 2^8 is exact.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH

# erf(x) / x - 1 in x^2 for |x| <= 1, computed for this file with mpmath: the Chebyshev series cut at the sixth power,
# to within 2^-29.
_ERF = (
    7.88249711e-5, -0.0008018854993, 0.005189311943, -0.0268543288, 0.1128359746, -0.376126269, 0.1283791659,
)  # fmt: skip


class _Code:
    """Short names for the instructions of one function on vectors of a kind; numbers become vectors."""

    def __init__(self, builder: Any, kind: Any = VECTOR) -> None:
        self.b, self.kind = builder, kind

    def of(self, value: Any) -> Any:
        return _filled(self.kind, float(value)) if isinstance(value, float | int) else value

    def add(self, x: Any, y: Any) -> Any:
        return self.b.fadd(self.of(x), self.of(y))

    def sub(self, x: Any, y: Any) -> Any:
        return self.b.fsub(self.of(x), self.of(y))

    def mul(self, x: Any, y: Any) -> Any:
        return self.b.fmul(self.of(x), self.of(y))

    def div(self, x: Any, y: Any) -> Any:
        return self.b.fdiv(self.of(x), self.of(y))

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return _of_vectors(self.b, "fma", self.of(x), self.of(y), self.of(z))

    def rint(self, x: Any) -> Any:
        return _of_vectors(self.b, "rint", x)

    def magnitude(self, x: Any) -> Any:
        return _of_vectors(self.b, "fabs", x)

    def signed(self, x: Any, sign: Any) -> Any:
        return _of_vectors(self.b, "copysign", x, sign)

    def choose(self, x: Any, sign: str, y: Any, yes: Any, no: Any) -> Any:
        """Vector `yes` where the comparison holds, `no` elsewhere and for NaN."""
        return self.b.select(self.b.fcmp_ordered(sign, x, self.of(y)), self.of(yes), self.of(no))

    def between(self, x: Any, low: float, high: float) -> Any:
        x = self.choose(x, "<", low, low, x)
        return self.choose(x, ">", high, high, x)

    def keep_nan(self, x: Any, y: Any) -> Any:
        """Vector y, but x where that is NaN."""
        return self.b.select(self.b.fcmp_unordered("uno", x, x), x, y)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Coefficients from the highest power down, by Horner's rule."""
        result = self.of(coefficients[0])
        for c in coefficients[1:]:
            result = self.fma(result, x, c)
        return result

    def integers(self, value: int) -> Any:
        return _filled(_INTS, value)

    def power_of_two(self, n: Any) -> Any:
        """2^n of int32 exponents from -126 to 127."""
        bits = self.b.shl(self.b.add(n, self.integers(127)), self.integers(23))
        return self.b.bitcast(bits, VECTOR)

    def scaled(self, x: Any, n: Any) -> Any:
        """x * 2^n by two factors: 2^n may be outside the range of normal numbers although the product is not."""
        half = self.b.ashr(n, self.integers(1))
        return self.mul(self.mul(x, self.power_of_two(half)), self.power_of_two(self.b.sub(n, half)))


def _near_zero(c: _Code, r: Any) -> Any:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    return c.fma(c.mul(r, r), c.polynomial(r, [1 / math.factorial(k) for k in range(7, 1, -1)]), r)


def _split(c: _Code, x: Any) -> tuple[Any, Any]:
    """x = n log 2 + r with |r| <= log(2) / 2: (n as int32, exp(r) - 1)."""
    n = c.rint(c.mul(x, 1 / math.log(2)))
    r = c.fma(n, -_LN2_LOW, c.fma(n, -_LN2_HIGH, x))
    return c.b.fptosi(n, _INTS), _near_zero(c, r)


def _exp(c: _Code, x: Any) -> Any:
    """exp(x), within 1.1 units in the last place."""
    n, p = _split(c, c.between(x, -110.0, 100.0))
    return c.keep_nan(x, c.scaled(c.add(p, 1), n))


def _expm1(c: _Code, x: Any) -> Any:
    """exp(x) - 1, within 2 units in the last place."""
    n, p = _split(c, c.between(x, -40.0, 89.0))
    scale = c.power_of_two(c.b.sub(n, c.integers(1)))  # 2^128 is too large
    y = c.mul(c.fma(scale, p, c.sub(scale, 0.5)), 2)
    return c.keep_nan(x, y)


def _mantissa(c: _Code, x: Any, wide: _Code) -> tuple[Any, Any]:
    """The mantissa from sqrt(1/2) to sqrt(2), and the exponent that belongs to it as a number of another kind."""
    small = c.b.fcmp_ordered("<", x, c.of(2.0**-126))
    scaled = c.b.select(small, c.mul(x, 2.0**23), x)
    shifted = c.b.sub(c.b.bitcast(scaled, _INTS), c.integers(0x3F3504F3))
    e = c.b.sitofp(c.b.ashr(shifted, c.integers(23)), wide.kind)
    bits = c.b.add(c.b.and_(shifted, c.integers(0x7FFFFF)), c.integers(0x3F3504F3))
    return c.b.bitcast(bits, VECTOR), c.b.select(small, wide.sub(e, 23), e)


def _log(c: _Code, x: Any) -> Any:
    """log(x), within 1 unit in the last place."""
    m, e = _mantissa(c, x, c)
    f = c.sub(m, 1)
    s = c.div(f, c.add(f, 2))
    z = c.mul(s, s)
    half = c.mul(c.mul(f, f), 0.5)
    rest = c.mul(z, c.polynomial(z, [2 / 11, 2 / 9, 2 / 7, 2 / 5, 2 / 3]))
    # log x = e log 2 + f - (half - s (half + rest))
    low = c.fma(e, _LN2_LOW, c.mul(s, c.add(half, rest)))
    y = c.fma(e, _LN2_HIGH, c.add(f, c.sub(low, half)))
    y = c.choose(x, "==", math.inf, x, y)
    y = c.choose(x, "==", 0.0, -math.inf, y)
    return c.keep_nan(x, c.choose(x, "<", 0.0, math.nan, y))


def _log1p(c: _Code, x: Any) -> Any:
    """log(1 + x), within 3 units in the last place."""
    u = c.add(x, 1)
    lost = c.sub(u, 1)
    y = c.mul(_log(c, u), c.div(x, lost))
    y = c.choose(lost, "==", 0.0, x, y)
    return c.choose(x, "==", math.inf, x, y)


def _tanh(c: _Code, x: Any) -> Any:
    """tanh(x), within 3 units in the last place."""
    t = _expm1(c, c.mul(c.between(c.magnitude(x), 0.0, 10.0), 2))
    return c.keep_nan(x, c.signed(c.div(t, c.add(t, 2)), x))


def _near_zero_erf(c: _Code, x: Any) -> Any:
    """erf(x) for |x| <= 1."""
    return c.fma(x, c.polynomial(c.mul(x, x), _ERF), x)


def _erfc_of_size(c: _Code, size: Any) -> Any:
    """erfc(z) = t exp(P(2 t - 1) - z^2) for t = 2 / (2 + z): see `minicnn.ops.erfc`."""
    z = c.between(size, 0.0, 28.0)
    t = c.div(2, c.add(z, 2))
    u = c.sub(c.mul(t, 2), 1)
    b1, b2 = c.of(0), c.of(0)
    terms = _ERFC[:_ERFC_TERMS_32]
    for term in terms[:0:-1]:
        b1, b2 = c.add(c.sub(c.mul(c.mul(u, 2), b1), b2), term), b1
    p = c.add(c.sub(c.mul(u, b1), b2), terms[0])
    # A rounding error of the exponent, up to 100, is a relative one of the result: what rounding loses follows.
    square = c.mul(z, z)
    exponent = c.sub(p, square)
    lost = c.sub(c.sub(p, c.add(exponent, square)), c.fma(z, z, c.sub(-0.0, square)))
    y = c.mul(t, _exp(c, exponent))
    return c.fma(y, lost, y)


def _erf(c: _Code, x: Any) -> Any:
    """erf(x), within 1.5 units in the last place."""
    size = c.magnitude(x)
    far = c.signed(c.sub(1, _erfc_of_size(c, size)), x)
    return c.keep_nan(x, c.choose(size, "<", 1.0, _near_zero_erf(c, x), far))


def _erfc(c: _Code, x: Any) -> Any:
    """erfc(x), within 6 units in the last place."""
    size = c.magnitude(x)
    y = _erfc_of_size(c, size)
    y = c.choose(x, "<", 0.0, c.sub(2, y), y)
    return c.keep_nan(x, c.choose(size, "<", 0.5, c.sub(1, _near_zero_erf(c, x)), y))


def _power(c: _Code, x: Any, y: Any) -> Any:
    """x^y, within 1.1 units in the last place: exp(y log|x|) with a sign.

    The logarithm is in float64, since its error is multiplied by y log|x|, up to 88.
    """
    d, size = _Code(c.b, ir.VectorType(ir.DoubleType(), LANES)), c.magnitude(x)
    m, e = _mantissa(c, size, d)
    m = c.b.fpext(m, d.kind)
    # log m = 2 artanh s for s = (m - 1) / (m + 1), |s| < 0.172: nine terms are right to 1e-14.
    s = d.div(d.sub(m, 1), d.add(m, 1))
    z, series = d.mul(s, s), d.of(2 / 17)
    for k in range(15, 0, -2):
        series = d.add(d.mul(series, z), 2 / k)
    log = d.add(d.mul(e, math.log(2)), d.mul(s, series))
    log = c.b.select(c.b.fcmp_ordered("==", size, c.of(math.inf)), d.of(math.inf), log)
    log = c.b.select(c.b.fcmp_ordered("==", size, c.of(0.0)), d.of(-math.inf), log)
    t = d.choose(log, "==", 0.0, 0.0, d.mul(c.b.fpext(y, d.kind), log))
    # The integer part of t / log 2 leaves at most log(2) / 2, which float32 holds well enough.
    bounded = d.between(t, -120.0, 100.0)
    n = c.rint(c.b.fptrunc(d.mul(bounded, 1 / math.log(2)), VECTOR))
    r = c.b.fptrunc(d.sub(bounded, d.mul(c.b.fpext(n, d.kind), math.log(2))), VECTOR)
    result = c.scaled(c.add(_near_zero(c, r), 1), c.b.fptosi(n, _INTS))
    result = c.b.select(c.b.fcmp_unordered("uno", t, t), c.of(math.nan), result)
    return _signed_power(c, x, y, result)


def _signed_power(c: _Code, x: Any, y: Any, size: Any) -> Any:
    """The power from its size: for x < 0 real where y is an integer, and negative where that is odd."""
    integer = c.b.fcmp_ordered("==", c.rint(y), y)
    odd = c.b.and_(integer, c.b.fcmp_ordered("!=", c.mul(c.rint(c.mul(y, 0.5)), 2), y))
    negative = c.b.icmp_signed("<", c.b.bitcast(x, _INTS), c.integers(0))  # -0.0 too
    result = c.b.select(c.b.and_(negative, odd), c.sub(-0.0, size), size)
    finite = c.b.fcmp_ordered("!=", c.magnitude(x), c.of(math.inf))
    outside = c.b.and_(c.b.and_(c.b.fcmp_ordered("<", x, c.of(0.0)), finite), c.b.not_(integer))
    result = c.b.select(outside, c.of(math.nan), result)
    one = c.b.or_(c.b.fcmp_ordered("==", x, c.of(1.0)), c.b.fcmp_ordered("==", y, c.of(0.0)))
    return c.b.select(one, c.of(1.0), c.keep_nan(x, result))


def _function(name: str, emit: Callable[[_Code, Any], Any]) -> Operation:
    return operation(name, VECTOR, [VECTOR], lambda b, x: emit(_Code(b), x))


vexp = _function("vexp", _exp)
vexpm1 = _function("vexpm1", _expm1)
vlog = _function("vlog", _log)
vlog1p = _function("vlog1p", _log1p)
vtanh = _function("vtanh", _tanh)
verf = _function("verf", _erf)
verfc = _function("verfc", _erfc)
vpow = operation("vpow", VECTOR, [VECTOR, VECTOR], lambda b, x, y: _power(_Code(b), x, y))
