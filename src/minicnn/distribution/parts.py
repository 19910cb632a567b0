"""Arrays of which each rank has some parts: columns of kernels, and weights of stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.distribution.communicators import OneProcess
from minicnn.distribution.exchanges import all_gather
from minicnn.layers.cell import Parts
from minicnn.ops.groups import Group
from minicnn.program.graph import Spec

if TYPE_CHECKING:
    from minicnn.backends.base import Backend

Array = Any
Host = np.ndarray[Any, Any]


class KernelParts(Parts):
    """Parts of a kernel, or of what an optimizer keeps of it: those of this rank's shards, cut along the last axis.

    Args:
        arrays: The part of each shard.
        backend: Whose arrays they are.
        group: Who has which shards.
        count: Parts of the whole; with several groups of shards each has all of them.
    """

    def __init__(self, arrays: Sequence[Array], backend: Backend, group: Group, count: int) -> None:
        self.arrays, self._backend, self._group, self._count = arrays, backend, group, count

    def whole(self) -> Host:
        """See `Parts`."""
        host = [self._backend.to_numpy(array) for array in self.arrays]
        every = all_gather(host, self._group, self._group.communicator or OneProcess(), axis=host[0].ndim - 1)[0]
        return np.ascontiguousarray(every[..., : every.shape[-1] // (self._group.shards // self._count)])


class StageParts(Parts):
    """A weight of a layer, or what an optimizer keeps of it, which one rank has.

    Args:
        arrays: The array; none on the other ranks.
        backend: Whose array it is.
        spec: Its shape and dtype.
        holder: The rank that others get it from.
        group: The ranks.
    """

    def __init__(self, arrays: Sequence[Array], backend: Backend, spec: Spec, holder: int, group: Group) -> None:
        self.array, self._backend = next(iter(arrays), None), backend
        self._spec, self._holder, self._group = spec, holder, group

    def whole(self) -> Host:
        """See `Parts`."""
        group, nothing = self._group, np.empty(0, self._spec.dtype)
        outgoing = nothing
        if group.rank == self._holder:
            outgoing = np.ascontiguousarray(self._backend.to_numpy(self.array)).reshape(-1)
        flat = np.empty(self._spec.size, self._spec.dtype)
        incoming = [flat if r == self._holder else nothing.copy() for r in range(group.ranks)]
        (group.communicator or OneProcess()).exchange([outgoing] * group.ranks, incoming)
        return flat.reshape(self._spec.shape)
