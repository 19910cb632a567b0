"""Register tiles of float32 sums whose operands are bfloat16; see `registers`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import BYTES, INT, LANES, VECTOR, VOID, Operation, operation
from minicnn.backends.numba.registers import _at, _looped, _plus, tile_of, tile_vectors
from minicnn.backends.numba.short import SHORT_BYTES, Pairs, _short_load, _short_store, dot
from minicnn.backends.numba.vector import _filled, _fma


@cache
def operations(rows: int, columns: int) -> dict[str, Operation]:
    """Operations on tiles of that many vectors, by their names in code; vectors of bfloat16 have 32 bytes.

    For ROWS x COLUMNS vectors a[r][c], with addresses in bytes:

    - pairs_R_C(a, x, w, count, x_step, w_step): count times a[r][c] += x[r] . w[c], x[r] being the pairs of the two
      vectors at x + r x_step and w[c] the pair at w + 4 c; then x moves on by two vectors and w by w_step.
    - single_R_C(a, x, w, x_step): a[r][c] += x[r] . w[c] once for one vector at x + r x_step, paired with zeros.
    - spread_pairs_R_C(a, x, y, count, pairs, x_step): for `count` positions and the pairs of samples (at most 8) of
      each a[r][c] += x[r] . y[c], x[r] being the pair at x + 32 r + 4 s and y[c] the pairs at y + 64 (C s + c); from
      position to position x moves on by x_step, and y to what follows.
    - outer_short_R_C(a, x, y, count, x_step, y_step): as outer_R_C.
    - keep_short_R_C(a, m, step) and put_short_R_C(o, a, step): as keep_R_C and put_R_C, in memory bfloat16.
    """
    size = rows * columns
    tile, address = ir.ArrayType(VECTOR, size), INT
    cells = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]

    def pairs(builder: Any, a: Any, x: Any, w: Any, count: Any, x_step: Any, w_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [Pairs.of_neighbours(builder, _at(builder, at[0], x_step, r)) for r in range(rows)]
            return multiplied(builder, sums, inputs, at[1])

        steps = [ir.Constant(INT, BYTES), w_step]
        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, w], steps, body))

    def multiplied(builder: Any, sums: list[Any], inputs: list[Pairs], w: Any) -> list[Any]:
        for c in range(columns):
            weights = Pairs.spread(builder, _plus(builder, w, 4 * c))
            for r in range(rows):
                sums[r * columns + c] = dot(builder, sums[r * columns + c], inputs[r], weights)
        return sums

    def single(builder: Any, a: Any, x: Any, w: Any, x_step: Any) -> Any:
        inputs = [Pairs.of_one(builder, _at(builder, x, x_step, r)) for r in range(rows)]
        return tile_of(builder, multiplied(builder, tile_vectors(builder, a, size), inputs, w))

    def spread_pairs(builder: Any, a: Any, x: Any, y: Any, count: Any, samples: Any, x_step: Any) -> Any:
        def pair(sums: list[Any], at: list[Any]) -> list[Any]:
            gradients = [Pairs.at(builder, _plus(builder, at[1], c * BYTES)) for c in range(columns)]
            for r in range(rows):
                value = Pairs.spread(builder, _plus(builder, at[0], r * SHORT_BYTES))
                for c in range(columns):
                    sums[r * columns + c] = dot(builder, sums[r * columns + c], gradients[c], value)
            return sums

        def position(sums: list[Any], at: list[Any]) -> list[Any]:
            steps = [ir.Constant(INT, 4), ir.Constant(INT, columns * BYTES)]
            return _looped(builder, sums, samples, at, steps, pair)

        steps = [x_step, ir.Constant(INT, LANES // 2 * columns * BYTES)]
        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], steps, position))

    def outer(builder: Any, a: Any, x: Any, y: Any, count: Any, x_step: Any, y_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_short_load(builder, _plus(builder, at[0], r * SHORT_BYTES)) for r in range(rows)]
            for c in range(columns):
                value = _short_load(builder, _plus(builder, at[1], c * SHORT_BYTES))
                for r in range(rows):
                    sums[r * columns + c] = _fma(builder, inputs[r], value, sums[r * columns + c])
            return sums

        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], [x_step, y_step], body))

    def keep(builder: Any, a: Any, m: Any, step: Any) -> Any:
        zero, masked = _filled(VECTOR, 0.0), []
        for r, c, i in cells:
            masks = _short_load(builder, _plus(builder, _at(builder, m, step, r), c * SHORT_BYTES))
            positive = builder.fcmp_ordered(">", masks, zero)
            masked.append(builder.select(positive, builder.extract_value(a, i), zero))
        return tile_of(builder, masked)

    def put(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            at = _plus(builder, _at(builder, o, step, r), c * SHORT_BYTES)
            _short_store(builder, at, builder.extract_value(a, i))

    many = [address] * 5
    operations_by_name: dict[str, tuple[Any, list[Any], Callable[..., Any]]] = {
        "pairs": (tile, [tile, *many], pairs),
        "single": (tile, [tile, *many[:3]], single),
        "spread_pairs": (tile, [tile, *many], spread_pairs),
        "outer_short": (tile, [tile, *many], outer),
        "keep_short": (tile, [tile, address, address], keep),
        "put_short": (VOID, [address, tile, address], put),
    }
    return {
        f"{name}_{rows}_{columns}": operation(f"{name}_{rows}_{columns}", result, arguments, emit)
        for name, (result, arguments, emit) in operations_by_name.items()
    }
