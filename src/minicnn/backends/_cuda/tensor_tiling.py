"""Sizes of the tiles of `tensor.cuh` and `tensor_products.cuh`: chosen by a small model of the device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

from minicnn.backends._cuda import tiling
from minicnn.backends._cuda.expressions import image_type, window_type
from minicnn.backends._cuda.tiling import MOST_SHARED, MULTIPROCESSORS, Geometry, Tile, phases
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

REGISTERS, MOST_REGISTERS, MOST_THREADS = 65536, 232, 512

# C++ type, 16-bit parts of an operand and products of parts, of each precision of products.
PRECISIONS = MappingProxyType(
    {"float32": ("Float32", 2, 3), "bfloat16": ("Bfloat16", 1, 1), "float16": ("Float16", 1, 1)}
)

# Cycles of a multiprocessor: of a product of fragments, of loading four matrices, as they are or transposed, of a pair
# of elements on its way to shared memory.
_MMA, _LOAD, _TRANSPOSED, _PAIR = 1.7, 4.0, 6.0, 0.2
_ANSWER = 1000.0  # cycles until memory answers
# The same for matrix products, and a round of loads, a run of eight elements on its way, a result.
_PRODUCT_MMA, _PRODUCT_LOAD, _PRODUCT_PAIR = 1.4, 1.0, 0.25
_PRODUCT_ROUND, _PRODUCT_RUN, _PRODUCT_RESULT = 360.0, 160.0, 0.34
_STRIP = 3500.0  # cycles until a strip of a weight gradient is in shared memory
_BLOCK = 250.0  # cycles of a multiprocessor to begin and end a block
_LAUNCH = 4500.0  # cycles of a launch beside what its blocks take


_T = TypeVar("_T")
_chosen: dict[str, Any] = {}


@dataclass(frozen=True)
class TensorTiles:
    """Tiles of float32 nodes on tensor cores, of all others as in `tiling`.

    Attributes:
        precision: In which operands are multiplied: one of `PRECISIONS`. Sums are float32.
    """

    precision: str = "float32"
    CHAINS: ClassVar[bool] = True
    READS_SCATTERED: ClassVar[bool] = True  # the gradient of a max-pooling is scattered where it is read, however often
    SIDE_BY_SIDE: ClassVar[bool] = True  # short operations share a launch with others that have larger blocks

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
        """Tile of conv2d or conv2d_input_gradient; None if nothing fits. See `tiling.convolution`."""
        return self._once(node, pool, lambda: self._convolution(node, pool))

    def weight_gradient(self, node: Node) -> Tile | None:
        """Tile of conv2d_weight_gradient; None if nothing fits."""
        return self._once(node, None, lambda: self._best(node, weight_gradients) or tiling.weight_gradient(node))

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """Tile of a matrix product. See `tiling.product`."""
        tiles = partial(products, joined=joined)
        return self._once(node, joined, lambda: self._best(node, tiles) or tiling.product(node, joined=joined))

    reduction = staticmethod(tiling.reduction)

    def _convolution(self, node: Node, pool: tuple[int, int] | None) -> Tile | None:
        plain = tiling.convolution(node, pool)
        if node.outputs[0].dtype != "float32":
            return plain
        score, made = _best(convolutions(node, pool, self.precision))
        return made if plain is None or (made is not None and score + _LAUNCH < without_tensor_cores(node)) else plain

    def _best(self, node: Node, tiles: Callable[[Node, str], Iterator[tuple[float, Tile]]]) -> Tile | None:
        return _best(tiles(node, self.precision))[1] if node.outputs[0].dtype == "float32" else None

    def _once(self, node: Node, more: tuple[int, int] | bool | None, choose: Callable[[], _T]) -> _T:
        """What was chosen for such a node before; else it is chosen now."""
        shapes = [v.spec for v in (*node.inputs, *node.outputs)]
        key = f"{self.precision} {node.op.name} {shapes} {sorted(node.attrs.items())} {more}"
        if key not in _chosen:
            _chosen[key] = choose()
        return cast(_T, _chosen[key])


def _best(tiles: Iterable[tuple[float, Tile]]) -> tuple[float, Tile | None]:
    return min(tiles, key=itemgetter(0), default=(0.0, None))


def without_tensor_cores(node: Node) -> float:
    """Cycles that a convolution takes without tensor cores, as measured for small ones."""
    flops, (rows, columns) = node.cost.flops, phases(node)
    if node.op.name == "conv2d_input_gradient":  # taps that only some phases have, or zeros, are multiplied, too
        (kh, kw), (sh, sw) = node.inputs[1].shape[:2], node.attrs["strides"]
        flops *= -(-kh // rows) * -(-kw // columns) * sh * sw / (kh * kw)
    return 8200 + 150e-6 * flops / 2 + 900e-6 * node.outputs[0].size


@dataclass(frozen=True)
class _Work:
    """Cycles of a block: `busy` of its multiprocessor's units, `alone` from its begin to its end if it were alone."""

    busy: float
    alone: float


def _records(c: int, kw: int) -> tuple[bool, int]:
    """Whether records hold rows of taps, and records of a row of taps: `Record` of `tensor.cuh`."""
    wide = c < 8 and kw * c <= 32
    return wide, 1 if wide else kw


def _runs(length: int) -> tuple[int, int]:
    """Runs of 8 of so many elements, and from one row of them to the next: an odd number of runs."""
    runs = -(-length // 8)
    return runs, (runs | 1) * 8


@cache
def _conflicts(patches: int, columns: int, down: int, right: int) -> float:
    """How often a warp asks the same banks for the rows of its 8 patches, given 16-byte steps from patch to patch."""
    total = 0
    for first in range(0, patches, 8):
        slots = [(p // columns * down + p % columns * right) % 8 for p in range(first, min(first + 8, patches))]
        total += max(map(slots.count, slots))
    return total / -(-patches // 8)


def _time(blocks: int, threads: int, registers: int, shared: int, work: _Work) -> float | None:
    """Cycles of a launch; None if a block does not fit."""
    registers = -(-registers // 8) * 8
    resident = min(2048 // threads, REGISTERS // (threads * registers), MOST_SHARED // (shared + 1024), 24)
    if resident < 1 or registers > MOST_REGISTERS:
        return None
    each = -(-blocks // MULTIPROCESSORS)
    return max(each * work.busy, math.ceil(each / resident) * work.alone) + 0.5 * work.busy


def convolutions(node: Node, pool: tuple[int, int] | None, precision: str) -> Iterator[tuple[float, Tile]]:
    """Tiles that fit a convolution, each with the cycles that it would take."""
    g = Geometry.of(node, phased=True)
    n, oh, ow, f, c, kh, kw = g.n, g.oh, g.ow, g.f, g.c, g.kh, g.kw
    (sh, sw), (dh, dw) = g.strides, g.dilation
    kind, parts, products = PRECISIONS[precision]
    wide, records = _records(c, kw)
    fixed = f"{kind}, {g.image}, {g.window}"
    eh, ew = (oh, ow) if pool is None else (oh // pool[0] * pool[0], ow // pool[1] * pool[1])
    ph, pw = pool or (1, 1)
    for py, px in ((1, 2), (2, 1), (2, 2), (1, 4), (2, 4), (4, 2), (2, 3), (3, 2), (1, 6), (1, 8)):
        if py % ph or px % pw:
            continue
        mt = py * px // 2
        wide_x, high_y = -(-ew // px), -(-eh // py)
        for gx, gy, nb, fb in itertools.product(
            sorted({wide_x, -(-wide_x // 2), -(-wide_x // 4)}),
            sorted({-(-high_y // k) for k in (1, 2, 3, 4, 6, 8, 16)}),
            (1, 2, 4, 8),
            sorted({min(-(-f // 8) * 8, b) for b in (8, 16, 24, 32, 64)}),
        ):
            if nb > n or (nb > 1 and (gy < high_y or gx < wide_x)):
                continue
            warps_m = -(-nb * gy * gx // 8)
            for nt in (1, 2, 3, 4, 8):
                threads = 32 * warps_m * (fb // 8 // nt)
                if fb // 8 % nt or threads > MOST_THREADS or mt * nt > 16:
                    continue
                ih, iw = (
                    (gy * py - 1) * sh + (kh - 1) * dh + 1,
                    gx * px if wide else (gx * px - 1) * sw + (kw - 1) * dw + 1,
                )
                for cc in {c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}:
                    runs, size = _runs(kw * cc if wide else cc)
                    steps = -(-kh * records * runs // 2)
                    shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * parts * 2
                    shared += nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c * 4 if wide else 0
                    blocks = -(-n // nb) * -(-eh // (gy * py)) * -(-ew // (gx * px)) * -(-f // fb) * g.copies
                    passes, warps = -(-c // cc), threads // 32
                    pairs = nb * ih * iw * runs * 4 + steps * 16 * fb // 2
                    down, right = py * sh * iw * size // 8, (px if wide else px * sw) * size // 8
                    conflicts = _conflicts(nb * gy * gx, gx, down, right)
                    mma = max(
                        steps * warps * mt * nt * products * _MMA,
                        steps * warps * (mt * conflicts + nt / 2) * parts * _LOAD,
                    )
                    lonely = steps * (products * max(33.0, mt * nt * 8.0) + 80.0)
                    results = nb * gy * gx * py * px * fb * 0.12
                    work = _Work(
                        passes * (mma + pairs * _PAIR) + results + _BLOCK,
                        passes * (max(mma, lonely) + pairs * _PAIR + math.ceil(pairs / threads / 24) * _ANSWER)
                        + results
                        + 1500,
                    )
                    registers = 48 + 4 * mt * nt + parts * (4 * mt + 2 * nt)
                    score = _time(blocks, threads, registers, shared, work)
                    if score is not None:
                        numbers = (c, f, eh, ew, nb, gy, gx, fb, cc, py, px, nt)
                        text = f"TensorTile<{fixed}, {', '.join(map(str, numbers))}, {str(wide).lower()}>"
                        yield score, Tile(text, blocks, threads, 1, numbers, shared)


def weight_gradients(node: Node, precision: str) -> Iterator[tuple[float, Tile]]:
    """The same for a weight gradient."""
    attrs = node.attrs
    axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
    y, x = node.inputs[0].shape, node.inputs[1].shape
    n, oh, ow, f, c = y[axes.n], y[axes.h], y[axes.w], y[axes.c] // groups, x[axes.c] // groups
    (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["strides"], attrs["dilation"]
    kind, parts, products = PRECISIONS[precision]
    wide, records = _records(c, kw)
    images = image_type(x, attrs["data_format"]), image_type(y, attrs["data_format"])
    fixed = ", ".join((kind, *images, window_type(node)))
    for cb, fb, nt, th in itertools.product(
        sorted({c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}),
        sorted({min(-(-f // 8) * 8, b) for b in (8, 16, 24, 32, 64)}),
        (1, 2, 3, 4),
        sorted({-(-oh // k) for k in (1, 2, 3, 4, 6, 8, 16, 32)}),
    ):
        if fb // 8 % nt:
            continue
        runs, size = _runs(kw * cb if wide else cb)
        tiles_m = -(-kh * records * runs // 2)
        ih, iw = (th - 1) * sh + (kh - 1) * dh + 1, ow if wide else (ow - 1) * sw + (kw - 1) * dw + 1
        for mw, slices, nb in itertools.product((1, 2, 3, 4, 5), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16)):
            own = 32 * -(-tiles_m // mw) * (fb // 8 // nt)
            threads = own * slices
            steps = -(-nb * th * ow // 16)
            if (
                mw > tiles_m
                or threads > MOST_THREADS
                or nb > n
                or (nb > 1 and th < oh)
                or slices > steps
                or mw * nt > 16
            ):
                continue
            shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * parts * 2
            shared += nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c * 4 if wide else 0
            shared = max(shared, slices // 2 * mw * nt * 4 * own * 4)
            pieces = -(-c // cb) * -(-f // fb) * groups
            strips = -(-n // nb) * -(-oh // th)
            for goal in (1, 2, 3, 4):
                cut = min(strips, max(1, goal * MULTIPROCESSORS // pieces))
                blocks, each, warps = cut * pieces, -(-strips // cut), threads // 32
                mma = max(
                    steps * (warps // slices) * mw * nt * products * _MMA,
                    steps * (warps // slices) * (mw + nt / 2) * parts * _TRANSPOSED,
                )
                pairs = nb * ih * iw * runs * 4 + steps * 16 * fb // 2
                lonely = -(-steps // slices) * (products * max(33.0, mw * nt * 8.0) + 80.0)
                ending = math.log2(slices) * (mw * nt * 4 * 6 + 60) + mw * nt * 40 + 1500
                work = _Work(
                    each * (mma + pairs * _PAIR) + ending / 4 + _BLOCK,
                    each * (max(mma, lonely) + pairs * _PAIR + math.ceil(pairs / threads / 24) * _STRIP) + ending,
                )
                score = _time(blocks, threads, 48 + 4 * mw * nt + parts * (4 * mw + 2 * nt), shared, work)
                if score is None:
                    continue
                score += cut * kh * kw * c * f * groups / 2000  # the sum of the parts
                numbers = (c, f, cb, fb, nb, th, mw, nt, slices, cut)
                text = f"TensorWeightTile<{fixed}, {', '.join(map(str, numbers))}, {str(wide).lower()}>"
                yield score, Tile(text, blocks, threads, cut, numbers, shared)


def products(node: Node, precision: str, *, joined: bool = False) -> Iterator[tuple[float, Tile]]:
    """The same for a matrix product; `joined`: a launch that comes anyway adds up parts of its sums."""
    (m, n), (ta, tb) = node.outputs[0].shape, (node.attrs["transpose_a"], node.attrs["transpose_b"])
    k = node.inputs[0].shape[0 if ta else 1]
    kind, planes, terms = PRECISIONS[precision]
    for bm, bn, bk in itertools.product((16, 32, 64, 128), (8, 16, 32, 64, 128), (16, 32, 64, 128, 256, 512)):
        if (bk > 16 and bk >= 2 * k) or (bm > 16 and bm >= 2 * m) or (bn > 8 and bn >= 2 * n):
            continue
        a_rows, a_row = (bk, _runs(bm)[1]) if ta else (bm, _runs(bk)[1])
        b_rows, b_row = (bn, _runs(bk)[1]) if tb else (bk, _runs(bn)[1])
        operands = (a_rows * a_row + b_rows * b_row) * planes * 2
        tiles = -(-m // bm) * -(-n // bn)
        for mt, nt, slices, goal in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8), (0, 1, 2)):
            own = 32 * (bm // 16 // mt) * (bn // 8 // nt)
            threads = own * slices
            if bm // 16 % mt or bn // 8 % nt or threads > MOST_THREADS or slices > bk // 16:
                continue
            run = -(-max(1, k // max(1, goal * MULTIPROCESSORS // tiles)) // bk) * bk if goal else -(-k // bk) * bk
            parts = -(-k // run)
            if goal and parts == 1:
                continue
            shared = max(operands, slices // 2 * mt * nt * 4 * own * 4)
            passes, warps, steps = run // bk, own // 32, bk // 16
            mma = steps * warps * max(mt * nt * terms * _PRODUCT_MMA, (mt + nt / 2) * planes * _PRODUCT_LOAD)
            fill = (bm + bn) * bk / 2 * _PRODUCT_PAIR
            lonely = -(-steps // slices) * (terms * max(33.0, mt * nt * 8.0) + 80.0)
            rounds = math.ceil(bm * bk / 8 / threads / 6) + math.ceil(bn * bk / 8 / threads / 4)
            waiting = rounds * _PRODUCT_ROUND + math.ceil((bm + bn) * bk / 8 / threads) * _PRODUCT_RUN
            ending = math.log2(slices) * (mt * nt * 24 + 60) + min(bm, m) * min(bn, n) * _PRODUCT_RESULT
            work = _Work(
                passes * (mma + fill) + ending + _BLOCK,
                passes * (max(mma, lonely) + fill + waiting) + ending,
            )
            score = _time(tiles * parts, threads, 80 + 4 * mt * nt + planes * (4 * mt + 2 * nt), shared, work)
            if score is not None:
                score += (0 if joined else _LAUNCH) + parts * m * n / 400 if parts > 1 else 0
                numbers = (m, n, k, str(ta).lower(), str(tb).lower(), bm, bn, bk, mt, nt, slices, parts)
                text = f"TensorProductTile<{kind}, {', '.join(map(str, numbers))}>"
                yield score, Tile(text, tiles * parts, threads, parts, (bm, bn, bk, mt, nt, slices, parts), shared)
