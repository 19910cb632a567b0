"""Winograd's transforms of tiles, as operations in kernels: F(2x2, 3x3) of Lavin and Gray, 2015, arXiv:1509.09308.

    y = A^T [(G g G^T) * (B^T d B)] A

makes 2 x 2 outputs y from 4 x 4 inputs d and a 3 x 3 filter g with 16 multiplications instead of 36.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from minicnn.backends.numba.operations import BYTES, INT, VECTOR, VOID, operation, pointer
from minicnn.backends.numba.registers import _at, _broadcast, _looped, _plus
from minicnn.backends.numba.vector import _extremum, _filled, _load, _store

Square = list[list[Any]]


def _columns(square: Square) -> Square:
    return [list(column) for column in zip(*square, strict=True)]


def _input_lines(builder: Any, d: list[Any]) -> list[Any]:
    """B^T d for 4 values."""
    return [builder.fsub(d[0], d[2]), builder.fadd(d[1], d[2]), builder.fsub(d[2], d[1]), builder.fsub(d[1], d[3])]


def _output_lines(builder: Any, m: list[Any]) -> list[Any]:
    """A^T m for 4 values."""
    return [builder.fadd(builder.fadd(m[0], m[1]), m[2]), builder.fsub(builder.fsub(m[1], m[2]), m[3])]


def _filter_lines(builder: Any, g: list[Any]) -> list[Any]:
    """G g for 3 values."""
    half = _filled(VECTOR, 0.5)
    even, odd = builder.fmul(half, builder.fadd(g[0], g[2])), builder.fmul(half, g[1])
    return [g[0], builder.fadd(even, odd), builder.fsub(even, odd), g[2]]


def _both_ways(builder: Any, square: Square, lines: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """The transform along columns, then along rows; the result row by row."""
    down = _columns([lines(builder, column) for column in _columns(square)])
    return [value for row in down for value in lines(builder, row)]


def _patch(builder: Any, o: Any, x: Any, count: Any, o_step: Any) -> None:
    starts = [builder.load(pointer(builder, _plus(builder, x, 8 * i), INT)) for i in range(16)]
    step = ir.Constant(INT, BYTES)

    def body(_: list[Any], at: list[Any]) -> list[Any]:
        values = [_load(builder, address) for address in at[1:]]
        tile = _both_ways(builder, [values[4 * i : 4 * i + 4] for i in range(4)], _input_lines)
        for i, value in enumerate(tile):
            _store(builder, _at(builder, at[0], o_step, i), value)
        return []

    _looped(builder, [], count, [o, *starts], [step] * 17, body)


def _unpatch(finish: str) -> Callable[..., None]:
    def emit(builder: Any, x: Any, x_step: Any, y: Any, row: Any, pixel: Any, count: Any, bias: Any, mask: Any) -> None:
        zero = _filled(VECTOR, 0.0)

        def body(_: list[Any], at: list[Any]) -> list[Any]:
            values = [_load(builder, _at(builder, at[0], x_step, i)) for i in range(16)]
            tile = _both_ways(builder, [values[4 * i : 4 * i + 4] for i in range(4)], _output_lines)
            offset = _broadcast(builder, at[2])
            for i, value in enumerate(tile):
                place = _at(builder, _at(builder, at[1], row, i // 2), pixel, i % 2)
                value = builder.fadd(value, offset)
                if finish == "mask":
                    positive = builder.fcmp_ordered(">", _load(builder, builder.add(place, mask)), zero)
                    value = builder.select(positive, value, zero)
                elif finish:
                    value = _extremum(">=")(builder, value, zero)
                    if finish == "relu6":
                        value = _extremum("<=")(builder, value, _filled(VECTOR, 6.0))
                _store(builder, place, value)
            return []

        steps = [ir.Constant(INT, n) for n in (BYTES, BYTES, 4)]
        _looped(builder, [], count, [x, y, bias], steps, body)

    return emit


def _spread_filters(builder: Any, o: Any, w: Any, step: Any, o_step: Any, flipped: Any) -> None:
    last = builder.mul(flipped, ir.Constant(INT, 8))  # taps from the last to the first if flipped
    sign = builder.sub(ir.Constant(INT, 1), builder.mul(flipped, ir.Constant(INT, 2)))
    taps = []
    for i in range(9):
        place = builder.add(last, builder.mul(sign, ir.Constant(INT, i)))
        taps.append(_load(builder, builder.add(w, builder.mul(place, step))))
    for i, value in enumerate(_both_ways(builder, [taps[3 * i : 3 * i + 3] for i in range(3)], _filter_lines)):
        _store(builder, _at(builder, o, o_step, i), value)


_a = INT
# patch(o, x, count, o_step): B^T d B of `count` channels; element i of d is at the address at x + 8 i and following
# vectors, element i of the result goes to o + i o_step and following vectors.
patch = operation("patch", VOID, [_a] * 4, _patch)
# unpatch(x, x_step, y, row, pixel, count, bias, mask): A^T m A of `count` filters; element i of m is at x + i x_step
# and following vectors; a number for each filter at `bias` is added; the results go to y, y + pixel, y + row and
# y + row + pixel. They end with a relu, a relu6, or with 0 where what lies `mask` bytes further on is not positive.
unpatch = operation("unpatch", VOID, [_a] * 8, _unpatch(""))
unpatch_relu = operation("unpatch_relu", VOID, [_a] * 8, _unpatch("relu"))
unpatch_relu6 = operation("unpatch_relu6", VOID, [_a] * 8, _unpatch("relu6"))
unpatch_mask = operation("unpatch_mask", VOID, [_a] * 8, _unpatch("mask"))
# spread_filters(o, w, step, o_step, flipped): G g G^T of 16 filters; tap i is the vector at w + i step, or the taps
# come in reverse; element i goes to o + i o_step.
spread_filters = operation("spread_filters", VOID, [_a] * 5, _spread_filters)
