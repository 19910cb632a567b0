"""Vectors of 16 bfloat16, float32 wherever they are computed with, and the products of their pairs.

A bfloat16 is the upper half of a float32. Two that are neighbours along the axis that is summed lie in one lane of 32
bits, and `dot` adds both of their products to a float32 as the instruction vdpbf16ps does. Where the CPU lacks it, two
multiply-adds give the same bits, while denormal numbers count as zero: see `flush_denormals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from minicnn.backends.numba import cpus
from minicnn.backends.numba.interpreting import VectorInterpreter
from minicnn.backends.numba.operations import (
    BYTES,
    HALF,
    INT,
    INT32,
    LANES,
    VECTOR,
    VOID,
    external,
    operation,
    pointer,
    target_of,
)
from minicnn.backends.numba.vector import _ALL_FIRST, _FIRST, _INTS, _filled, _fma, _masked

SHORT = "bfloat16"
SHORT_BYTES = BYTES // 2  # of a vector
_SHORTS = ir.VectorType(HALF, LANES)
_PAIRS = ir.VectorType(HALF, 2 * LANES)
_UPPER = -(1 << 16)  # mask of the upper half of a lane


class _Bfloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's type of the same name, which llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


_BFLOATS, _BFLOAT_PAIRS = (ir.VectorType(_Bfloat(), n) for n in (LANES, 2 * LANES))


def native(builder: Any) -> bool:
    """True if code for the CPU may use its instructions for bfloat16."""
    return not isinstance(builder, VectorInterpreter) and target_of(builder).multiplies_bfloat16


def load_of(dtype: str) -> str:
    """Name of the operation that loads a vector of a type as float32."""
    return "short_load" if dtype == SHORT else "vload"


def store_of(dtype: str) -> str:
    """Name of the operation that stores a vector of float32 in a type."""
    return "short_store" if dtype == SHORT else "vstore"


def bytes_of(dtype: str) -> int:
    """Bytes of a vector of 16 elements of a type that has blocks."""
    return SHORT_BYTES if dtype == SHORT else BYTES


def product_name(name: str, *, paired: bool) -> str:
    """Name of the kernel of a product, for `explain`."""
    how = "vdpbf16ps" if cpus.host().multiplies_bfloat16 else "pairs of multiply-adds"
    return f"{name} in bfloat16 by {how}" if paired else name


def _widened(builder: Any, shorts: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(shorts, _INTS), _filled(_INTS, 16)), VECTOR)


def _upper_halves(builder: Any, value: Any) -> Any:
    """Lanes of int32 whose upper half is a float32 rounded to bfloat16 as vcvtneps2bf16 does; the lower half is any."""
    bits = builder.bitcast(value, _INTS)
    size = builder.and_(bits, _filled(_INTS, 0x7FFFFFFF))
    odd = builder.and_(builder.ashr(bits, _filled(_INTS, 16)), _filled(_INTS, 1))
    nearest = builder.add(builder.add(bits, _filled(_INTS, 0x7FFF)), odd)
    quiet = builder.or_(bits, _filled(_INTS, 1 << 22))
    nearest = builder.select(builder.icmp_signed(">", size, _filled(_INTS, 0x7F800000)), quiet, nearest)
    sign = builder.and_(bits, _filled(_INTS, -(1 << 31)))
    return builder.select(builder.icmp_signed("<", size, _filled(_INTS, 1 << 23)), sign, nearest)


def shortened(builder: Any, value: Any) -> Any:
    """16 float32 as bfloat16, rounded to the nearest, to even ones from the middle; denormal numbers become 0."""
    if native(builder):
        name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
        return builder.bitcast(external(builder, name, _BFLOATS, [VECTOR], [value]), _SHORTS)
    return builder.trunc(builder.lshr(_upper_halves(builder, value), _filled(_INTS, 16)), _SHORTS)


def _short_load(builder: Any, address: Any) -> Any:
    """16 bfloat16 as float32."""
    return _widened(builder, builder.load(pointer(builder, address, _SHORTS), align=2))


def _short_store(builder: Any, address: Any, value: Any) -> None:
    """Store 16 float32 as bfloat16."""
    builder.store(shortened(builder, value), pointer(builder, address, _SHORTS), align=2)


def _load_some(builder: Any, address: Any, count: Any) -> Any:
    return _widened(builder, _masked(builder, "load", _SHORTS, address, count, _filled(_SHORTS, 0)))


def _store_some(builder: Any, address: Any, value: Any, count: Any) -> None:
    _masked(builder, "store", _SHORTS, address, count, shortened(builder, value))


def _broadcast_short(builder: Any, address: Any) -> Any:
    one = builder.load(pointer(builder, address, HALF), align=2)
    bits = builder.shl(builder.zext(one, INT32), ir.Constant(INT32, 16))
    return builder.bitcast(_splat_word(builder, bits), VECTOR)


def _splat_word(builder: Any, word: Any) -> Any:
    undefined = ir.Constant(_INTS, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(undefined, word, _FIRST), undefined, _ALL_FIRST)


def _paired(builder: Any, first: Any, second: Any) -> Any:
    """Two float32 of each lane as bfloat16 in one lane, the first in its lower half."""
    low = builder.lshr(_upper_halves(builder, first), _filled(_INTS, 16))
    high = builder.and_(_upper_halves(builder, second), _filled(_INTS, _UPPER))
    return builder.bitcast(builder.or_(low, high), VECTOR)


def _neighbours(builder: Any, first: Any, second: Any) -> Any:
    """32 float32 in order as bfloat16, so that each lane holds two neighbours."""
    shorts = [shortened(builder, value) for value in (first, second)]
    order = ir.Constant(ir.VectorType(INT32, 2 * LANES), list(range(2 * LANES)))
    return builder.bitcast(builder.shuffle_vector(*shorts, order), VECTOR)


@dataclass(frozen=True)
class Pairs:
    """16 lanes with a pair of bfloat16 each.

    Attributes:
        first: The first of each pair as float32, where there is no instruction.
        second: The second of each.
        lanes: Both as they are, for the instruction.
    """

    first: Any = None
    second: Any = None
    lanes: Any = None

    @staticmethod
    def of_neighbours(builder: Any, address: Any) -> Pairs:
        """Two vectors of bfloat16, one after the other in memory: lane i has element i of both."""
        if not native(builder):
            second = builder.add(address, ir.Constant(INT, SHORT_BYTES))
            return Pairs(_short_load(builder, address), _short_load(builder, second))
        both = builder.load(pointer(builder, address, _PAIRS), align=2)
        order = [place for lane in range(LANES) for place in (lane, LANES + lane)]
        return Pairs(lanes=builder.shuffle_vector(both, both, ir.Constant(ir.VectorType(INT32, 2 * LANES), order)))

    @staticmethod
    def of_one(builder: Any, address: Any) -> Pairs:
        """A vector of bfloat16, each with a 0 as the second of its pair."""
        if not native(builder):
            return Pairs(_short_load(builder, address), _filled(VECTOR, 0.0))
        shorts = builder.load(pointer(builder, address, _SHORTS), align=2)
        return Pairs.of_lanes(builder, builder.zext(shorts, _INTS))

    @staticmethod
    def of_lanes(builder: Any, lanes: Any) -> Pairs:
        """Lanes that hold pairs as they are."""
        if native(builder):
            return Pairs(lanes=builder.bitcast(lanes, _PAIRS))
        halves = builder.shl(lanes, _filled(_INTS, 16)), builder.and_(lanes, _filled(_INTS, _UPPER))
        return Pairs(*(builder.bitcast(half, VECTOR) for half in halves))

    @staticmethod
    def at(builder: Any, address: Any) -> Pairs:
        """Lanes in memory."""
        return Pairs.of_lanes(builder, builder.load(pointer(builder, address, _INTS), align=4))

    @staticmethod
    def spread(builder: Any, address: Any) -> Pairs:
        """One pair in memory, for all lanes."""
        return Pairs.of_lanes(builder, _splat_word(builder, builder.load(pointer(builder, address, INT32))))


def dot(builder: Any, sums: Any, x: Pairs, y: Pairs) -> Any:
    """Sums plus the product of the second of each pair, rounded, plus that of the first, rounded."""
    if native(builder):
        name, kinds = "llvm.x86.avx512bf16.dpbf16ps.512", [VECTOR, _BFLOAT_PAIRS, _BFLOAT_PAIRS]
        operands = [sums, *(builder.bitcast(v.lanes, _BFLOAT_PAIRS) for v in (x, y))]
        return external(builder, name, VECTOR, kinds, operands)
    return _fma(builder, x.first, y.first, _fma(builder, x.second, y.second, sums))


# Bits of x86's MXCSR (denormal operands count as zero, denormal results become zero) and of ARM's FPCR (both; there a
# result is denormal if it is so before it is rounded, which matters half a unit below the smallest normal number).
_X86_FLUSH, _ARM_FLUSH = 0x8040, 1 << 24


def _set_x86(builder: Any, mode: Any, place: Any) -> None:
    builder.store(builder.trunc(mode, INT32), place)
    external(builder, "llvm.x86.sse.ldmxcsr", VOID, [place.type], [place])


def _flush(builder: Any) -> Any:
    architecture = target_of(builder).architecture
    if architecture == "x86_64":
        place = builder.alloca(INT32)
        external(builder, "llvm.x86.sse.stmxcsr", VOID, [place.type], [place])
        before = builder.zext(builder.load(place), INT)
        _set_x86(builder, builder.or_(before, ir.Constant(INT, _X86_FLUSH)), place)
        return before
    if architecture == "aarch64":
        before = external(builder, "llvm.aarch64.get.fpcr", INT, [], [])
        _restore(builder, builder.or_(before, ir.Constant(INT, _ARM_FLUSH)))
        return before
    return ir.Constant(INT, 0)


def _restore(builder: Any, mode: Any) -> None:
    architecture = target_of(builder).architecture
    if architecture == "x86_64":
        _set_x86(builder, mode, builder.alloca(INT32))
    elif architecture == "aarch64":
        external(builder, "llvm.aarch64.set.fpcr", VOID, [INT], [mode])


_v, _a = VECTOR, INT
# As vload, vstore, vload_some, vstore_some and bload, of bfloat16 in memory.
short_load = operation("short_load", _v, [_a], _short_load)
short_store = operation("short_store", VOID, [_a, _v], _short_store)
short_load_some = operation("short_load_some", _v, [_a, _a], _load_some)
short_store_some = operation("short_store_some", VOID, [_a, _v, _a], _store_some)
short_bload = operation("short_bload", _v, [_a], _broadcast_short)
# vshort(x) is x rounded to bfloat16.
vshort = operation("vshort", _v, [_v], lambda b, x: _widened(b, shortened(b, x)))
# Lanes of pairs: vpair(x, y) has x[i] and y[i] in lane i; vneighbours(x, y) has the 32 elements of x and y in order.
vpair = operation("vpair", _v, [_v, _v], _paired)
vneighbours = operation("vneighbours", _v, [_v, _v], _neighbours)
# flush_denormals() has the thread take denormal numbers as zero, as vdpbf16ps does whatever the thread's mode is, and
# returns the mode before, which restore_mode(mode) sets again.
flush_denormals = operation("flush_denormals", _a, [], lambda b: 0 if isinstance(b, VectorInterpreter) else _flush(b))
restore_mode = operation(
    "restore_mode", VOID, [_a], lambda b, m: None if isinstance(b, VectorInterpreter) else _restore(b, m)
)
