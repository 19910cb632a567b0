"""A kernel's text in WGSL, from its statements."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup, named
from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.source import Source
from minicnn.backends.webgpu.module import Module
from minicnn.backends.webgpu.printer import Wgsl
from minicnn.kernels.statements import Kernel, Shared


def generate(plan: Plan, launch: Sequence[FusionGroup], queued: set[int], threads: int) -> Source:
    """The kernel of a launch: see `Generate`."""
    kernel, values = lowered(plan, launch, queued, threads)
    blocks = sum(part.blocks for part in kernel.parts)
    return Source(_text(kernel), tuple(values), kernel.queued, blocks, kernel.threads, named(launch))


def _text(kernel: Kernel) -> str:
    module, parts = Module(kernel), list[str]()
    wgsl = Wgsl(module)
    for number, part in enumerate(kernel.parts):
        for statement in part.statements:
            if isinstance(statement, Shared):  # known before anything reads it
                module.share(statement.array)
        parts += map(wgsl.function, part.functions)
        parts.append(
            f"// {part.title}\nfn part{number}(block: u32, thread: u32) {{\n{wgsl.lines(part.statements, 1)}}}\n"
        )
    return module.text(parts)
