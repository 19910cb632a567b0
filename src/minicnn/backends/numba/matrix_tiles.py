"""Products of tiles: matrices in registers of their own, 16 rows of 16 float32 or of 32 bfloat16.

The instruction tdpbf16ps adds to a tile of sums the product of two tiles of pairs of bfloat16: x has the 16 pairs of
a row, y the same pairs of 16 columns. For each sum it adds up the products of the first of all pairs, one after the
other and each rounded once to float32, likewise those of the second, then both sums, and then this to what was there;
denormal numbers count as zero. Where the CPU has no tiles, multiply-adds in this order give the same bits, while
denormal numbers count as zero: see `short.flush_denormals`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from minicnn.backends.numba import cpus
from minicnn.backends.numba.interpreting import VectorInterpreter
from minicnn.backends.numba.operations import (
    BYTE,
    BYTES,
    INT,
    INT32,
    LANES,
    VECTOR,
    VOID,
    Operation,
    external,
    operation,
    pointer,
    target_of,
    variable,
)
from minicnn.backends.numba.registers import _at, _broadcast, _looped, _plus, tile_of, tile_vectors
from minicnn.backends.numba.short import _PAIRS, _SHORTS, _UPPER, SHORT_BYTES, _splat_word
from minicnn.backends.numba.vector import _INTS, _filled, _fma, _load, _store

TILE = cpus.AMX
_TOGETHER = 4  # rows of sums that multiply-adds compute at a time
_PLACE, _ZERO = BYTE.as_pointer(), ir.Constant(INT, 0)


def native(builder: Any) -> bool:
    """True if code for the CPU may use tiles."""
    return not isinstance(builder, VectorInterpreter) and target_of(builder).tiles is not None


def _tile_call(builder: Any, name: str, *operands: Any) -> None:
    """Call a function of LLVM on tiles by their numbers, and on addresses and steps."""
    values = [ir.Constant(BYTE, o) if isinstance(o, int) else o for o in operands]
    external(builder, f"llvm.x86.{name}", VOID, [value.type for value in values], values)


def _begin(builder: Any) -> None:
    if not native(builder):
        return
    # One palette for all kernels: eight whole tiles. Rows and columns that a shape lacks are zeros in memory.
    layout = struct.pack(
        "<BB14x16H16B", 1, 0, *[TILE.row_bytes] * TILE.count, *[0] * 8, *[TILE.rows] * TILE.count, *[0] * 8
    )
    kind = ir.VectorType(INT, 8)
    place = variable(builder, kind)
    builder.store(ir.Constant(kind, list(struct.unpack("<8q", layout))), place)
    _tile_call(builder, "ldtilecfg", builder.bitcast(place, _PLACE))


def _end(builder: Any) -> None:
    if native(builder):
        _tile_call(builder, "tilerelease")


def _lay_pairs(builder: Any, o: Any, x: Any, count: Any) -> None:
    """Channels side by side: lane i of a row has samples i of two."""
    order = [place for lane in range(LANES) for place in (lane, LANES + lane)]

    def body(_: list[Any], at: list[Any]) -> list[Any]:
        both = builder.load(pointer(builder, at[0], _PAIRS), align=2)
        both = builder.shuffle_vector(both, both, ir.Constant(ir.VectorType(INT32, 2 * LANES), order))
        builder.store(both, pointer(builder, at[1], _PAIRS), align=2)
        return []

    _looped(builder, [], count, [x, o], [ir.Constant(INT, BYTES)] * 2, body)


def _lay_single(builder: Any, o: Any, x: Any) -> None:
    shorts = builder.load(pointer(builder, x, _SHORTS), align=2)
    builder.store(builder.zext(shorts, _INTS), pointer(builder, o, _INTS), align=4)


def _lay_halves(builder: Any, o: Any, x: Any, count: Any) -> None:
    def body(_: list[Any], at: list[Any]) -> list[Any]:
        shorts = builder.load(pointer(builder, at[0], _SHORTS), align=2)
        builder.store(shorts, pointer(builder, at[1], _SHORTS), align=2)
        return []

    _looped(builder, [], count, [x, o], [ir.Constant(INT, SHORT_BYTES), ir.Constant(INT, BYTES)], body)


def _clear_rows(builder: Any, o: Any, count: Any, kind: Any) -> None:
    def body(_: list[Any], at: list[Any]) -> list[Any]:
        builder.store(_filled(kind, 0), pointer(builder, at[0], kind), align=2)
        return []

    _looped(builder, [], count, [o], [ir.Constant(INT, BYTES)], body)


def _halves_of(builder: Any, lanes: Any) -> tuple[Any, Any]:
    """First and second of pairs as float32."""
    first, second = builder.shl(lanes, _filled(_INTS, 16)), builder.and_(lanes, _filled(_INTS, _UPPER))
    return builder.bitcast(first, VECTOR), builder.bitcast(second, VECTOR)


def _emulated(builder: Any, sums: list[Any], a: Any, b: Any) -> list[Any]:
    """Rows of sums plus the product of rows of a tile at a and the tile at b."""
    rows = len(sums)

    def pair(both: list[Any], at: list[Any]) -> list[Any]:
        columns = _halves_of(builder, builder.load(pointer(builder, at[1], _INTS), align=4))
        for r in range(rows):
            word = builder.load(pointer(builder, _plus(builder, at[0], r * TILE.row_bytes), INT32))
            values = _halves_of(builder, _splat_word(builder, word))
            for half in (0, 1):
                both[2 * r + half] = _fma(builder, values[half], columns[half], both[2 * r + half])
        return both

    steps = [ir.Constant(INT, 4), ir.Constant(INT, BYTES)]
    nothing = [_filled(VECTOR, 0.0)] * (2 * rows)
    both = _looped(builder, nothing, ir.Constant(INT, TILE.row_bytes // 4), [a, b], steps, pair)
    return [builder.fadd(sums[r], builder.fadd(both[2 * r], both[2 * r + 1])) for r in range(rows)]


@cache
def operations(rows: int, columns: int) -> dict[str, Operation]:
    """Operations on ROWS x COLUMNS tiles, by their names in code, with addresses and steps in bytes.

    - multiply_tiles_R_C(o, row, column, a, a_step, a_move, b, b_step, b_move, count, fresh): count times the sums
      s[r][c] += x[r] . y[c], tiles x[r] at a + r a_step and y[c] at b + c b_step, which then move on. Row i of s[r][c]
      is at o + c column + (16 r + i) row; what is there counts as 0 if fresh is 1.
    - biased_R_C(a, b): the tile of vectors a plus the float at b + 4 c in all lanes of a[r][c].
    """
    cells = [(r, c) for r in range(rows) for c in range(columns)]

    def place(builder: Any, o: Any, row: Any, column: Any, r: int, c: int) -> Any:
        return builder.add(_at(builder, o, row, TILE.rows * r), _at(builder, _ZERO, column, c))

    def multiply(builder: Any, o: Any, row: Any, column: Any, a: Any, a_step: Any, a_move: Any, b: Any, b_step: Any,
                 b_move: Any, count: Any, fresh: Any) -> None:  # fmt: skip
        """By the instruction."""
        if not native(builder):
            emulate(builder, o, row, column, a, a_step, a_move, b, b_step, b_move, count, fresh)
            return

        def each(name: str) -> None:
            for r, c in cells:
                at = builder.inttoptr(place(builder, o, row, column, r, c), _PLACE)
                _tile_call(builder, name, r * columns + c, at, row)

        def body(_: list[Any], at: list[Any]) -> list[Any]:
            for side, step, number in ((0, a_step, rows), (1, b_step, columns)):
                for k in range(number):
                    here = builder.inttoptr(_at(builder, at[side], step, k), _PLACE)
                    tile = rows * columns + side * rows + k
                    _tile_call(builder, "tileloadd64", tile, here, ir.Constant(INT, TILE.row_bytes))
            for r, c in cells:
                _tile_call(builder, "tdpbf16ps", r * columns + c, rows * columns + r, rows * (columns + 1) + c)
            return []

        with builder.if_else(builder.icmp_signed("!=", fresh, _ZERO)) as (new, old):
            with new:
                for r, c in cells:
                    _tile_call(builder, "tilezero", r * columns + c)
            with old:
                each("tileloadd64")
        _looped(builder, [], count, [a, b], [a_move, b_move], body)
        each("tilestored64")

    def emulate(builder: Any, o: Any, row: Any, column: Any, a: Any, a_step: Any, a_move: Any, b: Any, b_step: Any,
                b_move: Any, count: Any, fresh: Any) -> None:  # fmt: skip
        """By multiply-adds in the same order."""
        new = builder.icmp_signed("!=", fresh, _ZERO)
        for r, c in cells:

            def some(_: list[Any], at: list[Any], c: int = c) -> list[Any]:
                places = [_at(builder, at[0], row, i) for i in range(_TOGETHER)]
                sums = [builder.select(new, _filled(VECTOR, 0.0), _load(builder, one)) for one in places]
                y = _at(builder, b, b_step, c)
                sums = _looped(
                    builder, sums, count, [at[1], y], [a_move, b_move],
                    lambda sums, at: _emulated(builder, sums, *at),
                )  # fmt: skip
                for one, value in zip(places, sums, strict=True):
                    _store(builder, one, value)
                return []

            first = [place(builder, o, row, column, r, c), _at(builder, a, a_step, r)]
            steps = [_at(builder, _ZERO, row, _TOGETHER), ir.Constant(INT, _TOGETHER * TILE.row_bytes)]
            _looped(builder, [], ir.Constant(INT, TILE.rows // _TOGETHER), first, steps, some)

    def biased(builder: Any, a: Any, b: Any) -> Any:
        values = [_broadcast(builder, _plus(builder, b, 4 * c)) for c in range(columns)]
        vectors = tile_vectors(builder, a, rows * columns)
        return tile_of(builder, [builder.fadd(v, values[i % columns]) for i, v in enumerate(vectors)])

    tile = ir.ArrayType(VECTOR, rows * columns)
    operations_by_name: dict[str, tuple[Any, list[Any], Callable[..., Any]]] = {
        "multiply_tiles": (VOID, [INT] * 11, multiply),
        "biased": (tile, [tile, INT], biased),
    }
    return {
        f"{name}_{rows}_{columns}": operation(f"{name}_{rows}_{columns}", result, arguments, emit)
        for name, (result, arguments, emit) in operations_by_name.items()
    }


# begin_tiles() and end_tiles() are around all products of a kernel.
begin_tiles = operation("begin_tiles", VOID, [], _begin)
end_tiles = operation("end_tiles", VOID, [], _end)
# lay_pairs(o, x, count): vectors of bfloat16 side by side at x, two in each of `count` rows at o, of which lane i has
# the elements i of both. lay_single(o, x) has one, paired with zeros. lay_halves(o, x, count) has one in the first
# half of each row. clear_rows(o, count) and clear_halves(o, count) have zeros there.
lay_pairs = operation("lay_pairs", VOID, [INT] * 3, _lay_pairs)
lay_single = operation("lay_single", VOID, [INT] * 2, _lay_single)
lay_halves = operation("lay_halves", VOID, [INT] * 3, _lay_halves)
clear_rows = operation("clear_rows", VOID, [INT] * 2, lambda b, o, n: _clear_rows(b, o, n, _INTS))
clear_halves = operation("clear_halves", VOID, [INT] * 2, lambda b, o, n: _clear_rows(b, o, n, _SHORTS))
