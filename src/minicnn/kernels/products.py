"""Matrix products, and convolutions and their gradients as such: rows, columns, terms, and where elements lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minicnn.kernels.expressions import INDEX, PLACE, Cast, Element, Expr, Name
from minicnn.kernels.statements import Let
from minicnn.kernels.windows import A, B, C, F, H, N, U, V, W, Windows, coordinates
from minicnn.program.graph import Node

GROUP = Name("group", PLACE)


@dataclass(frozen=True)
class Term:
    """An element of a matrix.

    Attributes:
        value: The element.
        lets: Names that it takes.
        conditions: When there is one: elsewhere it is zero.
    """

    value: Expr
    lets: Sequence[Let] = ()
    conditions: Sequence[Expr] = ()


@dataclass(frozen=True)
class Product:
    """A product of matrices, which may be parts of images; `GROUP` is the number of one of several such products.

    Attributes:
        rows: Rows of the left matrix.
        columns: Columns of the right one.
        terms: Columns of the left one.
        left: Its element in a row and a column.
        right: The element of the right matrix in a row and a column.
        place: Where an element of the result lies, with the names that this takes.
        left_runs: Whether neighbours of a row of the left matrix are neighbours in memory.
        right_runs: The same for a column of the right one.
        groups: How many such products there are.
    """

    rows: int
    columns: int
    terms: int
    left: Callable[[Expr, Expr], Term] = field(repr=False)
    right: Callable[[Expr, Expr], Term] = field(repr=False)
    place: Callable[[Expr, Expr], Term] = field(repr=False)
    left_runs: bool = True
    right_runs: bool = False
    groups: int = 1


def product_of(node: Node) -> Product:
    """The product that a node, or one that makes partial sums of it, is."""
    name = node.op.name.removesuffix("_partial_sums")
    product: Product = _matmul(node) if name == "matmul" else getattr(_Images(node), _METHODS[name])()
    return product


_METHODS = {
    "conv2d": "forward", "conv2d_input_gradient": "input_gradient", "conv2d_weight_gradient": "weight_gradient",
}  # fmt: skip


def _matmul(node: Node) -> Product:
    m, n = node.outputs[0].shape[-2:]
    ta, tb = node.attrs["transpose_a"], node.attrs["transpose_b"]
    k = node.inputs[0].shape[0 if ta else 1]
    return Product(
        m, n, k,
        lambda r, t: Term(Element(0, t * m + r if ta else r * k + t)),
        lambda t, c: Term(Element(1, c * k + t if tb else t * n + c)),
        lambda r, c: Term(r * n + c),
        left_runs=not ta, right_runs=tb,
    )  # fmt: skip


class _Images(Windows):
    """Convolutions as products: a row is a pixel, or a weight's tap and channel."""

    def _pixels(self, data_format: str, sizes: Sequence[int], names: Sequence[Name], place: Expr) -> list[Let]:
        """The image and the pixel of a place among all pixels, which are in the order of a format."""
        order = [axis for axis in data_format if axis != "C"]
        by_axis = dict(zip("NHW", zip(names, sizes, strict=True), strict=True))
        return coordinates([by_axis[a][0] for a in order], [by_axis[a][1] for a in order], place)

    def _of_group(self, channels: int) -> Expr:
        """First channel of the group."""
        return Cast(GROUP * channels, INDEX)

    def _channel(self, at: Expr, channels: int) -> Expr:
        return self._of_group(channels) + Cast(at, INDEX) if self.groups > 1 else Cast(at, INDEX)

    @property
    def _runs(self) -> bool:
        return self.x.data_format.endswith("C")

    def _of_y(self, place: Expr) -> list[Let]:
        return self._pixels(self.y.data_format, (self.y.n, self.y.h, self.y.w), (N, U, V), place)

    def _taps(self, channels: int, channel: Name, place: Expr) -> list[Let]:
        return coordinates((A, B, channel), (*self.window.kernel, channels), place)

    def _seen(self, k: int, lets: Sequence[Let]) -> Term:
        """Element of input k, which is x, under tap (a, b) of window (u, v), in channel c of the group."""
        under = Let(H, self._under(0, U, A)), Let(W, self._under(1, V, B))
        value = Element(k, self.x.at(N, H, W, self._channel(C, self.c)))
        return Term(value, (*lets, *under), (*self._inside(0, H), *self._inside(1, W)))

    def forward(self) -> Product:
        """Each row a window, each column a filter."""

        def place(r: Expr, c: Expr) -> Term:
            return Term(self.y.at(N, U, V, self._channel(c, self.f)), self._of_y(r))

        return Product(
            self.y.n * self.y.h * self.y.w, self.f, self.taps * self.c,
            lambda r, t: self._seen(0, (*self._of_y(r), *self._taps(self.c, C, t))),
            lambda t, c: Term(Element(1, t * self.y.c + self._column(c))),
            place, left_runs=self._runs, groups=self.groups,
        )  # fmt: skip

    def _column(self, c: Expr) -> Expr:
        return GROUP * self.f + c if self.groups > 1 else c

    def input_gradient(self) -> Product:
        """Each row a pixel of x, each column one of its channels."""
        pixels = (self.x.n, self.x.h, self.x.w)
        first = Name("u0", INDEX), Name("v0", INDEX)  # before they are divided by the strides

        def dy(r: Expr, t: Expr) -> Term:
            lets = [*self._pixels(self.x.data_format, pixels, (N, H, W), r), *self._taps(self.f, F, t)]
            conditions, at = list[Expr](), list[Expr]()
            for axis, (name, pixel, tap, size) in enumerate(
                zip(first, (H, W), (A, B), (self.y.h, self.y.w), strict=True)
            ):
                s, step = self.window, self.window.strides[axis]
                lets.append(Let(name, pixel + s.before[axis] - tap * s.dilation[axis]))
                # Of strided windows only every step-th place has one; no number below zero is divided.
                conditions += [name >= 0] + [(name % step).equals(0)] * (step > 1) + [name < size * step]
                at.append(name // step)
            u, v = at
            return Term(Element(0, self.y.at(N, u, v, self._channel(F, self.f))), lets, conditions)

        def weight(t: Expr, c: Expr) -> Term:
            tap, f = t // self.f, t % self.f
            return Term(Element(1, (tap * self.c + c) * self.y.c + self._column(f)))

        def place(r: Expr, c: Expr) -> Term:
            lets = self._pixels(self.x.data_format, pixels, (N, H, W), r)
            return Term(self.x.at(N, H, W, self._channel(c, self.c)), lets)

        return Product(
            self.x.n * self.x.h * self.x.w, self.c, self.taps * self.f, dy, weight, place,
            left_runs=self._runs, right_runs=True, groups=self.groups,
        )  # fmt: skip

    def weight_gradient(self) -> Product:
        """Each row a tap and a channel, each column a filter, each term a window."""

        def dy(t: Expr, c: Expr) -> Term:
            return Term(Element(0, self.y.at(N, U, V, self._channel(c, self.f))), self._of_y(t))

        return Product(
            self.taps * self.c, self.f, self.y.n * self.y.h * self.y.w,
            lambda r, t: self._seen(1, (*self._of_y(t), *self._taps(self.c, C, r))), dy,
            lambda r, c: Term(r * self.y.c + self._column(c)),
            left_runs=not self._runs, right_runs=not self._runs, groups=self.groups,
        )  # fmt: skip
