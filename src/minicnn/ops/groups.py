"""Shards, ranks, and the one tree in which what belongs together is summed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

Array = Any
ShardRange = tuple[int, int]  # shards from the first to before the second
Summand = TypeVar("Summand")


class Communicator(Protocol):
    """Communicator of arrays between ranks. Nothing waits without a deadline; every rank calls the same in order.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
    """

    rank: int
    size: int

    def exchange(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """All to all: `outgoing[r]` goes to rank r, `incoming[r]` is filled with what rank r gives this one.

        Args:
            outgoing: Contiguous NumPy arrays with one axis and of one dtype, one for each rank.
            incoming: Likewise; each as long as what that rank gives. This rank's own may be the array that it gives.
        """
        ...

    def gather(self, outgoing: Array, incoming: Sequence[Array]) -> None:
        """`incoming[r]` is filled with the array that rank r gives; lengths may differ."""
        ...

    def add(self, array: Array) -> None:
        """Sum a contiguous NumPy array with one axis over all ranks, in place, in the order of the library."""
        ...

    def share(self, data: bytes) -> list[bytes]:
        """A few bytes of every rank, for every rank."""
        ...

    def send(self, array: Array, rank: int, tag: int) -> None:
        """Give an array to one rank, without waiting until it takes it; it is not changed before that.

        Args:
            array: Contiguous NumPy array with one axis.
            rank: Who gets it.
            tag: Number from 1 on, by which the other asks for it.
        """
        ...

    def receive(self, array: Array, rank: int, tag: int) -> None:
        """Fill an array with what a rank sends with that tag."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on; they end, too."""
        ...


@dataclass(frozen=True)
class Group:
    """Group of ranks that share the shards of a batch.

    Attributes:
        shards: Parts of the batch.
        rank: Number of the process.
        ranks: Number of processes, which share the shards.
        communicator: Moves the arrays; None in a Program that is only looked at, or put together with the others.
        deterministic: Whether sums are taken in the tree; else the communication library takes them as it likes to.
        stride: How far the shards of a group are apart that is one of several, in each of which the same is computed; 0
            if the group has all shards of the batch.
    """

    shards: int = 1
    rank: int = 0
    ranks: int = 1
    communicator: Communicator | None = field(default=None, compare=False, repr=False)
    deterministic: bool = True
    stride: int = 0

    def __post_init__(self) -> None:
        if self.shards < 1 or not 0 <= self.rank < self.ranks:
            raise ValueError(f"A group has at least one shard, and ranks from 0 on. Received: {self!r}.")

    def held(self, rank: int | None = None) -> range:
        """Shards of a rank, this one if None; none if there are more ranks than shards and it is idle."""
        rank = self.rank if rank is None else rank
        # Neighbouring shards, so that a rank holds whole branches of the tree.
        return range(rank * self.shards // self.ranks, (rank + 1) * self.shards // self.ranks)

    def peers(self, shard: int) -> range:
        """The shards of the group of one that is one of several groups."""
        across = self.stride * self.shards
        first = shard // across * across + shard % self.stride
        return range(first, first + across, self.stride)

    def spans(self, rank: int | None = None) -> list[ShardRange]:
        """The sums that a rank makes by itself: the largest parts of the tree that lie within its shards."""
        held = self.held(rank)
        return _cover((0, self.shards), (held.start, held.stop)) if held else []

    @property
    def parts(self) -> int:
        """Number of sums that this rank gives; an idle one gives one that nobody counts."""
        return max(1, len(self.spans()))

    @cached_property
    def tree(self) -> dict[ShardRange, tuple[ShardRange, ShardRange]]:
        """The two parts of every sum of at least two shards."""
        halves: dict[ShardRange, tuple[ShardRange, ShardRange]] = {}
        waiting = [(0, self.shards)]
        while waiting:
            span = waiting.pop()
            if span[1] - span[0] > 1:
                halves[span] = _halves(span)
                waiting += halves[span]
        return halves

    @cached_property
    def joined(self) -> dict[tuple[ShardRange, ShardRange], ShardRange]:
        """The sum of which two others are the parts."""
        return {parts: span for span, parts in self.tree.items()}

    def total(self, summands: Mapping[ShardRange, Summand], add: Callable[[Summand, Summand], Summand]) -> Summand:
        """The sum over all shards from sums of some, in the order of the tree."""
        return self.total_of((0, self.shards), summands, add)

    def total_of(
        self, span: ShardRange, summands: Mapping[ShardRange, Summand], add: Callable[[Summand, Summand], Summand]
    ) -> Summand:
        """Likewise the sum over the shards of one part of the tree."""
        if span in summands:
            return summands[span]
        return add(*(self.total_of(part, summands, add) for part in self.tree[span]))

    def __str__(self) -> str:
        apart = f", {self.stride} apart" if self.stride else ""
        return f"rank {self.rank} of {self.ranks}, {self.shards} shards{apart}"


class RunningSums:
    """Sums of shards that come one after the other, each taken as soon as both summands are there.

    Args:
        group: Whose tree it is.
        plus: Adds the arrays of one sum to those of another.

    Attributes:
        partial_sums: The sums so far, each with the shards that it is over; in the end those of `Group.spans`.
    """

    def __init__(self, group: Group, plus: Callable[[list[Any], list[Any]], list[Any]] | None = None) -> None:
        self._joined, self._plus = group.joined, plus or _plus
        self.partial_sums: list[tuple[ShardRange, list[Any]]] = []

    def add(self, shard: int, arrays: list[Any]) -> None:
        """Take up the arrays of the next shard, or Values of them."""
        # Sums wait on a stack until their partner comes: memory grows with the logarithm of the number of shards.
        spans, joined = self.partial_sums, self._joined
        spans.append(((shard, shard + 1), arrays))
        while len(spans) > 1 and (spans[-2][0], spans[-1][0]) in joined:
            (left, a), (right, b) = spans[-2:]
            spans[-2:] = [(joined[left, right], self._plus(a, b))]

    @property
    def arrays(self) -> list[Any]:
        """Arguments of `all_reduce`: the arrays of the first sum, then of the next."""
        return [array for _, arrays in self.partial_sums for array in arrays]


def _plus(a: list[Any], b: list[Any]) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _halves(span: ShardRange) -> tuple[ShardRange, ShardRange]:
    """A sum cut at the largest power of two, so that ranks that are a power of two hold whole sums."""
    first, stop = span
    middle = first + (1 << (stop - first - 1).bit_length() - 1)
    return (first, middle), (middle, stop)


def _cover(span: ShardRange, held: ShardRange) -> list[ShardRange]:
    if held[0] <= span[0] and span[1] <= held[1]:
        return [span]
    if span[1] <= held[0] or held[1] <= span[0]:
        return []
    left, right = _halves(span)
    return _cover(left, held) + _cover(right, held)


def rows(count: int, parts: int, part: int) -> range:
    """Rows of one of several parts of an axis, as equal as can be."""
    return range(part * count // parts, (part + 1) * count // parts)
