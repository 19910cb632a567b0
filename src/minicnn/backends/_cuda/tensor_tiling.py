"""Sizes of the tiles of `tensor.cuh` and `tensor_products.cuh`: chosen by a small model of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from minicnn.backends._cuda import tiling
from minicnn.backends._cuda.expressions import image_type, window_type
from minicnn.backends._cuda.tiling import MOST_SHARED, MULTIPROCESSORS, Geometry, Tile
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
        return self._once(node, None, lambda: weight_gradient(node, self.precision) or tiling.weight_gradient(node))

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """Tile of a matrix product. See `tiling.product`."""
        return self._once(
            node,
            joined,
            lambda: product(node, self.precision, joined=joined) or tiling.product(node, joined=joined),
        )

    reduction = staticmethod(tiling.reduction)

    def _convolution(self, node: Node, pool: tuple[int, int] | None) -> Tile | None:
        cycles, made = convolution(node, pool, self.precision)
        if made is not None and cycles + _LAUNCH < without_tensor_cores(node):
            return made
        return tiling.convolution(node, pool) or made

    def _once(self, node: Node, more: tuple[int, int] | bool | None, choose: Callable[[], _T]) -> _T:
        """What was chosen for such a node before; else it is chosen now."""
        shapes = [v.spec for v in (*node.inputs, *node.outputs)]
        key = f"{self.precision} {node.op.name} {shapes} {sorted(node.attrs.items())} {more}"
        if key not in _chosen:
            _chosen[key] = choose()
        return cast(_T, _chosen[key])


def without_tensor_cores(node: Node) -> float:
    """Cycles that a convolution takes without tensor cores, as measured for small ones."""
    g = Geometry.of(node, phased=True)
    multiplied = g.n * g.oh * g.ow * g.f * g.c * g.kh * g.kw * g.groups  # with the zeros
    return 8200 + 150e-6 * multiplied + 900e-6 * node.outputs[0].size


# What follows computes with arrays, one element for each combination of sizes.

_Numbers = Any  # an int, or an array of them


def _combinations(*axes: Sequence[int]) -> np.ndarray[Any, Any]:
    """All combinations of numbers, one a column; the last number changes first."""
    return np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")])


def _quotient(a: _Numbers, b: _Numbers) -> _Numbers:
    """How many times b are needed for a."""
    return -(-a // b)


def _records(c: int, kw: int) -> tuple[bool, int]:
    """Whether records hold rows of taps, and records of a row of taps: `Record` of `tensor.cuh`."""
    wide = c < 8 and kw * c <= 32
    return wide, 1 if wide else kw


def _runs(length: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Runs of 8 of so many elements, and from one row of them to the next: an odd number of runs."""
    runs = _quotient(length, 8)
    return runs, (runs | 1) * 8


@cache
def _conflicts_of(patches: int, columns: int, down: int, right: int) -> float:
    """How often a warp asks the same banks for the rows of its 8 patches, given 16-byte steps from patch to patch."""
    p = np.arange(_quotient(patches, 8) * 8)
    slots = np.where(p < patches, (p // columns * down + p % columns * right) % 8, 8).reshape(-1, 8)
    counts = (slots[:, :, None] == np.arange(8)).sum(axis=1)
    return float(counts.max(axis=1).mean())


def _conflicts(patches: _Numbers, columns: _Numbers, down: _Numbers, right: _Numbers) -> _Numbers:
    cases, which = np.unique(np.stack([patches, columns, down % 8, right % 8]), axis=1, return_inverse=True)
    return np.array([_conflicts_of(*case) for case in cases.T.tolist()])[which.ravel()]


@dataclass(frozen=True)
class _Work:
    """Cycles of a block: `busy` of its multiprocessor's units, `alone` from its begin to its end if it were alone."""

    busy: _Numbers
    alone: _Numbers


def _time(blocks: _Numbers, threads: _Numbers, registers: _Numbers, shared: _Numbers, work: _Work) -> _Numbers:
    """Cycles of a launch; infinity if a block does not fit."""
    registers = _quotient(registers, 8) * 8
    resident = np.minimum(2048 // threads, REGISTERS // (threads * registers))
    resident = np.minimum(np.minimum(resident, MOST_SHARED // (shared + 1024)), 24)
    each = _quotient(blocks, MULTIPROCESSORS)
    cycles = np.maximum(each * work.busy, _quotient(each, np.maximum(resident, 1)) * work.alone) + 0.5 * work.busy
    return np.where((resident < 1) | (registers > MOST_REGISTERS), math.inf, cycles)


def convolution(node: Node, pool: tuple[int, int] | None, precision: str) -> tuple[float, Tile | None]:
    """The best tile of a convolution and the cycles that it takes; infinity and None if nothing fits."""
    if node.outputs[0].dtype != "float32":
        return math.inf, None
    g = Geometry.of(node, phased=True)
    n, oh, ow, f, c, kh, kw = g.n, g.oh, g.ow, g.f, g.c, g.kh, g.kw
    (sh, sw), (dh, dw) = g.strides, g.dilation
    kind, parts, products = PRECISIONS[precision]
    wide, records = _records(c, kw)
    eh, ew = (oh, ow) if pool is None else (oh // pool[0] * pool[0], ow // pool[1] * pool[1])
    ph, pw = pool or (1, 1)
    pieces = []
    for py, px in ((1, 2), (2, 1), (2, 2), (1, 4), (2, 4), (4, 2), (2, 3), (3, 2), (1, 6), (1, 8)):
        if py % ph or px % pw:
            continue
        wide_x, high_y = _quotient(ew, px), _quotient(eh, py)
        gx = sorted({wide_x, _quotient(wide_x, 2), _quotient(wide_x, 4)})
        gy = sorted({_quotient(high_y, k) for k in (1, 2, 3, 4, 6, 8, 16)})
        fb = sorted({min(_quotient(f, 8) * 8, b) for b in (8, 16, 24, 32, 64)})
        cc = sorted(
            {c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}, reverse=True
        )  # one pass, if that is as good
        pieces.append(_combinations([py], [px], gx, gy, (1, 2, 4, 8), fb, (1, 2, 3, 4, 8), cc))
    if not pieces:
        return math.inf, None
    sizes = np.concatenate(pieces, axis=1)
    py, px, gx, gy, nb, fb, nt, cc = sizes
    threads = 32 * _quotient(nb * gy * gx, 8) * (fb // 8 // nt)
    whole = (gy >= _quotient(eh, py)) & (gx >= _quotient(ew, px))
    fits = (nb <= n) & ((nb == 1) | whole) & (fb // 8 % nt == 0) & (threads > 0) & (threads <= MOST_THREADS)
    sizes, threads = sizes[:, fits & (py * px // 2 * nt <= 16)], threads[fits & (py * px // 2 * nt <= 16)]
    if not sizes.size:
        return math.inf, None
    py, px, gx, gy, nb, fb, nt, cc = sizes
    mt = py * px // 2
    ih = (gy * py - 1) * sh + (kh - 1) * dh + 1
    iw = gx * px if wide else (gx * px - 1) * sw + (kw - 1) * dw + 1
    runs, size = _runs(kw * cc if wide else cc)
    steps = _quotient(kh * records * runs, 2)
    shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * parts * 2
    shared = shared + (nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c * 4 if wide else 0)
    blocks = _quotient(n, nb) * _quotient(eh, gy * py) * _quotient(ew, gx * px) * _quotient(f, fb) * g.groups
    passes, warps = _quotient(c, cc), threads // 32
    pairs = nb * ih * iw * runs * 4 + steps * 16 * fb // 2
    down, right = py * sh * iw * size // 8, (px if wide else px * sw) * size // 8
    conflicts = _conflicts(nb * gy * gx, gx, down, right)
    mma = np.maximum(
        steps * warps * mt * nt * products * _MMA, steps * warps * (mt * conflicts + nt / 2) * parts * _LOAD
    )
    lonely = steps * (products * np.maximum(33.0, mt * nt * 8.0) + 80.0)
    results = nb * gy * gx * py * px * fb * 0.12
    work = _Work(
        passes * (mma + pairs * _PAIR) + results + _BLOCK,
        passes * (np.maximum(mma, lonely) + pairs * _PAIR + np.ceil(pairs / threads / 24) * _ANSWER) + results + 1500,
    )
    cycles = _time(blocks, threads, 48 + 4 * mt * nt + parts * (4 * mt + 2 * nt), shared, work)
    best = int(np.argmin(cycles))
    if cycles[best] == math.inf:
        return math.inf, None
    py, px, gx, gy, nb, fb, nt, cc = sizes[:, best].tolist()
    numbers = (c, f, eh, ew, nb, gy, gx, fb, cc, py, px, nt)
    text = f"TensorTile<{kind}, {g.image}, {g.window}, {', '.join(map(str, numbers))}, {str(wide).lower()}>"
    return float(cycles[best]), Tile(text, int(blocks[best]), int(threads[best]), 1, numbers, int(shared[best]))


def weight_gradient(node: Node, precision: str) -> Tile | None:
    """The best tile of a weight gradient; None if nothing fits."""
    if node.outputs[0].dtype != "float32":
        return None
    attrs = node.attrs
    axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
    y, x = node.inputs[0].shape, node.inputs[1].shape
    n, oh, ow, f, c = y[axes.n], y[axes.h], y[axes.w], y[axes.c] // groups, x[axes.c] // groups
    (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["strides"], attrs["dilation"]
    kind, parts, products = PRECISIONS[precision]
    wide, records = _records(c, kw)
    sizes = _combinations(
        sorted({c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}),
        sorted({min(_quotient(f, 8) * 8, b) for b in (8, 16, 24, 32, 64)}),
        (1, 2, 3, 4),
        sorted({_quotient(oh, k) for k in (1, 2, 3, 4, 6, 8, 16, 32)}),
        (1, 2, 3, 4, 5),
        (1, 2, 4, 8, 16),
        (1, 2, 4, 8, 16),
        (1, 2, 3, 4),
    )
    cb, fb, nt, th, mw, slices, nb, goal = sizes
    tiles_m = _quotient(kh * records * _runs(kw * cb if wide else cb)[0], 2)
    threads = 32 * _quotient(tiles_m, mw) * (fb // 8 // nt) * slices
    fits = (fb // 8 % nt == 0) & (mw <= tiles_m) & (threads > 0) & (threads <= MOST_THREADS)
    fits &= (nb <= n) & ((nb == 1) | (th >= oh)) & (slices <= _quotient(nb * th * ow, 16)) & (mw * nt <= 16)
    sizes, threads = sizes[:, fits], threads[fits]
    if not sizes.size:
        return None
    cb, fb, nt, th, mw, slices, nb, goal = sizes
    runs, size = _runs(kw * cb if wide else cb)
    ih, iw = (th - 1) * sh + (kh - 1) * dh + 1, ow if wide else (ow - 1) * sw + (kw - 1) * dw + 1
    own, steps = threads // slices, _quotient(nb * th * ow, 16)
    shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * parts * 2
    shared = shared + (nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c * 4 if wide else 0)
    shared = np.maximum(shared, slices // 2 * mw * nt * 4 * own * 4)
    pieces = _quotient(c, cb) * _quotient(f, fb) * groups
    strips = _quotient(n, nb) * _quotient(oh, th)
    cut = np.minimum(strips, np.maximum(1, goal * MULTIPROCESSORS // pieces))
    blocks, each, warps = cut * pieces, _quotient(strips, cut), threads // 32
    mma = np.maximum(
        steps * (warps // slices) * mw * nt * products * _MMA,
        steps * (warps // slices) * (mw + nt / 2) * parts * _TRANSPOSED,
    )
    pairs = nb * ih * iw * runs * 4 + steps * 16 * fb // 2
    lonely = _quotient(steps, slices) * (products * np.maximum(33.0, mw * nt * 8.0) + 80.0)
    ending = np.log2(slices) * (mw * nt * 4 * 6 + 60) + mw * nt * 40 + 1500
    work = _Work(
        each * (mma + pairs * _PAIR) + ending / 4 + _BLOCK,
        each * (np.maximum(mma, lonely) + pairs * _PAIR + np.ceil(pairs / threads / 24) * _STRIP) + ending,
    )
    cycles = _time(blocks, threads, 48 + 4 * mw * nt + parts * (4 * mw + 2 * nt), shared, work)
    cycles = cycles + cut * kh * kw * c * f * groups / 2000  # the sum of the parts
    best = int(np.argmin(cycles))
    if cycles[best] == math.inf:
        return None
    cb, fb, nt, th, mw, slices, nb, _ = sizes[:, best].tolist()
    images = image_type(x, attrs["data_format"]), image_type(y, attrs["data_format"])
    numbers = (c, f, cb, fb, nb, th, mw, nt, slices, int(cut[best]))
    fixed = ", ".join((kind, *images, window_type(node)))
    text = f"TensorWeightTile<{fixed}, {', '.join(map(str, numbers))}, {str(wide).lower()}>"
    return Tile(text, int(blocks[best]), int(threads[best]), int(cut[best]), numbers, int(shared[best]))


def product(node: Node, precision: str, *, joined: bool = False) -> Tile | None:
    """The best tile of a matrix product; `joined`: a launch that comes anyway adds up parts of its sums."""
    if node.outputs[0].dtype != "float32":
        return None
    (m, n), (ta, tb) = node.outputs[0].shape, (node.attrs["transpose_a"], node.attrs["transpose_b"])
    k = node.inputs[0].shape[0 if ta else 1]
    kind, planes, terms = PRECISIONS[precision]
    sizes = _combinations(
        (16, 32, 64, 128),
        (8, 16, 32, 64, 128),
        (16, 32, 64, 128, 256, 512),
        (1, 2, 4),
        (1, 2, 4),
        (1, 2, 4, 8),
        (0, 1, 2),
    )
    bm, bn, bk, mt, nt, slices, goal = sizes
    threads = 32 * (bm // 16 // mt) * (bn // 8 // nt) * slices
    run = _quotient(
        np.maximum(1, k // np.maximum(1, goal * MULTIPROCESSORS // (_quotient(m, bm) * _quotient(n, bn)))), bk
    )
    run = np.where(goal > 0, run, _quotient(k, bk)) * bk
    fits = ((bk <= 16) | (bk < 2 * k)) & ((bm <= 16) | (bm < 2 * m)) & ((bn <= 8) | (bn < 2 * n))
    fits &= (bm // 16 % mt == 0) & (bn // 8 % nt == 0) & (threads > 0) & (threads <= MOST_THREADS)
    fits &= (slices <= bk // 16) & ((goal == 0) | (run < k))
    sizes, threads, run = sizes[:, fits], threads[fits], run[fits]
    if not sizes.size:
        return None
    bm, bn, bk, mt, nt, slices, _ = sizes
    a = np.where(ta, bk * _runs(bm)[1], bm * _runs(bk)[1])
    b = np.where(tb, bn * _runs(bk)[1], bk * _runs(bn)[1])
    own, parts, tiles = threads // slices, _quotient(k, run), _quotient(m, bm) * _quotient(n, bn)
    shared = np.maximum((a + b) * planes * 2, slices // 2 * mt * nt * 4 * own * 4)
    passes, warps, steps = run // bk, own // 32, bk // 16
    mma = steps * warps * np.maximum(mt * nt * terms * _PRODUCT_MMA, (mt + nt / 2) * planes * _PRODUCT_LOAD)
    fill = (bm + bn) * bk / 2 * _PRODUCT_PAIR
    lonely = _quotient(steps, slices) * (terms * np.maximum(33.0, mt * nt * 8.0) + 80.0)
    rounds = np.ceil(bm * bk / 8 / threads / 6) + np.ceil(bn * bk / 8 / threads / 4)
    waiting = rounds * _PRODUCT_ROUND + np.ceil((bm + bn) * bk / 8 / threads) * _PRODUCT_RUN
    ending = np.log2(slices) * (mt * nt * 24 + 60) + np.minimum(bm, m) * np.minimum(bn, n) * _PRODUCT_RESULT
    work = _Work(passes * (mma + fill) + ending + _BLOCK, passes * (np.maximum(mma, lonely) + fill + waiting) + ending)
    cycles = _time(tiles * parts, threads, 80 + 4 * mt * nt + planes * (4 * mt + 2 * nt), shared, work)
    cycles = cycles + np.where(parts > 1, (0 if joined else _LAUNCH) + parts * m * n / 400, 0.0)
    best = int(np.argmin(cycles))
    if cycles[best] == math.inf:
        return None
    chosen = (*sizes[:6, best].tolist(), int(parts[best]))
    numbers = (m, n, k, str(ta).lower(), str(tb).lower(), *chosen)
    text = f"TensorProductTile<{kind}, {', '.join(map(str, numbers))}>"
    blocks = int(tiles[best] * parts[best])
    return Tile(text, blocks, int(threads[best]), int(parts[best]), chosen, int(shared[best]))
