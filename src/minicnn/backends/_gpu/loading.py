"""Planning again with smaller tiles, when a kernel does not load although it was planned to fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from minicnn.backends._gpu.costs import unfitted
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import KB, SHARED_BLOCKS, Gpu
from minicnn.backends._gpu.errors import FitError, explanation
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends._gpu.tiles import Tiles
from minicnn.program.graph import Program

T = TypeVar("T")


class Planner(Protocol):
    """Planner of steps.

    Attributes:
        tiles: Where tiles come from.
    """

    tiles: Tiles


def load(planner: Planner, program: Program, make: Callable[[Program], T]) -> T:
    """Make something of a Program, which `make` may change; with smaller tiles while a kernel does not load.

    Smaller tiles are kept: whatever is planned afterwards has them, too.

    Raises:
        FitError: If kernels do not load even with the smallest.
    """
    # Planning rewrites in place, and a second attempt needs the Program as it was.
    whole = program.copy()
    while True:
        try:
            return make(program)
        except FitError:
            gpu = planner.tiles.gpu
            # What the driver grants may be less than it says, as where another process shares the GPU: one size of real
            # devices after the other, down to what every block gets.
            sizes = (*SHARED_BLOCKS, gpu.shared_unasked)  # of a block, which others have
            less = next((size for size in sizes if size < gpu.shared_block), None)
            if less is None:
                raise
            planner.tiles = replace(planner.tiles, gpu=replace(gpu, shared_block=less))
            program = whole.copy()


def load_all(
    gpu: Gpu, texts: Sequence[KernelText], codes: Sequence[bytes], load_one: Callable[[KernelText, bytes], T]
) -> list[T]:
    """Kernels of some texts; of those that are alike, as layers of one shape have them, one is loaded for all.

    Args:
        gpu: The GPU.
        texts: The texts.
        codes: Their machine code.
        load_one: What loads one.

    Raises:
        FitError: If the blocks of one do not fit.
    """
    kernels: dict[Hashable, T] = {}
    for text, code in zip(texts, codes, strict=True):
        if (key := (text.text, text.threads, text.shared, text.overlaps)) not in kernels:
            check(gpu, text.title, text.threads, text.shared, code)
            kernels[key] = load_one(text, code)
    return [kernels[text.text, text.threads, text.shared, text.overlaps] for text in texts]


def check(gpu: Gpu, title: str, threads: int, shared: int, code: bytes) -> None:
    """Refuse a kernel whose blocks do not fit, by what its machine code says of it.

    Args:
        gpu: The GPU.
        title: What the kernel does.
        threads: Threads of a block.
        shared: Bytes of shared memory that it is launched with.
        code: Its machine code.

    Raises:
        FitError: If they do not.
    """
    needs = resources(code)
    misfit = gpu.misfit(threads, needs.registers, needs.shared + shared)
    if misfit is not None:
        received = f"OUT_OF_RESOURCES, {misfit}"
        raise explanation(received, title)


def notes(gpu: Gpu, tiles: Tiles) -> str:
    """Remarks of `explain` behind a tile: that the model was not fitted, and that tiles had to be smaller."""
    less = tiles.gpu.shared_block
    smaller = f", smaller than planned: with more than {less // KB} KB of shared memory a kernel did not load"
    return unfitted(gpu) + (smaller if less < gpu.shared_block else "")
