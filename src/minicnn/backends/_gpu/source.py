"""A kernel's text, in the language of an engine, and how it is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.program.graph import Value


@dataclass(frozen=True)
class Source:
    """A kernel's text and how it is launched.

    Attributes:
        text: What defines a kernel named "kernel".
        arguments: Values whose memory it takes, in order; then come, if `queued`, the cursor and an offset.
        queued: Whether it reads inputs of which there is one row a step.
        blocks: Blocks.
        threads: Threads of a block.
        title: The operations in it.
        shared: Bytes of shared memory of a block that the text does not declare.
        settled: Of each pointer among its arguments, if it is known: see `Writer.is_settled`.
        overlaps: Whether it may be in place before the launch ahead of it has ended.
    """

    text: str
    arguments: tuple[Value, ...]
    queued: bool
    blocks: int
    threads: int
    title: str
    shared: int = 0
    settled: tuple[bool, ...] = ()
    overlaps: bool = True

    @property
    def signature(self) -> tuple[str, ...]:
        """Types of its arguments: see `KernelText`."""
        kinds = [*(v.dtype for v in self.arguments), *["int32"] * self.queued]
        settled = self.settled or [False] * len(kinds)
        pointers = (f"{'const ' * fixed}{kind}*" for kind, fixed in zip(kinds, settled, strict=True))
        return (*pointers, *["int32"] * self.queued)


# What writes the kernel of a launch: its plan, its fusion groups, the ids of inputs of which there
# is one row a step, and the threads of a block unless a tile says otherwise.
Generate = Callable[[Plan, Sequence[FusionGroup], set[int], int], Source]
