"""A step of all ranks as one function that JAX compiles, with the collectives inside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from minicnn.backends.base import Backend
from minicnn.distribution.jax import AXIS, JaxCommunicator
from minicnn.distribution.passes import Shard
from minicnn.distribution.step import Arrays, ShardedStep, _Part, _Partial
from minicnn.ops.checks import normalize_axes
from minicnn.ops.groups import Group
from minicnn.program.graph import Node, Program

Array = Any


def _normalizes(node: Node) -> bool:
    """True if a node divides elements by a sum of some of them, within a sample, or is a part of that."""
    if node.op.name == "sum" and node.attrs["keepdims"]:
        return 0 not in normalize_axes("axes", node.attrs["axes"], node.inputs[0].ndim)
    return node.op.name in ("normalize", "normalize_gradient")


def fits(programs: Mapping[int, Program], group: Group) -> bool:
    """True if every rank computes the same on arrays of the same shapes, which is what XLA compiles.

    All shards are of one size, each rank makes one sum by itself, of as many shards, and there are sums alone. Nor is
    there a normalisation within a shard: XLA fuses what it is made of otherwise for one shard a rank than for several.
    """
    # XLA would fuse a division into what follows, with other roundings for one shard than for several.
    if any(_normalizes(n) for p in programs.values() for n in p.nodes):
        return False
    alike = {(len(group.held(r)), len(group.spans(r))) for r in range(group.ranks)}
    sums = {"all_reduce"} >= {n.op.name for p in programs.values() for n in p.nodes if "group" in n.attrs}
    return len(programs) == 1 and sums and len(alike) == 1 and alike.pop()[1] == 1


class JittedStep(ShardedStep):
    """A `ShardedStep` in one jit, mapped over the ranks by `shard_map`.

    Sums go all to all, through the tree, and back to all, as between the parts of a `ShardedStep`. Barriers keep XLA
    from fusing the parts with each other, since bits would then depend on how many shards a rank has.

    Args:
        programs: For the one number of samples that shards have, the Program.
        shards: The shards of this rank.
        group: Who has which shards.
        data: Names of the inputs that belong to a shard.
        cut: Of them those of which each shard is given its rows.
        backend: That of JAX.
        communicator: Connects the ranks.
    """

    overlaps = False  # but for what XLA does by itself
    watches = False  # which would be many results

    def __init__(
        self, programs: Mapping[int, Program], shards: Sequence[Shard], group: Group, data: Iterable[str],
        cut: Collection[str], backend: Backend, communicator: JaxCommunicator,
    ) -> None:  # fmt: skip
        self._start, self._rows = shards[0].start, sum(shard.samples for shard in shards)
        self._batch = shards[0].batch
        local_shards = [replace(shard, start=shard.start - self._start) for shard in shards]
        super().__init__(programs, local_shards, group, data, cut, backend)
        program = next(iter(programs.values()))
        self._inputs, self._carried = {v.name for v in program.inputs}, set(program.updates)
        self._communicator = communicator
        specs = (communicator.same.spec, communicator.same.spec, communicator.cut.spec)
        mapped = jax.shard_map(
            lambda *groups: super(JittedStep, self).__call__(groups[0] | groups[1] | groups[2]),
            mesh=communicator.mesh, in_specs=specs, out_specs=communicator.same.spec, check_vma=False,
        )  # fmt: skip
        self._jitted = jax.jit(mapped, donate_argnums=0)
        self._compiled: Any = None

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """See `ShardedStep`."""
        rows = slice(self._start, self._start + self._rows)
        inputs = {name: arrays[name] for name in self._inputs if name in arrays}
        cut = {
            name: array[rows] if array.shape[0] == self._batch else array  # else it is these rows
            for name, array in inputs.items() if name in self._cut
        }  # fmt: skip
        if "rows" in self._cut:
            cut["rows"] = self._backend.asarray(np.arange(rows.start, rows.stop, dtype=np.int32))
        spread = self._communicator.spread
        groups: list[Arrays] = [{}, {}, {n: spread(a, cut=True) for n, a in cut.items()}]
        for name in inputs.keys() - cut.keys():
            groups[name not in self._carried][name] = spread(inputs[name], cut=False)
        # At the first call, when the shardings of the arrays are known.
        if self._compiled is None:
            self._compiled = self._jitted.lower(*groups).compile()
        results = self._communicator.run(self._compiled, *groups)
        return {name: array.addressable_data(0) for name, array in results.items()}

    def _run(self, part: _Part, arrays: Arrays) -> Arrays:
        return _apart(super()._run(part, _apart({name: arrays[name] for name in part.inputs})))

    def _total(self, partial: _Partial) -> Arrays:
        names, group = partial.names, self._group
        if not names:
            return {}
        ((_, totals),) = partial.partial_sums
        flat = jnp.concatenate([jnp.ravel(a) for a in totals])
        if group.deterministic:
            pieces = jnp.pad(flat, (0, -flat.size % group.ranks)).reshape(group.ranks, -1)
            taken = jax.lax.all_to_all(pieces, AXIS, 0, 0)
            share_total = group.total({group.spans(r)[0]: taken[r] for r in range(group.ranks)}, jnp.add)
            whole = jax.lax.all_gather(share_total, AXIS, tiled=True)
        else:
            whole = jax.lax.psum(flat, AXIS)
        totals_by_name, start = {}, 0
        for name, array in zip(names, totals, strict=True):
            totals_by_name[name] = whole[start : start + array.size].reshape(array.shape)
            start += array.size
        return totals_by_name


def _apart(arrays: Arrays) -> Arrays:
    """The arrays at a place over which XLA fuses nothing, in row-major order, as they are between two jits."""
    rows = {n: with_layout_constraint(a, Layout(tuple(range(a.ndim)))) for n, a in arrays.items()}
    # Without it XLA fuses parts of different shards, and bits would depend on how many a rank has.
    kept: Arrays = jax.lax.optimization_barrier(rows)
    return kept
