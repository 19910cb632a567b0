"""Tiles of `pipelined.cuh`: those that take the least time, by a model fitted to times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, NamedTuple, Self

import numpy as np

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import Pipelined, costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tile_times import Numbers, quotient
from minicnn.kernels.geometry import Geometry, phases
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

_REGISTERS = 48  # of a thread, beside its sums, the fragments that are multiplied and those that are loaded
_READ_BEHIND = 48  # more of them where a block makes several tiles of an input gradient, behind which more is read
_COPIED = 16, 12  # runs that a thread sends for in a step at most, of convolutions and of weight gradients
_MOST_TAPS = 15  # along an axis, which are bits of a mask
_SIZES = (16, 32, 64, 128, 256)
_FORWARD, _BACK, _WEIGHTS = range(3)  # convolutions, their input gradients, their weight gradients
_STAGES = 3  # at least, of a sum with more steps than these
_ALIGNMENT = 1024 - 128  # bytes that may lie before what warpgroups read, which begins at a multiple of 1,024


class PipelineWork(NamedTuple):
    """Work of a launch's blocks, for many candidate tiles at once."""

    blocks: Numbers  # how many
    resident: Numbers  # that a multiprocessor has at a time
    ahead: Numbers  # steps that are on their way; infinity if all of them are, so that the first alone is waited for
    steps: Numbers  # of a block, on average
    longest: Numbers  # the same of the block that has most
    products: Numbers  # of fragments, in a step
    loads: Numbers  # of four matrices each, in a step
    runs: Numbers  # of eight elements, that a step brings
    lines: Numbers  # of 128 bytes, or less, in which they lie
    pieces: Numbers  # of a step, of 16 terms each
    chain: Numbers  # products of fragments of a warp in a piece
    results: Numbers  # runs of eight results of a block
    beside: Numbers  # cycles of adding up partial sums
    warpgroups: Numbers  # whether tensor cores multiply while threads go on, and the step before is still read
    kind: Numbers  # _FORWARD, _BACK or _WEIGHTS
    turns: Numbers = 1  # tiles that a block makes one after the other; all else is said of one of them

    def cycles(self, gpu: Gpu, costs: Pipelined) -> Numbers:
        """Cycles of the launch, and of what it leaves to do."""
        # Blocks that are there together end together, and those that follow come together: after the first round, a
        # multiprocessor has all that fit, or none.
        rounds = quotient(self.blocks, gpu.multiprocessors * self.resident)
        each = np.where(rounds > 1, rounds * self.resident, quotient(self.blocks, gpu.multiprocessors)) * self.turns
        brought = self.runs * costs.run + self.lines * costs.line
        busy = np.maximum(self.products * costs.mma, self.loads * costs.load + brought)
        multiplied = self.pieces * np.maximum(costs.fragment, self.chain * costs.fragments)
        alone = costs.step + np.where(self.warpgroups, np.maximum(multiplied, brought), multiplied + brought)
        latency = np.where(self.kind == _WEIGHTS, costs.far, costs.latency)
        alone = alone + latency / self.ahead
        result = np.choose(self.kind, (costs.forward, costs.back, costs.weights))
        ending = self.results * result
        together = each * (self.steps * busy + ending)
        passing = np.maximum(ending, self.chain * costs.passing * result)
        apart = rounds * (self.turns * (self.longest * np.maximum(busy, alone) + passing) + latency)
        return np.maximum(together, apart) + costs.launch + self.beside


@dataclass(frozen=True)
class _Pipeline:
    """Block of a launch of any length: its tile, how many a multiprocessor has at a time, and its work in a step."""

    tile: PipelinedTile
    resident: int
    loads: int
    lines: float

    def work(
        self, kind: int, blocks: int, steps: float, longest: int, beside: float, *, whole: bool = False, turns: int = 1
    ) -> PipelineWork:
        one = self.tile
        results, ahead = one.rows * one.columns, math.inf if whole else one.stages - 1 - one.warpgroups
        return PipelineWork(
            blocks, self.resident, ahead, steps, longest, results * one.terms // 2048, self.loads,
            (one.rows + one.columns) * one.terms // 8, self.lines, one.terms // 16, one.warp_rows * one.warp_columns,
            results // 8, beside, one.warpgroups, kind, turns,
        )  # fmt: skip


@cache
def _pipelines(gpu: Gpu, *, across: tuple[bool, bool], copied: int, several: bool = False) -> tuple[_Pipeline, ...]:
    """Blocks that fit, whose warps multiply by themselves or, where there are such, in warpgroups.

    Args:
        gpu: The GPU.
        across: Whether operands are stored with their terms down, as `Pipeline` says.
        copied: How many runs a thread sends for at most.
        several: Whether there are blocks among them that make several tiles.
    """
    grouped = _warpgroup_pipelines(gpu, across=across, copied=copied, several=several) if gpu.has_warpgroups else ()
    return (*grouped, *_warp_pipelines(gpu, across=across, copied=copied))


def _warp_pipelines(gpu: Gpu, *, across: tuple[bool, bool], copied: int) -> Iterator[_Pipeline]:
    """Blocks whose warps multiply by themselves that fit; arguments as for `_pipelines`."""
    a_across, b_across = across
    for bm, bn, bk, mt, nt in itertools.product(_SIZES[2:], _SIZES, (16, 32, 64), (1, 2, 4), (2, 4, 8)):
        warps = bm // 16 // mt * (bn // 8 // nt)
        # Each thread copies the same columns of several rows, so that it computes an address once.
        rows = ((bk, bm) if a_across else (bm, bk)), ((bk, bn) if b_across else (bn, bk))
        threads, registers = 32 * warps, 4 * mt * nt + 2 * (4 * mt + 2 * nt) + _REGISTERS
        if not 2 <= warps <= 8 or bn // 8 % nt or any(threads % (columns // 8) for _, columns in rows):
            continue
        # The compiler needs some more than are counted here; beyond the limit it would spill to memory.
        if registers > gpu.registers_thread - 15:
            continue
        if sum(quotient(count, threads // (columns // 8)) for count, columns in rows) > copied:
            continue
        loads, lines = (
            warps * bk // 16 * (2 * mt + nt) // 2,
            sum(count * max(1, columns / 64) for count, columns in rows),
        )
        for stages in (3, 4):
            # Rows of an odd number of runs, which lie in different banks; at the end the same memory passes on the
            # results.
            shared = stages * 2 * sum(count * (columns // 8 | 1) * 8 for count, columns in rows)
            shared = max(shared, warps * 16 * (nt * 8 + (40 - nt * 8 % 32) % 32) * 4)
            if resident := gpu.resident(threads, registers, shared):
                tile = PipelinedTile(
                    rows=bm, columns=bn, terms=bk, warp_rows=mt, warp_columns=nt, blocks=0, threads=threads,
                    shared=shared, stages=stages,
                )  # fmt: skip
                yield _Pipeline(tile, resident, loads, lines)


def _warpgroup_pipelines(gpu: Gpu, *, across: tuple[bool, bool], copied: int, several: bool) -> Iterator[_Pipeline]:
    """Blocks of one or two warpgroups that fit, each of which makes mt times 64 rows; arguments as for `_pipelines`."""
    # A warpgroup multiplies 64 rows at a time, and reads both operands from shared memory, in layouts of 1,024 bytes.
    # Of equals, the first is taken: in convolutions the one whose warps have fewer results to bring out.
    most = (1, 2) if across[0] else (2, 1)
    for down, right, bk, mt, nt in itertools.product(most, (1, 2), (32, 64, 128), (1, 2), (4, 8, 16, 32)):
        bm, bn, threads = 64 * down * mt, 8 * nt * right, 128 * down * right
        registers = 4 * mt * nt + _REGISTERS + 32
        if down * right > 2 or (right > 1 and nt < 16) or registers > gpu.registers_thread - 15:
            continue  # side by side, they read the same rows: only where one could not make all columns
        rows = tuple((bk, n) if across else (n, bk) for n, across in zip((bm, bn), across, strict=True))
        if any(threads % (columns // 8) for _, columns in rows):
            continue
        if sum(quotient(count, threads // (columns // 8)) for count, columns in rows) > copied:
            continue
        loads = down * right * mt * bk // 16 * (4 + nt // 2)
        lines = sum(count * max(1, columns / 64) for count, columns in rows)
        for stages in (4, 6, 3, 2, 1):
            passed = threads // 32 * 16 * (8 * min(nt, 8) + (40 - 8 * min(nt, 8) % 32) % 32) * 4
            ahead = stages * 2 * (bm + bn) * bk + _ALIGNMENT
            tile = PipelinedTile(
                rows=bm, columns=bn, terms=bk, warp_rows=mt, warp_columns=nt, blocks=0, threads=threads,
                shared=max(ahead, passed), stages=stages, warpgroups=True,
            )  # fmt: skip
            if resident := gpu.resident(threads, registers, tile.shared):
                yield _Pipeline(tile, resident, loads, lines)
            # Of several tiles, results of one pass beside the operands of the next. All blocks are there from the
            # beginning to the end, so that the compiler is told how many have to fit; an operation says how many turns.
            needed = 4 * mt * nt + _REGISTERS + _READ_BEHIND * (not across[1])
            if several and (resident := gpu.resident(threads, needed, ahead + passed)):
                turning = replace(tile, shared=ahead + passed, resident=resident, turns=2)
                yield _Pipeline(turning, resident, loads, lines)


def _cycles(works: Sequence[tuple[_Pipeline, int, PipelineWork]], gpu: Gpu) -> Numbers:
    """Cycles that tiles take."""
    if not works:
        return ()
    together = PipelineWork(*map(np.array, zip(*(work for *_, work in works), strict=True)))
    costs = costs_on(gpu)
    # All candidates at once: NumPy scores thousands in the time in which Python scores a few.
    return np.where(together.warpgroups, together.cycles(gpu, costs.warpgroups), together.cycles(gpu, costs.pipelined))


@dataclass(frozen=True, kw_only=True)
class PipelinedTile(Tile):
    """Tile of a convolution or of its input gradient, as a product whose 16-bit operands are loaded ahead.

    Attributes:
        rows: Rows of a block: positions, or weights of a filter for a weight gradient.
        columns: Columns of a block: filters.
        terms: Terms of a step.
        warp_rows: Rows of fragments of a warp; of a warpgroup, rows of 64.
        warp_columns: Columns of fragments of a warp, or of a warpgroup.
        turns: Tiles that a block makes one after the other; while one goes out, the next is on its way.
    """

    has_template: ClassVar[bool] = True

    rows: int
    columns: int
    terms: int
    warp_rows: int
    warp_columns: int
    turns: int = 1

    @classmethod
    def works(cls, node: Node, gpu: Gpu) -> Iterator[tuple[_Pipeline, int, PipelineWork]]:
        """Blocks, splits and work of each tile that fits."""
        g, back = Geometry.of(node, phased=False), node.op.name == "conv2d_input_gradient"
        strides, dilation, (kh, kw) = node.attrs["strides"], node.attrs["dilation"], node.inputs[1].shape[:2]
        uneven = back and any(s > 1 and d > 1 for s, d in zip(strides, dilation, strict=True))
        if g.image.data_format != "NHWC" or g.c % 8 or g.f % 8 or uneven or max(kh, kw) > _MOST_TAPS:
            return
        rows, columns = phases(node)
        positions, launches = g.n * quotient(g.oh, rows) * quotient(g.ow, columns), costs_on(gpu).launches
        # Behind input gradients too much is read for several tiles to gain anything.
        large = not back and 2 * node.outputs[0].size > costs_on(gpu).limits.several * gpu.l2
        for block in _pipelines(gpu, across=(False, not back), copied=_COPIED[0], several=large):
            bm, bn, bk = block.tile.rows, block.tile.columns, block.tile.terms
            # More than half of such a block would be idle; a smaller one does the same.
            if bm >= 2 * positions + 64 or (bn > 16 and bn >= 2 * g.f) or (bk > 16 and bk >= 2 * g.c):
                continue
            down, right = quotient(positions, bm) * rows * columns, quotient(g.f, bn) * g.groups
            blocks = down * right
            steps = quotient(g.c, bk) * kh * kw / (rows * columns)  # of a phase, on average
            longest = quotient(g.c, bk) * quotient(kh, rows) * quotient(kw, columns)
            # Warpgroups multiply what is there as it arrives if a stage is a step: more stages are memory for nothing.
            most = longest if rows * columns == 1 else math.inf
            whole = block.tile.warpgroups and block.tile.stages == most
            if block.tile.turns > 1:
                # As many blocks as there is room for, or fewer that have as many tiles; their filters stay with them.
                room = gpu.multiprocessors * block.resident
                turns = quotient(down, max(1, room // right))
                blocks = quotient(down, turns) * right
                if whole and turns > 1 and blocks <= room:
                    yield block, 1, block.work(int(back), blocks, steps, longest, 0.0, whole=True, turns=turns)
                continue
            if whole or not block.tile.warpgroups or _STAGES <= block.tile.stages <= most:
                yield block, 1, block.work(int(back), blocks, steps, longest, 0.0, whole=whole)
            if block.tile.stages < _STAGES:
                continue
            for splits in (2, 4, 8):
                # Splitting pays only while blocks are too few for the GPU and still have terms enough to hide their
                # beginning.
                if steps * bk < 128 * splits or blocks * splits > 2 * gpu.multiprocessors:
                    break
                # A launch adds them up, and what could have followed the sums needs another.
                beside = 2 * launches.more + splits * node.outputs[0].size / launches.results
                shares = quotient(steps, splits), quotient(longest, splits)
                yield block, splits, block.work(int(back), blocks * splits, *shares, beside)

    @classmethod
    def candidates(cls, node: Node, gpu: Gpu, precision: str) -> list[Self]:
        """Tiles that fit of an operation, their scores the cycles that they take."""
        works = list(cls.works(node, gpu))
        return [cls._of(*work, precision, score) for work, score in zip(works, _cycles(works, gpu), strict=True)]

    @classmethod
    def best(cls, node: Node, gpu: Gpu, precision: str) -> Self | None:
        """The tile that takes the least time; None if there is none."""
        if not (works := list(cls.works(node, gpu))):
            return None
        scores = _cycles(works, gpu)
        least = int(np.argmin(scores))
        return cls._of(*works[least], precision, scores[least])

    @classmethod
    def least_alone(cls, node: Node, gpu: Gpu) -> float:
        """Cycles of the quickest tile, if no more were read behind an input gradient than behind a convolution.

        The constants of input gradients were fitted with what follows them, those of other tiles without.
        """
        works = [(block, splits, work._replace(kind=_FORWARD)) for block, splits, work in cls.works(node, gpu)]
        return float(min(_cycles(works, gpu), default=math.inf))

    @classmethod
    def _of(cls, block: _Pipeline, splits: int, work: PipelineWork, precision: str, score: float) -> Self:
        chosen = {
            "blocks": work.blocks, "splits": splits, "turns": work.turns, "precision": precision, "score": float(score),
        }  # fmt: skip
        return cls(**{**vars(block.tile), **chosen})

    def row_blocks(self, channels: int, groups: int) -> int:
        """Blocks that make the same channels of a convolution's result."""
        return self.blocks // (-(-channels // groups // self.columns) * groups)


@dataclass(frozen=True, kw_only=True)
class PipelinedWeightGradientTile(PipelinedTile):
    """Tile of a convolution's weight gradient, as such a product."""

    @classmethod
    def works(cls, node: Node, gpu: Gpu) -> Iterator[tuple[_Pipeline, int, PipelineWork]]:
        """See `PipelinedTile.works`."""
        attrs, axes = node.attrs, Axes.of(node.attrs["data_format"])
        (y, x), groups = (v.shape for v in node.inputs), attrs["groups"]
        f, c, (kh, kw) = y[axes.c] // groups, x[axes.c] // groups, attrs["kernel"]
        if attrs["data_format"] != "NHWC" or c % 8 or f % 8:
            return
        # A weight gradient is a product whose terms are the positions: long sums of few results, which blocks share.
        elements, positions, launches = kh * kw * c, y[axes.n] * y[axes.h] * y[axes.w], costs_on(gpu).launches
        for block in _pipelines(gpu, across=(True, True), copied=_COPIED[1]):
            bm, bn, bk = block.tile.rows, block.tile.columns, block.tile.terms
            few = block.tile.stages < _STAGES  # blocks have many steps
            if few or (bm > 64 and bm >= 2 * elements) or (bn > 16 and bn >= 2 * f):
                continue
            tiles, steps = quotient(elements, bm) * quotient(f, bn) * groups, quotient(positions, bk)
            for goal in (1, 2, 3, 4):
                each = quotient(steps, max(1, goal * gpu.multiprocessors // tiles))
                splits = quotient(steps, each)
                beside = splits * elements * f * groups / launches.gradients
                yield block, splits, block.work(_WEIGHTS, tiles * splits, each, each, beside)
