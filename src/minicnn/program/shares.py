"""Shares of a merged kernel's time that its nodes have."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.program.graph import Node

RIDGE = 10  # FLOP that take as long as moving a byte; from 8 to 20 on a CPU and on a GPU in float32


def shares(nodes: Sequence[Node]) -> list[float]:
    """Shares of nodes in the time of a kernel, by what each would take at a roof with its ridge at `RIDGE`."""
    weights = [max(node.cost.flops, RIDGE * node.cost.bytes) for node in nodes]
    return [w / sum(weights) if any(weights) else 1 / len(nodes) for w in weights]
