"""Sums, means, maxima and their places: over axes, and over the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand, constant, one
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.short import bytes_of, load_of
from minicnn.backends.numba.weights import lanes_apart, part_bytes

_START = {"sum": "0.0", "mean": "0.0", "max": "-inf"}
_STEP = {"sum": "vadd", "mean": "vadd", "max": "vmax"}
CHANNELS = 8  # accumulators of sums over the batch
STRIP = 4  # positions that are added up before the next channels
RUN = 4 * LANES  # neighbouring results of an item


class _Reduced(Lines):
    """Code that goes through a plain array whose axes are reduced or kept, by turns.

    An item is one element of the result where the last axis is reduced, else some neighbours, of which 16 are made at
    a time. Blocked arrays are plain ones whose last axis has 16 lanes.

    Args:
        sizes: Lengths of the axes.
        reduced: Which of them are reduced; neighbours differ.
        samples: N of a blocked array all of whose other axes are reduced, so that the result is a plain array (N,).
    """

    def __init__(self, sizes: Sequence[int], reduced: Sequence[bool], samples: int | None) -> None:
        super().__init__()
        self.sizes, self.along = list(sizes) or [1], bool(reduced) and reduced[-1]
        last = len(self.sizes) - 1
        self._reduced = [i for i in range(last) if reduced[i]]
        self._kept = [i for i in range(last) if not reduced[i]]
        self.n = [self.number(f"n{i}", size) for i, size in enumerate(self.sizes)]
        # Elements between neighbours.
        # As text rather than numbers, so that arrays of other lengths share the compiled kernel.
        self._steps = [" * ".join(self.n[i + 1 :]) or "1" for i in range(last + 1)]
        self._count = 1 if self.along else -(-self.sizes[-1] // RUN)
        self.whole = self.sizes[-1] % LANES == 0  # whether the last axis is whole vectors
        self.vectors = [0]  # of neighbours that are made side by side, in bytes behind p
        self._chunks = self.number("chunks", self._count)
        self.samples = None if samples is None else self.number("samples", samples)

    @property
    def items(self) -> int:
        """Number of items."""
        return math.prod(self.sizes[i] for i in self._kept) * self._count

    @contextmanager
    def results(self, x: str) -> Iterator[None]:
        """Loops over results; p is the address of the first element in x, and `left` says how many neighbours are."""
        with self.block("for item in range(start, stop):"):
            self(f"rest = item // {self._chunks}", f"row = {x}")
            # An item's number is taken apart into places along the kept axes, the last one first.
            for i in reversed(self._kept):
                self(f"row += rest % {self.n[i]} * {self._steps[i]} * 4", f"rest = rest // {self.n[i]}")
            if self.along:
                self("p = row")
                yield
                return
            self(f"first = item % {self._chunks} * {RUN}")
            step = len(self.vectors) * LANES
            with self.block(f"for column in range(first, min(first + {RUN}, {self.n[-1]}), {step}):"):
                self(f"left = {self.n[-1]} - column", "p = row + column * 4")
                yield

    def loops(self, step: int) -> tuple[list[str], str]:
        """Heads of loops over the reduced axes, the last by so many elements; what is added to p there."""
        heads = [f"for i{i} in range({self.n[i]}):" for i in self._reduced]
        at = "".join(f" + i{i} * {self._steps[i]} * 4" for i in self._reduced)
        if self.along:
            return [*heads, f"for k in range(0, {self.n[-1]}, {step}):"], f"{at} + k * 4"
        return heads, at

    def load(self, at: str) -> str:
        """Elements along the last axis of which `left` are real."""
        return f"vload({at})" if self.whole else f"vload_some({at}, left)"

    def store(self, at: str, value: str) -> str:
        """Statement that stores such."""
        return f"vstore({at}, {value})" if self.whole else f"vstore_some({at}, {value}, left)"

    def result(self) -> tuple[str, str]:
        """Place of neighbours in the result, in bytes, and how many are real."""
        if self.samples is not None:
            return f"item * {BYTES}", f"{self.samples} - item * {LANES}"
        return f"(item // {self._chunks} * {self.n[-1]} + column) * 4", "left"


def max_gradient(sizes: Sequence[int], reduced: Sequence[bool], samples: int | None = None) -> tuple[KernelCode, int]:
    """dx of maxima y over axes of x, and the number of items; see `_Reduced`.

    dy goes to the first element that equals y; where none does (NaN), to the last one.
    """
    out = _Reduced(sizes, reduced, samples)
    if not out.along and out.sizes[-1] % RUN == 0:
        out.vectors = list(range(0, RUN * 4, BYTES))  # what lies next to each other is read together
    with out.results("dx"):
        heads, at = out.loops(1)
        if out.along:
            out("top = fload(y + item * 4)", "g = fload(dy + item * 4)", "zero = float32(0)", "di = dx")
        else:
            place, real = out.result()
            for v in out.vectors:
                out(
                    *(f"{name}{v} = vload_some({x} + {place} + {v}, {real})" for name, x in (("top", "y"), ("g", "dy")))
                )
            out("zero = splat(float32(0))", "di = dx")
        with out.nest(*heads):
            out(f"di = p{at}")
            if out.along:
                # Once the gradient has gone to an element it is zero for all that follow.
                out("hit = fload(di + x - dx) == top", "fstore(di, g if hit else zero)", "g = zero if hit else g")
            else:
                for v in out.vectors:
                    out(f"hit = veq({out.load(f'di + {v} + x - dx')}, top{v})")
                    out(out.store(f"di + {v}", f"vselect(hit, g{v}, zero)"), f"g{v} = vselect(hit, zero, g{v})")
        if out.along:
            out("fstore(di, fload(di) + g)")
        else:
            out(*(out.store(f"di + {v}", f"vadd({out.load(f'di + {v}')}, g{v})") for v in out.vectors))
    return out.source("max_gradient", "dy", "x", "y", "dx"), out.items


def argmax(*, samples: int, classes: int) -> KernelCode:
    """Index of the first maximum (or NaN) of x (B, K, 16) as int32 (N,); one item a block."""
    out = Lines()
    n, k = out.all_numbers(samples=samples, classes=classes)
    with out.block("for block in range(start, stop):"):
        out(f"xb = x + block * {k} * {BYTES}", "top = vload(xb)", "at = splat(float32(0))")
        with out.block(f"for i in range(1, {k}):"):
            # A NaN is the maximum, and the first one stays.
            out(f"v = vload(xb + i * {BYTES})", "better = mor(vgt(v, top), mand(mnan(v), mnot(mnan(top))))")
            out("top = vselect(better, v, top)", "at = vselect(better, splat(float32(i)), at)")
        out(f"vstore_some(y + block * {BYTES}, float_to_int(at), {n} - block * {LANES})")
    return out.source("argmax", "x", "y")


def argmax_plain(*, classes: int, inner: int, dtype: str) -> KernelCode:
    """Index of the first maximum (or NaN) along K of a plain array (.., K, inner) as int32; one item a row."""
    out = Lines()
    k, m = out.all_numbers(classes=classes, inner=inner)
    small = dtype in ("bool", "uint8")
    load, size = ("uload", 1) if small else ("iload" if dtype == "int32" else "fload", 4)
    with out.block("for row in range(start, stop):"), out.block(f"for i in range({m}):"):
        out(f"p = x + (row * {k} * {m} + i) * {size}", f"top = {load}(p)", "at = 0")
        with out.block(f"for c in range(1, {k}):"):
            out(f"v = {load}(p + c * {m} * {size})")
            with out.block("if v > top or (v != v and top == top):"):
                out("top = v", "at = c")
        out(f"istore(y + (row * {m} + i) * 4, int32(at))")
    return out.source("argmax", "x", "y")


def over_axes(
    kind: str, sizes: Sequence[int], reduced: Sequence[bool], samples: int | None = None
) -> tuple[KernelCode, int]:
    """The "sum", "mean" or "max" over axes of x, and the number of items; see `_Reduced`."""
    out = _Reduced(sizes, reduced, samples)
    terms = math.prod(size for size, gone in zip(sizes, reduced, strict=True) if gone)
    count = out.number("count", terms) if kind == "mean" else ""
    with out.results("x"):
        out(f"a = splat(float32({_START[kind]}))")
        heads, at = out.loops(LANES)
        with out.nest(*heads):
            if out.along and not out.whole:
                out(f"left = {out.n[-1]} - k")
            out(f"v = {out.load(f'p{at}')}")
            # A masked load gives zeros, which change a maximum but no sum.
            some = out.along and kind == "max" and not out.whole
            out(f"a = {_STEP[kind]}(a, {'vselect(msome(left), v, a)' if some else 'v'})")
        if not out.along:
            if count:
                out(f"a = vdiv(a, splat(float32({count})))")
            place, real = out.result()
            out(f"vstore_some(y + {place}, a, {real})")
        elif kind == "max":
            out("fstore(y + item * 4, vmax_lanes(a))")
        else:
            out(f"fstore(y + item * 4, vsum(a){f' / float32({count})' if count else ''})")
    return out.source(kind, "x", "y"), out.items


def of_batch(
    group: ElementwiseGroup,
    operands: Sequence[Operand],
    *,
    samples: int,
    positions: int,
    channels: int,
    parts: int,
    blocks: int,
) -> KernelCode:
    """Part of sums over batch and positions of what operations make of images (B, positions, C, 16).

    One item a position of a block.

    Args:
        group: The operations; none if the first operand is added up as it is.
        operands: Images ("lanes"), numbers of each channel or of all ("one"), constants.
        samples: N.
        positions: Elements of a sample without the channels.
        channels: C.
        parts: Number of parts.
        blocks: B.
    """
    out, apart = Lines(), lanes_apart(channels)
    n, p, c = out.all_numbers(samples=samples, positions=positions, channels=channels)
    width = even_tile(channels, max(1, CHANNELS // len(group.outputs)))
    size = out.number("part_bytes", part_bytes(channels))
    at = {
        f"a{s}_{i}": f"parts{s} + part * {size} + (c + {i}) * {BYTES if apart else 4}"
        for s in range(len(group.outputs)) for i in range(width)
    }  # fmt: skip
    # Positions of all blocks are numbered through, and a part is some of them.
    # Parts of positions, not of blocks, are of equal size even where blocks are few.
    through = (
        f"for block in range(u0 // {p}, (u1 + {p} - 1) // {p}):",
        f"for first in range(max(0, u0 - block * {p}), min({p}, u1 - block * {p}), {STRIP}):",
    )
    tiles = f"for c in range(0, {c}, {width}):"

    def add_strip() -> None:
        out(f"last = min(first + {STRIP}, {p}, u1 - block * {p})", f"live = msome({n} - block * {LANES})")
        for k, o in enumerate(operands):
            if o.kind == "one":
                out(*(f"m{k}_{i} = {one(o, f'b{k} + (c + {i}) * {o.strides[-1] * 4}')}" for i in range(width)))
        out(f"at = (block * {p} + first) * {c} + c")
        with out.block("for position in range(first, last):"):
            for i in range(width):
                for k, o in enumerate(operands):
                    if o.kind == "lanes":
                        out(f"v{k} = {load_of(o.dtype)}(b{k} + (at + {i}) * {bytes_of(o.dtype)})")
                    elif o.kind == "one":
                        out(f"v{k} = m{k}_{i}")
                group.write(out, len(operands))
                for s, place in enumerate(group.outputs):
                    out(f"a{s}_{i} = vadd(a{s}_{i}, vselect(live, v{place}, zero))")
            out(f"at += {c}")

    with out.parts(parts, blocks, positions):
        out("zero = splat(float32(0))")
        out(*(f"v{k} = {constant(out, f'c{k}', o)}" for k, o in enumerate(operands) if o.kind == "constant"))
        # Memory is read in its order, if sums can wait in the cache; else some channels at a time.
        if apart and channels % width == 0:
            with out.block(f"for c in range(0, {c} * fresh, {width}):"):
                out(*(f"vstore({place}, zero)" for place in at.values()))
            with out.nest(*through, tiles):
                out(*(f"{name} = vload({place})" for name, place in at.items()))
                add_strip()
                out(*(f"vstore({place}, {name})" for name, place in at.items()))
        else:
            out.resumes = False
            with out.block(f"for cq in range(0, {c}, {width}):"):
                out(f"c = min(cq, {c} - {width})", *(f"{name} = zero" for name in at))
                with out.nest(*through):
                    add_strip()
                out(*(f"vstore({a}, {name})" if apart else f"fstore({a}, vsum({name}))" for name, a in at.items()))
    read = (f"b{k}" for k, o in enumerate(operands) if o.kind != "constant")
    return out.source("sum", *read, *(f"parts{s}" for s in range(len(group.outputs))))
