"""Tiles of multiply-adds, chosen for each shape by a small model of the device."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import PlainConvolution, PlainWeightGradient, costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.kernels.convolutions import ConvolutionSizes
from minicnn.kernels.geometry import Geometry
from minicnn.kernels.reductions import Sharing
from minicnn.kernels.tiles import TileShape
from minicnn.kernels.weight_gradients import WeightGradientSizes
from minicnn.ops.windows import Axes
from minicnn.program.graph import ITEMSIZE, Node

THREADS = 256
# Bytes of shared memory that C++ declares, beside what tiles ask for: for sums of neighbouring results, and for scales
# of operands of tensor cores.
SUM_SHARED, SCALE_SHARED = 2176, 256

_PRODUCT_TILES = tuple(
    TileShape(rows, columns, thread_rows, thread_columns, depth=16)
    for rows, columns, thread_rows, thread_columns in (
        (64, 64, 4, 4), (64, 32, 4, 4), (32, 32, 4, 2), (128, 16, 4, 4), (64, 16, 4, 2), (32, 16, 2, 2), (32, 64, 4, 4),
        (16, 128, 4, 4), (128, 64, 8, 4), (64, 64, 4, 2), (128, 32, 4, 4), (256, 16, 4, 4),
    )
)  # fmt: skip


@dataclass(frozen=True)
class TileLimits:
    """Sizes to choose from: those for a GPU by default.

    Attributes:
        convolution: Most threads of a block of a convolution.
        weight_gradient: Most threads of a block of a weight gradient.
        reduction: Threads of a block of a reduction, a power of two.
        products: Tiles of products, of any depth.
        depths: Terms that a product holds in shared memory.
    """

    convolution: int = 512
    weight_gradient: int = 288
    reduction: int = THREADS
    products: tuple[TileShape, ...] = _PRODUCT_TILES
    depths: tuple[int, ...] = (16, 32, 64, 128)


LIMITS = TileLimits()


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _resident(gpu: Gpu, costs: PlainConvolution | PlainWeightGradient, threads: int, shared: int) -> int:
    """Blocks of a multiprocessor as the scores count them."""
    warps, usable = _up(threads, 32), int(gpu.shared_multiprocessor * costs.shared)
    fit = gpu.registers // (warps * costs.registers), usable // shared
    # The scarcest of threads, registers and shared memory decides.
    return max(1, min(gpu.threads_multiprocessor // warps, *fit))


def _filters(f: int) -> int:
    # Filters of a thread: four neighbours are one load of 16 bytes, and a few idle ones cost less than loads one by
    # one.
    return 4 if f % 4 == 0 or f >= 7 else 2 if f % 2 == 0 else 1


@dataclass(frozen=True, kw_only=True)
class ConvolutionTile(Tile, ConvolutionSizes):
    """Tile of a convolution, or of its input gradient, by multiply-adds."""

    @classmethod
    def best(
        cls, node: Node, pool: tuple[int, int] | None = None, *, gpu: Gpu, limits: TileLimits = LIMITS
    ) -> ConvolutionTile | None:
        """Tile of conv2d or conv2d_input_gradient; None if nothing fits.

        Args:
            node: The convolution.
            pool: Window of the max-pooling that is done on the way out.
            gpu: The GPU that it is for.
            limits: Sizes to choose from.
        """
        itemsize, g = ITEMSIZE[node.outputs[0].dtype], Geometry.of(node, phased=True)
        n, oh, ow, f, c, kh, kw = g.n, g.oh, g.ow, g.f, g.c, g.kh, g.kw
        (sh, sw), (dh, dw) = g.strides, g.dilation
        eh, ew = (oh, ow) if pool is None else (oh // pool[0] * pool[0], ow // pool[1] * pool[1])
        ph, pw = pool or (1, 1)
        fx, costs = _filters(f), costs_on(gpu).plain_convolution
        best: ConvolutionTile | None = None
        for py, px in itertools.product((1, 2, 3), (1, 2, 3, 4, 5, 6, 8)):
            # Whole windows of the pooling in each thread, and accumulators that fit into registers.
            if py % ph or px % pw or py * px > 12:
                continue
            span = (px - 1) * sw + (kw - 1) * dw + 1
            loads = py * span / (kw * px * py * fx) + 2 / (px * py)  # shared-memory reads for each multiply-add
            for gx, gy, fb in itertools.product(
                sorted({-(-ew // px), -(-ew // (2 * px)), -(-32 // px)}),
                sorted({-(-eh // py), -(-eh // (2 * py)), -(-eh // (4 * py)), 1, 2, 4, 8}),
                sorted({min(_up(f, fx), b) for b in (16, 32, 64)}),
            ):
                if gx * px >= _up(ew, px) + px or gy * py >= _up(eh, py) + py:
                    continue
                th, tw, fg = gy * py, gx * px, fb // fx
                for nb in (1, 2, 4, 8):
                    threads = fg * gx * gy * nb
                    # Several images in a block only where one does not fill it.
                    if threads > limits.convolution or nb > n or (nb > 1 and gy * py < eh):
                        continue
                    ih, iw = (th - 1) * sh + (kh - 1) * dh + 1, (tw - 1) * sw + (kw - 1) * dw + 1
                    per_channel = ((nb * ih * iw | 1) + kh * kw * fb) * itemsize
                    cc = min(c, gpu.shared_unasked // per_channel)
                    if cc < 1:
                        continue
                    # As many passes as that takes, of equal size: the last one would otherwise be short.
                    cc = -(-c // -(-c // cc))
                    blocks = -(-n // nb) * -(-eh // th) * -(-ew // tw) * -(-f // fb) * g.groups
                    resident = _resident(gpu, costs, threads, cc * per_channel)
                    # Time of one multiprocessor in multiply-adds of a thread, for all waves of blocks.
                    rounds = (
                        max(blocks / gpu.multiprocessors, 1.0)
                        if blocks > gpu.multiprocessors * resident
                        else math.ceil(blocks / gpu.multiprocessors)
                    )
                    work = py * px * fx * kh * kw * c * _up(threads, 32) / gpu.lanes32
                    filled = nb * ih * iw * c * costs.filled + kh * kw * fb * c * costs.filters
                    together = min(resident, math.ceil(blocks / gpu.multiprocessors)) * _up(threads, 32)
                    patience = 1.0 + costs.patience / together
                    score = rounds * (work * (1 + loads) * patience + filled) + costs.round * rounds / resident
                    if best is None or score < best.score:
                        best = cls(
                            result_rows=eh, result_columns=ew, images=nb, rows=th, columns=tw, filters=fb, channels=cc,
                            thread_rows=py, thread_columns=px, thread_filters=fx, blocks=blocks, threads=threads,
                            shared=cc * per_channel, score=score,
                        )  # fmt: skip
        return best


@dataclass(frozen=True, kw_only=True)
class WeightGradientTile(Tile, WeightGradientSizes):
    """Tile of a convolution's weight gradient by multiply-adds."""

    @classmethod
    def best(cls, node: Node, *, gpu: Gpu, limits: TileLimits = LIMITS) -> WeightGradientTile | None:
        """Tile of conv2d_weight_gradient; None if nothing fits."""
        attrs, itemsize, costs = node.attrs, ITEMSIZE[node.outputs[0].dtype], costs_on(gpu).plain_weight_gradient
        axes, groups = Axes.of(attrs["data_format"]), attrs["groups"]
        y, x = node.inputs[0].shape, node.inputs[1].shape
        n, oh, ow, f, c = y[axes.n], y[axes.h], y[axes.w], y[axes.c] // groups, x[axes.c] // groups
        (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["strides"], attrs["dilation"]
        fx = _filters(f)
        # Accumulators are kw x fx for each thread, which are registers.
        while fx > 1 and kw * fx > 64:
            fx //= 2
        kb = max(1, min(kh, 48 // (kw * fx)))
        kb = -(-kh // -(-kh // kb))
        # Neighbours of a row that a thread takes at once: few beyond its end, and many for each load.
        px = min((4, 3, 2, 5), key=lambda p: _up(ow, p) * (1 + 1 / p))
        best: WeightGradientTile | None = None
        for cb, fb in itertools.product(
            (1, 2, 4, 8, 12, 16, 24, 32), (fx, 2 * fx, 3 * fx, 4 * fx, 6 * fx, 8 * fx, 16 * fx)
        ):
            if cb > c or fb > _up(f, fx) or cb * fb // fx > min(THREADS, limits.weight_gradient):
                continue
            lanes = cb * fb // fx
            slices = 2 ** int(math.log2(max(1, limits.weight_gradient // lanes)))
            threads = lanes * slices
            for th in sorted({oh, -(-oh // 2), -(-oh // 4), -(-oh // 8), 1}):
                ih, iw = (th - 1) * sh + (kb - 1) * dh + 1, (_up(ow, px) - 1) * sw + (kw - 1) * dw + 1
                shared = max(ih * iw * cb + 4 + th * _up(ow, px) * fb, slices // 2 * lanes * kb * kw * fx) * itemsize
                if shared > gpu.shared_unasked:
                    continue
                tiles = -(-kh // kb) * -(-c // cb) * -(-f // fb) * groups
                strips = n * -(-oh // th)
                # Blocks for each multiprocessor: more hide latency, and leave more partial sums.
                for goal in (1, 2, 3, 4):
                    splits = min(strips, max(1, goal * gpu.multiprocessors // tiles))
                    blocks = splits * tiles
                    runs = -(-th * _up(ow, px) // px // slices)
                    resident = _resident(gpu, costs, threads, shared)
                    each = -(-strips // splits)
                    work = runs * px * kb * kw * fx * _up(threads, 32) / gpu.lanes32 * costs.term
                    filled = (ih * iw * cb + th * ow * fb) * costs.filled + costs.strip
                    rounds = math.ceil(blocks / gpu.multiprocessors)
                    together = min(resident, rounds) * _up(threads, 32)
                    score = rounds * each * (work * (1 + costs.patience / together) + filled)
                    score += rounds * math.log2(2 * slices) * costs.halving
                    # Without this the model would split until each block had one term.
                    score += splits * kh * kw * c * f * groups / costs.gradients  # the sum of the partial sums
                    if best is None or score < best.score:
                        best = cls(
                            tap_rows=kb, channels=cb, filters=fb, rows=th, thread_columns=px, thread_filters=fx,
                            slices=slices, blocks=blocks, threads=threads, splits=splits, shared=shared, score=score,
                        )  # fmt: skip
        return best


@dataclass(frozen=True, kw_only=True)
class ProductTile(Tile):
    """Tile of a matrix product by multiply-adds.

    Attributes:
        shape: Its sizes, as the kernel language has them.
    """

    shape: TileShape

    @classmethod
    def best(cls, node: Node, *, gpu: Gpu, joined: bool = False, limits: TileLimits = LIMITS) -> ProductTile:
        """Tile of a matrix product.

        Args:
            node: The product.
            gpu: The GPU that it is for.
            joined: Whether a launch that comes anyway adds up its partial sums.
            limits: Sizes to choose from.
        """
        (m, n), ta = node.outputs[0].shape, node.attrs["transpose_a"]
        k, itemsize = node.inputs[0].shape[0 if ta else 1], ITEMSIZE[node.outputs[0].dtype]
        costs = costs_on(gpu).plain_product
        best: ProductTile | None = None
        for one in limits.products:
            bm, bn = one.rows, one.columns
            tiles = -(-m // bm) * -(-n // bn)
            operands = 1 + costs.operand / one.thread_rows + costs.operand / one.thread_columns
            # A goal of 0 does not split: the only way without a launch that adds up.
            for bk, goal in itertools.product(limits.depths, (0, 1, 2, 4)):
                splits = max(1, min(goal * gpu.multiprocessors // tiles, k // 32))
                run = _up(-(-k // splits), bk)
                splits = -(-k // run)
                loads = (bm + bn) * bk / one.threads
                if (
                    (bk > limits.depths[0] and bk >= 2 * k)
                    or loads > (40 if run == bk else 24)
                    or (bm + bn + 8) * bk * itemsize > gpu.shared_unasked
                ):
                    continue
                # Cycles: all blocks of a multiprocessor, each step at least as long as the latency of memory.
                blocks = tiles * splits
                rounds = math.ceil(blocks / gpu.multiprocessors)
                compute = rounds * bk * bm * bn / gpu.lanes32 * operands
                compute += rounds * (bm + bn) * bk * costs.filled
                score = run / bk * (max(compute, costs.latency) + costs.load * loads) + costs.launch
                # Partial sums are written and read once more, and mostly take a launch.
                score += (0 if joined else costs.more) + splits * m * n / costs.results if splits > 1 else 0
                if best is None or score < best.score:
                    best = cls(
                        shape=replace(one, depth=bk, splits=splits), blocks=blocks, threads=one.threads, splits=splits,
                        shared=(bm + bn + 8) * bk * itemsize, score=score,
                    )  # fmt: skip
        if best is None:
            raise AssertionError("There is always a tile for a product.")
        return best


@dataclass(frozen=True, kw_only=True)
class ReductionTile(Tile):
    """Tile of a sum or a maximum.

    Attributes:
        results: Results.
        terms: Terms of each.
        columns: Results that a block has side by side.
        rows: Threads that share a result.
        terms_first: Whether neighbours in memory are terms, rather than results.
    """

    results: int
    terms: int
    columns: int
    rows: int
    terms_first: bool

    @property
    def sharing(self) -> Sharing:
        """Division of the terms among threads, as the kernel language has it."""
        return Sharing(self.results, self.terms, self.columns, self.rows, self.splits, self.terms_first)

    @classmethod
    def best(
        cls, results: int, terms: int, *, gpu: Gpu, terms_first: bool, limits: TileLimits = LIMITS
    ) -> ReductionTile:
        """Tile of a sum or a maximum of so many terms for each of so many results."""
        columns = 1
        # Neighbouring threads read neighbouring bytes: of results side by side, or else of terms.
        while columns < min(results, limits.reduction // 8 if not terms_first else 8 if terms < 256 else 1):
            columns *= 2
        rows = limits.reduction // columns
        across = -(-results // columns)
        # A sum is split only if each thread keeps several terms; else the second launch takes longer than it saves.
        splits = max(1, min(2 * gpu.multiprocessors // across, terms // (rows * 8))) if terms > 64 * rows else 1
        return cls(
            results=results, terms=terms, columns=columns, rows=rows, terms_first=terms_first, blocks=across * splits,
            threads=limits.reduction, splits=splits,
        )  # fmt: skip

    def split(self, splits: int) -> ReductionTile:
        """The tile with so many partial sums."""
        return replace(self, blocks=self.blocks // self.splits * splits, splits=splits)

    def narrowed(self, threads: int) -> ReductionTile:
        """The tile with no more threads than that, where it can be: fewer of them share each result."""
        rows = self.rows
        while self.columns * rows > threads and rows > 1:
            rows //= 2
        return replace(self, rows=rows, threads=self.columns * rows)
