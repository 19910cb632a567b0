"""Collectives between shards of which each rank has several: what goes to whom, on arrays of the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicnn.distribution.communicators import OneProcess
from minicnn.ops.groups import Communicator, Group, Span
from minicnn.program.graph import Node

Host = np.ndarray[Any, Any]


def exchange(node: Node, given: Sequence[Host], group: Group) -> list[Host]:
    """What a collective of the Program of a shard gives each of this rank's shards.

    Args:
        node: The collective, between as many ranks as there are shards.
        given: The array of each of this rank's shards.
        group: Who has which shards.
    """
    attrs = {name: value for name, value in node.attrs.items() if name != "group"}
    return _RULES[node.op.name](given, group, group.communicator or OneProcess(), **attrs)


def all_gather(given: Sequence[Host], group: Group, communicator: Communicator, *, axis: int) -> list[Host]:
    """See `minicnn.ops.all_gather`; all shards get the same array."""
    every = np.empty((group.shards, *given[0].shape), given[0].dtype)
    taken = [every[group.held(r).start : group.held(r).stop].reshape(-1) for r in range(group.ranks)]
    communicator.gather(np.concatenate([np.ravel(array) for array in given]), taken)
    return [np.concatenate(list(every), axis=axis)] * len(given)


def all_to_all(given: Sequence[Host], group: Group, communicator: Communicator, *, split: int, join: int) -> list[Host]:
    """See `minicnn.ops.all_to_all`."""
    pieces = [np.split(array, group.shards, axis=split) for array in given]
    taken = _each_to_its_rank(pieces, [len(group.held(r)) for r in range(group.ranks)], group, communicator)
    return [np.concatenate(each, axis=join) for each in taken]


def reduce_scatter(given: Sequence[Host], group: Group, communicator: Communicator, *, axis: int) -> list[Host]:
    """See `minicnn.ops.reduce_scatter`; a rank adds up the largest parts of the tree within its shards."""
    first = group.held().start
    sums = [group.total_of(span, {(first + s, first + s + 1): a for s, a in enumerate(given)}, np.add)
            for span in group.spans()]  # fmt: skip
    pieces = [np.split(array, group.shards, axis=axis) for array in sums]
    taken = _each_to_its_rank(pieces, [len(group.spans(r)) for r in range(group.ranks)], group, communicator)
    spans: list[Span] = [span for r in range(group.ranks) for span in group.spans(r)]
    return [np.ascontiguousarray(group.total(dict(zip(spans, each, strict=True)), np.add)) for each in taken]


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
    like, own = pieces[0][0], len(group.held())
    given = [
        np.concatenate([np.ravel(piece[s]) for piece in pieces for s in group.held(r)]) for r in range(group.ranks)
    ]
    taken = [np.empty(count * own * math.prod(like.shape), like.dtype) for count in counts]
    communicator.exchange(given, taken)
    arrays = [t.reshape(count, own, *like.shape) for t, count in zip(taken, counts, strict=True)]
    return [[array[i, s] for array in arrays for i in range(len(array))] for s in range(own)]


_RULES: dict[str, Callable[..., list[Host]]] = {
    "all_gather": all_gather, "all_to_all": all_to_all, "reduce_scatter": reduce_scatter,
}  # fmt: skip
