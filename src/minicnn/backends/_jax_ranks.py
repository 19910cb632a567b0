"""A step of all ranks as one function that JAX compiles, with the collectives inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from minicnn.backends.base import Backend, Executable
from minicnn.distribution.jax import AXIS, JaxCommunicator
from minicnn.distribution.running import RankStep
from minicnn.distribution.schedule import Arrays, Collective, Piece, RankSchedule
from minicnn.ops.checks import normalize_axes
from minicnn.program.graph import Node

Array = Any


def _normalizes(node: Node) -> bool:
    """True if a node divides elements by a sum of some of them, within a sample, or is a part of that."""
    if node.op.name == "sum" and node.attrs["keepdims"]:
        return 0 not in normalize_axes("axes", node.attrs["axes"], node.inputs[0].ndim)
    return node.op.name in ("normalize", "normalize_gradient")


def rank_step(schedule: RankSchedule, backend: Backend) -> Executable:
    """The step of a rank, in one jit where jax.distributed connects ranks that compute alike."""
    connected = isinstance(schedule.group.communicator, JaxCommunicator)
    return JittedStep(schedule, backend) if connected and fits(schedule) else RankStep(schedule, backend)


def fits(schedule: RankSchedule) -> bool:
    """True if every rank computes the same on arrays of the same shapes, which is what XLA compiles.

    All shards are of one size, each rank makes one sum by itself, of as many shards, and there are sums alone. Nor is
    there a normalisation within a shard: XLA fuses what it is made of otherwise for one shard a rank than for several.
    """
    group, program = schedule.group, schedule.program
    # XLA would fuse a division into what follows, with other roundings for one shard than for several.
    if any(_normalizes(node) for node in program.nodes):
        return False
    alike = {(len(group.held(r)), len(group.spans(r))) for r in range(group.ranks)}
    sums = {"all_reduce"} >= {node.op.name for node in program.nodes if "group" in node.attrs}
    return schedule.batch % group.shards == 0 and sums and len(alike) == 1 and alike.pop()[1] == 1


class JittedStep(RankStep):
    """A `RankStep` in one jit, mapped over the ranks by `shard_map`.

    Sums go all to all, through the tree, and back to all, as between the pieces of a `RankStep`. Barriers keep XLA
    from fusing the pieces with each other, since bits would then depend on how many shards a rank has.

    Args:
        schedule: See `RankStep`.
        backend: That of JAX.
    """

    overlaps = False  # but for what XLA does by itself
    watches = False  # which would be many results

    def __init__(self, schedule: RankSchedule, backend: Backend) -> None:
        super().__init__(schedule, backend)
        # Each rank has its own, though XLA compiles one function for all of them.
        self._constants.pop("rows", None)
        rows = np.arange(schedule.rows.start, schedule.rows.stop, dtype=np.int32)
        self._numbers = {"rows": backend.asarray(rows)} if "rows" in schedule.cut else {}
        self._inputs = {v.name for v in schedule.program.inputs}
        self._communicator = communicator = cast("JaxCommunicator", schedule.group.communicator)
        specs = (communicator.same.spec, communicator.same.spec, communicator.cut.spec)
        mapped = jax.shard_map(
            lambda *groups: super(JittedStep, self).__call__(groups[0] | groups[1] | groups[2]),
            mesh=communicator.mesh, in_specs=specs, out_specs=communicator.same.spec, check_vma=False,
        )  # fmt: skip
        self._jitted = jax.jit(mapped, donate_argnums=0)
        self._jit: Any = None

    def __call__(self, arrays: Mapping[str, Array]) -> Arrays:
        """See `RankStep`."""
        schedule, spread = self._schedule, self._communicator.spread
        groups: list[Arrays] = [{}, {}, {}]  # carried, the same in every step, and cut
        for name, array in {**arrays, **self._numbers}.items():
            if name in schedule.cut:
                groups[2][name] = spread(schedule.own(name, array), cut=True)
            elif name in self._inputs:
                groups[name not in schedule.program.updates][name] = spread(array, cut=False)
        # At the first call, when the shardings of the arrays are known.
        if self._jit is None:
            self._jit = self._jitted.lower(*groups).compile()
        results = self._communicator.run(self._jit, *groups)
        return {name: array.addressable_data(0) for name, array in results.items()}

    def _piece(self, piece: Piece, arrays: Arrays) -> Arrays:
        return _apart(super()._piece(piece, _apart(arrays)))

    def _total(self, collective: Collective, arrays: list[Array]) -> list[Array]:
        group = collective.group
        flat = jnp.concatenate([jnp.ravel(a) for a in arrays])
        if group.deterministic:
            pieces = jnp.pad(flat, (0, -flat.size % group.ranks)).reshape(group.ranks, -1)
            taken = jax.lax.all_to_all(pieces, AXIS, 0, 0)
            share_total = group.total({group.spans(r)[0]: taken[r] for r in range(group.ranks)}, jnp.add)
            whole = jax.lax.all_gather(share_total, AXIS, tiled=True)
        else:
            whole = jax.lax.psum(flat, AXIS)
        totals, start = [], 0
        for array in arrays:
            totals.append(whole[start : start + array.size].reshape(array.shape))
            start += array.size
        return totals


def _apart(arrays: Arrays) -> Arrays:
    """The arrays at a place over which XLA fuses nothing, in row-major order, as they are between two jits."""
    rows = {n: with_layout_constraint(a, Layout(tuple(range(a.ndim)))) for n, a in arrays.items()}
    # Without it XLA fuses parts of different shards, and bits would depend on how many a rank has.
    kept: Arrays = jax.lax.optimization_barrier(rows)
    return kept
