"""Tiles of accumulators as values in Numba code: ROWS x COLUMNS vectors that stay in registers.

One operation here is a whole inner loop, written in LLVM instructions. Written in Python the same loop would take
Numba's front end a second to compile for each shape of tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import models, register_model

from minicnn.backends.numba.vector import (
    _FLOAT,
    _VECTOR,
    BYTES,
    LANES,
    _load,
    _operation,
    _pointer,
    _splat,
    _store,
    _sum,
)

_INT = ir.IntType(64)


class _Tile(types.Type):
    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(name=f"tile{size}")


@register_model(_Tile)
class _TileModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: _Tile) -> None:
        super().__init__(manager, kind, ir.ArrayType(_VECTOR, kind.size))


def _at(builder: Any, address: Any, step: Any, count: int) -> Any:
    """Address + step * count."""
    return builder.add(address, builder.mul(step, ir.Constant(_INT, count))) if count else address


def _plus(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(_INT, nbytes)) if nbytes else address


def _broadcast(builder: Any, address: Any) -> Any:
    return _splat(builder, builder.load(_pointer(builder, address, _FLOAT)))


def _fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [x, y, z])


def _looped(builder: Any, tile: Any, size: int, count: Any, addresses: list[Any], steps: list[Any],
            body: Callable[[list[Any], list[Any]], list[Any]]) -> Any:  # fmt: skip
    """Repeat `body(accumulators, addresses)` count times, each address moving on by its step."""
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(size)]
    places = [cgutils.alloca_once(builder, _INT) for _ in addresses]
    for i, one in enumerate(sums):
        builder.store(builder.extract_value(tile, i), one)
    for place, address in zip(places, addresses, strict=True):
        builder.store(address, place)
    with cgutils.for_range(builder, count):
        at = [builder.load(place) for place in places]
        made = body([builder.load(one) for one in sums], at)
        for one, value in zip(sums, made, strict=True):
            builder.store(value, one)
        for place, address, step in zip(places, at, steps, strict=True):
            builder.store(builder.add(address, step), place)
    for i, one in enumerate(sums):
        tile = builder.insert_value(tile, builder.load(one), i)
    return tile


@cache
def operations(rows: int, columns: int) -> dict[str, Any]:
    """Operations on tiles of that many vectors, by their names in code.

    For ROWS x COLUMNS vectors a[r][c], with addresses in bytes:

    - clear_R_C() is a tile of zeros.
    - bias_R_C(b) has the float at b + 4 c in all lanes of a[r][c].
    - correlate_R_C(a, x, w, count, x_step, w_step): count times a[r][c] += x[r] * w[c], x[r] being the vector at
      x + r x_step and w[c] the float at w + 4 c; then x moves on by one vector and w by w_step.
    - outer_R_C(a, x, y, count, x_step, y_step): count times a[r][c] += x[r] * y[c], vectors side by side at x and y;
      then they move on by their steps.
    - put_R_C(o, a, step) stores a[r][c] at o + r step + c * 64.
    - gather_R_C(o, a, step) adds a[r][c] to the vectors there.
    - total_R_C(o, a, step) adds the sums of the lanes of a[r][c] to the floats at o + r step + 4 c.
    """
    size = rows * columns
    tile, address = _Tile(size), types.int64
    kind = ir.ArrayType(_VECTOR, size)
    cells = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]

    def clear(builder: Any) -> Any:
        return ir.Constant(kind, [ir.Constant(_VECTOR, [0.0] * LANES)] * size)

    def bias(builder: Any, b: Any) -> Any:
        values = [_broadcast(builder, _plus(builder, b, 4 * c)) for c in range(columns)]
        result = ir.Constant(kind, ir.Undefined)
        for _, c, i in cells:
            result = builder.insert_value(result, values[c], i)
        return result

    def correlate(builder: Any, a: Any, x: Any, w: Any, count: Any, x_step: Any, w_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_load(builder, _at(builder, at[0], x_step, r)) for r in range(rows)]
            for c in range(columns):
                weight = _broadcast(builder, _plus(builder, at[1], 4 * c))
                for r in range(rows):
                    sums[r * columns + c] = _fma(builder, weight, inputs[r], sums[r * columns + c])
            return sums

        return _looped(builder, a, size, count, [x, w], [ir.Constant(_INT, BYTES), w_step], body)

    def outer(builder: Any, a: Any, x: Any, y: Any, count: Any, x_step: Any, y_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_load(builder, _plus(builder, at[0], r * BYTES)) for r in range(rows)]
            for c in range(columns):
                gradient = _load(builder, _plus(builder, at[1], c * BYTES))
                for r in range(rows):
                    sums[r * columns + c] = _fma(builder, inputs[r], gradient, sums[r * columns + c])
            return sums

        return _looped(builder, a, size, count, [x, y], [x_step, y_step], body)

    def put(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            _store(builder, _plus(builder, _at(builder, o, step, r), c * BYTES), builder.extract_value(a, i))

    def gather(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            at = _plus(builder, _at(builder, o, step, r), c * BYTES)
            _store(builder, at, builder.fadd(_load(builder, at), builder.extract_value(a, i)))

    def total(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            at = _pointer(builder, _plus(builder, _at(builder, o, step, r), 4 * c), _FLOAT)
            builder.store(builder.fadd(builder.load(at), _sum(builder, builder.extract_value(a, i))), at)

    many = [address] * 5
    made: dict[str, tuple[Any, list[Any], Callable[..., Any]]] = {
        "clear": (tile, [], clear),
        "bias": (tile, [address], bias),
        "correlate": (tile, [tile, *many], correlate),
        "outer": (tile, [tile, *many], outer),
        "put": (types.void, [address, tile, address], put),
        "gather": (types.void, [address, tile, address], gather),
        "total": (types.void, [address, tile, address], total),
    }
    return {
        f"{name}_{rows}_{columns}": _operation(f"{name}_{rows}_{columns}", result, arguments, emit)
        for name, (result, arguments, emit) in made.items()
    }
