"""Plans of Programs for GPUs that need not be there: launches with their kernels, times and roofs.

`minicnn plan` prints them.
"""

from __future__ import annotations

from minicnn.backends._gpu.device import KNOWN, Gpu
from minicnn.backends._gpu.planning import PlannedLaunch, PlannedStep, planned
from minicnn.backends.cupy.generation import generate
from minicnn.backends.webgpu import devices, generation
from minicnn.backends.webgpu.tiles import WebGpuTiles
from minicnn.kernels import words
from minicnn.program import Program

__all__ = ["GPUS", "Gpu", "PlannedLaunch", "PlannedStep", "in_words", "plan"]


GPUS = {**KNOWN, **devices.KNOWN}


def plan(program: Program, gpu: str | Gpu) -> PlannedStep:
    """Plan a Program as the backend `cupy` would run it, or `webgpu` on a GPU that is not NVIDIA's.

    Args:
        program: The Program, such as `model.program("train", batch_size=128)`; it is left as it is.
        gpu: A GPU, or its name among `GPUS`.

    Raises:
        ValueError: For a name that is not known.
    """
    if isinstance(gpu, str):
        if gpu not in GPUS:
            raise ValueError(
                f"A GPU is described by a Gpu, or known by name: {', '.join(GPUS)}. Received: {gpu!r:.80}. Choose one."
            )
        gpu = GPUS[gpu]
    if gpu.has_cuda:
        return planned(program.copy(), gpu, generate)
    return planned(program.copy(), gpu, generation.generate, tiles=WebGpuTiles(gpu))


def in_words(launch: PlannedLaunch) -> str:
    """The kernel of a launch, printed for people; `launch.source.text` is what is compiled."""
    return words.text(launch.kernel)
