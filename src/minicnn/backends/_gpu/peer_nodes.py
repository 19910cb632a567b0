"""Sums over ranks as operations of a step's kernels, which goes on with what comes back without another launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from minicnn.backends._gpu.row_regions import kernel_only
from minicnn.program.graph import Node, Spec, Value

# Element i of the summand goes to all ranks, which never waits; the result is the number of the round.
GIVE = kernel_only("give_to_ranks")
# What all ranks give in a round, summed in the order of their tree. Both may be computed twice: the same words come.
SUM = kernel_only("sum_over_ranks")
ROUND = "round of sums"  # input that counts the steps, of all who share a window
ROUNDS = Spec((4,), "uint32")  # of which the first counts, so that it fills 16 bytes
RESIDENT = 1024  # threads of a multiprocessor for which the compiler leaves registers in a launch that waits


def places_name(number: int) -> str:
    """Name of the input that has the addresses of a sum."""
    return f"places of sum {number}"


def half(sums: Sequence[Spec], ranks: int) -> int:
    """Bytes of the words of all ranks in one round, from which the next one keeps apart."""
    return sum(_row(spec) for spec in sums) * ranks


def places(sums: Sequence[Spec], windows: Sequence[int], half: int, ended: int, rank: int) -> np.ndarray[Any, Any]:
    """Addresses of sums, a row for each of them.

    Args:
        sums: What is summed.
        windows: Addresses of the ranks' windows.
        half: Bytes of a half of each.
        ended: Address of the host's word that ends all waiting.
        rank: This rank.
    """
    ranks, rows = len(windows), []
    starts = accumulate((_row(spec) * ranks for spec in sums), initial=0)
    for spec, start in zip(sums, starts, strict=False):
        others = [window + start + rank * _row(spec) for window in windows]
        own = [windows[rank] + start + r * _row(spec) for r in range(ranks)]
        rows.append([half, ended, *others, *own])
    return np.array(rows, "uint64")


def _row(spec: Spec) -> int:
    """Bytes of the words of a rank, each of which comes with the number of its round."""
    return 2 * spec.nbytes


def late_waits(nodes: Sequence[Node], leaves: Callable[[Node], Sequence[Value]]) -> list[Node]:
    """Nodes in an order in which all is given to others that can be, before any of it is waited for.

    All else comes behind the last wait: the compiler makes one instruction of a product and an addition unless there
    is a wait between them, and would round otherwise.

    Args:
        nodes: Nodes of a thread, in an order in which they can be computed.
        leaves: Gives what a node reads, perhaps through others.
    """
    maker = {id(v): node for node in nodes for v in node.outputs}
    needs: dict[int, set[int]] = {}  # places of what a node waits for, itself included
    depth: dict[int, int] = {}  # waits before a node
    for k, node in enumerate(nodes):
        before = [maker[id(v)] for v in leaves(node) if id(v) in maker]
        needs[id(node)] = {k}.union(*(needs[id(n)] for n in before))
        depth[id(node)] = max((depth[id(n)] + (n.op is SUM) for n in before), default=0)
    order = list[int]()
    for level in range(1 + max(depth.values(), default=0)):
        for op in (GIVE, SUM):
            wanted = [node for node in nodes if node.op is op and depth[id(node)] == level]
            order += sorted(set().union(*(needs[id(node)] for node in wanted)) - set(order))
    order += sorted(set(range(len(nodes))) - set(order))
    return [nodes[k] for k in order]
