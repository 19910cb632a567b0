"""Uniform numbers from the Philox generator, bit for bit those of the reference."""

from __future__ import annotations

from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.ops.random import _MULTIPLIERS, _WEYL

_WORD = "0xFFFFFFFF"


def _words(out: Lines) -> None:
    """Four words c0 .. c3 for block q of the stream; products wrap, but the bits that are used are right."""
    out(
        "c0 = q",
        "c1 = int64(0)",
        f"c2 = int64(iload(step)) & {_WORD}",
        f"c3 = stream & {_WORD}",
        "k0 = key0",
        "k1 = key1",
    )
    with out.block("for _ in range(10):"):
        out(f"p0 = c0 * {_MULTIPLIERS[0]}", f"p1 = c2 * {_MULTIPLIERS[1]}")
        out(f"c0 = ((p1 >> 32) & {_WORD}) ^ c1 ^ k0", f"c1 = p1 & {_WORD}")
        out(f"c2 = ((p0 >> 32) & {_WORD}) ^ c3 ^ k1", f"c3 = p0 & {_WORD}")
        out(f"k0 = (k0 + {_WEYL[0]}) & {_WORD}", f"k1 = (k1 + {_WEYL[1]}) & {_WORD}")


def uniform(*, seed: int, stream: int, size: int) -> KernelCode:
    """A plain array of `size` numbers; one item 64 of them."""
    out = Lines()
    out.all_numbers(key0=seed & 0xFFFFFFFF, key1=seed >> 32 & 0xFFFFFFFF, stream=stream & 0xFFFFFFFF)
    n = out.number("size", size)
    with (
        out.block("for item in range(start, stop):"),
        out.block(f"for q in range(item * 16, min(item * 16 + 16, ({n} + 3) // 4)):"),
    ):
        _words(out)
        with out.block(f"for i in range(q * 4, min(q * 4 + 4, {n})):"):
            out("w = c0 if i & 3 == 0 else (c1 if i & 3 == 1 else (c2 if i & 3 == 2 else c3))")
            out(f"fstore(y + i * 4, float32(w >> 8) * float32({2.0**-24!r}))")
    return out.source("random_uniform", "step", "y")
