"""The constants of the model of tile times, fitted to times on an H200, and what they become on another GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minicnn.backends._gpu.device import H200, Gpu

FITTED = H200  # where the tiles were timed
MOST_BLOCKS = 24  # of a multiprocessor: more do not help
SPARE_REGISTERS = 23  # of a thread, by which the compiler may need more than the model thinks
LAUNCH = 4500.0  # cycles of a launch that nothing else needs


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


def costs_on(gpu: Gpu, fitted: Costs) -> Costs:
    """Constants for a GPU: products of fragments take as long as its tensor cores are slow, all else stays."""
    slower = FITTED.tensor / gpu.tensor
    return replace(fitted, mma=fitted.mma * slower, fragments=fitted.fragments * max(1.0, slower))


def unfitted(gpu: Gpu) -> str:
    """What to say of sizes that the model chose for a GPU to which it was not fitted; nothing if it was."""
    return (
        ""
        if FITTED.name in gpu.name or gpu.name == "simulator"
        else f", sizes by a model that was not fitted to {gpu.name}"
    )
