"""Random numbers as a pure function of seed, stream, step and position: the Philox generator.

Philox4x32-10 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC11) turns a counter of
four 32-bit words and a key of two into four random words. It needs no state, so every backend draws the
same numbers in any order. It is written here with 32-bit integers that wrap and 16-bit partial products, because
that is what all array libraries have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from minicnn.ops.arrays import arange
from minicnn.ops.primitive import REGISTRY, Array, Namespace, Primitive
from minicnn.program.graph import Node, Spec, Value

# Where numbers come from that a layer draws: `Layer.random_uniform` of the one that is traced. A shape alone does not
# say into which Program they go.
SOURCE: ContextVar[Callable[..., Value] | None] = ContextVar("SOURCE", default=None)


def drawn(shape: Sequence[int], seed: int | None, per_sample: bool | None) -> Value:
    """Uniform numbers from [0, 1) of the layer that is traced.

    Raises:
        RuntimeError: If none is.
    """
    source = SOURCE.get()
    if source is None:
        raise RuntimeError(
            f"Random numbers of a shape are drawn within a layer's call or a Lambda. Received: shape {tuple(shape)} "
            "outside of one. Draw arrays with NumPy; in a Program by hand give random_uniform step, seed and stream."
        )
    return source(tuple(shape), seed=seed, per_sample=per_sample)


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFF


def _signed(word: int) -> int:
    """The int32 with the same bits as an unsigned 32-bit word."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >= 1 << 31 else word


def _high_low(a: Array, m: int) -> tuple[Array, Array]:
    """High and low words of the 64-bit product a * m, all of them unsigned words stored as int32."""
    # Halves of 16 bits: the standard has no product of 64 bits that all libraries compute alike.
    a_high, a_low = (a >> 16) & _LOW, a & _LOW
    m_high, m_low = m >> 16, m & _LOW
    low = a_low * m_low
    middle = a_high * m_low + ((low >> 16) & _LOW)
    carry = a_low * m_high + (middle & _LOW)
    high = a_high * m_high + ((middle >> 16) & _LOW) + ((carry >> 16) & _LOW)
    return high, (carry << 16) | (low & _LOW)


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Four random words from four int32 arrays of one shape and a key of two words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        h0, l0 = _high_low(c0, _MULTIPLIERS[0])
        h1, l1 = _high_low(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = h1 ^ c1 ^ _signed(k0), l1, h0 ^ c3 ^ _signed(k1), l0
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


class _Drawn(Primitive):
    """A primitive whose step and stream are those of the layer that is traced, where they are left out."""

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        of_shape = "stream" not in attrs and not any(isinstance(a, Value) for a in args[:1])
        return _of_layer(*args, **attrs) if of_shape else super().__call__(*args, **attrs)


def _of_layer(
    shape: Sequence[int], minval: Any = 0.0, maxval: Any = 1.0, *, seed: int | None = None,
    per_sample: bool | None = None,
) -> Value:  # fmt: skip
    uniform = drawn(shape, seed, per_sample)
    plain = not isinstance(minval, Value) and not isinstance(maxval, Value) and (minval, maxval) == (0.0, 1.0)
    return uniform if plain else uniform * (maxval - minval) + minval


def _registered(reference: Callable[..., Any]) -> Primitive:
    REGISTRY[reference.__name__] = primitive = _Drawn(reference)
    return primitive


@_registered
def random_uniform(
    step: Array, *, shape: tuple[int, ...], seed: int, stream: int, dtype: str = "float32", xp: Namespace
) -> Array:
    """Uniform numbers from 0 (included) to 1 (excluded), multiples of 2^-24.

    Element i of the result is word i mod 4 of Philox block (i div 4, 0, step, stream) with the key
    (seed mod 2^32, seed div 2^32).

    Within a layer's `call` or a Lambda, `random_uniform(shape, minval=0.0, maxval=1.0, seed=None, per_sample=None)`
    draws numbers with the step and the stream of that layer, new at every step and the same on every backend and for
    any number of ranks: see `Layer.random_uniform`. If `per_sample` is None, the first axis counts samples where it is
    as long as the batch.

    Args:
        step: int32 scalar array; another step gives other numbers.
        shape: Shape of the result.
        seed: Key of the generator.
        stream: Number that tells apart the places in a model that draw numbers.
        dtype: "float32" or "float64".
    """
    n = math.prod(shape)
    blocks = -(-n // 4)
    index = arange(blocks, step, xp)
    zero = xp.zeros_like(index)
    words = philox((index, zero, zero + step, zero + _signed(stream)), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    bits = xp.reshape(xp.stack(words, axis=1), (blocks * 4,))[:n]
    # 24 bits, which float32 holds exactly: never 1, and the same on every backend.
    uniform = xp.astype((bits >> 8) & 0xFFFFFF, getattr(xp, dtype)) * 2.0**-24
    return xp.reshape(uniform, shape)


@random_uniform.shape
def _(step: Spec, *, shape: tuple[int, ...], seed: int, stream: int, dtype: str) -> Spec:
    if step.shape != () or step.dtype != "int32":
        raise TypeError(f"random_uniform takes the step as an int32 scalar. Received: {step}.")
    if dtype not in ("float32", "float64"):
        raise TypeError(
            "random_uniform draws float32 or float64, which hold multiples of 2^-24 exactly. "
            f"Received: {dtype!r}. Convert the result with ops.cast."
        )
    return Spec(tuple(shape), dtype)


@random_uniform.cost
def _(node: Node) -> int:
    return 0  # integer work only
