"""Convolutions, and gradients of their inputs, by tiles: a block brings a piece of images to shared memory.

Each thread makes some filters at some neighbouring positions. All columns that its positions touch lie in registers, so
that each number from shared memory meets several others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.blocks import BLOCK, NUMBER, Finish, Operand, copied, filled, loops, results
from minicnn.kernels.expressions import (
    INDEX,
    NO_INDEX,
    PLACE,
    SHARED,
    THREAD,
    Array,
    Binary,
    Call,
    Cast,
    Expr,
    I,
    Load,
    Name,
    Number,
    Select,
    both,
    chosen,
)
from minicnn.kernels.geometry import Geometry, phases
from minicnn.kernels.products import Term
from minicnn.kernels.statements import (
    Assign,
    Barrier,
    If,
    Let,
    Local,
    Loop,
    Shared,
    Statement,
    Store,
    Variable,
    loop,
)
from minicnn.kernels.windows import A, B, C, F, H, Image, N, W, images
from minicnn.program.graph import Node


@dataclass(frozen=True, kw_only=True)
class ConvolutionSizes:
    """Sizes of the tile of a convolution, or of its input gradient.

    Attributes:
        result_rows: Rows of the result that are computed: whole windows of a pooling behind it.
        result_columns: Columns of the result that are computed.
        images: Images of a block.
        rows: Rows of a block.
        columns: Columns of a block.
        filters: Filters of a block.
        channels: Channels that shared memory holds.
        thread_rows: Rows of a thread.
        thread_columns: Columns of a thread.
        thread_filters: Filters of a thread.
    """

    result_rows: int
    result_columns: int
    images: int
    rows: int
    columns: int
    filters: int
    channels: int
    thread_rows: int
    thread_columns: int
    thread_filters: int


@dataclass(frozen=True)
class Pooled:
    """A max-pooling that a tile does on its way out.

    Attributes:
        image: The pooled image.
        kernel: Rows and columns of its windows, which do not overlap.
        before: What precedes it for each result of the convolution.
        of: What it takes the maximum of, a variable of that.
        top: The maximum of a window.
        tap: The place of a maximum in its window.
    """

    image: Image
    kernel: tuple[int, int]
    before: Finish
    of: Name
    top: Name
    tap: Name


def convolved(
    node: Node, sizes: ConvolutionSizes, operands: Sequence[Operand], finish: Finish, pooled: Pooled | None = None
) -> list[Statement]:
    """Statements of a block that makes a tile of a convolution, or of its input gradient.

    Args:
        node: The convolution.
        sizes: The sizes.
        operands: Its operands.
        finish: What follows each result, or each maximum of a pooling.
        pooled: That pooling.
    """
    return _Convolution(node, sizes, operands).statements(finish, pooled)


class _Convolution:
    def __init__(self, node: Node, sizes: ConvolutionSizes, operands: Sequence[Operand]) -> None:
        self.node, self.sizes, self.operands, self.dtype = node, sizes, operands, node.outputs[0].dtype
        self.g, self.whole = (Geometry.of(node, phased=phased) for phased in (True, False))
        self.back, self.phases = node.op.name.startswith("conv2d_input_gradient"), phases(node)
        x, y = images(node)
        self.image, self.result = (y, x) if self.back else (x, y)
        (sh, sw), (dh, dw), s = self.g.strides, self.g.dilation, sizes
        self.read = (  # rows and columns of images that a block reads
            (s.rows - 1) * sh + (self.g.kh - 1) * dh + 1, (s.columns - 1) * sw + (self.g.kw - 1) * dw + 1,
        )  # fmt: skip
        self.plane = s.images * self.read[0] * self.read[1] | 1  # neighbouring channels are in different banks
        self.taps = self.g.kh * self.g.kw
        self.xs = Array("xs", self.dtype, s.channels * self.plane, memory=SHARED)
        self.ws = Array("ws", self.dtype, s.channels * self.taps * s.filters, memory=SHARED)
        positions = s.thread_rows * s.thread_columns
        self.sums = Array("sums", self.dtype, positions * s.thread_filters, memory=THREAD)
        self.n0, self.h0, self.w0, self.f0, self.group = (Name(n, INDEX) for n in ("n0", "h0", "w0", "f0", "group"))

    def statements(self, finish: Finish, pooled: Pooled | None) -> list[Statement]:
        g, s = self.g, self.sizes
        across, down = -(-s.result_columns // s.columns), -(-s.result_rows // s.rows)
        parts, blocks = -(-g.f // s.filters), 1
        lets: list[Statement] = []
        for name, count, step in (
            (self.f0, parts, s.filters), (self.w0, across, s.columns), (self.h0, down, s.rows),
            (self.n0, -(-g.n // s.images), s.images),
        ):  # fmt: skip
            lets.append(Let(name, Cast(BLOCK // blocks % count * step, INDEX)))
            blocks *= count
        lets += [Let(self.group, Cast(BLOCK // blocks, INDEX))] * (g.groups > 1)
        across, down = s.columns // s.thread_columns, s.rows // s.thread_rows
        filters, lanes = s.filters // s.thread_filters, 1
        names = [Name(name, PLACE) for name in ("fg", "gx", "gy", "image")]
        for name, count in zip(names, (filters, across, down, s.images), strict=True):
            lets.append(Let(name, NUMBER // lanes % count if name is not names[-1] else NUMBER // lanes))
            lanes *= count
        e = Name("e", PLACE)
        zeros = Loop(e, self.sums.size, (Store(self.sums, e, Number(0, self.dtype)),), self.sums.size)
        chunks = loop(Name("chunk", PLACE), -(-g.c // s.channels), self._chunk)
        return [*lets, Shared(self.ws), Shared(self.xs), Local(self.sums), zeros, *chunks,
                *(self._results(finish) if pooled is None else self._maxima(finish, pooled))]  # fmt: skip

    def _chunk(self, chunk: Expr) -> list[Statement]:
        """Some channels: they are brought to shared memory and multiplied."""
        s, first = self.sizes, Name("c0", INDEX)
        threads = self.sizes.filters // s.thread_filters * (s.columns // s.thread_columns)
        threads *= s.rows // s.thread_rows * s.images
        height, width = self.read
        pixels = s.images * height * width

        def image(k: Expr) -> Term:
            at = k // s.channels  # channels lie next to each other in memory, and a plane apart in shared memory
            (sh, sw), (top, left) = self.g.strides, self.g.window.before
            lets = [
                Let(C, first + Cast(k % s.channels, INDEX)),
                Let(N, self.n0 + Cast(at // (width * height), INDEX)),
                Let(H, self.h0 * sh + Cast(at // width % height, INDEX) - top),
                Let(W, self.w0 * sw + Cast(at % width, INDEX) - left),
            ]
            conditions, place = self._pixel()
            conditions = [*[self.g.c > C] * (self.g.c % s.channels > 0), *conditions]
            return Term(place, lets, conditions)

        def weight(k: Expr) -> Term:
            f, tap, c = number(k)
            lets: list[Let] = [
                Let(F, self.f0 + Cast(f, INDEX)), Let(A, Cast(tap // self.g.kw, INDEX)),
                Let(B, Cast(tap % self.g.kw, INDEX)), Let(C, first + Cast(c, INDEX)),
            ]  # fmt: skip
            more, conditions, place = self._weight()
            conditions = [
                *[self.g.f > F] * (self.g.f % s.filters > 0), *[self.g.c > C] * (self.g.c % s.channels > 0),
                *conditions,
            ]  # fmt: skip
            return Term(place, [*lets, *more], conditions)

        def plane(k: Expr) -> Expr:
            return k % s.channels * self.plane + k // s.channels

        def number(k: Expr) -> tuple[Expr, Expr, Expr]:
            """Filter, tap and channel of a weight: neighbours are so in memory."""
            if self.back:
                return k // s.channels % s.filters, k // (s.channels * s.filters), k % s.channels
            return k % s.filters, k // s.filters % self.taps, k // (s.filters * self.taps)

        def filters(k: Expr) -> Expr:
            f, tap, c = number(k)
            return (c * self.taps + tap) * s.filters + f

        x, w = self.operands
        near = self.image.data_format == "NHWC"
        run_x = x.run(self.g.c, s.channels) if near else 1
        run_w, step = (
            (w.run(self.g.c, s.channels), self.taps * s.filters) if self.back else (w.run(self.whole.f, s.filters), 1)
        )
        last = self.g.c <= s.channels
        return [
            Let(first, Cast(chunk * s.channels, INDEX)),
            *filled("pixels", self.xs, s.channels * pixels, threads, x, image, plane, run_x, self.plane),
            *filled("weights", self.ws, self.ws.size, threads, w, weight, filters, run_w, step),
            Barrier(),
            *self._multiplied(),
            *[Barrier()] * (not last),
        ]

    def _pixel(self) -> tuple[list[Expr], Expr]:
        """When there is a pixel (N, H, W) of channel C of the group, and its place."""
        x, (sh, sw), h, w = self.image, self.node.attrs["strides"], H, W
        conditions = [x.n > N] * (x.n % self.sizes.images > 0)
        if self.back and self.phases == (1, 1) and sh * sw > 1:
            # Without phases the gradient of a strided convolution reads dy with zeros in between.
            conditions += [H >= 0, W >= 0, (H % sh).equals(0), (W % sw).equals(0)]
            h, w = H // sh, W // sw
            conditions += [h < x.h, w < x.w]
        else:
            conditions += [H >= 0, x.h > H, W >= 0, x.w > W]
        c = self.group * self.g.c + C if self.g.groups > 1 else C
        return conditions, x.at(N, h, w, c)

    def _weight(self) -> tuple[list[Let], list[Expr], Expr]:
        """Weight (A, B) of channel C and filter F: names that it takes, when there is one, and its place."""
        one, (rows, columns) = self.whole, self.phases
        if not self.back:
            last = self.group * one.f + F if one.groups > 1 else F
            return [], [], Cast(((A * one.kw + B) * one.c + C) * (one.f * one.groups) + last, PLACE)
        (top, left), seen = ((p[0] for p in self.node.attrs["padding"]), self.g.window)
        (kh, kw) = self.node.inputs[1].shape[:2]
        # The filters of an input gradient are those of the convolution flipped; the tap of phase 0 that comes first.
        down = (top + rows * seen.before[0]) // seen.dilation[0]
        right = (left + columns * seen.before[1]) // seen.dilation[1]
        phase, i, j = Name("phase", INDEX), Name("i0", INDEX), Name("j0", INDEX)
        f: Expr = F
        lets, conditions = list[Let](), list[Expr]()
        tap = Number(down, INDEX) - A * rows, Number(right, INDEX) - B * columns
        if rows * columns > 1:
            lets.append(Let(phase, F // one.f))
            tap = phase // columns + down - A * rows, phase % columns + right - B * columns
            conditions += [i >= 0, i < kh, j >= 0, j < kw]
            f = F % one.f if one.f > 1 else NO_INDEX
        lets += [Let(i, tap[0]), Let(j, tap[1])]
        last = self.group * one.c + C if one.groups > 1 else C
        return lets, conditions, Cast(((i * kw + j) * one.f + f) * (one.c * one.groups) + last, PLACE)

    def _multiplied(self) -> tuple[Statement, ...]:
        """The channels in shared memory, tap by tap."""
        s, g, (height, width) = self.sizes, self.g, self.read
        (sh, sw), (dh, dw), rows, columns, filters = (
            g.strides, g.dilation, s.thread_rows, s.thread_columns, s.thread_filters,
        )  # fmt: skip
        span = (columns - 1) * sw + (g.kw - 1) * dw + 1
        row = Array("line", self.dtype, rows * span, memory=THREAD)
        wide = Array("wide", self.dtype, filters, memory=THREAD)
        c, a, b, y, x, f, start = (
            Name(n, PLACE) for n in ("channel", "row_of_taps", "tap", "y", "x", "filter", "start")
        )
        image, gy, gx, fg = (Name(n, PLACE) for n in ("image", "gy", "gx", "fg"))
        corner = (image * height + gy * (rows * sh)) * width + gx * (columns * sw)
        sum_ = (y * columns + x) * filters + f
        term = Load(row, y * span + x * sw + b * dw) * Load(wide, f)
        add = Store(self.sums, sum_, Binary("+", Load(self.sums, sum_), term))
        every = loops(((y, rows), (x, columns), (f, filters)), (add,))
        place = ((c * self.taps + a * g.kw) + b) * s.filters + fg * filters
        weights = copied(filters, wide, self.ws, place, filters)
        reads = loops(((y, rows), (x, span)), (
            Store(row, y * span + x, Load(self.xs, start + (y * (sh * width) + x))),
        ))  # fmt: skip
        of_row = (
            Let(start, Name("corner", PLACE) + (c * self.plane + a * (dh * width))), *reads,
            Loop(b, g.kw, (weights, *every), g.kw),
        )  # fmt: skip
        return (
            Let(Name("corner", PLACE), corner), Local(row), Local(wide),
            Loop(c, s.channels, (Loop(a, g.kh, of_row, g.kh),), 1),
        )  # fmt: skip

    # Results ------------------------------------------------------------------------------------

    def _origin(self) -> list[Statement]:
        """The first position of a thread: N, H and W; and its first filter F."""
        s = self.sizes
        image, gy, gx, fg = (Cast(Name(n, PLACE), INDEX) for n in ("image", "gy", "gx", "fg"))
        return [
            Let(N, self.n0 + image), Let(H, self.h0 + gy * s.thread_rows), Let(W, self.w0 + gx * s.thread_columns),
            Let(F, self.f0 + fg * s.thread_filters),
        ]  # fmt: skip

    def _run(self, image: Image, filters: int) -> int:
        """How many filters of a thread are neighbours in an image."""
        run = self.sizes.thread_filters
        return run if image.data_format == "NHWC" and filters % run == 0 and image.c % run == 0 else 1

    def _number(self, k: Expr, run: int, patch: int, columns: int) -> tuple[Expr, Expr, Expr]:
        """Filter, row and column of result k of a thread: neighbours come first, then the positions of a filter."""
        position = k // run % patch
        return k // (run * patch) * run + k % run, position // columns, position % columns

    def _conditions(self) -> list[Expr]:
        return [self.g.n > N] * (self.g.n % self.sizes.images > 0)

    def _results(self, finish: Finish) -> tuple[Statement, ...]:
        s, g, (rows, columns), image = self.sizes, self.g, self.phases, self.result
        patch, one = s.thread_rows * s.thread_columns, self.whole.f
        run = self._run(image, one)

        def place(k: Expr) -> Term:
            filter_, y, x = (Cast(part, INDEX) for part in self._number(k, run, patch, s.thread_columns))
            h, w, f, phase = Name("oh", INDEX), Name("ow", INDEX), Name("of", INDEX), Name("phase", INDEX)
            channel: Expr = f
            lets, conditions = [Let(f, F + filter_)], self._conditions() + [f < g.f] * (g.f % s.filters > 0)
            if rows * columns > 1:
                lets += [
                    Let(phase, f // one), Let(h, (H + y) * rows + phase // columns),
                    Let(w, (W + x) * columns + phase % columns),
                ]  # fmt: skip
                conditions += [h < image.h, w < image.w]
                channel = f % one if one > 1 else NO_INDEX
            else:
                lets += [Let(h, H + y), Let(w, W + x)]
                conditions += [h < image.h] * (image.h % s.rows > 0) + [w < image.w] * (image.w % s.columns > 0)
            channel = self.group * one + channel if g.groups > 1 else channel
            return Term(image.at(N, h, w, channel), lets, conditions)

        def value(k: Expr) -> tuple[list[Statement], Expr]:
            filter_, y, x = self._number(k, run, patch, s.thread_columns)
            return [], Load(self.sums, (y * s.thread_columns + x) * s.thread_filters + filter_)

        return (*self._origin(), *results(self.sums.size, run, place, value, finish))

    def _maxima(self, finish: Finish, pooled: Pooled) -> tuple[Statement, ...]:
        """Results that a pooling takes the maxima of."""
        s, g, (kh, kw), image = self.sizes, self.g, pooled.kernel, pooled.image
        columns, taps = s.thread_columns // kw, kh * kw
        patch = s.thread_rows // kh * columns
        run = self._run(image, g.f)
        values = Array("values", self.dtype, taps, memory=THREAD)
        top, t, f = pooled.top, Name("t", PLACE), Name("of", INDEX)
        p, q = Name("p0", INDEX), Name("q0", INDEX)
        channel = self.group * g.f + f if g.groups > 1 else f
        real = [*self._conditions(), *[f < g.f] * (g.f % s.filters > 0), p < image.h, q < image.w]

        def place(k: Expr) -> Term:
            filter_, y, x = (Cast(part, INDEX) for part in self._number(k, run, patch, columns))
            lets = [Let(f, F + filter_), Let(p, H // kh + y), Let(q, W // kw + x)]
            return Term(image.at(N, p, q, channel), lets, real)

        def value(k: Expr) -> tuple[list[Statement], Expr]:
            filter_, y, x = self._number(k, run, patch, columns)
            a, b, last = y * kh + t // kw, x * kw + t % kw, Number(taps - 1, "int32")
            at = self.result.at(N, H + Cast(a, INDEX), W + Cast(b, INDEX), channel)
            there, before, tap = Name("there", "bool"), pooled.before, pooled.tap
            total = Load(self.sums, (a * s.thread_columns + b) * s.thread_filters + filter_)
            stores = tuple(Store(*one) for one in before.stored)
            each = (
                Let(I, Select(there, at, Number(0, PLACE))), Let(before.total, total), *before.statements,
                *[If(there, stores)] * bool(stores), Store(values, t, pooled.of),
                Assign(top, Call("maximum", (top, pooled.of), self.dtype)),
            )  # fmt: skip

            def search(t: Expr) -> tuple[Statement, ...]:
                back = Number(taps - 2, PLACE) - t  # the first tap of those with the maximum is met last
                return (Assign(tap, chosen(Load(values, back).equals(top), Cast(back, "int32"), tap, "int32")),)

            return [
                Let(there, reduce(both, real)), Local(values), Variable(top, Number(-float("inf"), self.dtype)),
                Variable(tap, last), Loop(t, taps, each, taps), *loop(t, taps - 1, search, taps - 1),
            ], top  # fmt: skip

        return (*self._origin(), *results(s.thread_filters * patch, run, place, value, finish))
