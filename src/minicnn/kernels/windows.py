"""Convolutions, poolings and their gradients, one element of the result at a time: the meaning of all their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from minicnn.kernels.expressions import (
    INDEX,
    NO_INDEX,
    PLACE,
    Body,
    Call,
    Cast,
    Element,
    Expr,
    I,
    Name,
    Number,
    R,
    Select,
    both,
    chosen,
)
from minicnn.kernels.statements import Assign, Let, Loop, Statement, Variable, loop, when
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

A, B, H, W, N, C, F, U, V = (Name(name, INDEX) for name in "abhwncfuv")
Statements = Callable[[Expr], Iterable[Statement]]  # what a loop does, given its variable


def coordinates(names: Sequence[Name], shape: Sequence[int], place: Expr) -> list[Let]:
    """The coordinates of a place in an array of some shape, by these names."""
    lets, inner = list[Let](), 1
    for k, (name, size) in reversed(list(enumerate(zip(names, shape, strict=True)))):
        # From the last axis on, which is the nearest in memory: its divisor is 1.
        at = place // inner
        # The first axis needs no remainder, as places end with the array.
        lets.append(Let(name, Cast(at % size if k else at, INDEX)))
        inner *= size
    return lets


@dataclass(frozen=True)
class Image:
    """Images (n, h, w, c) that are stored in the order of a format."""

    data_format: str
    n: int
    h: int
    w: int
    c: int

    @classmethod
    def of(cls, shape: tuple[int, ...], data_format: str) -> Image:
        """That of an array."""
        axes = Axes.of(data_format)
        return cls(data_format, shape[axes.n], shape[axes.h], shape[axes.w], shape[axes.c])

    @property
    def _sizes(self) -> dict[str, int]:
        return {axis: getattr(self, axis.lower()) for axis in self.data_format}

    def at(self, n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        """Place of an element."""
        index = dict(zip("NHWC", (n, h, w, c), strict=True))
        outer, axes = self.data_format[0], self.data_format[1:]
        return Cast(reduce(lambda place, axis: place * self._sizes[axis] + index[axis], axes, index[outer]), PLACE)

    def coordinates(self, n: Name, h: Name, w: Name, c: Name) -> list[Let]:
        """The coordinates of element i, by these names."""
        names = dict(zip("NHWC", (n, h, w, c), strict=True))
        return coordinates([names[axis] for axis in self.data_format], list(self._sizes.values()), I)


@dataclass(frozen=True)
class Window:
    """Taps, strides, zeros above and left of the image, and distances between taps."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.kernel, *self.strides, *self.before, *self.dilation)


def images(node: Node) -> tuple[Image, Image]:
    """The images x, over which a node's windows slide, and y, of one pixel a window."""
    name = node.op.name
    if name.endswith(("weight_gradient", "weight_gradient_partial_sums")):
        x, y = node.inputs[1].shape, node.inputs[0].shape
    elif name.endswith(("gradient", "scatter")):
        x, y = node.outputs[0].shape, node.inputs[0].shape
    else:
        x, y = node.inputs[0].shape, node.outputs[0].shape
    return Image.of(x, node.attrs["data_format"]), Image.of(y, node.attrs["data_format"])


def window(node: Node) -> Window:
    """The windows of a node."""
    attrs = node.attrs
    kernel = attrs.get("kernel") or node.inputs[1].shape[:2]
    (top, _), (left, _) = attrs["padding"]
    return Window(tuple(kernel), tuple(attrs["strides"]), (top, left), tuple(attrs.get("dilation", (1, 1))))


class Windows:
    """The geometry of a node's windows, loops over it, and what elements of results are.

    Images x have coordinates (n, h, w, c), images y of one pixel a window (n, u, v, f), taps (a, b).
    """

    def __init__(self, node: Node) -> None:
        (self.x, self.y), self.window, self.dtype = images(node), window(node), node.inputs[0].dtype
        # Depthwise: as many groups as channels, a kernel (KH, KW, C, M) and result channels c * M + m.
        self.groups = self.x.c if node.op.name.startswith("depthwise") else node.attrs.get("groups", 1)
        self.c, self.f = self.x.c // self.groups, self.y.c // self.groups  # channels of a group
        self.counts_padding = bool(node.attrs.get("count_padding"))
        self.total = Name("total", self.dtype)

    def number(self, value: float) -> Number:
        """A number of the type of the images."""
        return Number(value, self.dtype)

    # Geometry -----------------------------------------------------------------------------------

    def _under(self, axis: int, at: Expr, tap: Expr) -> Expr:
        """The coordinate in x that a window has under a tap; it may lie outside."""
        s = self.window
        return at * s.strides[axis] + tap * s.dilation[axis] - s.before[axis]

    def _inside(self, axis: int, at: Expr) -> list[Expr]:
        """Conditions for such a coordinate to lie within x, less what always holds."""
        s, (x, y) = self.window, ((self.x.h, self.y.h), (self.x.w, self.y.w))[axis]
        # Without padding no window leaves the image: then there is no condition, and no branch in the kernel.
        last = (y - 1) * s.strides[axis] + (s.kernel[axis] - 1) * s.dilation[axis] - s.before[axis]
        return [at >= 0] * (s.before[axis] > 0) + [at < x] * (last >= x)

    def sliding(self, axis: int, body: Statements, *, unroll: bool = False) -> tuple[Statement, ...]:
        """A loop over the taps of an axis; the body gets one, and the coordinate under it lies within x."""
        at, window, tap = ((H, U, A), (W, V, B))[axis]

        def one(tap: Expr) -> tuple[Statement, ...]:
            return (Let(at, self._under(axis, window, tap)), *when(self._inside(axis, at), body(tap)))

        return loop(tap, self.window.kernel[axis], one, unroll * self.window.kernel[axis])

    def _covering(self, axis: int, body: Statements, *, unroll: bool = False) -> tuple[Statement, ...]:
        """A loop over the taps of an axis; under the one that the body gets a window has a coordinate of x."""
        s, (x, y) = self.window, ((self.x.h, self.y.h), (self.x.w, self.y.w))[axis]
        (at, window, tap), step, before = ((H, U, A), (W, V, B))[axis], s.strides[axis], s.before[axis]
        # Of strided windows only every step-th place has one: the division is exact where the remainder is 0.
        first = Name(f"{window.name}0", INDEX) if step > 1 else window  # before it is divided by the stride

        def one(tap: Expr) -> tuple[Statement, ...]:
            conditions = [first >= 0] * (before < (s.kernel[axis] - 1) * s.dilation[axis])
            conditions += [(first % step).equals(0)] * (step > 1)
            conditions += [first // step < y] * ((x - 1 + before) // step >= y)
            inner = (*[Let(window, first // step)] * (step > 1), *body(tap))
            return (Let(first, at + before - tap * s.dilation[axis]), *when(conditions, inner))

        return loop(tap, s.kernel[axis], one, unroll * s.kernel[axis])

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return self.window.kernel[0] * self.window.kernel[1]

    def _tap(self, a: Expr, b: Expr) -> Expr:
        """Number of a tap."""
        return a * self.window.kernel[1] + b

    def _over_windows(self, body: Statements, *, unroll: bool = False) -> tuple[Statement, ...]:
        """Loops over the windows (u, v) that element (h, w) is in; the body gets the number of the tap."""

        def rows(a: Expr) -> tuple[Statement, ...]:
            return self._covering(1, lambda b: body(self._tap(a, b)), unroll=unroll)

        return self._covering(0, rows, unroll=unroll)

    def summed(self, *statements: Statement) -> Body:
        """Body whose value is the total that statements add up."""
        return Body((Variable(self.total, self.number(0)), *statements), self.total, self.dtype)

    def added(self, term: Expr) -> Assign:
        """A statement that adds a term to the total."""
        return Assign(self.total, self.total + term)

    # Convolution --------------------------------------------------------------------------------

    def _weight(self, tap: Expr, c: Expr, f: Expr) -> Expr:
        """The weight under a tap for channel c of a group and channel f of the result."""
        return Element(1, Cast((tap * self.c + c) * self.y.c + f, PLACE))

    def conv2d(self) -> Body:
        """Sum over taps and channels of x * w."""
        # A single group begins at 0: the printed kernel then shows no groups at all.
        first = F // self.f * self.c if self.groups > 1 else NO_INDEX

        def row(a: Expr) -> tuple[Statement, ...]:
            return self.sliding(1, lambda b: loop(C, self.c, lambda c: [self.added(term(self._tap(a, b), c))]))

        def term(tap: Expr, c: Expr) -> Expr:
            return Element(0, self.x.at(N, H, W, first + c)) * self._weight(tap, c, F)

        return self.summed(*self.y.coordinates(N, U, V, F), *self.sliding(0, row))

    def conv2d_input_gradient(self) -> Body:
        """Sum over the windows that an element is in, and their filters, of dy * w."""
        first = C // self.c * self.f if self.groups > 1 else NO_INDEX
        channel = C % self.c if self.c > 1 else NO_INDEX

        def term(tap: Expr, f: Expr) -> Expr:
            return Element(0, self.y.at(N, U, V, first + f)) * self._weight(tap, channel, first + f)

        def filters(tap: Expr) -> tuple[Statement, ...]:
            return loop(F, self.f, lambda f: [self.added(term(tap, f))])

        return self.summed(*self.x.coordinates(N, H, W, C), *self._over_windows(filters))

    def conv2d_weight_gradient(self) -> Body:
        """Sum over images and positions of x * dy."""
        rows, columns = self.window.kernel
        c = F // self.f * self.c + C if self.groups > 1 else C

        def axis(k: int, count: int, body: Statements) -> Statements:
            at, window, tap = ((H, U, A), (W, V, B))[k]
            here = Let(at, self._under(k, window, tap))
            return lambda n: loop(window, count, lambda _: (here, *when(self._inside(k, at), body(n))))

        def term(n: Expr) -> tuple[Statement, ...]:
            return (self.added(Element(1, self.x.at(n, H, W, c)) * Element(0, self.y.at(n, U, V, F))),)

        return self.summed(
            *coordinates((A, B, C, F), (rows, columns, self.c, self.y.c), I),
            *loop(N, self.x.n, axis(0, self.y.h, axis(1, self.y.w, term))),
        )

    def depthwise_conv2d_weight_gradient_term(self) -> Body:
        """Term of position r of dy in element i; positions are in the order in which they lie in memory."""
        rows, columns = self.window.kernel
        order = [(N, self.y.n), (U, self.y.h), (V, self.y.w)]
        if self.y.data_format == "HWCN":
            order = [*order[1:], order[0]]
        inside, value = [*self._inside(0, H), *self._inside(1, W)], Name("value", self.dtype)
        place = self.x.at(N, H, W, F // self.f)
        # The place is chosen, not the loaded number: a load outside of the image would be an error even if nobody used
        # it.
        x = Element(1, Select(reduce(both, inside), place, Number(0, PLACE)) if inside else place)
        return Body(
            (
                *coordinates((A, B, F), (rows, columns, self.y.c), I),
                *coordinates([name for name, _ in order], [n for _, n in order], R),
                Let(H, self._under(0, U, A)),
                Let(W, self._under(1, V, B)),
                Let(value, x * Element(0, self.y.at(N, U, V, F))),
            ),
            Select(reduce(both, inside), value, self.number(0)) if inside else value,
            self.dtype,
        )

    def depthwise_conv2d_weight_gradient(self) -> Body:
        """Sum over images and positions of x * dy."""
        term = self.depthwise_conv2d_weight_gradient_term()
        add = (*term.statements, self.added(term.result))
        return self.summed(Loop(R, self.y.n * self.y.h * self.y.w, add, unroll=4))

    # Pooling ------------------------------------------------------------------------------------

    def _element(self, h: Expr, w: Expr, k: int = 0) -> Expr:
        """Element (h, w) of input k; minus infinity outside."""
        x, inside = Element(k, self.x.at(N, h, w, C)), [*self._inside(0, h), *self._inside(1, w)]
        return Select(reduce(both, inside), x, self.number(-math.inf)) if inside else x

    def max_pool2d(self) -> Body:
        """Largest element under each window."""
        rows, columns = self.window.kernel
        best = Name("best", self.dtype)
        larger = Assign(best, Call("maximum", (best, self._element(H, W)), self.dtype))

        def row(a: Expr) -> tuple[Statement, ...]:
            inner = loop(B, columns, lambda b: (Let(W, self._under(1, V, b)), larger), columns)
            return (Let(H, self._under(0, U, a)), *inner)

        # Below every element, so that padding is never the maximum.
        begin = Variable(best, self.number(-math.inf))
        return Body((*self.y.coordinates(N, U, V, C), begin, *loop(A, rows, row, rows)), best, self.dtype)

    def _find(self, k: int) -> tuple[tuple[Statement, ...], Name]:
        """Statements that find the tap with the maximum of window (u, v) of input k, and what holds its number.

        It is the first in row-major order; beside a NaN the last. Elements are compared with each other, never with a
        maximum that was computed elsewhere: x may be computed anew wherever it is read, with other roundings.
        """
        columns, tap, winner = self.window.kernel[1], Name("t", INDEX), Name("winner", "int32")
        best, value, kept = Name("best", self.dtype), Name("value", self.dtype), Name("kept", "bool")
        y, x = Name("y", INDEX), Name("x", INDEX)
        first = self._element(self._under(0, U, NO_INDEX), self._under(1, V, NO_INDEX), k)
        compare = (
            Let(y, self._under(0, U, tap // columns)),
            Let(x, self._under(1, V, tap % columns)),
            Let(value, self._element(y, x, k)),
            Let(kept, value <= best),
            Assign(best, Call("maximum", (best, value), self.dtype)),  # a NaN remains, and nothing is kept from then on
            Assign(winner, chosen(kept, winner, Cast(tap, "int32"), "int32")),
        )
        begin = Variable(best, first), Variable(winner, Number(0, "int32"))
        return (*begin, *loop(tap, self.taps, lambda _: compare, self.taps, 1)), winner

    def max_pool2d_index(self) -> Body:
        """Number of the tap that holds the maximum of each window."""
        statements, winner = self._find(0)
        return Body((*self.y.coordinates(N, U, V, C), *statements), Cast(winner, "uint8", "int32"), "uint8")

    def max_pool2d_gradient(self) -> Body:
        """Sum of dy over the windows whose maximum an element is."""

        def add(tap: Expr) -> tuple[Statement, ...]:
            statements, winner = self._find(1)
            return (*statements, self.added(self._from(winner, Cast(tap, "int32"), self.y.at(N, U, V, C))))

        return self.summed(*self.x.coordinates(N, H, W, C), *self._over_windows(add, unroll=True))

    def _from(self, winner: Expr, tap: Expr, place: Expr) -> Expr:
        """Share of an element in dy at a place: all of it, if the maximum there is under its tap."""
        return chosen(winner.equals(tap), Element(0, place), self.number(0), self.dtype)

    @property
    def apart(self) -> bool:
        """True if no windows overlap, so that an element is in one at most."""
        return (*self.window.kernel, 0, 0) == (*self.window.strides, *self.window.before)

    def only_window(self) -> tuple[list[Let], list[Expr], Expr, Expr]:
        """Names; conditions for element i to be in a window, not behind the last; the window's place; the tap."""
        rows, columns = self.window.kernel
        lets = [*self.x.coordinates(N, H, W, C), Let(U, H // rows), Let(V, W // columns)]
        inside = [self.y.h > U] * (self.x.h > rows * self.y.h) + [self.y.w > V] * (self.x.w > columns * self.y.w)
        return lets, inside, self.y.at(N, U, V, C), H % rows * columns + W % columns

    def max_pool2d_scatter(self) -> Body:
        """The same from the numbers of the taps that hold the maxima."""
        place = Name("j", PLACE)
        if not self.apart:

            def add(tap: Expr) -> tuple[Statement, ...]:
                here = self._from(Element(1, place), Cast(tap, "uint8"), place)
                return Let(place, self.y.at(N, U, V, C)), self.added(here)

            return self.summed(*self.x.coordinates(N, H, W, C), *self._over_windows(add, unroll=True))
        (lets, inside, at, tap), value = self.only_window(), Name("value", self.dtype)
        here = Let(place, Select(reduce(both, inside), at, Number(0, PLACE)) if inside else at)
        dy = Let(value, self._from(Element(1, place), Cast(tap, "uint8"), place))
        result = Select(reduce(both, inside), value, self.number(0)) if inside else value
        return Body((*lets, here, dy), result, self.dtype)

    def _share(self, x: Expr) -> Expr:
        """A number divided by how many elements window (u, v) averages."""
        s, counts = self.window, list[Expr]()
        if self.counts_padding or not (self._inside(0, H) or self._inside(1, W)):
            return x / self.number(self.taps)
        for axis, (at, size) in enumerate(((U, self.x.h), (V, self.x.w))):
            first = self._under(axis, at, NO_INDEX)
            last = Call("minimum", (first + s.kernel[axis], Number(size, INDEX)), INDEX)
            counts.append(last - Call("maximum", (first, NO_INDEX), INDEX))
        return x / Cast(counts[0] * counts[1], self.dtype, INDEX)

    def average_pool2d(self) -> Body:
        """Mean under each window."""
        add = self.added(Element(0, self.x.at(N, H, W, C)))
        rows = self.sliding(0, lambda a: self.sliding(1, lambda b: [add], unroll=True), unroll=True)
        begin = Variable(self.total, self.number(0))
        return Body((*self.y.coordinates(N, U, V, C), begin, *rows), self._share(self.total), self.dtype)

    def average_pool2d_gradient(self) -> Body:
        """Sum of dy over the windows that an element is in, each divided by the window's count."""
        add = self.added(self._share(Element(0, self.y.at(N, U, V, C))))
        return self.summed(*self.x.coordinates(N, H, W, C), *self._over_windows(lambda _: [add], unroll=True))


NAMES = (
    "conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "depthwise_conv2d", "depthwise_conv2d_input_gradient",
    "depthwise_conv2d_weight_gradient", "max_pool2d", "max_pool2d_gradient", "max_pool2d_index", "max_pool2d_scatter",
    "average_pool2d", "average_pool2d_gradient",
)  # fmt: skip


def element(node: Node, result: int = 0) -> Body:
    """Element i of the result of a node with windows; each channel of a depthwise convolution is a group."""
    name = node.op.name
    of_groups = name in ("depthwise_conv2d", "depthwise_conv2d_input_gradient")
    body: Body = getattr(Windows(node), name.removeprefix("depthwise_") if of_groups else name)()
    return body
