"""Register tiles with channels in the lanes: ROWS positions x COLUMNS vectors of neighbouring channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import BYTES, INT, LANES, VECTOR, VOID, Operation, operation, pointer
from minicnn.backends.numba.registers import _at, _broadcast, _elements, _looped, _plus, tile_of, tile_vectors
from minicnn.backends.numba.vector import _filled, _fma, _load, _load_some, _store, _store_some

_ZERO = ir.Constant(INT, 0)
CHAINS = 8  # sums that a processor adds to at the same time: two units, four steps from one sum to the next


@cache
def operations(rows: int, columns: int) -> dict[str, Operation]:
    """Operations on tiles of that many vectors, by their names in code.

    For ROWS x COLUMNS vectors a[r][c], with addresses in bytes, and places of rows, which are numbers of 8 bytes one
    after the other. Names that end in `some_R_C` take one more argument: how many floats there are from the first of a
    row on, beyond which nothing is read or written.

    - project_R_C(a, places, x, w, count, w_step): count times a[r][c] += x[r] * w[c], x[r] being the float at x +
      places[r], and w[c] the vector at w + 64 c; then x moves on by a float and w by w_step. Small tiles have several
      sums of each vector, which are added at the end.
    - weigh_R_C(a, x, y, count, x_step, y_step): count times a[r][c] += x[r] * y[c], x[r] being the float at x + 4 r
      and y[c] the vector at y + 64 c; then they move on by their steps.
    - contract_R_C(a, places, x, w, count, w_step): a[r][c] += x[r] * w[c] in vectors of `count` floats, x[r] at x +
      places[r], and w[c] at w + c w_step; nothing behind them is read.
    - lift_R_C(b): each a[r][c] is the vector at b + 64 c.
    - join_R_C(a, places, x): a[r][c] and the vectors at x + places[r] + 64 c are added.
    - mask_R_C(a, places, x): a[r][c] has 0 where the vector there is not positive.
    - place_R_C(places, y, a): a[r][c] is stored at y + places[r] + 64 c.
    """
    size = rows * columns
    tile = ir.ArrayType(VECTOR, size)

    def left(builder: Any, lanes: Any, c: int) -> Any:
        return None if lanes is None else builder.sub(lanes, ir.Constant(INT, c * LANES))

    def load(builder: Any, address: Any, count: Any) -> Any:
        return _load(builder, address) if count is None else _load_some(builder, address, count)

    def vectors_at(builder: Any, address: Any, lanes: Any) -> list[Any]:
        """The vectors of all columns side by side."""
        return [load(builder, _plus(builder, address, c * BYTES), left(builder, lanes, c)) for c in range(columns)]

    def rows_at(builder: Any, places: Any, address: Any) -> list[Any]:
        """The address of each row."""
        starts = [builder.load(pointer(builder, _plus(builder, places, 8 * r), INT)) for r in range(rows)]
        return [builder.add(start, address) for start in starts]

    def spread_rows(builder: Any, sums: list[Any], values: list[Any], of: Callable[[int], Any]) -> list[Any]:
        """The sums, and the float at the address of each row times the vectors of all columns."""
        for r in range(rows):
            value = _broadcast(builder, of(r))
            for c in range(columns):
                sums[r * columns + c] = _fma(builder, value, values[c], sums[r * columns + c])
        return sums

    def project(builder: Any, a: Any, places: Any, x: Any, w: Any, count: Any, w_step: Any, lanes: Any = None) -> Any:
        starts = rows_at(builder, places, x)
        shift = max(CHAINS // size, 1).bit_length() - 1  # of the number of sums of a vector

        def body(chains: int, sums: list[Any], at: list[Any]) -> list[Any]:
            results = []
            for k in range(chains):
                values = vectors_at(builder, _at(builder, at[1], w_step, k), lanes)
                part = sums[k * size : (k + 1) * size]
                floats = [builder.add(start, _plus(builder, at[0], 4 * k)) for start in starts]
                results += spread_rows(builder, part, values, floats.__getitem__)
            return results

        sums, at = tile_vectors(builder, a, size), [_ZERO, w]
        steps = [ir.Constant(INT, 4 << shift), builder.shl(w_step, ir.Constant(INT, shift))]
        if shift:
            rounds = builder.ashr(count, ir.Constant(INT, shift))
            sums += [_filled(VECTOR, 0.0)] * (size * ((1 << shift) - 1))
            sums = _looped(builder, sums, rounds, at, steps, partial(body, 1 << shift))
            while len(sums) > size:
                half = len(sums) // 2
                sums = [builder.fadd(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
            at = [builder.add(start, builder.mul(rounds, step)) for start, step in zip(at, steps, strict=True)]
            count = builder.sub(count, builder.shl(rounds, ir.Constant(INT, shift)))
        return tile_of(builder, _looped(builder, sums, count, at, [ir.Constant(INT, 4), w_step], partial(body, 1)))

    def weigh(builder: Any, a: Any, x: Any, y: Any, count: Any, x_step: Any, y_step: Any, lanes: Any = None) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            values = vectors_at(builder, at[1], lanes)
            return spread_rows(builder, sums, values, lambda r: _plus(builder, at[0], 4 * r))

        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], [x_step, y_step], body))

    def contract(builder: Any, a: Any, places: Any, x: Any, w: Any, count: Any, w_step: Any) -> Any:
        starts = rows_at(builder, places, x)
        whole = builder.and_(count, ir.Constant(INT, -LANES))

        def body(sums: list[Any], at: list[Any], rest: Any = None) -> list[Any]:
            inputs = [_elements(builder, "floats", builder.add(start, at[0]), rest) for start in starts]
            for c in range(columns):
                value = _elements(builder, "floats", _at(builder, at[1], w_step, c), rest)
                for r in range(rows):
                    sums[r * columns + c] = _fma(builder, inputs[r], value, sums[r * columns + c])
            return sums

        steps, rounds = [ir.Constant(INT, BYTES)] * 2, builder.ashr(whole, ir.Constant(INT, 4))
        sums = _looped(builder, tile_vectors(builder, a, size), rounds, [_ZERO, w], steps, body)
        rest, behind = builder.sub(count, whole), builder.shl(whole, ir.Constant(INT, 2))
        some = builder.select(builder.icmp_signed(">", rest, _ZERO), ir.Constant(INT, 1), _ZERO)
        ends = [behind, builder.add(w, behind)]
        return tile_of(builder, _looped(builder, sums, some, ends, steps, lambda s, at: body(s, at, rest)))

    def lift(builder: Any, b: Any, lanes: Any = None) -> Any:
        return tile_of(builder, vectors_at(builder, b, lanes) * rows)

    def with_others(of: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
        """A tile of what `of(builder, vector, other)` gives for each vector and the one at its row's place."""

        def emit(builder: Any, a: Any, places: Any, x: Any, lanes: Any = None) -> Any:
            vectors = tile_vectors(builder, a, size)
            others = [v for at in rows_at(builder, places, x) for v in vectors_at(builder, at, lanes)]
            return tile_of(builder, [of(builder, *pair) for pair in zip(vectors, others, strict=True)])

        return emit

    def positive(builder: Any, value: Any, other: Any) -> Any:
        zero = _filled(VECTOR, 0.0)
        return builder.select(builder.fcmp_ordered(">", other, zero), value, zero)

    def place(builder: Any, places: Any, y: Any, a: Any, lanes: Any = None) -> None:
        for r, at in enumerate(rows_at(builder, places, y)):
            for c in range(columns):
                to, value = _plus(builder, at, c * BYTES), builder.extract_value(a, r * columns + c)
                if lanes is None:
                    _store(builder, to, value)
                else:
                    _store_some(builder, to, value, left(builder, lanes, c))

    listed: dict[str, tuple[Any, list[Any], Callable[..., Any]]] = {
        "project": (tile, [tile, *[INT] * 5], project),
        "weigh": (tile, [tile, *[INT] * 5], weigh),
        "lift": (tile, [INT], lift),
        "join": (tile, [tile, INT, INT], with_others(lambda b, x, y: b.fadd(x, y))),
        "mask": (tile, [tile, INT, INT], with_others(positive)),
        "place": (VOID, [INT, INT, tile], place),
    }
    some = {f"{name}_some": (result, [*kinds, INT], emit) for name, (result, kinds, emit) in listed.items()}
    listed |= {"contract": (tile, [tile, *[INT] * 5], contract), **some}
    return {f"{name}_{rows}_{columns}": operation(f"{name}_{rows}_{columns}", *parts) for name, parts in listed.items()}
