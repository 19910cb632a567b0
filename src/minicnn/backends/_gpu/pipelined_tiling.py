"""Sizes of the tiles of `pipelined.cuh`: those that take the least time, by a model not yet fitted to times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tile_times import quotient
from minicnn.backends._gpu.tiling import Geometry, Tile, phases
from minicnn.ops.windows import Axes
from minicnn.program.graph import Node

# Cycles: to load four matrices, 512 bytes of shared memory at 128 a cycle; to begin a step and to wait for others after
# it; of a step in flight, from memory to shared memory; of 8 results on their way out, through shared memory. Registers
# of a thread beside fragments and sums, as compiled kernels have them.
_LOAD, _STEP, _LATENCY, _RESULTS, _REGISTERS = 4.0, 100, 900, 1.2, 48
_COPIED = 16  # runs that a thread sends for in a step, at most
_SIZES = (16, 32, 64, 128, 256)


def _pipelines(gpu: Gpu, *, across: tuple[bool, bool]) -> Iterator[tuple[tuple[int, ...], int, int, float, float]]:
    """Sizes (BM, BN, BK, MT, NT, STAGES), threads, shared memory; cycles of a step: of a multiprocessor, and alone.

    Args:
        gpu: The GPU.
        across: Whether operands are stored with their terms down, as `Pipeline` says.
    """
    costs = costs_on(gpu).product
    a_across, b_across = across
    for bm, bn, bk, mt, nt in itertools.product(_SIZES[2:], _SIZES, (16, 32, 64), (1, 2, 4), (2, 4, 8)):
        warps = bm // 16 // mt * (bn // 8 // nt)
        rows = ((bk, bm) if a_across else (bm, bk)), ((bk, bn) if b_across else (bn, bk))
        threads = 32 * warps
        if not 2 <= warps <= 8 or bn // 8 % nt or any(threads % (columns // 8) for _, columns in rows):
            continue
        copied = sum(quotient(count, threads // (columns // 8)) for count, columns in rows)
        if copied > _COPIED or _registers(mt, nt) > gpu.registers_thread - 15:
            continue
        multiplied = bm // 16 * (bn // 8) * (bk // 16) * costs.mma
        loaded = warps * (bk // 16) * (mt + nt / 2) * _LOAD
        filled = (bm + bn) * bk / 8 * costs.run
        depth = bk // 16 * max(costs.fragment, mt * nt * costs.fragments) + _STEP
        for stages in (3, 4):
            shared = stages * 2 * sum(count * (columns // 8 | 1) * 8 for count, columns in rows)
            shared = max(shared, warps * 16 * (nt * 8 + (40 - nt * 8 % 32) % 32) * 4)
            alone = max(depth, _LATENCY / (stages - 1))
            yield (bm, bn, bk, mt, nt, stages), threads, shared, max(multiplied, loaded, filled), alone


def _registers(mt: int, nt: int) -> int:
    """Registers of a thread: sums, the fragments that are multiplied and those that are loaded, and what else there is."""
    return 4 * mt * nt + 2 * (4 * mt + 2 * nt) + _REGISTERS


def _cycles(
    gpu: Gpu, sizes: tuple[int, ...], threads: int, shared: int, blocks: int, busy: float, alone: float
) -> float:
    """Cycles of a launch, given those of all steps of a block; infinity if it does not fit."""
    bm, bn, _, mt, nt, _ = sizes
    resident = gpu.resident(threads, _registers(mt, nt), shared)
    if not resident:
        return math.inf
    each, ending = quotient(blocks, gpu.multiprocessors), bm * bn / 8 * _RESULTS
    costs = costs_on(gpu).product
    return float(
        max(each * (busy + ending), quotient(each, resident) * (alone + _LATENCY + ending)) + _LATENCY + costs.launch
    )


def convolution(node: Node, gpu: Gpu, precision: str) -> Tile | None:
    """The best tile of conv2d or conv2d_input_gradient; None if there is none."""
    return min(convolutions(node, gpu, precision), key=_score, default=None)


def weight_gradient(node: Node, gpu: Gpu, precision: str) -> Tile | None:
    """The best tile of conv2d_weight_gradient; None if there is none."""
    return min(weight_gradients(node, gpu, precision), key=_score, default=None)


def _score(tile: Tile) -> float:
    return tile.score


def row_blocks(node: Node, tile: Tile) -> int:
    """Blocks of the tile of a convolution that make the same channels."""
    groups = node.attrs["groups"]
    return tile.blocks // (quotient(node.outputs[0].shape[3] // groups, tile.sizes[1]) * groups)


def convolutions(node: Node, gpu: Gpu, precision: str) -> Iterator[Tile]:
    """Tiles that fit of conv2d or conv2d_input_gradient, their scores the cycles that they take."""
    g, back = Geometry.of(node, phased=False), node.op.name == "conv2d_input_gradient"
    strides, dilation = node.attrs["strides"], node.attrs["dilation"]
    uneven = back and any(s > 1 and d > 1 for s, d in zip(strides, dilation, strict=True))
    if g.image.data_format != "NHWC" or g.c % 8 or g.f % 8 or uneven:
        return
    rows, columns = phases(node)
    kh, kw = node.inputs[1].shape[:2]
    positions, launches = g.n * quotient(g.oh, rows) * quotient(g.ow, columns), costs_on(gpu).launches
    for sizes, threads, shared, busy, alone in _pipelines(gpu, across=(False, not back)):
        bm, bn, bk, *_ = sizes
        if bm >= 2 * positions + 64 or (bn > 16 and bn >= 2 * g.f) or (bk > 16 and bk >= 2 * g.c):
            continue
        blocks = quotient(positions, bm) * quotient(g.f, bn) * g.groups * rows * columns
        steps = quotient(g.c, bk) * kh * kw / (rows * columns)  # of a phase, on average
        for splits in (1, 2, 4, 8):
            if splits > 1 and (steps < 8 * splits or blocks * splits > 2 * gpu.multiprocessors):
                break
            each = steps if splits == 1 else quotient(steps, splits)
            cycles = _cycles(gpu, sizes, threads, shared, blocks * splits, each * busy, each * alone)
            if splits > 1:  # a launch adds them up, and what could have followed the sums needs another
                cycles += 2 * launches.more + splits * node.outputs[0].size / launches.results
            if cycles < math.inf:
                numbers = (*sizes, splits)
                yield Tile(numbers, blocks * splits, threads, splits, precision, shared, stages=sizes[-1], score=cycles)


def weight_gradients(node: Node, gpu: Gpu, precision: str) -> Iterator[Tile]:
    """Tiles that fit of conv2d_weight_gradient, their scores the cycles that they take."""
    attrs, axes = node.attrs, Axes.of(node.attrs["data_format"])
    (y, x), groups = (v.shape for v in node.inputs), attrs["groups"]
    f, c, (kh, kw) = y[axes.c] // groups, x[axes.c] // groups, attrs["kernel"]
    if attrs["data_format"] != "NHWC" or c % 8 or f % 8:
        return
    elements, positions, launches = kh * kw * c, y[axes.n] * y[axes.h] * y[axes.w], costs_on(gpu).launches
    for sizes, threads, shared, busy, alone in _pipelines(gpu, across=(True, True)):
        bm, bn, bk, *rest = sizes
        if (bm > 64 and bm >= 2 * elements) or (bn > 16 and bn >= 2 * f):
            continue
        tiles, steps = quotient(elements, bm) * quotient(f, bn) * groups, quotient(positions, bk)
        for goal in (1, 2, 3, 4):
            each = quotient(steps, max(1, goal * gpu.multiprocessors // tiles))
            splits = quotient(steps, each)
            cycles = _cycles(gpu, sizes, threads, shared, tiles * splits, each * busy, each * alone)
            cycles += splits * elements * f * groups / launches.gradients
            if cycles < math.inf:
                numbers = (bm, bn, bk, *rest, splits)
                yield Tile(numbers, tiles * splits, threads, splits, precision, shared, stages=rest[-1], score=cycles)
