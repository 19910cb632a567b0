"""Winograd's transforms of tiles, as operations in kernels: see `winograd_matrices`, along rows and columns alike.

    y = A^T [(G g G^T) * (B^T d B)] A

A transform goes along the columns first. What that gives is left to LLVM, which keeps some of it in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import BYTES, INT, VECTOR, VOID, Operation, operation, pointer
from minicnn.backends.numba.registers import _at, _broadcast, _looped, _plus
from minicnn.backends.numba.vector import _extremum, _filled, _fma, _load, _load_some, _store, _store_some
from minicnn.ops.winograd_matrices import OUTPUTS, Matrix, matrices, transposed

FINISHES = ("", "relu", "relu6", "mask")


def _linear(builder: Any, terms: Sequence[tuple[Fraction, Any]]) -> Any:
    """The sum of vectors with factors; None if there is none."""
    total = None
    for factor, value in sorted(terms, key=lambda term: term[0] != 1):  # one that needs no multiplication first
        if total is None:
            total = value if factor == 1 else builder.fmul(_filled(VECTOR, float(factor)), value)
        elif abs(factor) == 1:
            total = (builder.fadd if factor == 1 else builder.fsub)(total, value)
        else:
            total = _fma(builder, _filled(VECTOR, float(factor)), value, total)
    return total


def _product(builder: Any, matrix: Matrix, values: Sequence[Any]) -> list[Any]:
    """A matrix times a vector of vectors."""
    results: dict[int, Any] = {}
    for i, row in enumerate(matrix):
        if i in results:
            continue
        terms = [(x, value) for x, value in zip(row, values, strict=True) if x]
        # Rows of a point and of its negative share the sums of their even and of their odd terms.
        twin = next((j for j in range(i + 1, len(matrix)) if matrix[j] != row and _alike(matrix[j], row)), None)
        if twin is None:
            results[i] = _linear(builder, terms)
            continue
        same = [x == y for x, y in zip(row, matrix[twin], strict=True) if x]
        halves = ([t for t, s in zip(terms, same, strict=True) if s is kind] for kind in (True, False))
        even, odd = (_linear(builder, half) for half in halves)
        results[i], results[twin] = builder.fadd(even, odd), builder.fsub(even, odd)
    return [results[i] for i in range(len(matrix))]


def _alike(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    pairs = [(x, y) for x, y in zip(row, other, strict=True) if x or y]
    return all(abs(x) == abs(y) for x, y in pairs) and 1 < sum(x == y for x, y in pairs) < len(pairs)


def _both_ways(
    builder: Any, down: Matrix, along: Matrix, read: Callable[[int, int], Any]
) -> Iterator[tuple[int, int, Any]]:
    """Elements of down d along^T, with their row and column; `read` gives those of d."""
    height, width = len(down[0]), len(along[0])
    columns = [_product(builder, down, [read(i, j) for i in range(height)]) for j in range(width)]
    for i, row in enumerate(zip(*columns, strict=True)):
        for j, value in enumerate(_product(builder, along, row)):
            yield i, j, value


def _patch(down: Matrix, along: Matrix) -> Callable[..., None]:
    width = len(along[0])

    def emit(builder: Any, o: Any, o_step: Any, step: Any, table: Any, start: Any, count: Any) -> None:
        def body(_: list[Any], at: list[Any]) -> list[Any]:
            def read(i: int, j: int) -> Any:
                pixel = builder.load(pointer(builder, _plus(builder, table, 8 * (i * width + j)), INT))
                return _load(builder, builder.add(pixel, at[1]))

            place = at[0]
            for _i, _j, value in _both_ways(builder, down, along, read):
                _store(builder, place, value)
                place = builder.add(place, o_step)
            return []

        _looped(builder, [], count, [o, start], [step, ir.Constant(INT, BYTES)], body)

    return emit


def _unpatch(down: Matrix, along: Matrix, finish: str) -> Callable[..., None]:
    size, width = len(down) * len(along), len(along[0])

    def emit(builder: Any, x: Any, x_step: Any, table: Any, count: Any, bias: Any) -> None:
        zero = _filled(VECTOR, 0.0)

        def body(_: list[Any], at: list[Any]) -> list[Any]:
            def place(number: int) -> Any:
                start = builder.load(pointer(builder, _plus(builder, table, 8 * number), INT))
                return builder.add(start, at[1])

            offset = _broadcast(builder, at[2])

            def read(i: int, j: int) -> Any:
                return _load(builder, _at(builder, at[0], x_step, i * width + j))

            for i, j, value in _both_ways(builder, down, along, read):
                number, value = i * len(along) + j, builder.fadd(value, offset)
                if finish == "mask":
                    positive = builder.fcmp_ordered(">", _load(builder, place(size + number)), zero)
                    value = builder.select(positive, value, zero)
                else:
                    value = _finished(builder, value, finish)
                _store(builder, place(number), value)
            return []

        steps = [ir.Constant(INT, n) for n in (BYTES, BYTES, 4)]
        _looped(builder, [], count, [x, ir.Constant(INT, 0), bias], steps, body)

    return emit


def _release(down: Matrix, along: Matrix, finish: str, *, joined: bool, some: bool) -> Callable[..., None]:
    outputs, width = len(down) * len(along), len(along[0])

    def emit(builder: Any, x: Any, x_step: Any, table: Any, y: Any, other: Any, bias: Any, lanes: Any = None) -> None:
        def load(address: Any) -> Any:
            return _load_some(builder, address, lanes) if some else _load(builder, address)

        def place(start: Any, number: int) -> Any:
            return builder.add(builder.load(pointer(builder, _plus(builder, table, 8 * number), INT)), start)

        def read(i: int, j: int) -> Any:
            return _load(builder, _at(builder, x, x_step, i * width + j))

        offset = load(bias)
        for i, j, value in _both_ways(builder, down, along, read):
            number, value = i * len(along) + j, builder.fadd(value, offset)
            if joined:
                value = builder.fadd(value, load(place(other, outputs + number)))
            value = _finished(builder, value, finish)
            if some:
                _store_some(builder, place(y, number), value, lanes)
            else:
                _store(builder, place(y, number), value)

    return emit


def _finished(builder: Any, value: Any, finish: str) -> Any:
    """A value behind a relu or relu6."""
    if finish:
        value = _extremum(">=")(builder, value, _filled(VECTOR, 0.0))
    return _extremum("<=")(builder, value, _filled(VECTOR, 6.0)) if finish == "relu6" else value


def _spread_filters(down: Matrix, along: Matrix) -> Callable[..., None]:
    height, width = len(down[0]), len(along[0])

    def emit(builder: Any, o: Any, o_step: Any, w: Any, step: Any, flipped: Any, live: Any, lanes: Any) -> None:
        last = builder.mul(flipped, ir.Constant(INT, height * width - 1))  # taps from the last to the first if flipped
        sign = builder.sub(ir.Constant(INT, 1), builder.mul(flipped, ir.Constant(INT, 2)))

        def read(i: int, j: int) -> Any:
            tap = builder.add(last, builder.mul(sign, ir.Constant(INT, i * width + j)))
            return _load_some(builder, builder.add(w, builder.mul(tap, step)), live)

        for i, j, value in _both_ways(builder, down, along, read):
            _store_some(builder, _at(builder, o, o_step, i * len(along) + j), value, lanes)

    return emit


def _join_filters(down: Matrix, along: Matrix) -> Callable[..., None]:
    width = len(along[0])

    def emit(builder: Any, o: Any, o_step: Any, x: Any, x_step: Any, lanes: Any) -> None:
        def read(i: int, j: int) -> Any:
            return _load(builder, _at(builder, x, x_step, i * width + j))

        for i, j, value in _both_ways(builder, down, along, read):
            _store_some(builder, _at(builder, o, o_step, i * len(along) + j), value, lanes)

    return emit


def _operations() -> Iterator[Operation]:
    kinds = [(outputs, taps) for taps, every in OUTPUTS.items() for outputs in every]
    # What is done to inputs depends on the number of elements alone.
    inputs = {sum(kind) - 1: matrices(*kind)[2] for kind in kinds}
    for rows, columns in product(inputs, repeat=2):
        yield operation(f"patch_{rows}_{columns}", VOID, [INT] * 6, _patch(inputs[rows], inputs[columns]))
    for rows_kind, columns_kind in product(kinds, repeat=2):
        name = "_".join(map(str, (*rows_kind, *columns_kind)))
        (down, down_g, _), (along, along_g, _) = matrices(*rows_kind), matrices(*columns_kind)
        for finish in FINISHES:
            emit = _unpatch(down, along, finish)
            yield operation(f"unpatch{finish and '_'}{finish}_{name}", VOID, [INT] * 5, emit)
        for finish, joined, some in product(FINISHES[:3], (False, True), (False, True)):
            yield operation(
                f"release{'_join' * joined}{finish and '_'}{finish}{'_some' * some}_{name}", VOID, [INT] * (6 + some),
                _release(down, along, finish, joined=joined, some=some),
            )  # fmt: skip
        yield operation(f"spread_filters_{name}", VOID, [INT] * 7, _spread_filters(down_g, along_g))
        yield operation(f"spread_gradients_{name}", VOID, [INT] * 6, _patch(transposed(down), transposed(along)))
        joined = _join_filters(transposed(down_g), transposed(along_g))
        yield operation(f"join_filters_{name}", VOID, [INT] * 5, joined)


# For tiles of R x C elements, M x N outputs of T x U taps, all places of vectors in memory:
# - patch_R_C(o, o_step, step, table, start, count): B^T d B of `count` vectors of each pixel; element k of d is
#   `start` bytes behind the address at table + 8 k and in following vectors; element k of the result goes to
#   o + k o_step, the next one's to `step` further on.
# - unpatch_M_T_N_U(x, x_step, table, count, bias): A^T m A of `count` filters; element k of m is at x + k x_step
#   and following vectors; a number for each filter at `bias` is added; output k goes to the address at table + 8 k and
#   following vectors. _relu and _relu6 end with these, _mask with 0 where what lies at the addresses that follow those
#   in the table is not positive.
# - release_M_T_N_U(x, x_step, table, y, other, bias): A^T m A of 16 filters side by side, plus the vector at `bias`;
#   output k goes to y and what is at table + 8 k. _join adds the vectors at `other` and what follows those in the
#   table, _relu and _relu6 end with these. _some takes how many of the filters there are.
# - spread_filters_M_T_N_U(o, o_step, w, step, flipped, live, lanes): G g G^T of `lanes` filters side by side, of
#   which those after the first `live` are 0; tap k is at w + k step, or the taps come in reverse; element k goes to
#   o + k o_step.
# - spread_gradients_M_T_N_U(o, o_step, step, table, start, count): A d A^T of tiles of outputs, as patch.
# - join_filters_M_T_N_U(o, o_step, x, x_step, lanes): G^T u G; element k of u is at x + k x_step, and tap k goes
#   to o + k o_step.
OPERATIONS = {one.name: one for one in _operations()}
