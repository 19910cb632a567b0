"""Steps of ranks with a GPU each: sums whose collectives the GPU runs, as nodes of a Program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends._gpu.backend import GpuBackend
from minicnn.distribution.nccl import NcclCommunicator
from minicnn.distribution.passes import ADDED, Shard, summed_loss
from minicnn.distribution.step import Arrays, ShardedStep, _Partial, _Sums, own_rows
from minicnn.ops.groups import Group
from minicnn.program.graph import Node, Program, Value


def fits(group: Group) -> bool:
    """Whether each rank makes one sum by itself, so that all give arrays of one size."""
    return all(len(group.spans(r)) == 1 for r in range(group.ranks))


def summed(values: Sequence[Value], group: Group) -> list[Value]:
    """Sums over all ranks, by collectives that only move elements, and additions.

    Each rank gets everybody's share of the elements, adds in the order of the tree, and gives the result to all; in
    the fast mode the engine adds.

    Args:
        values: What this rank adds to each sum; of one dtype.
        group: Who has which shards; each rank has one sum.
    """
    flat = ops.concat(*(ops.reshape(v, shape=(v.size,)) for v in values), axis=0)
    if group.deterministic:
        rest = -flat.size % group.ranks
        padded = ops.pad(flat, widths=((0, rest),)) if rest else flat
        pieces = ops.reshape(padded, shape=(group.ranks, -(-flat.size // group.ranks)))
        taken = ops.all_to_all(pieces, split=0, join=0, group=group)
        own = group.total({group.spans(r)[0]: taken[r] for r in range(group.ranks)}, lambda a, b: a + b)
        whole = ops.all_gather(own, axis=0, group=group)
    else:
        whole = ops.all_reduce(flat, group=group)
    made, start = [], 0
    for value in values:
        made.append(ops.reshape(whole[start : start + value.size], shape=value.shape))
        start += value.size
    return made


def lower(program: Program, group: Group) -> None:
    """Take the sums of the Program of a shard by collectives that the GPU runs; each rank has one shard."""

    def rule(node: Node) -> Sequence[Value] | None:
        known = node.op.name == "all_reduce" and node.attrs["group"].communicator is None
        return summed(node.inputs, group) if known else None

    program.replace(rule)


class DeviceStep(ShardedStep):
    """A `ShardedStep` whose sums are Programs of the GPU, with their collectives; see there for the arguments."""

    overlaps = False  # a GPU does what it is given in one order

    def __init__(
        self, programs: Mapping[int, Program], shards: Sequence[Shard], group: Group, data: Iterable[str],
        cut: Iterable[str], backend: GpuBackend, communicator: NcclCommunicator,
    ) -> None:  # fmt: skip
        super().__init__(programs, shards, group, data, cut, backend)
        self._communicator, self._runtime = communicator, backend.runtime
        connect(communicator, backend)
        sums = [each for level, _ in self._collectives for each in level if each.names]
        compiled = backend.compile_each([self._program(each) for each in sums])
        self._sums = {each.names[0]: run for each, run in zip(sums, compiled, strict=True)}

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """See `ShardedStep`."""
        made = super().__call__(arrays)
        with self._runtime.active():
            self._communicator.finish(self._runtime)
        return made

    def _program(self, sums: _Sums) -> Program:
        """One that adds up what the ranks give."""
        program = Program("sums")
        given = [program.input(f"given {n}", s.shape, s.dtype) for n, s in zip(sums.names, sums.specs, strict=True)]
        program.outputs = dict(zip(sums.names, summed(given, self._group), strict=True))
        return program

    def _total(self, partial: _Partial) -> Arrays:
        names = partial.names
        if not names:
            return {}
        ((_, totals),) = partial.found
        return dict(self._sums[names[0]]({f"given {n}": a for n, a in zip(names, totals, strict=True)}))


class WholeStep:
    """An Executable of the whole step of a rank with one shard: one CUDA graph, the collectives among its launches.

    Args:
        program: That of the shard.
        shard: The shard.
        group: Who has which shards.
        cut: Names of the inputs of which the shard is given its rows.
        backend: What runs it.
        communicator: Connects the ranks.
    """

    def __init__(
        self, program: Program, shard: Shard, group: Group, cut: Collection[str], backend: GpuBackend,
        communicator: NcclCommunicator,
    ) -> None:  # fmt: skip
        self._shard, self._cut = shard, frozenset(cut) - {"rows"}
        self._inputs = [v.name for v in program.inputs]
        numbers = np.arange(shard.start, shard.start + shard.samples, dtype=np.int32)
        self._numbers = {"rows": backend.asarray(numbers)} if "rows" in cut else {}
        self._communicator, self._runtime = communicator, backend.runtime
        connect(communicator, backend)
        total = summed_loss(program)
        if total is not None and total.node is not None:
            own = {id(a): b for a, b in zip(total.node.outputs, total.node.inputs, strict=True)}
            program.outputs[f"{ADDED}0.0"] = own[id(total)]
        lower(program, group)
        self._run = backend.compile(program)

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """Outputs and updates by name; inputs that are updated are donated."""
        known = {**arrays, **self._numbers}
        own = {n: known[n][own_rows(known[n], self._shard, self._shard), ...] for n in self._inputs if n in self._cut}
        made = self._run({n: own[n] if n in own else known[n] for n in self._inputs})
        with self._runtime.active():
            self._communicator.finish(self._runtime)
        return made


def step(
    programs: Mapping[int, Program], shards: Sequence[Shard], group: Group, data: Collection[str], cut: Collection[str],
    backend: Any, communicator: NcclCommunicator,
) -> ShardedStep | WholeStep:  # fmt: skip
    """The step of a rank, as much of it on the GPU as can be: see `ShardedStep` for the arguments."""
    program = programs[shards[0].samples]
    if group.shards == group.ranks and not group.deterministic and not program.parts:
        return WholeStep(program, shards[0], group, cut, backend, communicator)
    if fits(group):
        return DeviceStep(programs, shards, group, data, cut, backend, communicator)
    return ShardedStep(programs, shards, group, data, cut, backend)


def connect(communicator: NcclCommunicator, backend: GpuBackend) -> None:
    """Connect the ranks before anything is captured."""
    with backend.runtime.active():
        arrays = [backend.runtime.empty((communicator.size,), "float32") for _ in range(2)]
        for array in arrays:
            backend.runtime.clear(array)
        communicator.prepare(arrays, backend.runtime)
