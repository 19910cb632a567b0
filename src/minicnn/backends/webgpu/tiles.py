"""Tiles in WGSL: the plain ones, for types that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicnn.backends._gpu.fusion_groups import FusionGroup
from minicnn.backends._gpu.plain_tiling import PlainTiles
from minicnn.program.graph import Node

LACKING = ("float64", "int64", "uint64", "bfloat16")


@dataclass(frozen=True)
class WebGpuTiles(PlainTiles):
    """Plain tiles. See `PlainTiles`."""

    def unsupported(self, node: Node) -> str | None:
        """See `Tiles.unsupported`."""
        lacking = [v.dtype for v in (*node.inputs, *node.outputs) if v.dtype in LACKING]
        return f"WGSL has no {lacking[0]}" if lacking else super().unsupported(node)

    def shared(self, groups: Sequence[FusionGroup]) -> tuple[int, int]:
        """See `Tiles.shared`; all of it is declared."""
        return super().shared(groups)[1], 0
