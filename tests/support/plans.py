"""Plans of Programs for GPUs, as the engines make them."""

from __future__ import annotations

from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.tiles import Tiles
from minicnn.program import Program

MULTIPLY_ADDS = Tiles(H200)


def plan_of(program: Program, tiles: Tiles = MULTIPLY_ADDS, *, fuse: bool = True, tiled: bool = True) -> Plan:
    """The plan of a Program, which is rewritten in place."""
    rewritten = rewrite(program, tiles=tiles, fuse=fuse, tiled=tiled)
    return Plan(rewritten, tiles=tiles, fuse=fuse, tiled=tiled)
