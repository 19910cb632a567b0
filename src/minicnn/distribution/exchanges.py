"""Collectives between shards of which each rank has several: what goes to whom, on arrays of the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.distribution.communicators import OneProcess
from minicnn.ops.groups import Communicator, Group, ShardRange
from minicnn.program.graph import Node

Host = np.ndarray[Any, Any]


def exchange(node: Node, arrays: Sequence[Host], group: Group) -> list[Host]:
    """Results of a collective of a shard's Program, one for each of this rank's shards.

    Args:
        node: The collective, between as many ranks as there are shards.
        arrays: The array of each of this rank's shards.
        group: Who has which shards.
    """
    attrs = {name: value for name, value in node.attrs.items() if name != "group"}
    if node.attrs["group"].stride:
        return _in_groups(node, arrays, group, **attrs)
    return _RULES[node.op.name](arrays, group, group.communicator or OneProcess(), **attrs)


def all_gather(arrays: Sequence[Host], group: Group, communicator: Communicator, *, axis: int) -> list[Host]:
    """See `minicnn.ops.all_gather`; all shards get the same array."""
    every = np.empty((group.shards, *arrays[0].shape), arrays[0].dtype)
    received = [every[group.held(r).start : group.held(r).stop].reshape(-1) for r in range(group.ranks)]
    communicator.gather(np.concatenate([np.ravel(array) for array in arrays]), received)
    return [np.concatenate(list(every), axis=axis)] * len(arrays)


def all_to_all(
    arrays: Sequence[Host], group: Group, communicator: Communicator, *, split: int, join: int
) -> list[Host]:
    """See `minicnn.ops.all_to_all`."""
    pieces = [np.split(array, group.shards, axis=split) for array in arrays]
    received = _each_to_its_rank(pieces, [len(group.held(r)) for r in range(group.ranks)], group, communicator)
    return [np.concatenate(each, axis=join) for each in received]


def reduce_scatter(arrays: Sequence[Host], group: Group, communicator: Communicator, *, axis: int) -> list[Host]:
    """See `minicnn.ops.reduce_scatter`; a rank adds up the largest parts of the tree within its shards."""
    first = group.held().start
    # Whole branches are added before anything is sent: less goes over the network, and the order is that of the tree.
    sums = [group.total_of(span, {(first + s, first + s + 1): a for s, a in enumerate(arrays)}, np.add)
            for span in group.spans()]  # fmt: skip
    pieces = [np.split(array, group.shards, axis=axis) for array in sums]
    received = _each_to_its_rank(pieces, [len(group.spans(r)) for r in range(group.ranks)], group, communicator)
    spans: list[ShardRange] = [span for r in range(group.ranks) for span in group.spans(r)]
    return [np.ascontiguousarray(group.total(dict(zip(spans, each, strict=True)), np.add)) for each in received]


def _in_groups(node: Node, operands: Sequence[Host], group: Group, **attrs: int) -> list[Host]:
    """A collective within each of several groups of shards, of which a rank may have any."""
    each: Group = node.attrs["group"]
    tree = Group(each.shards)

    def swap(pieces: Sequence[Sequence[Host]]) -> list[list[Host]]:
        return _swapped(pieces, group, each)

    def total(arrays: Sequence[Host]) -> Host:
        return np.ascontiguousarray(tree.total({(s, s + 1): array for s, array in enumerate(arrays)}, np.add))

    if node.op.name == "all_gather":
        return [
            np.concatenate(gathered, axis=attrs["axis"]) for gathered in swap([[a] * each.shards for a in operands])
        ]
    if node.op.name == "all_to_all":
        gathered = swap([np.split(a, each.shards, axis=attrs["split"]) for a in operands])
        return [np.concatenate(arrays, axis=attrs["join"]) for arrays in gathered]
    if node.op.name == "reduce_scatter":
        return [total(arrays) for arrays in swap([np.split(a, each.shards, axis=attrs["axis"]) for a in operands])]
    # In two rounds, since every shard then sends twice its array in all, whatever the number of shards.
    # all_reduce: each reduces its share, and gives it to all.
    size, share = operands[0].size, -(-operands[0].size // each.shards)
    filled = [np.pad(np.ravel(a), (0, share * each.shards - size)) for a in operands]
    shares = [total(arrays) for arrays in swap([np.split(a, each.shards) for a in filled])]
    joined = [
        np.concatenate(arrays)[:size] for arrays in swap([[share_of_rank] * each.shards for share_of_rank in shares])
    ]
    return [array.reshape(operands[0].shape) for array in joined]


def _swapped(pieces: Sequence[Sequence[Host]], group: Group, each: Group) -> list[list[Host]]:
    """For each of this rank's shards what every shard of its group has for it.

    Args:
        pieces: Of each of this rank's shards, what it has for every shard of its group; all are alike.
        group: Who has which shards.
        each: The groups.
    """
    held, like = group.held(), pieces[0][0]

    def letters(source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
        return [(s, t) for s in source for t in each.peers(s) if t in target]

    # One array for each rank: a message costs more than its bytes.
    outgoing = [
        np.concatenate(
            [
                like.reshape(-1)[:0],
                *(np.ravel(pieces[s - held.start][each.peers(s).index(t)]) for s, t in letters(held, group.held(r))),
            ]
        )
        for r in range(group.ranks)
    ]
    coming = [letters(group.held(r), held) for r in range(group.ranks)]
    incoming = [np.empty((len(each_of), *like.shape), like.dtype) for each_of in coming]
    (group.communicator or OneProcess()).exchange(outgoing, [array.reshape(-1) for array in incoming])
    pieces_by_shards = {
        letter: a
        for arrays, names in zip(incoming, coming, strict=True)
        for letter, a in zip(names, arrays, strict=True)
    }
    return [[pieces_by_shards[s, t] for s in each.peers(t)] for t in held]


def _each_to_its_rank(
    pieces: Sequence[Sequence[Host]], counts: Sequence[int], group: Group, communicator: Communicator
) -> list[list[Host]]:
    """For each of this rank's shards the pieces that all ranks have for it.

    Args:
        pieces: Of each array of this rank, the piece for each shard; all are alike.
        counts: Arrays of each rank.
        group: Who has which shards.
        communicator: Moves them.
    """
    like, held = pieces[0][0], len(group.held())
    outgoing = [
        np.concatenate([np.ravel(piece[s]) for piece in pieces for s in group.held(r)]) for r in range(group.ranks)
    ]
    incoming = [np.empty(count * held * math.prod(like.shape), like.dtype) for count in counts]
    communicator.exchange(outgoing, incoming)
    arrays = [t.reshape(count, held, *like.shape) for t, count in zip(incoming, counts, strict=True)]
    return [[array[i, s] for array in arrays for i in range(len(array))] for s in range(held)]


_RULES: dict[str, Callable[..., list[Host]]] = {
    "all_gather": all_gather, "all_to_all": all_to_all, "reduce_scatter": reduce_scatter,
}  # fmt: skip
