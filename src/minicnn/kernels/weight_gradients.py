"""Gradients of the weights of convolutions by tiles.

A block makes some rows of taps of some channels and filters, from strips of dy that take turns among the parts of a
sum. A thread makes one channel and some filters, from runs of neighbours of a strip; its piece of x slides along in
registers. At the end the threads that share a sum add theirs by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicnn.kernels.blocks import BLOCK, NUMBER, PART, Finish, Operand, filled, loops, results
from minicnn.kernels.expressions import (
    INDEX,
    PLACE,
    SHARED,
    THREAD,
    Array,
    Binary,
    Cast,
    Expr,
    Load,
    Name,
    Number,
    both,
)
from minicnn.kernels.products import Term
from minicnn.kernels.statements import Barrier, Copy, If, Let, Local, Loop, Shared, Statement, Store, when
from minicnn.kernels.windows import C, F, H, U, V, W, Windows
from minicnn.program.graph import Node


@dataclass(frozen=True, kw_only=True)
class WeightGradientSizes:
    """Sizes of the tile of a convolution's weight gradient.

    Attributes:
        tap_rows: Rows of taps of a block.
        channels: Channels of a block.
        filters: Filters of a block.
        rows: Rows of an image that shared memory holds.
        thread_columns: Neighbours of a row that a thread takes at once.
        thread_filters: Filters of a thread.
        slices: Groups of threads that share the terms of a sum.
    """

    tap_rows: int
    channels: int
    filters: int
    rows: int
    thread_columns: int
    thread_filters: int
    slices: int


def weight_gradient(
    node: Node, sizes: WeightGradientSizes, splits: int, operands: Sequence[Operand], finish: Finish
) -> list[Statement]:
    """Statements of a block that makes a tile of a convolution's weight gradient.

    Args:
        node: The gradient, or one that makes partial sums of it.
        sizes: The sizes.
        splits: Partial sums that each sum consists of, made by as many blocks.
        operands: Its operands, dy and x.
        finish: What follows each result of part `PART` of the sums.
    """
    return _WeightGradient(node, sizes, splits, operands).statements(finish)


class _WeightGradient(Windows):
    def __init__(self, node: Node, sizes: WeightGradientSizes, splits: int, operands: Sequence[Operand]) -> None:
        super().__init__(node)
        self.sizes, self.splits, self.operands = sizes, splits, operands
        s, kw, (sh, sw), (dh, dw) = sizes, self.window.kernel[1], self.window.strides, self.window.dilation
        self.lanes = s.filters // s.thread_filters * s.channels  # threads of a slice
        self.columns = -(-self.y.w // s.thread_columns) * s.thread_columns
        self.read = (s.rows - 1) * sh + (s.tap_rows - 1) * dh + 1, (self.columns - 1) * sw + (kw - 1) * dw + 1
        self.first = -(-self.read[0] * self.read[1] * s.channels // 4) * 4  # where the piece of dy begins
        self.each = s.tap_rows * kw * s.thread_filters
        size = self.first + s.rows * self.columns * s.filters
        # The pieces of x and dy are over when the slices are added, which takes their place.
        self.pieces = Array("pieces", self.dtype, max(size, s.slices // 2 * self.lanes * self.each), memory=SHARED)
        self.sums = Array("sums", self.dtype, self.each, memory=THREAD)
        self.a0, self.c0, self.f0, self.group = (Name(n, INDEX) for n in ("a0", "c0", "f0", "group"))
        self.fg, self.lane, self.slice = (Name(n, PLACE) for n in ("fg", "lane", "slice"))

    def statements(self, finish: Finish) -> list[Statement]:
        s, lets, blocks = self.sizes, [Let(PART, BLOCK % self.splits)], self.splits
        for name, count, step in (
            (self.f0, -(-self.f // s.filters), s.filters), (self.c0, -(-self.c // s.channels), s.channels),
            (self.a0, -(-self.window.kernel[0] // s.tap_rows), s.tap_rows),
        ):  # fmt: skip
            lets.append(Let(name, Cast(BLOCK // blocks % count * step, INDEX)))
            blocks *= count
        lets += [Let(self.group, Cast(BLOCK // blocks, INDEX))] * (self.groups > 1)
        across = s.filters // s.thread_filters
        lets += [
            Let(self.fg, NUMBER % across), Let(self.lane, NUMBER // across % s.channels),
            Let(self.slice, NUMBER // self.lanes),
        ]  # fmt: skip
        e, k = Name("e", PLACE), Name("turn", PLACE)
        zeros = Loop(e, self.each, (Store(self.sums, e, Number(0, self.dtype)),), self.each)
        strips = self.y.n * -(-self.y.h // s.rows)
        strip, rounds = Name("strip", PLACE), -(-strips // self.splits)
        within = [strip < strips] * (rounds * self.splits > strips)
        work = Loop(k, rounds, (Let(strip, k * self.splits + PART), *when(within, self._strip(strip))))
        return [*lets, Shared(self.pieces), Local(self.sums), zeros, work, *self._halves(),
                *when([self.slice.equals(0)] * (s.slices > 1), self._results(finish))]  # fmt: skip

    def _strip(self, strip: Expr) -> list[Statement]:
        """The terms of a strip: they are brought to shared memory, then multiplied."""
        s, down = self.sizes, -(-self.y.h // self.sizes.rows)
        (height, width), sh, (top, left) = self.read, self.window.strides[0], self.window.before
        n, h0 = Name("n0", INDEX), Name("h0", INDEX)

        def image(k: Expr) -> Term:
            at = k // s.channels
            row = Cast(at // width, INDEX) + h0 * sh + self.a0 * self.window.dilation[0] - top
            lets = [Let(C, self.c0 + Cast(k % s.channels, INDEX)), Let(H, row), Let(W, Cast(at % width, INDEX) - left)]
            conditions = [*[self.c > C] * (self.c % s.channels > 0), H >= 0, self.x.h > H, W >= 0, self.x.w > W]
            place = self.x.at(n, H, W, self.group * self.c + C if self.groups > 1 else C)
            return Term(place, lets, conditions)

        def gradient(k: Expr) -> Term:
            at = k // s.filters
            lets = [
                Let(F, self.f0 + Cast(k % s.filters, INDEX)), Let(U, h0 + Cast(at // self.columns, INDEX)),
                Let(V, Cast(at % self.columns, INDEX)),
            ]  # fmt: skip
            conditions = [
                *[self.f > F] * (self.f % s.filters > 0), *[self.y.h > U] * (self.y.h % s.rows > 0),
                *[self.y.w > V] * (self.y.w < self.columns),
            ]  # fmt: skip
            place = self.y.at(n, U, V, self.group * self.f + F if self.groups > 1 else F)
            return Term(place, lets, conditions)

        threads, of_dy = self.lanes * s.slices, s.rows * self.columns * s.filters
        dy, x = self.operands
        near = self.x.data_format == "NHWC"
        run_x, run_dy = x.run(self.c, s.channels) if near else 1, dy.run(self.f, s.filters) if near else 1
        return [
            Let(n, Cast(strip // down, INDEX)), Let(h0, Cast(strip % down * s.rows, INDEX)), Barrier(),
            *filled("pixels", self.pieces, height * width * s.channels, threads, x, image, lambda k: k, run_x),
            *filled("gradients", self.pieces, of_dy, threads, dy, gradient, lambda k: k + self.first, run_dy),
            Barrier(), *self._multiplied(),
        ]  # fmt: skip

    def _multiplied(self) -> list[Statement]:
        """The terms in shared memory, run by run."""
        s, kw, (sh, sw), (dh, dw) = self.sizes, self.window.kernel[1], self.window.strides, self.window.dilation
        width = self.read[1]
        runs, filters = self.columns // s.thread_columns, s.thread_filters
        span = (s.thread_columns - 1) * sw + (kw - 1) * dw + 1
        wide = Array("wide", self.dtype, s.thread_columns * filters, memory=THREAD)
        row = Array("line", self.dtype, span, memory=THREAD)
        run, again, h, w, corner = (Name(n, PLACE) for n in ("run", "round", "row_of_strip", "column", "corner"))
        q, a, b, f = (Name(n, PLACE) for n in ("q", "row_of_taps", "tap", "filter"))
        place = (h * self.columns + w + q) * s.filters + self.fg * filters + self.first
        term = Load(row, q * sw + b * dw) * Load(wide, q * filters + f)
        at = (a * kw + b) * filters + f
        add = Store(self.sums, at, Binary("+", Load(self.sums, at), term))
        taps = Loop(a, s.tap_rows, (
            *loops([(q, span)], (Store(row, q, Load(self.pieces, corner + (a * (dh * width) + q) * s.channels)),)),
            *loops([(b, kw), (q, s.thread_columns), (f, filters)], (add,)),
        ), s.tap_rows)  # fmt: skip
        first = ((h * sh) * width + w * sw) * s.channels + self.lane
        body = (
            Let(h, run // runs), Let(w, run % runs * s.thread_columns),
            *loops([(q, s.thread_columns)], (Copy(filters, wide, q * filters, self.pieces, place),)),
            Let(corner, first), taps,
        )  # fmt: skip
        total = s.rows * runs
        # Slices take turns, so that their shares differ by one run at most.
        within = [run < total] * (total % s.slices > 0)
        each = (Let(run, again * s.slices + self.slice), *when(within, body))
        return [Local(row), Local(wide), Loop(again, -(-total // s.slices), each, 1)]

    def _halves(self) -> list[Statement]:
        """Sums that threads share: in each round the upper half hands its sums to the lower, in a fixed order."""
        statements, half = list[Statement](), self.sizes.slices // 2
        e, lane = Name("e", PLACE), NUMBER % self.lanes
        while half:
            to = ((self.slice - half) * self.each + e) * self.lanes + lane
            place = (self.slice * self.each + e) * self.lanes + lane
            hand = Loop(e, self.each, (Store(self.pieces, to, Load(self.sums, e)),), self.each)
            add = Store(self.sums, e, Binary("+", Load(self.sums, e), Load(self.pieces, place)))
            upper = both(self.slice >= half, self.slice < 2 * half)
            statements += [Barrier(), If(upper, (hand,)), Barrier()]
            statements.append(If(self.slice < half, (Loop(e, self.each, (add,), self.each),)))
            half //= 2
        return statements

    def _results(self, finish: Finish) -> tuple[Statement, ...]:
        s, (kh, kw), filters = self.sizes, self.window.kernel, self.sizes.thread_filters
        run = filters if self.f % filters == 0 and self.y.c % filters == 0 else 1
        a, b, c, f = (Name(n, INDEX) for n in ("a", "b", "c", "f"))

        def place(k: Expr) -> Term:
            tap = k // filters
            lets = [
                Let(a, self.a0 + Cast(tap // kw, INDEX)), Let(b, Cast(tap % kw, INDEX)),
                Let(c, self.c0 + Cast(self.lane, INDEX)),
                Let(f, self.f0 + Cast(self.fg * filters + k % filters, INDEX)),
            ]  # fmt: skip
            conditions = [
                *[a < kh] * (kh % s.tap_rows > 0), *[c < self.c] * (self.c % s.channels > 0),
                *[f < self.f] * (self.f % s.filters > 0),
            ]  # fmt: skip
            channel = self.group * self.f + f if self.groups > 1 else f
            return Term(Cast(((a * kw + b) * self.c + c) * self.y.c + channel, PLACE), lets, conditions)

        return results(self.each, run, place, lambda k: ([], Load(self.sums, k)), finish)
