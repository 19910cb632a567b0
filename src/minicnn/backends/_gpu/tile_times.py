"""How long a launch on tensor cores takes: a small model of a multiprocessor, for many candidates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.backends._gpu.tiling import MOST_SHARED, MULTIPROCESSORS, Tile

REGISTERS, MOST_REGISTERS = 65536, 232  # of a multiprocessor, of a thread

# C++ type, 16-bit parts of an operand and products of parts, of each precision of products.
PRECISIONS = MappingProxyType(
    {"float32": ("Float32", 2, 3), "bfloat16": ("Bfloat16", 1, 1), "float16": ("Float16", 1, 1)}
)

Numbers = Any  # an int, or an array with an element for each candidate


def quotient(a: Numbers, b: Numbers) -> Numbers:
    """How many times b are needed for a."""
    return -(-a // b)


@dataclass(frozen=True)
class Costs:
    """Cycles, as fitted to the times of tiles on an H200; of a multiprocessor unless they are said to pass alone.

    Attributes:
        mma: A product of fragments.
        load: Loading four matrices.
        transposed: Loading four matrices that lie across.
        run: Eight elements on their way to shared memory.
        staged: An element that is staged before.
        stage: Alone, before what is staged can be read.
        stage_each: Alone, for each element that a thread stages.
        answer: Alone, until memory answers.
        more: Alone, for three runs that a thread has no registers for.
        fragment: Alone, of a product of fragments.
        fragments: The same, for each of several that do not depend on each other.
        step: Alone, of 16 terms of a sum, beside the products.
        halving: To add a result of another slice.
        stored: 32 results on their way out.
        result: Alone, for each result of a thread.
        block: To begin and end a block.
        first: The share of a block in the time when not all blocks are there yet, or not any more.
        patience: How many warps' worth of units nobody uses while all wait.
        launch: Alone, before and after all blocks.
        registers: Of a thread, beside fragments and sums.
    """

    mma: float
    load: float
    transposed: float
    run: float
    staged: float
    stage: float
    stage_each: float
    answer: float
    more: float
    fragment: float
    fragments: float
    step: float
    halving: float
    stored: float
    result: float
    block: float
    first: float
    patience: float
    launch: float
    registers: float


# From 1,600 tiles of 40 convolutions and input gradients, 900 of 26 weight gradients and 900 of 21 products.
CONVOLUTION = Costs(
    mma=1.44, load=4.25, transposed=3.4, run=2.06, staged=0.454, stage=287, stage_each=99, answer=1565, more=2489,
    fragment=25, fragments=15.5, step=20, halving=6.4, stored=0.126, result=106, block=50, first=0.243,
    patience=0, launch=1614, registers=43,
)  # fmt: skip
WEIGHT_GRADIENT = Costs(
    mma=2.31, load=2.24, transposed=2.97, run=1.12, staged=0.417, stage=10, stage_each=1.06, answer=1130, more=1770,
    fragment=59.3, fragments=4.29, step=98, halving=2.28, stored=0.656, result=64.4, block=681, first=0.02,
    patience=3.31, launch=1000, registers=103,
)  # fmt: skip
PRODUCT = Costs(
    mma=1.58, load=1.9, transposed=3.58, run=0.784, staged=0, stage=0, stage_each=0, answer=1980, more=4000,
    fragment=35.2, fragments=6.5, step=99.5, halving=7.05, stored=4.0, result=1.01, block=168, first=0.39,
    patience=4.32, launch=1270, registers=79.7,
)  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """Candidates for the blocks of a launch.

    Attributes:
        blocks: How many.
        threads: Threads of one.
        shared: Bytes of shared memory of one.
        m: Rows of fragments of a warp.
        n: Columns of fragments of a warp.
        slices: Groups of warps that share the terms of a sum.
        passes: How often shared memory is filled.
        steps: Of 16 terms each, of a pass.
        left: Cycles of loading four matrices of the left operand, with the conflicts of banks.
        right: The same for the right operand.
        runs: Runs of eight elements that a pass fills, of both operands.
        staged: Elements that a pass stages before, 0 if none.
    """

    blocks: Numbers
    threads: Numbers
    shared: Numbers
    m: Numbers
    n: Numbers
    slices: Numbers
    passes: Numbers
    steps: Numbers
    left: Numbers
    right: float
    runs: tuple[Numbers, Numbers]
    staged: Numbers = 0

    def cycles(self, costs: Costs, precision: str) -> Numbers:
        """Cycles of the launch; infinity if a block does not fit."""
        _, parts, products = PRECISIONS[precision]
        fragments, each = self.m * self.n, quotient(self.blocks, MULTIPROCESSORS)
        registers = costs.registers + 4 * fragments + parts * (4 * self.m + 2 * self.n)
        registers = quotient(registers, 8) * 8
        resident = np.minimum(2048 // self.threads, REGISTERS // (self.threads * registers))
        resident = np.minimum(np.minimum(resident, MOST_SHARED // (self.shared + 1024)), 24)
        loads = self.m * self.left + self.n / 2 * self.right
        multiplied = np.maximum(fragments * products * costs.mma, loads * parts)
        multiplied = self.steps * (self.threads // 32 // self.slices) * multiplied
        depth = products * np.maximum(costs.fragment, fragments * costs.fragments) + costs.step
        filled = sum(self.runs) * costs.run + self.staged * costs.staged
        answers, more = 1.0, 0.0
        for runs in self.runs:  # a thread has registers for six of each
            own = quotient(runs, self.threads)
            answers = answers + np.maximum(0, quotient(own, 6) - 1)
            more = more + quotient(np.maximum(0, own - 6), 3)
        waiting = answers * costs.answer + more * costs.more
        waiting = waiting + (self.staged > 0) * costs.stage + quotient(self.staged, self.threads) * costs.stage_each
        ending = np.log2(self.slices) * (4 * fragments * costs.halving + 60)
        ending = ending + fragments * self.threads / self.slices / 8 * costs.stored
        busy = self.passes * (multiplied + filled) + ending + costs.block
        alone = self.passes * (np.maximum(multiplied, quotient(self.steps, self.slices) * depth) + filled + waiting)
        alone = alone + ending + 4 * fragments * costs.result
        resident, fits = np.maximum(resident, 1), (resident >= 1) & (registers <= MOST_REGISTERS)
        busy = busy * (1 + costs.patience / (np.minimum(each, resident) * self.threads / 32))
        cycles = np.maximum(each * busy, quotient(each, resident) * alone) + costs.first * busy
        return np.where(fits, cycles + costs.launch, math.inf)

    def tile(self, k: int, kind: str, numbers: tuple[int, ...], parts: int = 1, score: float = 0.0) -> Tile:
        """The tile of candidate k."""
        blocks, threads, shared = (int(of[k]) for of in (self.blocks, self.threads, self.shared))
        return Tile(kind, blocks, threads, parts, numbers, shared, score=score)
