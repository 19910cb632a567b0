"""How long a launch on tensor cores takes: a small model of a multiprocessor, for many candidates at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.backends._cuda.tiling import MOST_SHARED, MULTIPROCESSORS, Tile

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
    launch: float
    registers: float


# From 1,400 tiles of 41 convolutions and input gradients, 800 of 26 weight gradients and 700 of 21 products.
CONVOLUTION = Costs(
    mma=1.44, load=4.25, transposed=3.4, run=2.06, staged=0.454, stage=287, stage_each=99, answer=1565, more=2489,
    fragment=25, fragments=15.5, step=20, halving=6.4, stored=0.126, result=106, block=50, first=0.243, launch=1614,
    registers=43,
)  # fmt: skip
WEIGHT_GRADIENT = Costs(
    mma=2.48, load=2.58, transposed=5.46, run=0.97, staged=0.205, stage=573, stage_each=138, answer=431, more=2263,
    fragment=59, fragments=18.7, step=199, halving=11.7, stored=1.99, result=5.2, block=798, first=0.02, launch=1001,
    registers=90,
)  # fmt: skip
PRODUCT = Costs(
    mma=1.85, load=2.78, transposed=4.74, run=1.3, staged=0, stage=0, stage_each=0, answer=1823, more=3446,
    fragment=44.9, fragments=10.3, step=93, halving=8.2, stored=2.0, result=60, block=363, first=0.037, launch=1182,
    registers=50,
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
        cycles = np.maximum(each * busy, quotient(each, np.maximum(resident, 1)) * alone) + costs.first * busy
        return np.where((resident < 1) | (registers > MOST_REGISTERS), math.inf, cycles + costs.launch)

    def tile(self, k: int, kind: str, numbers: tuple[int, ...], parts: int = 1, score: float = 0.0) -> Tile:
        """The tile of candidate k."""
        blocks, threads, shared = (int(of[k]) for of in (self.blocks, self.threads, self.shared))
        return Tile(kind, blocks, threads, parts, numbers, shared, score=score)
