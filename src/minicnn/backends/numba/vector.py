"""Vectors of 16 float32 as values in kernels: loads, stores and arithmetic on whole registers.

A compiler of loops decides itself what becomes a vector instruction. Here the vectors are values, so a kernel says
itself what stays in registers: written this way a convolution runs at the CPU's peak.
Memory is addressed by integers (bytes), because a kernel gets the addresses of its buffers, not arrays.
On CPUs with narrower registers LLVM splits each vector into several.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import (
    BOOL,
    BYTE,
    BYTES,
    FLOAT,
    HALF,
    INT,
    INT32,
    LANES,
    MASK,
    VECTOR,
    VOID,
    external,
    operation,
    pointer,
    target_of,
)

NAP_US = 50

_INTS = ir.VectorType(INT32, LANES)
_UNDEFINED = ir.Constant(VECTOR, ir.Undefined)
_FIRST = ir.Constant(INT32, 0)
_ALL_FIRST = ir.Constant(_INTS, [0] * LANES)  # the order of lanes that fills a vector with its first one


def _filled(kind: Any, value: float) -> Any:
    """A constant vector of equal elements."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def _splat(builder: Any, scalar: Any) -> Any:
    return builder.shuffle_vector(builder.insert_element(_UNDEFINED, scalar, _FIRST), _UNDEFINED, _ALL_FIRST)


def _load(builder: Any, address: Any, kind: Any = VECTOR) -> Any:
    return builder.load(pointer(builder, address, kind), align=4 if kind is VECTOR else None)


def _store(builder: Any, address: Any, value: Any, kind: Any = VECTOR) -> None:
    builder.store(value, pointer(builder, address, kind), align=4 if kind is VECTOR else None)


def _of_vectors(builder: Any, name: str, *values: Any) -> Any:
    """Call a function of LLVM on vectors."""
    return external(builder, f"llvm.{name}.v{LANES}f32", VECTOR, [VECTOR] * len(values), values)


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return _of_vectors(builder, "fma", x, y, z)


def _halves(builder: Any, value: Any, join: Callable[..., Any]) -> Any:
    """All lanes joined by halves: in the same order every time."""
    width = LANES // 2
    while width:
        # Lanes are rotated and added: a fixed order of additions, which a reduction of LLVM's does not promise.
        order = [(i + width) % LANES for i in range(LANES)]
        value = join(builder, value, builder.shuffle_vector(value, _UNDEFINED, ir.Constant(_INTS, order)))
        width //= 2
    return builder.extract_element(value, _FIRST)


_v, _a, _f, _i = VECTOR, INT, FLOAT, INT32

vload = operation("vload", _v, [_a], _load)
vstore = operation("vstore", VOID, [_a, _v], _store)
splat = operation("splat", _v, [_f], _splat)
bload = operation("bload", _v, [_a], lambda b, p: _splat(b, b.load(pointer(b, p, FLOAT))))
# fload, fstore ...: one float, int32, uint8, 16 bits or address.
for _letter, _kind in (("f", FLOAT), ("i", INT32), ("u", BYTE), ("h", HALF), ("a", INT)):
    _read, _write = (lambda b, p, k=_kind: _load(b, p, k)), (lambda b, p, x, k=_kind: _store(b, p, x, k))
    globals()[f"{_letter}load"] = operation(f"{_letter}load", _kind, [_a], _read)
    globals()[f"{_letter}store"] = operation(f"{_letter}store", VOID, [_a, _kind], _write)
# A float from its bits, which are a number of a kernel.
fbits = operation("fbits", _f, [_a], lambda b, n: b.bitcast(b.trunc(n, INT32), FLOAT))


def _some(builder: Any, count: Any) -> Any:
    """Mask of the first `count` lanes."""
    narrow = builder.trunc(count, INT32)
    one = builder.insert_element(ir.Constant(_INTS, ir.Undefined), narrow, _FIRST)
    every = builder.shuffle_vector(one, ir.Constant(_INTS, ir.Undefined), _ALL_FIRST)
    return builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), every)


_BYTES = ir.VectorType(BYTE, LANES)


def _masked(builder: Any, what: str, kind: Any, address: Any, count: Any, value: Any) -> Any:
    """Load the first `count` lanes in place of those of a value, or store those of a value."""
    align = ir.Constant(INT32, {"i8": 1, "i16": 2, "f32": 4}[kind.element.intrinsic_name])
    where = [pointer(builder, address, kind), align, _some(builder, count)]
    types_of = [kind.as_pointer(), INT32, MASK]
    name = f"llvm.masked.{what}.v{LANES}{kind.element.intrinsic_name}.p0"
    if what == "load":
        return external(builder, name, kind, [*types_of, kind], [*where, value])
    return external(builder, name, ir.VoidType(), [kind, *types_of], [value, *where])


def _load_bytes(builder: Any, address: Any, count: Any) -> Any:
    return builder.uitofp(_masked(builder, "load", _BYTES, address, count, _filled(_BYTES, 0)), VECTOR)


def _store_bytes(builder: Any, address: Any, value: Any, count: Any) -> None:
    narrow = builder.trunc(builder.fptosi(value, _INTS), _BYTES)
    _masked(builder, "store", _BYTES, address, count, narrow)


def _load_some(builder: Any, address: Any, count: Any) -> Any:
    return _masked(builder, "load", VECTOR, address, count, _filled(VECTOR, 0.0))


def _store_some(builder: Any, address: Any, value: Any, count: Any) -> None:
    _masked(builder, "store", VECTOR, address, count, value)


# The first `count` lanes only; the others are 0, or stay as they are in memory.
vload_some = operation("vload_some", _v, [_a, _a], _load_some)
vstore_some = operation("vstore_some", VOID, [_a, _v, _a], _store_some)
# The same from and to uint8, as floats.
bytes_load_some = operation("bytes_load_some", _v, [_a, _a], _load_bytes)
bytes_store_some = operation("bytes_store_some", VOID, [_a, _v, _a], _store_bytes)

vfma = operation("vfma", _v, [_v, _v, _v], _fma)
vfloor = operation("vfloor", _v, [_v], lambda b, x: _of_vectors(b, "floor", x))
vsqrt = operation("vsqrt", _v, [_v], lambda b, x: _of_vectors(b, "sqrt", x))
vabs = operation("vabs", _v, [_v], lambda b, x: _of_vectors(b, "fabs", x))
vlane = operation("vlane", _f, [_v, _a], lambda b, x, i: b.extract_element(x, b.trunc(i, INT32)))
ilane = operation(  # of int32
    "ilane", _a, [_v, _a],
    lambda b, x, i: b.sext(b.extract_element(b.bitcast(x, _INTS), b.trunc(i, INT32)), INT),
)  # fmt: skip
vsum = operation("vsum", _f, [_v], lambda b, x: _halves(b, x, lambda b, x, y: b.fadd(x, y)))


def _all(builder: Any, lanes_set: Any) -> Any:
    return external(builder, f"llvm.vector.reduce.and.v{LANES}i1", BOOL, [MASK], [lanes_set])


mand = operation("mand", MASK, [MASK, MASK], lambda b, x, y: b.and_(x, y))
mor = operation("mor", MASK, [MASK, MASK], lambda b, x, y: b.or_(x, y))
mnot = operation("mnot", MASK, [MASK], lambda b, x: b.not_(x))
mall = operation("mall", BOOL, [MASK], _all)  # whether all lanes are set
mnan = operation("mnan", MASK, [_v], lambda b, x: b.fcmp_unordered("uno", x, x))
msome = operation("msome", MASK, [_a], lambda b, n: _some(b, n))
vselect = operation("vselect", _v, [MASK, _v, _v], lambda b, m, x, y: b.select(m, x, y))


_LONGS = ir.VectorType(INT, LANES)
_PLACES = ir.VectorType(FLOAT.as_pointer(), LANES)


def _lanes_at(builder: Any, address: Any, offsets: Any) -> Any:
    """Addresses of lanes, some bytes (int32) after one."""
    base = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), address, _FIRST)
    base = builder.shuffle_vector(base, ir.Constant(_LONGS, ir.Undefined), _ALL_FIRST)
    return builder.inttoptr(builder.add(base, builder.sext(builder.bitcast(offsets, _INTS), _LONGS)), _PLACES)


def _gather(builder: Any, address: Any, offsets: Any) -> Any:
    kinds = [_PLACES, INT32, MASK, VECTOR]
    operands = (_lanes_at(builder, address, offsets), ir.Constant(INT32, 4), _filled(MASK, 1), _UNDEFINED)
    return external(builder, "llvm.masked.gather.v16f32.v16p0", VECTOR, kinds, operands)


def _scatter(builder: Any, address: Any, offsets: Any, value: Any) -> None:
    kinds = [VECTOR, _PLACES, INT32, MASK]
    operands = (value, _lanes_at(builder, address, offsets), ir.Constant(INT32, 4), _filled(MASK, 1))
    external(builder, "llvm.masked.scatter.v16f32.v16p0", ir.VoidType(), kinds, operands)


def _between(builder: Any, above: Any, below: Any, offsets: Any, right: Any, down: Any) -> Any:
    long, whole = INT, INT32
    both = builder.bitcast(builder.bitcast(offsets, _INTS), ir.VectorType(long, LANES // 2))
    rows: list[list[Any]] = [[], []]
    for k in range(LANES // 2):  # two offsets at once come out of a vector in half the time
        two = builder.extract_element(both, ir.Constant(whole, k))
        for offset in (builder.sext(builder.trunc(two, whole), long), builder.ashr(two, ir.Constant(long, 32))):
            for row, address in zip(rows, (above, below), strict=True):
                place = pointer(builder, builder.add(address, offset), ir.VectorType(FLOAT, 2))
                row.append(builder.load(place, align=4))
    upper, lower = (_weighted(builder, *_unzipped(builder, row), weight=right) for row in rows)
    return _weighted(builder, upper, lower, down)


def _unzipped(builder: Any, pairs: list[Any]) -> tuple[Any, Any]:
    """The first and the second elements of 16 pairs."""
    while len(pairs) > 1:
        size = 4 * LANES // len(pairs)
        order = ir.Constant(ir.VectorType(INT32, size), list(range(size)))
        pairs = [builder.shuffle_vector(x, y, order) for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
    first, second = (ir.Constant(_INTS, list(range(k, 2 * LANES, 2))) for k in (0, 1))
    return builder.shuffle_vector(pairs[0], pairs[0], first), builder.shuffle_vector(pairs[0], pairs[0], second)


def _weighted(builder: Any, x: Any, y: Any, weight: Any) -> Any:
    return _fma(builder, y, weight, builder.fmul(x, builder.fsub(_filled(VECTOR, 1.0), weight)))


# vweighted(x, y, weight) is (1 - weight) x + weight y. vbetween(above, below, offsets, right, down) is for each lane
# what lies between the two floats at `above` + its offset (int32, bytes) and the two at `below` + that: `right` and
# `down` are the weights of the second of two and of those below.
vweighted = operation("vweighted", _v, [_v] * 3, _weighted)
vbetween = operation("vbetween", _v, [_a, _a, _v, _v, _v], _between)
vreversed = operation(
    "vreversed", _v, [_v], lambda b, x: b.shuffle_vector(x, _UNDEFINED, ir.Constant(_INTS, [*range(LANES)][::-1]))
)
# Each lane from or to a place of its own.
vgather = operation("vgather", _v, [_a, _v], _gather)
vscatter = operation("vscatter", VOID, [_a, _v, _v], _scatter)
lanes = operation("lanes", _v, [], lambda b: b.bitcast(ir.Constant(_INTS, list(range(0, BYTES, 4))), VECTOR))


# Integers: the same registers, their bits taken as int32.


def _instruction(name: str, *options: str) -> Callable[..., Any]:
    return lambda builder, *values: getattr(builder, name)(*options, *values)


def _integers(emit: Callable[..., Any], *, compares: bool = False) -> Callable[..., Any]:
    def whole(builder: Any, *values: Any) -> Any:
        lanes = emit(builder, *(builder.bitcast(v, _INTS) for v in values))
        return lanes if compares else builder.bitcast(lanes, VECTOR)

    return whole


def _int_splat(builder: Any, scalar: Any) -> Any:
    return _splat(builder, builder.bitcast(scalar, FLOAT))


isplat = operation("isplat", _v, [_i], _int_splat)
# vadd, vgt ... of floats, iadd, igt ... of integers.
for _name in ("add", "sub", "mul", "div"):
    globals()[f"v{_name}"] = operation(f"v{_name}", _v, [_v, _v], _instruction(f"f{_name}"))
    if _name != "div":
        globals()[f"i{_name}"] = operation(f"i{_name}", _v, [_v, _v], _integers(_instruction(_name)))
for _name, _sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="), ("eq", "==")):
    _floats, _ints = _instruction("fcmp_ordered", _sign), _instruction("icmp_signed", _sign)
    globals()[f"v{_name}"] = operation(f"v{_name}", MASK, [_v, _v], _floats)
    globals()[f"i{_name}"] = operation(f"i{_name}", MASK, [_v, _v], _integers(_ints, compares=True))
int_to_float = operation("int_to_float", _v, [_v], lambda b, x: b.sitofp(b.bitcast(x, _INTS), VECTOR))
float_to_int = operation("float_to_int", _v, [_v], lambda b, x: b.bitcast(b.fptosi(x, _INTS), VECTOR))


def _extremum(sign: str) -> Callable[..., Any]:
    # As NumPy's maximum and minimum, NaN wins over everything.
    def emit(builder: Any, x: Any, y: Any) -> Any:
        first = builder.or_(builder.fcmp_ordered(sign, x, y), builder.fcmp_unordered("uno", x, x))
        return builder.select(first, x, y)

    return emit


vmax = operation("vmax", _v, [_v, _v], _extremum(">="))
vmin = operation("vmin", _v, [_v, _v], _extremum("<="))


# The largest lane; NaN if there is one.
vmax_lanes = operation("vmax_lanes", _f, [_v], lambda b, x: _halves(b, x, _extremum(">=")))


# Calls through an address, and what threads need to wait for each other.
_KERNEL = ir.FunctionType(ir.VoidType(), [INT] * 3)


def _atomic_load(builder: Any, address: Any) -> Any:
    return builder.load_atomic(pointer(builder, address, INT), "acquire", 8)


def _atomic_add(builder: Any, address: Any, value: Any) -> Any:
    return builder.atomic_rmw("add", pointer(builder, address, INT), value, "acq_rel")


def _atomic_exchange(builder: Any, address: Any, value: Any) -> Any:
    return builder.atomic_rmw("xchg", pointer(builder, address, INT), value, "acq_rel")


def _atomic_replace(builder: Any, address: Any, old: Any, new: Any) -> Any:
    place = pointer(builder, address, INT)
    return builder.extract_value(builder.cmpxchg(place, old, new, "acq_rel", "acquire"), 0)


def _nap(builder: Any) -> None:
    """Sleep for some 0.1 ms; on Windows, which has no such short sleeps, let other threads go first."""
    if platform.system() == "Windows":
        external(builder, "SwitchToThread", INT32, [], [])
    else:
        external(builder, "usleep", INT32, [INT32], [ir.Constant(INT32, NAP_US)])


call_kernel = operation(
    "call_kernel", VOID, [_a, _a, _a, _a], lambda b, f, t, i, j: b.call(pointer(b, f, _KERNEL), [t, i, j])
)
atomic_load = operation("atomic_load", _a, [_a], _atomic_load)
atomic_add = operation("atomic_add", _a, [_a, _a], _atomic_add)
# atomic_exchange(p, new) and atomic_replace(p, old, new), which stores only in place of `old`, return what was at p.
atomic_exchange = operation("atomic_exchange", _a, [_a, _a], _atomic_exchange)
atomic_replace = operation("atomic_replace", _a, [_a, _a, _a], _atomic_replace)
nap = operation("nap", VOID, [], _nap)


def _pause(builder: Any) -> None:
    """Let the other thread of the core have it for a moment, where the CPU has a word for that."""
    if target_of(builder).architecture == "x86_64":
        external(builder, "llvm.x86.sse2.pause", ir.VoidType(), [], [])


def _prefetch(builder: Any, address: Any, closeness: int = 3) -> None:
    read, keep, data = (ir.Constant(INT32, n) for n in (0, closeness, 1))
    kinds = [BYTE.as_pointer(), *[INT32] * 3]
    operands = [pointer(builder, address, BYTE), read, keep, data]
    external(builder, "llvm.prefetch.p0", ir.VoidType(), kinds, operands)


# The cache line of an address, before it is read; prefetch_second brings it into the second-level cache.
prefetch = operation("prefetch", VOID, [_a], _prefetch)
prefetch_second = operation("prefetch_second", VOID, [_a], lambda b, address: _prefetch(b, address, 2))
pause = operation("pause", VOID, [], _pause)
