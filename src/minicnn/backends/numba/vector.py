"""Vectors of 16 float32 as values in Numba code: loads, stores and arithmetic on whole registers.

Numba leaves it to LLVM whether a loop becomes vector instructions. Here the vectors are values of a type of their
own, so a kernel says itself what stays in registers: written this way a convolution runs at the CPU's peak.
Memory is addressed by integers (bytes), because a kernel gets the addresses of its buffers, not arrays.
On CPUs with narrower registers LLVM splits each vector into several.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16
BYTES = 4 * LANES  # of one vector
NAP_US = 50

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
_FIRST = ir.Constant(ir.IntType(32), 0)
_ALL_FIRST = ir.Constant(_INTS, [0] * LANES)  # the order of lanes that fills a vector with its first one


def _held(name: str, kind: Any) -> Any:
    """A type of values that Numba holds as LLVM does."""
    held_type = type(name, (types.Type,), {})

    @register_model(held_type)
    class Model(models.PrimitiveModel):  # type: ignore[misc]  # Numba has no types
        def __init__(self, manager: Any, fe_type: Any) -> None:
            super().__init__(manager, fe_type, kind)

    return held_type(name=name)


vector, mask = _held("float32x16", _VECTOR), _held("bool16", _MASK)


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _filled(kind: Any, value: float) -> Any:
    """A constant vector of equal elements."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def _splat(builder: Any, scalar: Any) -> Any:
    return builder.shuffle_vector(builder.insert_element(_UNDEFINED, scalar, _FIRST), _UNDEFINED, _ALL_FIRST)


def _operation(name: str, result: Any, arguments: Sequence[Any], emit: Callable[..., Any]) -> Any:
    """An intrinsic with a fixed signature, whose code `emit(builder, *arguments)` writes."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        result_value = emit(builder, *values)
        return context.get_dummy_value() if result is types.void else result_value

    names = ", ".join(f"a{i}" for i in range(len(arguments)))
    scope: dict[str, Any] = {"signature": result(*arguments), "codegen": codegen}
    # Numba reads the number of arguments from the signature.
    exec(f"def {name}(typingctx{', ' if names else ''}{names}):\n    return signature, codegen\n", scope)
    operation = intrinsic(scope[name])
    operation.emit = emit  # for `interpreting`
    return operation


def _load(builder: Any, address: Any, kind: Any = _VECTOR) -> Any:
    return builder.load(_pointer(builder, address, kind), align=4 if kind is _VECTOR else None)


def _store(builder: Any, address: Any, value: Any, kind: Any = _VECTOR) -> None:
    builder.store(value, _pointer(builder, address, kind), align=4 if kind is _VECTOR else None)


def _external(builder: Any, name: str, result: Any, kinds: Sequence[Any], values: Sequence[Any]) -> Any:
    """Call a function of LLVM or of the operating system."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), name)
    return builder.call(function, values)


def _of_vectors(builder: Any, name: str, *values: Any) -> Any:
    """Call a function of LLVM on vectors."""
    return _external(builder, f"llvm.{name}.v{LANES}f32", _VECTOR, [_VECTOR] * len(values), values)


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


_v, _a, _f, _i = vector, types.int64, types.float32, types.int32

vload = _operation("vload", _v, [_a], _load)
vstore = _operation("vstore", types.void, [_a, _v], _store)
splat = _operation("splat", _v, [_f], _splat)
bload = _operation("bload", _v, [_a], lambda b, p: _splat(b, b.load(_pointer(b, p, _FLOAT))))
# fload, fstore ...: one float, int32, uint8, 16 bits or address.
for _letter, _type, _kind in (
    ("f", _f, _FLOAT), ("i", _i, ir.IntType(32)), ("u", types.uint8, ir.IntType(8)),
    ("h", types.uint16, ir.IntType(16)), ("a", _a, ir.IntType(64)),
):  # fmt: skip
    _read, _write = (lambda b, p, k=_kind: _load(b, p, k)), (lambda b, p, x, k=_kind: _store(b, p, x, k))
    globals()[f"{_letter}load"] = _operation(f"{_letter}load", _type, [_a], _read)
    globals()[f"{_letter}store"] = _operation(f"{_letter}store", types.void, [_a, _type], _write)
# A float from its bits, which are a number of a kernel.
fbits = _operation("fbits", _f, [_a], lambda b, n: b.bitcast(b.trunc(n, ir.IntType(32)), _FLOAT))


def _some(builder: Any, count: Any) -> Any:
    """Mask of the first `count` lanes."""
    narrow = builder.trunc(count, ir.IntType(32))
    one = builder.insert_element(ir.Constant(_INTS, ir.Undefined), narrow, _FIRST)
    every = builder.shuffle_vector(one, ir.Constant(_INTS, ir.Undefined), _ALL_FIRST)
    return builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), every)


_BYTES = ir.VectorType(ir.IntType(8), LANES)


def _masked(builder: Any, what: str, kind: Any, address: Any, count: Any, value: Any) -> Any:
    """Load the first `count` lanes in place of those of a value, or store those of a value."""
    align = ir.Constant(ir.IntType(32), {"i8": 1, "i16": 2, "f32": 4}[kind.element.intrinsic_name])
    where = [_pointer(builder, address, kind), align, _some(builder, count)]
    types_of = [kind.as_pointer(), ir.IntType(32), _MASK]
    name = f"llvm.masked.{what}.v{LANES}{kind.element.intrinsic_name}.p0"
    if what == "load":
        return _external(builder, name, kind, [*types_of, kind], [*where, value])
    return _external(builder, name, ir.VoidType(), [kind, *types_of], [value, *where])


def _load_bytes(builder: Any, address: Any, count: Any) -> Any:
    return builder.uitofp(_masked(builder, "load", _BYTES, address, count, _filled(_BYTES, 0)), _VECTOR)


def _store_bytes(builder: Any, address: Any, value: Any, count: Any) -> None:
    narrow = builder.trunc(builder.fptosi(value, _INTS), _BYTES)
    _masked(builder, "store", _BYTES, address, count, narrow)


def _load_some(builder: Any, address: Any, count: Any) -> Any:
    return _masked(builder, "load", _VECTOR, address, count, _filled(_VECTOR, 0.0))


def _store_some(builder: Any, address: Any, value: Any, count: Any) -> None:
    _masked(builder, "store", _VECTOR, address, count, value)


# The first `count` lanes only; the others are 0, or stay as they are in memory.
vload_some = _operation("vload_some", _v, [_a, _a], _load_some)
vstore_some = _operation("vstore_some", types.void, [_a, _v, _a], _store_some)
# The same from and to uint8, as floats.
bytes_load_some = _operation("bytes_load_some", _v, [_a, _a], _load_bytes)
bytes_store_some = _operation("bytes_store_some", types.void, [_a, _v, _a], _store_bytes)

vfma = _operation("vfma", _v, [_v, _v, _v], _fma)
vfloor = _operation("vfloor", _v, [_v], lambda b, x: _of_vectors(b, "floor", x))
vsqrt = _operation("vsqrt", _v, [_v], lambda b, x: _of_vectors(b, "sqrt", x))
vabs = _operation("vabs", _v, [_v], lambda b, x: _of_vectors(b, "fabs", x))
vlane = _operation("vlane", _f, [_v, _a], lambda b, x, i: b.extract_element(x, b.trunc(i, ir.IntType(32))))
ilane = _operation(  # of int32
    "ilane", _a, [_v, _a],
    lambda b, x, i: b.sext(b.extract_element(b.bitcast(x, _INTS), b.trunc(i, ir.IntType(32))), ir.IntType(64)),
)  # fmt: skip
vsum = _operation("vsum", _f, [_v], lambda b, x: _halves(b, x, lambda b, x, y: b.fadd(x, y)))


def _all(builder: Any, lanes_set: Any) -> Any:
    return _external(builder, f"llvm.vector.reduce.and.v{LANES}i1", ir.IntType(1), [_MASK], [lanes_set])


mand = _operation("mand", mask, [mask, mask], lambda b, x, y: b.and_(x, y))
mor = _operation("mor", mask, [mask, mask], lambda b, x, y: b.or_(x, y))
mnot = _operation("mnot", mask, [mask], lambda b, x: b.not_(x))
mall = _operation("mall", types.boolean, [mask], _all)  # whether all lanes are set
mnan = _operation("mnan", mask, [_v], lambda b, x: b.fcmp_unordered("uno", x, x))
msome = _operation("msome", mask, [_a], lambda b, n: _some(b, n))
vselect = _operation("vselect", _v, [mask, _v, _v], lambda b, m, x, y: b.select(m, x, y))


_LONGS = ir.VectorType(ir.IntType(64), LANES)
_PLACES = ir.VectorType(_FLOAT.as_pointer(), LANES)


def _lanes_at(builder: Any, address: Any, offsets: Any) -> Any:
    """Addresses of lanes, some bytes (int32) after one."""
    base = builder.insert_element(ir.Constant(_LONGS, ir.Undefined), address, _FIRST)
    base = builder.shuffle_vector(base, ir.Constant(_LONGS, ir.Undefined), _ALL_FIRST)
    return builder.inttoptr(builder.add(base, builder.sext(builder.bitcast(offsets, _INTS), _LONGS)), _PLACES)


def _gather(builder: Any, address: Any, offsets: Any) -> Any:
    kinds = [_PLACES, ir.IntType(32), _MASK, _VECTOR]
    operands = (_lanes_at(builder, address, offsets), ir.Constant(ir.IntType(32), 4), _filled(_MASK, 1), _UNDEFINED)
    return _external(builder, "llvm.masked.gather.v16f32.v16p0", _VECTOR, kinds, operands)


def _scatter(builder: Any, address: Any, offsets: Any, value: Any) -> None:
    kinds = [_VECTOR, _PLACES, ir.IntType(32), _MASK]
    operands = (value, _lanes_at(builder, address, offsets), ir.Constant(ir.IntType(32), 4), _filled(_MASK, 1))
    _external(builder, "llvm.masked.scatter.v16f32.v16p0", ir.VoidType(), kinds, operands)


def _between(builder: Any, above: Any, below: Any, offsets: Any, right: Any, down: Any) -> Any:
    long, whole = ir.IntType(64), ir.IntType(32)
    both = builder.bitcast(builder.bitcast(offsets, _INTS), ir.VectorType(long, LANES // 2))
    rows: list[list[Any]] = [[], []]
    for k in range(LANES // 2):  # two offsets at once come out of a vector in half the time
        two = builder.extract_element(both, ir.Constant(whole, k))
        for offset in (builder.sext(builder.trunc(two, whole), long), builder.ashr(two, ir.Constant(long, 32))):
            for row, address in zip(rows, (above, below), strict=True):
                place = _pointer(builder, builder.add(address, offset), ir.VectorType(_FLOAT, 2))
                row.append(builder.load(place, align=4))
    upper, lower = (_weighted(builder, *_unzipped(builder, row), weight=right) for row in rows)
    return _weighted(builder, upper, lower, down)


def _unzipped(builder: Any, pairs: list[Any]) -> tuple[Any, Any]:
    """The first and the second elements of 16 pairs."""
    while len(pairs) > 1:
        size = 4 * LANES // len(pairs)
        order = ir.Constant(ir.VectorType(ir.IntType(32), size), list(range(size)))
        pairs = [builder.shuffle_vector(x, y, order) for x, y in zip(pairs[::2], pairs[1::2], strict=True)]
    first, second = (ir.Constant(_INTS, list(range(k, 2 * LANES, 2))) for k in (0, 1))
    return builder.shuffle_vector(pairs[0], pairs[0], first), builder.shuffle_vector(pairs[0], pairs[0], second)


def _weighted(builder: Any, x: Any, y: Any, weight: Any) -> Any:
    return _fma(builder, y, weight, builder.fmul(x, builder.fsub(_filled(_VECTOR, 1.0), weight)))


# vweighted(x, y, weight) is (1 - weight) x + weight y. vbetween(above, below, offsets, right, down) is for each lane
# what lies between the two floats at `above` + its offset (int32, bytes) and the two at `below` + that: `right` and
# `down` are the weights of the second of two and of those below.
vweighted = _operation("vweighted", _v, [_v] * 3, _weighted)
vbetween = _operation("vbetween", _v, [_a, _a, _v, _v, _v], _between)
vreversed = _operation(
    "vreversed", _v, [_v], lambda b, x: b.shuffle_vector(x, _UNDEFINED, ir.Constant(_INTS, [*range(LANES)][::-1]))
)
# Each lane from or to a place of its own.
vgather = _operation("vgather", _v, [_a, _v], _gather)
vscatter = _operation("vscatter", types.void, [_a, _v, _v], _scatter)
lanes = _operation("lanes", _v, [], lambda b: b.bitcast(ir.Constant(_INTS, list(range(0, BYTES, 4))), _VECTOR))


# Integers: the same registers, their bits taken as int32.


def _instruction(name: str, *options: str) -> Callable[..., Any]:
    return lambda builder, *values: getattr(builder, name)(*options, *values)


def _integers(emit: Callable[..., Any], *, compares: bool = False) -> Callable[..., Any]:
    def whole(builder: Any, *values: Any) -> Any:
        lanes = emit(builder, *(builder.bitcast(v, _INTS) for v in values))
        return lanes if compares else builder.bitcast(lanes, _VECTOR)

    return whole


def _int_splat(builder: Any, scalar: Any) -> Any:
    return _splat(builder, builder.bitcast(scalar, _FLOAT))


isplat = _operation("isplat", _v, [_i], _int_splat)
# vadd, vgt ... of floats, iadd, igt ... of integers.
for _name in ("add", "sub", "mul", "div"):
    globals()[f"v{_name}"] = _operation(f"v{_name}", _v, [_v, _v], _instruction(f"f{_name}"))
    if _name != "div":
        globals()[f"i{_name}"] = _operation(f"i{_name}", _v, [_v, _v], _integers(_instruction(_name)))
for _name, _sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="), ("eq", "==")):
    _floats, _ints = _instruction("fcmp_ordered", _sign), _instruction("icmp_signed", _sign)
    globals()[f"v{_name}"] = _operation(f"v{_name}", mask, [_v, _v], _floats)
    globals()[f"i{_name}"] = _operation(f"i{_name}", mask, [_v, _v], _integers(_ints, compares=True))
int_to_float = _operation("int_to_float", _v, [_v], lambda b, x: b.sitofp(b.bitcast(x, _INTS), _VECTOR))
float_to_int = _operation("float_to_int", _v, [_v], lambda b, x: b.bitcast(b.fptosi(x, _INTS), _VECTOR))


def _extremum(sign: str) -> Callable[..., Any]:
    # As NumPy's maximum and minimum, NaN wins over everything.
    def emit(builder: Any, x: Any, y: Any) -> Any:
        first = builder.or_(builder.fcmp_ordered(sign, x, y), builder.fcmp_unordered("uno", x, x))
        return builder.select(first, x, y)

    return emit


vmax = _operation("vmax", _v, [_v, _v], _extremum(">="))
vmin = _operation("vmin", _v, [_v, _v], _extremum("<="))


# The largest lane; NaN if there is one.
vmax_lanes = _operation("vmax_lanes", _f, [_v], lambda b, x: _halves(b, x, _extremum(">=")))


# Calls through an address, and what threads need to wait for each other.
_KERNEL = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)


def _atomic_load(builder: Any, address: Any) -> Any:
    return builder.load_atomic(_pointer(builder, address, ir.IntType(64)), "acquire", 8)


def _atomic_add(builder: Any, address: Any, value: Any) -> Any:
    return builder.atomic_rmw("add", _pointer(builder, address, ir.IntType(64)), value, "acq_rel")


def _atomic_exchange(builder: Any, address: Any, value: Any) -> Any:
    return builder.atomic_rmw("xchg", _pointer(builder, address, ir.IntType(64)), value, "acq_rel")


def _atomic_replace(builder: Any, address: Any, old: Any, new: Any) -> Any:
    place = _pointer(builder, address, ir.IntType(64))
    return builder.extract_value(builder.cmpxchg(place, old, new, "acq_rel", "acquire"), 0)


def _nap(builder: Any) -> None:
    """Sleep for some 0.1 ms; on Windows, which has no such short sleeps, let other threads go first."""
    if platform.system() == "Windows":
        _external(builder, "SwitchToThread", ir.IntType(32), [], [])
    else:
        _external(builder, "usleep", ir.IntType(32), [ir.IntType(32)], [ir.Constant(ir.IntType(32), NAP_US)])


call_kernel = _operation(
    "call_kernel", types.void, [_a, _a, _a, _a], lambda b, f, t, i, j: b.call(_pointer(b, f, _KERNEL), [t, i, j])
)
atomic_load = _operation("atomic_load", _a, [_a], _atomic_load)
atomic_add = _operation("atomic_add", _a, [_a, _a], _atomic_add)
# atomic_exchange(p, new) and atomic_replace(p, old, new), which stores only in place of `old`, return what was at p.
atomic_exchange = _operation("atomic_exchange", _a, [_a, _a], _atomic_exchange)
atomic_replace = _operation("atomic_replace", _a, [_a, _a, _a], _atomic_replace)
nap = _operation("nap", types.void, [], _nap)


def _pause(builder: Any) -> None:
    """Let the other thread of the core have it for a moment, where the CPU has a word for that."""
    if platform.machine() in ("x86_64", "AMD64"):
        _external(builder, "llvm.x86.sse2.pause", ir.VoidType(), [], [])


def _prefetch(builder: Any, address: Any) -> None:
    read, keep, data = (ir.Constant(ir.IntType(32), n) for n in (0, 3, 1))
    kinds = [ir.IntType(8).as_pointer(), *[ir.IntType(32)] * 3]
    operands = [_pointer(builder, address, ir.IntType(8)), read, keep, data]
    _external(builder, "llvm.prefetch.p0", ir.VoidType(), kinds, operands)


prefetch = _operation("prefetch", types.void, [_a], _prefetch)  # the cache line of an address, before it is read
pause = _operation("pause", types.void, [], _pause)
