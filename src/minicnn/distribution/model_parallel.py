"""ModelParallel: each rank has some columns of the kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from minicnn.distribution.data_parallel import DataParallel
from minicnn.ops.groups import Communicator, Group

_COLUMNS = "model"  # Keras's usual name of the axis of a device mesh
_ALL = (("kernel", 2), ("kernel", 4))


class ModelParallel(DataParallel):
    """Training in which kernels are split by their columns: each shard has some units or filters.

    A shard gathers the samples of all others, or of those of its group, before a layer whose kernel is split, computes
    its units or filters of all of them, and gives each shard back those of its samples. So a rank keeps, updates and
    multiplies its columns of the kernel alone, and their gradients are not exchanged, or between groups alone. All
    else is computed as by `DataParallel`. With the dense kernels alone in the layout this is hybrid parallelism:
    convolutions by data, dense layers by model (A. Krizhevsky, One weird trick for parallelizing convolutional neural
    networks, arXiv:1404.5997).

    Weights have the same bits with any number of ranks. They are put together where they are read or saved: let all
    ranks call `get_weights`, `save` and `predict` at the same time.

    Args:
        shards: Parts of each batch and of each kernel, at least as many as ranks.
        layout_map: As Keras's: from regular expressions of weights' paths to what their axes are split along, of which
            the last is "model" and the others are None. {"kernel": (None, "model")} stands for the kernels with two
            axes, which are the dense ones; four axes have those of convolutions. None stands for both. Split are those
            of dense and convolutional layers whose number of columns is a multiple of the shards, and that have neither
            regularizer nor constraint.
        groups: Groups of shards, each of which has all parts of a kernel; gradients of these are summed over the
            groups. They are the first axis of Keras's `DeviceMesh`, where data is split; shards / groups is the second.
        timeout: See `DataParallel`.
        communicator: See `DataParallel`.

    Raises:
        ValueError: If an argument is out of range; in training, if a pattern of the layout is that of no weight, a
            batch has fewer samples than there are shards, or the optimizer mixes elements of a kernel otherwise than by
            sums over all of them.

    Example:
        >>> ModelParallel(4, layout_map={"kernel": (None, "model")})
        ModelParallel(shards=4, layout=[('kernel', 2)], timeout=300)
    """

    def __init__(
        self, shards: int, *, layout_map: Mapping[str, tuple[str | None, ...]] | None = None, groups: int = 1,
        timeout: float = 300.0, communicator: Communicator | None = None,
    ) -> None:  # fmt: skip
        super().__init__(shards, timeout=timeout, communicator=communicator)
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or shards % groups:
            raise ValueError(f"groups divides the shards. Received: groups={groups!r} and shards={shards}.")
        self.groups = groups
        if not isinstance(layout_map, Mapping | None):
            raise ValueError(
                "layout_map is a dictionary from regular expressions of weights' paths to axes, such as "
                f'{{"kernel": (None, "model")}}. Received: {layout_map!r:.60}. Write it so, or leave it out.'
            )
        for pattern, axes in (layout_map or {}).items():
            if not axes or axes[-1] != _COLUMNS or any(axis is not None for axis in axes[:-1]):
                raise ValueError(
                    f"Kernels are split along their last axis, which a layout names {_COLUMNS!r}, the others None. "
                    f"Received: {pattern!r}: {axes!r}."
                )
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"Keys of layout_map are regular expressions of weights' paths. Received: {pattern!r}: {error}. "
                    'Give a text such as "dense.*/kernel".'
                ) from error
        self._map = layout_map
        entries = _ALL if layout_map is None else [(pattern, len(axes)) for pattern, axes in layout_map.items()]
        self.layout = tuple(entries)

    def __reduce__(self) -> Any:
        return partial(ModelParallel, self.shards, layout_map=self._map, groups=self.groups, timeout=self.timeout), ()

    def describe(self) -> dict[str, Any]:
        """See `DataParallel`."""
        return {**super().describe(), **({"groups": self.groups} if self.groups > 1 else {})}

    def _group(self, batch: int) -> Group:
        if batch < self.shards:
            raise ValueError(
                f"Where kernels are split a batch has at least as many samples as there are shards. Received: {batch} "
                f"samples for {self.shards} shards. Choose another batch size, or last_batch='drop' or 'pad'."
            )
        return super()._group(batch)

    def __repr__(self) -> str:
        groups = f", groups={self.groups}" if self.groups > 1 else ""
        return f"ModelParallel(shards={self.shards}, layout={list(self.layout)}{groups}, timeout={self.timeout:g})"
