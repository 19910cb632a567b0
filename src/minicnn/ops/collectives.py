"""Collectives: what the ranks of a group compute together.

Every rank has a Program of its own, with the same collectives in the same order. A collective takes this rank's arrays
and gives this rank's results; `cost` states the bytes that the rank sends. With one rank each is what it is for one
process; `minicnn.distribution.merge` makes one Program of those of several shards, in which collectives are the sums,
joins and slices that they stand for: that is how they are tested, and how one process computes what several do.
Names are MPI's and NCCL's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.ops.arrays import copy_of, place
from minicnn.ops.checks import normalize_axis, same_dtype
from minicnn.ops.elementwise import multiply
from minicnn.ops.groups import Communicator, Group, ShardRange, rows
from minicnn.ops.primitive import Array, Cost, Namespace, primitive
from minicnn.program.graph import Node, Spec, Value

Host = np.ndarray[Any, Any]


def communicator_of(name: str, group: Group) -> Communicator:
    """The communicator of a group of several ranks.

    Raises:
        RuntimeError: If it has none.
    """
    if group.communicator is None:
        raise RuntimeError(
            f"Ranks compute together through a communicator. Received: {name} of {group}, without one. Compile with "
            "distribution=DataParallel(...) under a launcher, or put the Programs of all shards together with "
            "minicnn.distribution.merge."
        )
    return group.communicator


@primitive
def all_reduce(*arrays: Array, group: Group, xp: Namespace) -> Array | tuple[Array, ...]:
    """Sums over all shards, in one fixed tree, so that their bits do not depend on who holds which shard.

    Each rank reduces its share of the elements, and all gather the results.

    Args:
        arrays: The arrays to be summed, of the first of the group's spans, then of the next, and so on: see
            `Group.spans`. All have one dtype.
        group: The group.

    Returns:
        The sum of each array.
    """
    if group.ranks == 1:
        totals = [copy_of(a, xp) for a in arrays]
    else:
        communicator, count = communicator_of("all_reduce", group), len(arrays) // group.parts
        vectors = [np.ravel(np.asarray(a)) for a in arrays]
        flat = [_joined(vectors[i : i + count]) for i in range(0, len(vectors), count)]
        # The tree gives the same bits on any number of ranks; the library's own order is faster.
        total = (_reduced if group.deterministic else _added)(
            flat if group.held() else [], flat[0], group, communicator
        )
        sizes = [math.prod(a.shape) for a in arrays[:count]]
        pieces = np.split(total, np.cumsum(sizes)[:-1])
        totals = [_back(p.reshape(a.shape), a, xp) for p, a in zip(pieces, arrays, strict=False)]
    return tuple(totals) if len(totals) > 1 else totals[0]


def _reduced(parts: Sequence[Host], like: Host, group: Group, communicator: Communicator) -> Host:
    """Total over all ranks of arrays with one axis."""
    size = like.size
    shares = [rows(size, group.ranks, r) for r in range(group.ranks)]
    share = shares[group.rank]
    outgoing = [_joined([p[s.start : s.stop] for p in parts] or [like[:0]]) for s in shares]
    # What stays here is not copied: large arrays are as slow to copy as to send.
    incoming = [np.empty(len(group.spans(r)) * len(share), like.dtype) for r in range(group.ranks)]
    incoming[group.rank] = outgoing[group.rank]
    communicator.exchange(outgoing, incoming)
    sums: dict[ShardRange, Host] = {}
    for r, array in enumerate(incoming):
        spans = group.spans(r)
        # A rank may hold several branches of the tree, and sends the sum of each: adding them first would change the
        # order.
        sums |= dict(zip(spans, array.reshape(len(spans), len(share)), strict=True))
    total = np.empty(size, like.dtype)
    pieces = [total[s.start : s.stop] for s in shares]
    if group.shards > 1:
        left, right = (group.total_of(half, sums, np.add) for half in group.tree[0, group.shards])
        np.add(left, right, out=pieces[group.rank])
    else:
        pieces[group.rank][...] = sums[0, 1]
    communicator.gather(pieces[group.rank], pieces)
    return total


def _joined(arrays: Sequence[Host]) -> Host:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _added(parts: Sequence[Host], like: Host, group: Group, communicator: Communicator) -> Host:
    """Likewise, in whatever order the communication library takes."""
    total = sum(parts[1:], start=parts[0].copy()) if parts else np.zeros_like(like)
    communicator.add(total)
    return total


def _back(array: Host, like: Array, xp: Namespace) -> Array:
    return array if isinstance(like, np.ndarray) else xp.asarray(array, **place(like))


@all_reduce.shape
def _(*specs: Spec, group: Group) -> tuple[Spec, ...]:
    count, rest = divmod(len(specs), group.parts)
    first = specs[:count]
    if rest or not count or any(s != first[i % count] for i, s in enumerate(specs)):
        raise ValueError(
            f"all_reduce takes the same arrays of each of the {group.parts} sums that this rank holds. Received: "
            f"{', '.join(map(str, specs))}."
        )
    same_dtype("all_reduce", *specs)
    return first


@all_reduce.gradient
def _(node: Node, *gradients: Value | None) -> list[Value | None]:
    # Every shard reads the sum, so that its gradient is the sum of theirs; and it is that of each summand.
    group, count = node.attrs["group"], len(node.outputs)
    present = [g for g in gradients if g is not None]
    if group.parts > 1 and group.ranks > 1:
        raise TypeError(
            "all_reduce is differentiated in the Program of one shard. Received: several shards in one Program. "
            "Differentiate first, then put the Programs together."
        )
    totals = all_reduce(*present, group=group)
    reduced = iter(totals if isinstance(totals, tuple) else (totals,))
    return [None if g is None else next(reduced) for g in gradients[:count]]


@all_reduce.cost
def _(node: Node) -> Cost:
    group: Group = node.attrs["group"]
    moved = sum(v.nbytes for v in (*node.inputs, *node.outputs))
    if group.ranks == 1:
        return Cost(0, moved)
    elements = sum(v.size for v in node.outputs)
    width = node.outputs[0].nbytes // max(1, node.outputs[0].size)
    share = len(rows(elements, group.ranks, group.rank))
    if not group.deterministic:  # a ring
        others = group.ranks - 1
        return Cost(share * others, moved, elements * width, 2 * elements * others // group.ranks * width)
    scattered = len(group.spans()) * (elements - share)  # its sums of what others reduce
    sums = sum(len(group.spans(r)) for r in range(group.ranks))
    sent = (scattered + share * (group.ranks - 1)) * width
    return Cost(share * (sums - 1), moved, (elements + share * sums) * width, sent)


def _alike(name: str, x: Spec, axis: int, group: Group) -> int:
    """The axis, along which a group's ranks cut an array into equal parts."""
    at = normalize_axis(name, axis, x.ndim)
    if x.shape[at] % group.ranks:
        raise ValueError(
            f"{name} cuts an axis into equal parts, one for each rank. Received: {x.shape[at]} along axis {at} of {x} "
            f"for {group.ranks} ranks."
        )
    return at


def _cut(x: Host, axis: int, ranks: int) -> list[Host]:
    return [np.ravel(p) for p in np.split(x, ranks, axis=axis)]


@primitive
def all_gather(x: Array, *, axis: int = 0, group: Group, xp: Namespace) -> Array:
    """The arrays of all ranks, joined along an axis in the order of the ranks; all have one shape."""
    if group.ranks == 1:
        return copy_of(x, xp)
    host = np.ascontiguousarray(np.asarray(x))
    taken = np.empty((group.ranks, *host.shape), host.dtype)
    communicator_of("all_gather", group).gather(np.ravel(host), [np.ravel(t) for t in taken])
    return _back(np.concatenate(list(taken), axis=axis), x, xp)


@all_gather.shape
def _(x: Spec, *, axis: int, group: Group) -> Spec:
    at = normalize_axis("all_gather", axis, x.ndim)
    return Spec(tuple(n * group.ranks if a == at else n for a, n in enumerate(x.shape)), x.dtype)


@all_gather.gradient
def _(node: Node, dy: Value) -> Value:
    return reduce_scatter(dy, **node.attrs)


@all_gather.cost
def _(node: Node) -> Cost:
    x, y = node.inputs[0], node.outputs[0]
    return Cost(0, x.nbytes + y.nbytes, y.nbytes, x.nbytes * (node.attrs["group"].ranks - 1))


@primitive
def reduce_scatter(x: Array, *, axis: int = 0, group: Group, xp: Namespace) -> Array:
    """The sum over all ranks, in the tree of as many shards; each rank gets its part of it along an axis."""
    if group.ranks == 1:
        return copy_of(x, xp)
    pieces = _cut(np.asarray(x), axis, group.ranks)
    taken = [np.empty_like(pieces[group.rank]) for _ in pieces]
    communicator_of("reduce_scatter", group).exchange(pieces, taken)
    # The tree over ranks rather than shards, since every rank gives one array.
    tree = Group(group.ranks)
    total = tree.total({(r, r + 1): t for r, t in enumerate(taken)}, np.add)
    shape = list(x.shape)
    shape[axis] //= group.ranks
    return _back(total.reshape(shape), x, xp)


@reduce_scatter.shape
def _(x: Spec, *, axis: int, group: Group) -> Spec:
    at = _alike("reduce_scatter", x, axis, group)
    return Spec(tuple(n // group.ranks if a == at else n for a, n in enumerate(x.shape)), x.dtype)


@reduce_scatter.gradient
def _(node: Node, dy: Value) -> Value:
    return all_gather(dy, **node.attrs)


@reduce_scatter.cost
def _(node: Node) -> Cost:
    x, y, others = node.inputs[0], node.outputs[0], node.attrs["group"].ranks - 1
    return Cost(y.size * others, x.nbytes + y.nbytes, x.nbytes, y.nbytes * others)


@primitive
def all_to_all(x: Array, *, split: int, join: int, group: Group, xp: Namespace) -> Array:
    """Each rank cuts its array along one axis and gives a part to each; what a rank gets is joined along another."""
    if group.ranks == 1:
        return copy_of(x, xp)
    pieces = np.split(np.asarray(x), group.ranks, axis=split)
    taken = [np.empty(p.size, p.dtype) for p in pieces]
    communicator_of("all_to_all", group).exchange([np.ravel(p) for p in pieces], taken)
    return _back(np.concatenate([t.reshape(pieces[0].shape) for t in taken], axis=join), x, xp)


@all_to_all.shape
def _(x: Spec, *, split: int, join: int, group: Group) -> Spec:
    cut, along = _alike("all_to_all", x, split, group), normalize_axis("all_to_all", join, x.ndim)
    shape = list(x.shape)
    shape[cut] //= group.ranks
    shape[along] *= group.ranks
    return Spec(tuple(shape), x.dtype)


@all_to_all.gradient
def _(node: Node, dy: Value) -> Value:
    attrs = node.attrs
    return all_to_all(dy, split=attrs["join"], join=attrs["split"], group=attrs["group"])


@all_to_all.cost
def _(node: Node) -> Cost:
    x, group = node.inputs[0], node.attrs["group"]
    return Cost(0, 2 * x.nbytes, 2 * x.nbytes, x.nbytes // group.ranks * (group.ranks - 1))


@primitive
def broadcast(x: Array, *, root: int = 0, group: Group, xp: Namespace) -> Array:
    """The array of one rank, for all; those of the others give the shape alone."""
    if group.ranks == 1:
        return copy_of(x, xp)
    host = np.ravel(np.asarray(x))
    copied, nothing = np.empty_like(host), host[:0]
    # Empty arrays of their own: communicators fill them at the same time.
    incoming = [copied if r == root else nothing.copy() for r in range(group.ranks)]
    outgoing = [host if group.rank == root else nothing] * group.ranks
    communicator_of("broadcast", group).exchange(outgoing, incoming)
    return _back(copied.reshape(x.shape), x, xp)


@broadcast.shape
def _(x: Spec, *, root: int, group: Group) -> Spec:
    if not 0 <= root < group.ranks:
        raise ValueError(f"broadcast takes the array of one of the ranks. Received: root={root} of {group.ranks}.")
    return x


@broadcast.gradient
def _(node: Node, dy: Value) -> Value:
    group = node.attrs["group"]
    # Every rank reads the broadcast array, so that the root's gradient is the sum of theirs.
    total: Value = all_reduce(dy, group=Group(group.ranks, group.rank, group.ranks, group.communicator))
    return total if group.rank == node.attrs["root"] else multiply(total, 0.0)


@broadcast.cost
def _(node: Node) -> Cost:
    x, group = node.inputs[0], node.attrs["group"]
    sent = x.nbytes * (group.ranks - 1) if group.rank == node.attrs["root"] else 0
    return Cost(0, 2 * x.nbytes, 0, sent)


@primitive
def send(x: Array, *, to: int, tag: int, group: Group, xp: Namespace) -> Array:
    """Give an array to another rank, which takes it by `receive`; nothing waits until it does.

    Args:
        x: The array.
        to: Number of the rank that gets it.
        tag: Number from 1 on, by which the other asks for it.
        group: The ranks.
        xp: Namespace of the array.

    Returns:
        A token for `receive`, an array of no elements, shape (0,). With one rank, which gives it to itself, the array.
    """
    if group.ranks == 1:
        return copy_of(x, xp)
    host = np.array(np.asarray(x)).reshape(-1)  # a copy, since x may be overwritten before the other takes it
    communicator_of("send", group).send(host, to, tag)
    return _back(host[:0].copy(), x, xp)


@send.shape
def _(x: Spec, *, to: int, tag: int, group: Group) -> Spec:
    _check_partner("send", "to", to, tag, group)
    return x if group.ranks == 1 else Spec((0,), x.dtype)


def _check_partner(name: str, word: str, rank: int, tag: int, group: Group) -> None:
    if tag < 1 or (group.ranks > 1 and (rank == group.rank or not 0 <= rank < group.ranks)):
        raise ValueError(
            f"{name} has a tag of at least 1, and another rank of the group as its partner. Received: {word}={rank}, "
            f"tag={tag} on {group}."
        )


@send.gradient
def _(node: Node, dy: Value) -> Value:
    x, attrs = node.inputs[0], node.attrs
    received: Value = receive(dy, shape=x.shape, source=attrs["to"], tag=attrs["tag"], group=attrs["group"])
    return received


@send.cost
def _(node: Node) -> Cost:
    x = node.inputs[0]
    return Cost(0, 2 * x.nbytes, 0, 0) if node.attrs["group"].ranks == 1 else Cost(0, 2 * x.nbytes, x.nbytes, x.nbytes)


@primitive
def receive(token: Array, *, shape: tuple[int, ...], source: int, tag: int, group: Group, xp: Namespace) -> Array:
    """Take the array that another rank gives to this one by `send` with the same tag.

    Args:
        token: What `send` returns, or any array of shape (0,) and the dtype of what is sent; with one rank, what
            is sent.
        shape: Shape of what is sent.
        source: Number of the rank that sends it.
        tag: See `send`.
        group: The ranks.
        xp: Namespace of the token.

    Returns:
        The array.
    """
    if group.ranks == 1:
        return copy_of(token, xp)
    host = np.empty(math.prod(shape), np.asarray(token).dtype)
    communicator_of("receive", group).receive(host, source, tag)
    return _back(host.reshape(shape), token, xp)


@receive.shape
def _(token: Spec, *, shape: tuple[int, ...], source: int, tag: int, group: Group) -> Spec:
    _check_partner("receive", "source", source, tag, group)
    wanted = tuple(shape) if group.ranks == 1 else (0,)
    if token.shape != wanted:
        raise ValueError(f"receive takes the token that send returns, of shape {wanted}. Received: {token} on {group}.")
    return Spec(tuple(shape), token.dtype)


@receive.gradient
def _(node: Node, dy: Value) -> Value:
    attrs = node.attrs
    sent: Value = send(dy, to=attrs["source"], tag=attrs["tag"], group=attrs["group"])
    return sent


@receive.cost
def _(node: Node) -> Cost:
    return Cost(0, 2 * node.outputs[0].nbytes)
