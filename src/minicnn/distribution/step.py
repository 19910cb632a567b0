"""A step on the shards of one rank: part by part, and between them what the ranks compute together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.distribution.communicators import OneProcess
from minicnn.distribution.exchanges import all_gather, exchange
from minicnn.distribution.gloo import TorchCommunicator
from minicnn.distribution.passes import ADDED, BUCKET, Shard, summed_loss
from minicnn.distribution.segments import Segments, is_sum
from minicnn.distribution.worker import Worker
from minicnn.layers.cell import Parts
from minicnn.ops.collectives import all_reduce
from minicnn.ops.groups import Group, RunningSums
from minicnn.program.graph import Node, Program, Value

if TYPE_CHECKING:
    from minicnn.backends.base import Backend

Array = Any
Arrays = dict[str, Array]


class ShardedStep:
    """An Executable that is given the arrays of a whole batch, and computes this rank's shards of it.

    Args:
        programs: For each number of samples that a shard of the batch has, on whatever rank, its Program.
        shards: The shards of this rank.
        group: Who has which shards.
        data: Names of the inputs that belong to a shard.
        cut: Of them those of which each shard is given its rows.
        backend: What runs the parts.

    Raises:
        ValueError: If shards of different sizes do not compute alike.
    """

    overlaps = True  # sums between ranks, with what a rank has still to compute
    watches = True  # what the rank has added to sums before that of the loss

    def __init__(
        self, programs: Mapping[int, Program], shards: Sequence[Shard], group: Group, data: Iterable[str],
        cut: Iterable[str], backend: Backend,
    ) -> None:  # fmt: skip
        self._shards, self._group, self._cut, self._backend = shards, group, frozenset(cut), backend
        every = {n: Segments(p, frozenset(data), n, group.shards) for n, p in programs.items()}
        first = next(iter(every.values()))
        for other in every.values():
            different = first.differs(other)
            if different is not None:
                raise ValueError(
                    "Shards of any size compute the same with what they have in common. Received: layers that do "
                    f"otherwise for {first.samples} than for {other.samples} samples: {different:.200}. Choose a batch "
                    "size that the number of shards divides, and last_batch='drop'."
                )
        # A last batch may leave shards of two sizes, each of which has a Program of its own.
        held = {shard.samples for shard in shards}
        parts = {n: segments.parts() for n, segments in every.items() if n in held}
        shared, _ = next(iter(parts.values()))
        programs_of_parts = [*shared, *(p for _, per_shard in parts.values() for pieces in per_shard for p in pieces)]
        # All at once, so that compilers can work in parallel.
        compiled = iter(_Part.of_each(programs_of_parts, backend))
        self._common = [next(compiled) for _ in shared]
        self._per_shard = {
            n: [[next(compiled) for _ in pieces] for pieces in per_shard] for n, (_, per_shard) in parts.items()
        }
        self._collectives = [
            (_sums(level, every, group, backend), _exchanges(level, every, group, backend))
            for level in range(len(shared))
        ]
        # While a rank goes on with its last shard, this adds up what is there.
        beside = any(len(sums) > 1 or sums[0].needed > level + 1 for level, (sums, _) in enumerate(self._collectives))
        self._worker = Worker() if self.overlaps and beside and group.ranks > 1 else None
        self._columns = first.program.parts
        self._parts = list(self._columns)
        self._loss = first.names.get(id(summed_loss(first.program)))
        # Under which name a shard of each size finds what is to be kept of its parts.
        self._kept = {
            name: {n: self._key(name, n, every[n]) for n in held}
            for name in self._parts if name in first.program.updates
        }  # fmt: skip
        self._results = [(name, first.names[id(v)]) for name, v in first.program.outputs.items()]
        self._updates = [
            (name, first.names[id(v)]) for name, v in first.program.updates.items() if name not in self._kept
        ]

    def _key(self, name: str, samples: int, segments: Segments) -> str:
        # A part that updates a kernel in place hands it back under its own name.
        in_place = any(name in part.updates for pieces in self._per_shard[samples] for part in pieces)
        return name if in_place else segments.names[id(segments.program.updates[name])]

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """Outputs and updates by name; inputs that are updated are donated."""
        not_shared = {*self._cut, *self._parts}
        known: Arrays = {name: array for name, array in arrays.items() if name not in not_shared}
        by_shard: list[Arrays] = [self._inputs_of(shard, arrays) for shard in self._shards]
        if self._group.shards == 1:  # what it is given is the same for all there are
            known |= by_shard[0]
        updated: Arrays = {}
        pending: list[_Partial] = []
        for level, common in enumerate(self._common):
            known |= self._finished(pending, level)
            results = self._run(common, known)
            for name in common.updates:
                updated[name] = results.pop(name)
            known |= results
            sums, exchanges = self._collectives[level]
            buckets = [_Partial(each, self._plus(each)) for each in sums]
            # Shards one after the other: activations of one at a time are in memory.
            for shard, values in zip(self._shards, by_shard, strict=True):
                for part, bucket in zip(self._per_shard[shard.samples][level], buckets, strict=True):
                    values |= self._run(part, known | values)
                    bucket.add(shard.number, bucket.sums.summands(shard.samples, known, values))
                    # With the last shard a sum is complete on this rank, and others may be waiting for it.
                    if shard is self._shards[-1] and self._worker is not None:
                        bucket.begin(self._worker)
            pending += buckets
            # Exchanges move arrays on this thread, in the order of the ranks' Programs: nothing may be under way beside
            # them.
            if self._worker is None or exchanges:
                known |= self._finished(pending)
            for one in exchanges:
                one.run(self._shards, known, by_shard)
        known |= self._finished(pending)
        results = {name: known[key] for name, key in self._results}
        results |= {name: array for name, array in known.items() if name.startswith(ADDED)}
        results |= {name: updated[name] if name in updated else known[key] for name, key in self._updates}
        for name, keys in self._kept.items():
            parts = [values[keys[shard.samples]] for shard, values in zip(self._shards, by_shard, strict=True)]
            results[name] = KernelParts(parts, self._group, self._backend, self._columns[name])
        return results

    def _finished(self, pending: list[_Partial], level: float = math.inf) -> Arrays:
        """The sums under way that a level needs, which are waited for; and what this rank has added to some."""
        totals: Arrays = {}
        # In the order in which they were begun, the same on all ranks; others may go on.
        for bucket in [bucket for bucket in pending if bucket.sums.needed <= level]:
            pending.remove(bucket)
            totals |= self._total(bucket)
            if self._group.ranks > 1 and self._group.held():
                totals |= self._added(bucket)
        return totals

    def _added(self, bucket: _Partial) -> Arrays:
        """The loss of this rank's samples, and what comes before it: batch normalisations hand NaN on to others."""
        # NaN of one rank reaches all: what this rank has added itself tells which one it comes from.
        few = self.watches and sum(spec.nbytes for spec in bucket.specs) < BUCKET
        names = [self._loss] if self._loss in bucket.names else bucket.names if few else []
        return {
            f"{ADDED}{bucket.sums.level}.{i}.{name}": arrays[bucket.names.index(name)]
            for name in names for i, (_, arrays) in enumerate(bucket.partial_sums)
        }  # fmt: skip

    def _run(self, part: _Part, arrays: Arrays) -> Arrays:
        return {} if part.compiled is None else self._call(part.compiled, {name: arrays[name] for name in part.inputs})

    def _call(self, run: Callable[[Mapping[str, Array]], Arrays], arrays: Arrays) -> Arrays:
        return dict(run(arrays))

    def _total(self, partial: _Partial) -> Arrays:
        return partial.total()

    def _plus(self, sums: _Sums) -> Callable[[list[Array], list[Array]], list[Array]] | None:
        """Function that adds what two shards give; None for addition of arrays."""
        return None

    def _inputs_of(self, shard: Shard, arrays: Mapping[str, Array]) -> Arrays:
        inputs = {n: arrays[n][own_rows(arrays[n], shard, self._shards[0]), ...] for n in self._cut if n in arrays}
        if "rows" in self._cut - inputs.keys():
            numbers = np.arange(shard.start, shard.start + shard.samples, dtype=np.int32)
            inputs["rows"] = self._backend.asarray(numbers)
        held = self._group.held()
        for name in self._parts:
            array = arrays[name]
            if isinstance(array, KernelParts):
                inputs[name] = array.arrays[shard.number - held.start]
            else:
                count = self._columns[name]
                columns, place = array.shape[-1] // count, shard.number % count
                columns_of_part = slice(place * columns, (place + 1) * columns)
                inputs[name] = self._backend.asarray(self._backend.to_numpy(array)[..., columns_of_part].copy())
        return inputs


def own_rows(array: Array, shard: Shard, first: Shard) -> slice:
    """The rows of a shard in an array of the whole batch, or of those shards alone that begin with the first one."""
    start = shard.start - (first.start if array.shape[0] < shard.batch else 0)
    return slice(start, start + shard.samples)


@dataclass(frozen=True)
class _Part:
    """A compiled part of a step.

    Attributes:
        compiled: The Executable; None if there is nothing to do.
        inputs: Names of what it reads.
        updates: Names of what it may overwrite.
    """

    compiled: Callable[[Mapping[str, Array]], Arrays] | None
    inputs: list[str]
    updates: list[str]

    @classmethod
    def of_each(cls, programs: Sequence[Program], backend: Backend) -> list[_Part]:
        # A level may have nothing to compute; backends need not know empty Programs.
        busy = [program for program in programs if program.nodes]
        compiled = {id(p): run for p, run in zip(busy, backend.compile_each(busy), strict=True)}
        return [cls(compiled.get(id(p)), [v.name for v in p.inputs], list(p.updates)) for p in programs]


class KernelParts(Parts):
    """Parts of a kernel, or of what an optimizer keeps of it: those of this rank's shards, cut along the last axis.

    Args:
        arrays: The part of each shard.
        group: Who has which shards.
        backend: Whose arrays they are.
        count: Parts of the whole; with several groups of shards each has all of them.
    """

    def __init__(self, arrays: Sequence[Array], group: Group, backend: Backend, count: int) -> None:
        self.arrays, self._group, self._backend, self._count = arrays, group, backend, count

    def whole(self) -> np.ndarray[Any, Any]:
        """See `Parts`."""
        host = [self._backend.to_numpy(array) for array in self.arrays]
        every = all_gather(host, self._group, self._group.communicator or OneProcess(), axis=host[0].ndim - 1)[0]
        return np.ascontiguousarray(every[..., : every.shape[-1] // (self._group.shards // self._count)])


class _Exchange:
    """A collective that is no sum: what shards gather, or give each other.

    Args:
        nodes: The collective in the Program of a shard, by the shard's number of samples.
        every: These Programs.
        group: Who has which shards.
        backend: What runs the parts.
    """

    def __init__(
        self, nodes: Mapping[int, Node], every: Mapping[int, Segments], group: Group, backend: Backend
    ) -> None:
        self._nodes, self._group, self._backend = nodes, group, backend
        self._names = {n: [every[n].names[id(v)] for v in (node.inputs[0], *node.outputs)] for n, node in nodes.items()}

    def run(self, shards: Sequence[Shard], known: Arrays, by_shard: Sequence[Arrays]) -> None:
        """Add what it gives to what all shards know, or to what each has found."""
        backend, operands = self._backend, []
        for shard, values in zip(shards, by_shard, strict=True):
            name, _ = self._names[shard.samples]
            operands.append(backend.to_numpy(values[name] if name in values else known[name]))
        node = self._nodes[shards[0].samples]
        results = exchange(node, operands, self._group)
        if node.op.name == "all_gather" and not node.attrs["group"].stride:
            known[self._names[shards[0].samples][1]] = backend.asarray(results[0], node.outputs[0].dtype)
            return
        for shard, values, array in zip(shards, by_shard, results, strict=True):
            values[self._names[shard.samples][1]] = backend.asarray(array, node.outputs[0].dtype)


def _exchanges(level: int, every: Mapping[int, Segments], group: Group, backend: Backend) -> list[_Exchange]:
    """The collectives of a level but the sums."""
    nodes = {n: [c for c in s.collectives[level] if not is_sum(c)] for n, s in every.items()}
    count = len(next(iter(nodes.values())))
    return [_Exchange({n: each[i] for n, each in nodes.items()}, every, group, backend) for i in range(count)]


class _Sums:
    """Sums that end a level: those of one bucket."""

    def __init__(self, level: int, bucket: int, every: Mapping[int, Segments], group: Group, backend: Backend) -> None:
        self.group, self.backend, self.level = group, backend, level
        self._sources: dict[int, list[str | Array]] = {}  # for each size names of what is summed, or a constant
        for samples, segments in every.items():
            nodes = segments.buckets(level)[bucket]
            self.needed = segments.needed(nodes)
            values = [v for node in nodes for v in node.inputs]
            self._sources[samples] = [self._source(v, segments) for v in values]
            names = [segments.names[id(v)] for node in nodes for v in node.outputs]
            self.names, self.specs = names, [v.spec for v in values]

    def _source(self, value: Value, segments: Segments) -> str | Array:
        if value.data is not None:
            return self.backend.asarray(value.data, value.dtype)
        return segments.names[id(value)]

    def summands(self, samples: int, known: Arrays, of_shard: Arrays) -> list[Array]:
        """Summands of a shard."""
        summands = []
        for source in self._sources[samples]:
            named = isinstance(source, str)
            summands.append((of_shard[source] if source in of_shard else known[source]) if named else source)
        return summands


def _sums(level: int, every: Mapping[int, Segments], group: Group, backend: Backend) -> list[_Sums]:
    count = len(next(iter(every.values())).buckets(level))
    return [_Sums(level, bucket, every, group, backend) for bucket in range(count)]


class _Partial(RunningSums):
    """Sums under way.

    Attributes:
        names: What the totals are called.
        specs: Their shapes and dtypes.
    """

    def __init__(self, sums: _Sums, plus: Callable[[list[Array], list[Array]], list[Array]] | None) -> None:
        super().__init__(sums.group, plus)
        self.sums, self.names, self.specs = sums, sums.names, sums.specs
        self._done: Future[Any] | None = None

    def begin(self, worker: Worker) -> None:
        """Sum over ranks, when the ones before have been, while this thread goes on."""
        if self.names:
            self._done = worker.begin(self._between_ranks())

    def total(self) -> Arrays:
        """The sums over all shards, by name."""
        if not self.names:
            return {}
        totals = self.arrays
        if self.sums.group.ranks > 1:
            outcome = self._between_ranks()() if self._done is None else self._done.result()
            totals = [
                self.sums.backend.asarray(a) for a in (outcome if isinstance(outcome, tuple | list) else (outcome,))
            ]
        return dict(zip(self.names, totals, strict=True))

    def _between_ranks(self) -> Callable[[], Any]:
        """Sum over ranks, not yet taken: of arrays on the host, unless the communicator takes the backend's."""
        backend, group = self.sums.backend, self.sums.group
        if isinstance(group.communicator, TorchCommunicator) and group.communicator.takes(backend):
            return partial(group.communicator.total, self.arrays, group)
        host = [backend.to_numpy(a) for a in self.arrays]
        return partial(all_reduce.reference, *host, group=group, xp=np)
