"""Modelled time of a launch on tensor cores: a small model of a multiprocessor, for many candidates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import SPARE_REGISTERS, Costs
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tiling import SCALE_SHARED, SUM_SHARED

# 16-bit numbers whose sum is an operand, and products of those, of each precision of products.
PRECISIONS = MappingProxyType({"float32": (2, 3), "bfloat16": (1, 1), "float16": (1, 1)})

Numbers = Any  # an int, or an array with an element for each candidate


def quotient(a: Numbers, b: Numbers) -> Numbers:
    """Quotient a / b, rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Blocks:
    """Candidates for the blocks of a launch."""

    blocks: Numbers  # how many
    threads: Numbers  # threads of one
    shared: Numbers  # bytes of shared memory of one
    m: Numbers  # rows of fragments of a warp
    n: Numbers  # columns of fragments of a warp
    slices: Numbers  # groups of warps that share the terms of a sum
    passes: Numbers  # how often shared memory is filled
    steps: Numbers  # of 16 terms each, of a pass
    left: Numbers  # how often loading four matrices of the left operand asks the same banks
    across: tuple[Numbers, Numbers]  # whether the matrices of the left and of the right operand lie across
    runs: tuple[Numbers, Numbers]  # runs of eight elements that a pass fills, of both operands
    staged: Numbers = 0  # elements that a pass stages before, 0 if none

    def cycles(self, gpu: Gpu, costs: Costs, precision: str) -> Numbers:
        """Cycles of the launch on a GPU; infinity if a block does not fit."""
        planes, products = PRECISIONS[precision]
        fragments, each = self.m * self.n, quotient(self.blocks, gpu.multiprocessors)
        registers = costs.registers + 4 * fragments + planes * (4 * self.m + 2 * self.n)
        # The device hands out registers eight at a time.
        registers = quotient(registers, 8) * 8
        # What is scarcest limits how many blocks hide each other's waiting.
        resident = np.minimum(gpu.threads_multiprocessor // self.threads, gpu.registers // (self.threads * registers))
        resident = np.minimum(resident, gpu.shared_multiprocessor // (self.shared + gpu.shared_reserved))
        resident = np.minimum(resident, min(costs.resident, gpu.blocks_multiprocessor))
        left, right = (np.where(across, costs.transposed, costs.load) for across in self.across)
        loads = self.m * (left * self.left) + self.n / 2 * right
        # Loading fragments and multiplying them go on at the same time: the slower of both counts.
        multiplied = np.maximum(fragments * products * costs.mma, loads * planes)
        multiplied = self.steps * (self.threads // 32 // self.slices) * multiplied
        depth = products * np.maximum(costs.fragment, fragments * costs.fragments) + costs.step
        filled = sum(self.runs) * costs.run + self.staged * costs.staged
        reads, more = 1.0, 0.0
        for runs in self.runs:  # a thread has registers for six of each
            thread_runs = quotient(runs, self.threads)
            reads = reads + np.maximum(0, quotient(thread_runs, 6) - 1)
            more = more + quotient(np.maximum(0, thread_runs - 6), 3)
        waiting = reads * costs.latency + more * costs.more
        waiting = waiting + (self.staged > 0) * costs.stage + quotient(self.staged, self.threads) * costs.stage_each
        ending = np.log2(self.slices) * (4 * fragments * costs.halving + costs.barrier)
        ending = ending + fragments * self.threads / self.slices / 8 * costs.stored
        # Two times for a block: `busy` is what it takes of the multiprocessor, whatever others do meanwhile, and
        # `alone` what passes if nobody else is there. The launch takes the longer of all the work and of the rounds
        # that wait.
        busy = self.passes * (multiplied + filled) + ending + costs.block
        alone = self.passes * (np.maximum(multiplied, quotient(self.steps, self.slices) * depth) + filled + waiting)
        alone = alone + ending + 4 * fragments * costs.result
        fits = (resident >= 1) & (registers <= gpu.registers_thread - SPARE_REGISTERS)
        fits &= self.shared + SUM_SHARED + SCALE_SHARED <= gpu.shared_block
        resident = np.maximum(resident, 1)
        busy = busy * (1 + costs.patience / (np.minimum(each, resident) * self.threads / 32))
        cycles = np.maximum(each * busy, quotient(each, resident) * alone) + costs.first * busy
        # Infinity rather than a mask: the minimum of all candidates is then one that fits.
        return np.where(fits, cycles + costs.launch, math.inf)


@dataclass(frozen=True)
class Candidates:
    """Tiles to choose from."""

    work: Blocks  # of their blocks
    tiles: Tile  # in which numbers that differ are arrays
    beside: Numbers = 0.0  # cycles of adding up partial sums

    def cycles(self, gpu: Gpu, costs: Costs, precision: str) -> Numbers:
        """Cycles of each on a GPU; infinity if it does not fit."""
        return self.work.cycles(gpu, costs, precision) + self.beside

    def tile(self, k: int, precision: str, score: float = 0.0) -> Tile:
        """The tile of candidate k."""
        numbers = {f.name: getattr(self.tiles, f.name) for f in fields(self.tiles)}
        chosen: dict[str, Any] = {name: int(of[k]) for name, of in numbers.items() if isinstance(of, np.ndarray)}
        return replace(self.tiles, **chosen, precision=precision, score=score)

    def best(self, gpu: Gpu, costs: Costs, precision: str) -> Tile | None:
        """The tile that takes the least time, its score the cycles; None if none fits."""
        cycles = self.cycles(gpu, costs, precision)
        k = int(np.argmin(cycles))
        return None if cycles[k] == math.inf else self.tile(k, precision, float(cycles[k]))
