"""Register tiles as values in kernels: ROWS x COLUMNS accumulators, each a vector, that stay in registers.

One operation here is a whole inner loop, written in LLVM instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.interpreting import VectorInterpreter
from minicnn.backends.numba.operations import (
    BYTES,
    FLOAT,
    INT,
    LANES,
    VECTOR,
    VOID,
    Operation,
    loop,
    operation,
    pointer,
    variable,
)
from minicnn.backends.numba.vector import (
    _BYTES,
    _extremum,
    _filled,
    _fma,
    _load,
    _load_bytes,
    _load_some,
    _splat,
    _store,
    _store_some,
)

_ZERO = ir.Constant(INT, 0)
_SIZE = {"bytes": 1, "floats": 4}  # of an element


def _at(builder: Any, address: Any, step: Any, count: int) -> Any:
    """Address + step * count."""
    return builder.add(address, builder.mul(step, ir.Constant(INT, count))) if count else address


def _plus(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(INT, nbytes)) if nbytes else address


def _broadcast(builder: Any, address: Any) -> Any:
    return _splat(builder, builder.load(pointer(builder, address, FLOAT)))


def _elements(builder: Any, kind: str, address: Any, left: Any = None) -> Any:
    """16 elements as floats; if told how many are left, 0 beyond those."""
    if kind == "floats":
        return _load(builder, address) if left is None else _load_some(builder, address, left)
    if left is not None:
        return _load_bytes(builder, address, left)
    return builder.uitofp(builder.load(pointer(builder, address, _BYTES), align=1), VECTOR)


def _looped(builder: Any, sums: list[Any], count: Any, addresses: list[Any], steps: list[Any],
            body: Callable[[list[Any], list[Any]], list[Any]]) -> list[Any]:  # fmt: skip
    """Repeat `sums = body(sums, addresses)` count times, each address moving on by its step; returns the sums."""
    if isinstance(builder, VectorInterpreter):
        for _ in range(getattr(count, "constant", count)):
            sums = body(sums, addresses)
            addresses = [builder.add(address, step) for address, step in zip(addresses, steps, strict=True)]
        return sums
    # Sums go through memory here and LLVM makes registers of them: phi nodes would have to know the end of a body that
    # adds blocks of its own.
    kept = [variable(builder, VECTOR) for _ in sums]
    places = [variable(builder, INT) for _ in addresses]
    for value, place in zip([*sums, *addresses], [*kept, *places], strict=True):
        builder.store(value, place)
    with loop(builder, _ZERO, count, ir.Constant(INT, 1)):
        at = [builder.load(place) for place in places]
        results = body([builder.load(one) for one in kept], at)
        moved = [builder.add(address, step) for address, step in zip(at, steps, strict=True)]
        for value, place in zip([*results, *moved], [*kept, *places], strict=True):
            builder.store(value, place)
    return [builder.load(one) for one in kept]


def tile_vectors(builder: Any, tile: Any, count: int) -> list[Any]:
    """The vectors of a tile, row by row."""
    return [builder.extract_value(tile, i) for i in range(count)]


def tile_of(builder: Any, vectors: list[Any]) -> Any:
    """The tile of vectors."""
    tile = ir.Constant(ir.ArrayType(VECTOR, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        tile = builder.insert_value(tile, vector, i)
    return tile


@cache
def operations(rows: int, columns: int) -> dict[str, Operation]:
    """Operations on tiles of that many vectors, by their names in code.

    For ROWS x COLUMNS vectors a[r][c], with addresses in bytes:

    - clear_R_C() is a tile of zeros.
    - bias_R_C(b) has the float at b + 4 c in all lanes of a[r][c].
    - correlate_R_C(a, x, w, count, x_step, w_step): count times a[r][c] += x[r] * w[c], x[r] being the vector at
      x + r x_step and w[c] the float at w + 4 c; then x moves on by one vector and w by w_step.
    - multiply_R_C(a, x, w, count): the same, with the vectors of all rows side by side at x, and the floats of all
      columns at w; both move on by what was read.
    - outer_R_C(a, x, y, count, x_step, y_step): count times a[r][c] += x[r] * y[c], vectors side by side at x and y;
      then they move on by their steps.
    - spread_R_C(a, x, y, count, samples, x_step): for `count` positions and the samples (at most 16) of each
      a[r][c] += x[r] * y[c], x[r] being the float at x + 64 r + 4 s and y[c] the vector at y + 64 (C s + c); from
      position to position x moves on by x_step, and y to what follows.
    - deposit_R_C(o, a, step, lanes, fresh) adds the first `lanes` floats of row r of a to those at o + r step, which
      count as 0 if fresh is 1.
    - dot_KIND_R_C(a, x, w, count, w_step): a[r][c] += x[r] * w[c] in vectors of `count` elements, x[r] at the address
      that is at x + 8 r, and w[c] at w + c w_step, where 0 follow; KIND is floats or bytes.
    - fold_KIND_R_C(a, x, k, y, count, length): for `count` samples s, a[r][c] += x[r] * y[c], x[r] being the vector of
      elements from k + 16 r on of the row whose address is at x + 8 s, and y[c] the float at y + 64 c + 4 s.
      fold_KIND_some_R_C does not read beyond the `length` elements of a row.
    - lay_R_C(o, a, step, length, fresh) adds a[r][c] to the vector at o + c step + 64 r, which counts as 0 if fresh
      is 1, as far as there are `length` floats.
    - clip_R_C(a, low, high) has values below low and above high replaced by those; NaN stays.
    - keep_R_C(a, m, step) has 0 where the vector at m + r step + c * 64 is not positive.
    - put_R_C(o, a, step) stores a[r][c] at o + r step + c * 64.
    - take_R_C(o, step) has them from there.
    - gather_R_C(o, a, step) adds a[r][c] to the vectors there.
    """
    size = rows * columns
    tile, address = ir.ArrayType(VECTOR, size), INT
    cells = [(r, c, r * columns + c) for r in range(rows) for c in range(columns)]

    def clear(builder: Any) -> Any:
        return ir.Constant(tile, [_filled(VECTOR, 0.0)] * size)

    def bias(builder: Any, b: Any) -> Any:
        values = [_broadcast(builder, _plus(builder, b, 4 * c)) for c in range(columns)]
        return tile_of(builder, [values[c] for _, c, _ in cells])

    # Rows are loaded once and meet every column: rows x columns products for rows + columns loads is all that a tile is
    # for.
    def multiplied(builder: Any, sums: list[Any], inputs: list[Any], of: Callable[[int], Any]) -> list[Any]:
        """The sums, and the inputs of all rows times what `of` gives for each column."""
        for c in range(columns):
            value = of(c)
            for r in range(rows):
                sums[r * columns + c] = _fma(builder, inputs[r], value, sums[r * columns + c])
        return sums

    def correlate(builder: Any, a: Any, x: Any, w: Any, count: Any, x_step: Any, w_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_load(builder, _at(builder, at[0], x_step, r)) for r in range(rows)]
            return multiplied(builder, sums, inputs, lambda c: _broadcast(builder, _plus(builder, at[1], 4 * c)))

        steps = [ir.Constant(INT, BYTES), w_step]
        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, w], steps, body))

    def multiply(builder: Any, a: Any, x: Any, w: Any, count: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_load(builder, _plus(builder, at[0], r * BYTES)) for r in range(rows)]
            return multiplied(builder, sums, inputs, lambda c: _broadcast(builder, _plus(builder, at[1], 4 * c)))

        steps = [ir.Constant(INT, rows * BYTES), ir.Constant(INT, 4 * columns)]
        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, w], steps, body))

    def outer(builder: Any, a: Any, x: Any, y: Any, count: Any, x_step: Any, y_step: Any) -> Any:
        def body(sums: list[Any], at: list[Any]) -> list[Any]:
            inputs = [_load(builder, _plus(builder, at[0], r * BYTES)) for r in range(rows)]
            return multiplied(builder, sums, inputs, lambda c: _load(builder, _plus(builder, at[1], c * BYTES)))

        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], [x_step, y_step], body))

    def spread(builder: Any, a: Any, x: Any, y: Any, count: Any, samples: Any, x_step: Any) -> Any:
        def sample(sums: list[Any], at: list[Any]) -> list[Any]:
            gradients = [_load(builder, _plus(builder, at[1], c * BYTES)) for c in range(columns)]
            for r in range(rows):
                value = _broadcast(builder, _plus(builder, at[0], r * BYTES))
                for c in range(columns):
                    sums[r * columns + c] = _fma(builder, value, gradients[c], sums[r * columns + c])
            return sums

        def position(sums: list[Any], at: list[Any]) -> list[Any]:
            steps = [ir.Constant(INT, 4), ir.Constant(INT, columns * BYTES)]
            return _looped(builder, sums, samples, at, steps, sample)

        # y is a step of a whole vector of samples on, whether all of them are in the batch or not: so it lies in
        # memory.
        steps = [x_step, ir.Constant(INT, LANES * columns * BYTES)]
        return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], steps, position))

    def added(*, across: bool) -> Callable[..., Any]:
        """`deposit`; or `lay` if the rows of a tile lie across."""

        def emit(builder: Any, o: Any, a: Any, step: Any, length: Any, fresh: Any) -> None:
            new = builder.icmp_signed("!=", fresh, _ZERO)
            for r, c, i in cells:
                row, column = (c, r) if across else (r, c)
                at = _plus(builder, _at(builder, o, step, row), column * BYTES)
                live = builder.sub(length, ir.Constant(INT, column * LANES))
                old = builder.select(new, _filled(VECTOR, 0.0), _load_some(builder, at, live))
                _store_some(builder, at, builder.fadd(old, builder.extract_value(a, i)), live)

        return emit

    def dot(kind: str) -> Callable[..., Any]:
        def emit(builder: Any, a: Any, x: Any, w: Any, count: Any, w_step: Any) -> Any:
            def body(sums: list[Any], at: list[Any], rest: Any = None) -> list[Any]:
                inputs = [_elements(builder, kind, address, rest) for address in at[:-1]]
                return multiplied(builder, sums, inputs, lambda c: _load(builder, _at(builder, at[-1], w_step, c)))

            starts = [builder.load(pointer(builder, _plus(builder, x, 8 * r), INT)) for r in range(rows)]
            steps = [ir.Constant(INT, LANES * _SIZE[kind])] * rows + [ir.Constant(INT, BYTES)]
            whole = builder.ashr(count, ir.Constant(INT, 4))
            sums = _looped(builder, tile_vectors(builder, a, size), whole, [*starts, w], steps, body)
            rest = builder.sub(count, builder.shl(whole, ir.Constant(INT, 4)))
            ends = [builder.add(s, builder.mul(whole, step)) for s, step in zip([*starts, w], steps, strict=True)]
            # The last vector is a loop of no or one round, so that it is written like the others and nothing is read
            # behind a row.
            some = builder.select(builder.icmp_signed(">", rest, _ZERO), ir.Constant(INT, 1), _ZERO)
            return tile_of(builder, _looped(builder, sums, some, ends, steps, lambda s, at: body(s, at, rest)))

        return emit

    def fold(kind: str, *, checked: bool) -> Callable[..., Any]:
        def emit(builder: Any, a: Any, x: Any, k: Any, y: Any, count: Any, length: Any) -> Any:
            def body(sums: list[Any], at: list[Any]) -> list[Any]:
                row = builder.load(pointer(builder, at[0], INT))
                first = builder.add(row, builder.mul(k, ir.Constant(INT, _SIZE[kind])))
                left = builder.sub(length, k)
                inputs = [
                    _elements(
                        builder, kind, _plus(builder, first, r * LANES * _SIZE[kind]),
                        builder.sub(left, ir.Constant(INT, r * LANES)) if checked else None,
                    )
                    for r in range(rows)
                ]  # fmt: skip
                return multiplied(
                    builder, sums, inputs, lambda c: _broadcast(builder, _plus(builder, at[1], c * BYTES))
                )

            steps = [ir.Constant(INT, 8), ir.Constant(INT, 4)]
            return tile_of(builder, _looped(builder, tile_vectors(builder, a, size), count, [x, y], steps, body))

        return emit

    def clip(builder: Any, a: Any, low: Any, high: Any) -> Any:
        least, most = _splat(builder, low), _splat(builder, high)
        # A plain comparison would lose a not-a-number, which every backend has to hand on.
        bounded = [_extremum(">=")(builder, v, least) for v in tile_vectors(builder, a, size)]
        return tile_of(builder, [_extremum("<=")(builder, v, most) for v in bounded])

    def keep(builder: Any, a: Any, m: Any, step: Any) -> Any:
        zero = _filled(VECTOR, 0.0)
        masked = []
        for r, c, i in cells:
            masks = _load(builder, _plus(builder, _at(builder, m, step, r), c * BYTES))
            positive = builder.fcmp_ordered(">", masks, zero)
            masked.append(builder.select(positive, builder.extract_value(a, i), zero))
        return tile_of(builder, masked)

    def put(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            _store(builder, _plus(builder, _at(builder, o, step, r), c * BYTES), builder.extract_value(a, i))

    def take(builder: Any, o: Any, step: Any) -> Any:
        return tile_of(
            builder, [_load(builder, _plus(builder, _at(builder, o, step, r), c * BYTES)) for r, c, _ in cells]
        )

    def gather(builder: Any, o: Any, a: Any, step: Any) -> None:
        for r, c, i in cells:
            at = _plus(builder, _at(builder, o, step, r), c * BYTES)
            _store(builder, at, builder.fadd(_load(builder, at), builder.extract_value(a, i)))

    many = [address] * 5
    operations_by_name: dict[str, tuple[Any, list[Any], Callable[..., Any]]] = {
        "clear": (tile, [], clear),
        "bias": (tile, [address], bias),
        "correlate": (tile, [tile, *many], correlate),
        "multiply": (tile, [tile, *many[:3]], multiply),
        "outer": (tile, [tile, *many], outer),
        "clip": (tile, [tile, FLOAT, FLOAT], clip),
        "keep": (tile, [tile, address, address], keep),
        "put": (VOID, [address, tile, address], put),
        "take": (tile, [address, address], take),
        "gather": (VOID, [address, tile, address], gather),
        "spread": (tile, [tile, *many], spread),
        "lay": (VOID, [address, tile, address, address, address], added(across=True)),
        "deposit": (VOID, [address, tile, address, address, address], added(across=False)),
    }
    for kind_of in _SIZE:
        operations_by_name[f"dot_{kind_of}"] = (tile, [tile, *many[1:]], dot(kind_of))
        operations_by_name[f"fold_{kind_of}"] = (tile, [tile, *many], fold(kind_of, checked=False))
        operations_by_name[f"fold_{kind_of}_some"] = (tile, [tile, *many], fold(kind_of, checked=True))
    return {
        f"{name}_{rows}_{columns}": operation(f"{name}_{rows}_{columns}", result, arguments, emit)
        for name, (result, arguments, emit) in operations_by_name.items()
    }
