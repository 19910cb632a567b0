"""Tiles of `tensor.cuh` and `tensor_products.cuh`: their candidates, which are arrays of sizes, and what these take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tile_times import PRECISIONS, Blocks, Candidates, Numbers, quotient
from minicnn.kernels.geometry import Geometry
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

MOST_THREADS = 512


@dataclass(frozen=True, kw_only=True)
class TensorTile(Tile):
    """Tile on tensor cores of float32 numbers, which a block splits into 16-bit parts in shared memory.

    Attributes:
        kind: Name of the constants of its modelled time.
    """

    has_template: ClassVar[bool] = True
    kind: ClassVar[str]

    @classmethod
    def candidates(cls, node: Node, gpu: Gpu, precision: str) -> list[Candidates]:
        """Tiles of a node to choose from, which need not fit."""
        raise NotImplementedError

    @classmethod
    def best(cls, node: Node, gpu: Gpu, precision: str, **options: Any) -> Tile | None:
        """The tile that takes the least time, its score the cycles; None if nothing fits.

        Args:
            node: The operation.
            gpu: The GPU that it is for.
            precision: In which operands are multiplied.
            options: Those of `candidates`.
        """
        costs = getattr(costs_on(gpu), cls.kind)
        tiles = [one.best(gpu, costs, precision) for one in cls.candidates(node, gpu, precision, **options)]
        return min((tile for tile in tiles if tile is not None), key=lambda tile: tile.score, default=None)


def _combinations(*axes: Sequence[int]) -> np.ndarray[Any, Any]:
    """All combinations of numbers, one a column; the last number changes first."""
    return np.stack([grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")])


def _widths(c: int) -> tuple[bool, ...]:
    """Candidates for records with rows of taps, which spare padding, or with single ones: `Record` of `tensor.cuh`."""
    # Tensor cores take terms in runs of 8 channels: images with 1 or 3 of them would be multiplied with zeros mostly,
    # so that a whole row of taps is packed into a record.
    return (True, False) if c < 8 else (False,)


def _runs(length: Numbers) -> tuple[Numbers, Numbers]:
    """Runs of 8 of so many elements, and from one row of them to the next: an odd number of runs."""
    runs = quotient(length, 8)
    # An odd number of runs of 16 bytes spreads neighbouring rows over the banks of shared memory.
    return runs, (runs | 1) * 8


@cache
def _conflicts_of(patches: int, columns: int, down: int, right: int) -> float:
    """Average requests of a warp to the same bank, for the rows of 8 patches with such 16-byte steps between them."""
    # A warp loads 8 rows at a time, which meet without conflict if they lie in different groups of four banks.
    p = np.arange(quotient(patches, 8) * 8)
    slots = np.where(p < patches, (p // columns * down + p % columns * right) % 8, 8).reshape(-1, 8)
    counts = (slots[:, :, None] == np.arange(8)).sum(axis=1)
    return float(counts.max(axis=1).mean())


def _conflicts(patches: Numbers, columns: Numbers, down: Numbers, right: Numbers) -> Numbers:
    spread = int(np.max(columns)) + 1
    # Few cases are different among thousands of candidates: each is counted once.
    cases, which = np.unique(((patches * spread + columns) * 8 + down % 8) * 8 + right % 8, return_inverse=True)
    each = zip(cases // 64 // spread, cases // 64 % spread, cases // 8 % 8, cases % 8, strict=True)
    return np.array([_conflicts_of(*map(int, case)) for case in each])[which]


@dataclass(frozen=True, kw_only=True)
class TensorConvolutionTile(TensorTile):
    """Tile of a convolution, or of its input gradient, on tensor cores.

    Attributes:
        result_rows: Rows of the result that are computed: whole windows of a pooling behind it.
        result_columns: Columns of the result that are computed.
        images: Images of a block.
        patches_down: Patches of a block, down.
        patches_across: Patches of a block, across.
        filters: Filters of a block.
        channels: Channels that shared memory holds.
        patch_rows: Rows of a patch, which four threads compute.
        patch_columns: Columns of a patch.
        warp_columns: Columns of fragments of a warp.
        wide: Whether a record has a row of taps, which spares padding, rather than a single one.
    """

    kind: ClassVar[str] = "convolution"

    result_rows: int
    result_columns: int
    images: int
    patches_down: int
    patches_across: int
    filters: int
    channels: int
    patch_rows: int
    patch_columns: int
    warp_columns: int
    wide: bool

    @classmethod
    def candidates(
        cls, node: Node, gpu: Gpu, precision: str, *, pool: tuple[int, int] | None = None
    ) -> list[Candidates]:
        """Tiles of a convolution to choose from, which need not fit."""
        if node.outputs[0].dtype != "float32":
            return []
        g = Geometry.of(node, phased=True)
        return [candidates for wide in _widths(g.c) if (candidates := cls._of_records(g, pool, precision, wide=wide))]

    @classmethod
    def _of_records(cls, g: Geometry, pool: tuple[int, int] | None, precision: str, *, wide: bool) -> Candidates | None:
        n, oh, ow, f, c, kh, kw = g.n, g.oh, g.ow, g.f, g.c, g.kh, g.kw
        (sh, sw), (dh, dw) = g.strides, g.dilation
        planes, _ = PRECISIONS[precision]
        records = 1 if wide else kw  # of a row of taps
        eh, ew = (oh, ow) if pool is None else (oh // pool[0] * pool[0], ow // pool[1] * pool[1])
        ph, pw = pool or (1, 1)
        pieces = []
        for py, px in ((1, 2), (2, 1), (2, 2), (1, 4), (2, 4), (4, 2), (2, 3), (3, 2), (1, 6), (1, 8)):
            if py % ph or px % pw:
                continue
            wide_x, high_y = quotient(ew, px), quotient(eh, py)
            gx = sorted({wide_x, quotient(wide_x, 2), quotient(wide_x, 4)})
            gy = sorted({quotient(high_y, k) for k in (1, 2, 3, 4, 6, 8, 16)})
            fb = sorted({min(quotient(f, 8) * 8, b) for b in (8, 16, 24, 32, 64)})
            cc = sorted({c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}, reverse=True)  # one pass, if as good
            pieces.append(_combinations([py], [px], gx, gy, (1, 2, 4, 8), fb, (1, 2, 3, 4, 8), cc))
        if not pieces:
            return None
        sizes = np.concatenate(pieces, axis=1)
        py, px, gx, gy, nb, fb, nt, cc = sizes
        threads = 32 * quotient(nb * gy * gx, 8) * (fb // 8 // nt)
        whole = (gy >= quotient(eh, py)) & (gx >= quotient(ew, px))
        # Threads of a warp take the same number of tiles; a block has several images only where one does not fill it.
        fits = (nb <= n) & ((nb == 1) | whole) & (fb // 8 % nt == 0) & (threads > 0) & (threads <= MOST_THREADS)
        sizes, threads = sizes[:, fits & (py * px // 2 * nt <= 16)], threads[fits & (py * px // 2 * nt <= 16)]
        if not sizes.size:
            return None
        py, px, gx, gy, nb, fb, nt, cc = sizes
        ih = (gy * py - 1) * sh + (kh - 1) * dh + 1
        iw = gx * px if wide else (gx * px - 1) * sw + (kw - 1) * dw + 1
        runs, size = _runs(kw * cc if wide else cc)
        steps = quotient(kh * records * runs, 2)
        shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * planes * 2
        # Records are packed from the image's own rows, which come to shared memory first.
        staged = nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c if wide else 0 * nb
        blocks = quotient(n, nb) * quotient(eh, gy * py) * quotient(ew, gx * px) * quotient(f, fb) * g.groups
        down, right = py * sh * iw * size // 8, (px if wide else px * sw) * size // 8
        work = Blocks(
            blocks, threads, shared + staged * 4, py * px // 2, nt, 1, quotient(c, cc), steps,
            _conflicts(nb * gy * gx, gx, down, right), (False, True), (nb * ih * iw * runs, steps * 2 * fb), staged,
        )  # fmt: skip
        tiles = cls(
            result_rows=eh, result_columns=ew, images=nb, patches_down=gy, patches_across=gx, filters=fb, channels=cc,
            patch_rows=py, patch_columns=px, warp_columns=nt, wide=wide, blocks=blocks, threads=threads,
            shared=work.shared,
        )  # fmt: skip
        return Candidates(work, tiles)


@dataclass(frozen=True, kw_only=True)
class TensorWeightGradientTile(TensorTile):
    """Tile of a convolution's weight gradient on tensor cores.

    Attributes:
        channels: Channels of a block.
        filters: Filters of a block.
        images: Images that shared memory holds.
        rows: Rows of these.
        warp_rows: Rows of fragments of a warp.
        warp_columns: Columns of fragments of a warp.
        slices: Groups of warps that share the terms of a sum.
        wide: Whether a record has a row of taps, which spares padding, rather than a single one.
    """

    kind: ClassVar[str] = "weight_gradient"

    channels: int
    filters: int
    images: int
    rows: int
    warp_rows: int
    warp_columns: int
    slices: int
    wide: bool

    @classmethod
    def candidates(cls, node: Node, gpu: Gpu, precision: str) -> list[Candidates]:
        """Tiles of a weight gradient to choose from, which need not fit."""
        if node.outputs[0].dtype != "float32":
            return []
        c = node.inputs[1].shape[Axes.of(node.attrs["data_format"]).c] // node.attrs["groups"]
        return [candidates for wide in _widths(c) if (candidates := cls._of_records(node, gpu, precision, wide=wide))]

    @classmethod
    def _of_records(cls, node: Node, gpu: Gpu, precision: str, *, wide: bool) -> Candidates | None:
        attrs = node.attrs
        axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
        y, x = node.inputs[0].shape, node.inputs[1].shape
        n, oh, ow, f, c = y[axes.n], y[axes.h], y[axes.w], y[axes.c] // groups, x[axes.c] // groups
        (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["strides"], attrs["dilation"]
        planes, _ = PRECISIONS[precision]
        records = 1 if wide else kw  # of a row of taps
        sizes = _combinations(
            sorted({c, *(k for k in (8, 16, 32, 64) if k < c and not wide)}),
            sorted({min(quotient(f, 8) * 8, b) for b in (8, 16, 24, 32, 64)}),
            (1, 2, 3, 4),
            sorted({quotient(oh, k) for k in (1, 2, 3, 4, 6, 8, 16, 32)}),
            (1, 2, 3, 4, 5),
            (1, 2, 4, 8, 16),
            (1, 2, 4, 8, 16),
        )
        cb, fb, nt, th, mw, slices, nb = sizes
        tiles_m = quotient(kh * records * _runs(kw * cb if wide else cb)[0], 2)
        threads = 32 * quotient(tiles_m, mw) * (fb // 8 // nt) * slices
        fits = (fb // 8 % nt == 0) & (mw <= tiles_m) & (threads > 0) & (threads <= MOST_THREADS)
        fits &= (nb <= n) & ((nb == 1) | (th >= oh)) & (slices <= quotient(nb * th * ow, 16)) & (mw * nt <= 16)
        if not np.any(fits):
            return None
        goals = (1, 2, 3, 4)
        # Each with every goal, which changes first.
        cb, fb, nt, th, mw, slices, nb, threads = np.repeat((*sizes[:, fits], threads[fits]), len(goals), axis=1)
        goal = np.resize(goals, cb.shape)
        runs, size = _runs(kw * cb if wide else cb)
        ih, iw = (th - 1) * sh + (kh - 1) * dh + 1, ow if wide else (ow - 1) * sw + (kw - 1) * dw + 1
        steps = quotient(nb * th * ow, 16)
        shared = (nb * ih * iw * size + steps * 16 * _runs(fb)[1]) * planes * 2
        staged = nb * ih * ((iw - 1) * sw + (kw - 1) * dw + 1) * c if wide else 0 * nb
        shared = np.maximum(shared + staged * 4, slices // 2 * mw * nt * 4 * (threads // slices) * 4)
        pieces = quotient(c, cb) * quotient(f, fb) * groups
        strips = quotient(n, nb) * quotient(oh, th)
        # Strips of the images are divided among so many blocks for each multiprocessor; their sums are added up later.
        cut = np.minimum(strips, np.maximum(1, goal * gpu.multiprocessors // pieces))
        down, right = (1 if wide else sh) * iw * size // 8, (1 if wide else sw) * size // 8
        work = Blocks(
            cut * pieces, threads, shared, mw, nt, slices, quotient(strips, cut), steps,
            np.maximum(1, _conflicts(nb * th * ow, ow + 0 * nb, down, right)), (True, True),
            (nb * ih * iw * runs, steps * 2 * fb), staged,
        )  # fmt: skip
        beside = cut * kh * kw * c * f * groups / costs_on(gpu).launches.gradients
        tiles = cls(
            channels=cb, filters=fb, images=nb, rows=th, warp_rows=mw, warp_columns=nt, slices=slices, wide=wide,
            blocks=work.blocks, threads=threads, splits=cut, shared=shared,
        )  # fmt: skip
        return Candidates(work, tiles, beside)


@dataclass(frozen=True, kw_only=True)
class TensorProductTile(TensorTile):
    """Tile of a matrix product on tensor cores.

    Attributes:
        rows: Rows of a block.
        columns: Columns of a block.
        terms: Terms that shared memory holds.
        warp_rows: Rows of fragments of a warp.
        warp_columns: Columns of fragments of a warp.
        slices: Groups of warps that share the terms of a sum.
    """

    kind: ClassVar[str] = "product"

    rows: int
    columns: int
    terms: int
    warp_rows: int
    warp_columns: int
    slices: int

    @classmethod
    def candidates(cls, node: Node, gpu: Gpu, precision: str, *, joined: bool = False) -> list[Candidates]:
        """Tiles of a matrix product to choose from, which need not fit."""
        if node.outputs[0].dtype != "float32":
            return []
        (m, n), (ta, tb) = node.outputs[0].shape, (node.attrs["transpose_a"], node.attrs["transpose_b"])
        k = node.inputs[0].shape[0 if ta else 1]
        planes, _ = PRECISIONS[precision]
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
        goals = np.maximum(1, goal * gpu.multiprocessors // (quotient(m, bm) * quotient(n, bn)))
        run = np.where(goal > 0, quotient(np.maximum(1, k // goals), bk), quotient(k, bk)) * bk
        fits = ((bk <= 16) | (bk < 2 * k)) & ((bm <= 16) | (bm < 2 * m)) & ((bn <= 8) | (bn < 2 * n))
        fits &= (bm // 16 % mt == 0) & (bn // 8 % nt == 0) & (threads > 0) & (threads <= MOST_THREADS)
        fits &= (slices <= bk // 16) & ((goal == 0) | (run < k))
        sizes, threads, run = sizes[:, fits], threads[fits], run[fits]
        if not sizes.size:
            return []
        bm, bn, bk, mt, nt, slices, _ = sizes
        a = np.where(ta, bk * _runs(bm)[1], bm * _runs(bk)[1])
        b = np.where(tb, bn * _runs(bk)[1], bk * _runs(bn)[1])
        tile_threads, splits, pieces = threads // slices, quotient(k, run), quotient(m, bm) * quotient(n, bn)
        shared = np.maximum((a + b) * planes * 2, slices // 2 * mt * nt * 4 * tile_threads * 4)
        work = Blocks(
            pieces * splits, threads, shared, mt, nt, slices, run // bk, bk // 16, 1, (ta, not tb),
            (bm * bk // 8, bn * bk // 8),
        )  # fmt: skip
        launches = costs_on(gpu).launches
        beside = np.where(splits > 1, (0 if joined else launches.more) + splits * m * n / launches.results, 0.0)
        tiles = cls(
            rows=bm, columns=bn, terms=bk, warp_rows=mt, warp_columns=nt, slices=slices,
            blocks=work.blocks, threads=threads, splits=splits, shared=shared,
        )  # fmt: skip
        return [Candidates(work, tiles, beside)]
