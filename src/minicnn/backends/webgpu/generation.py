"""A kernel's text in WGSL, from its statements."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.source import Source
from minicnn.backends.webgpu.printer import Wgsl


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
    """The kernel of a launch: see `Generate`."""
    kernel, values = lowered(plan, launch, queued, threads)
    blocks = sum(part.blocks for part in kernel.parts)
    return Source(Wgsl(kernel).module(), tuple(values), kernel.queued, blocks, kernel.threads, named(launch))
