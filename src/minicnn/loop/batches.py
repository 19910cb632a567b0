"""Sources of batches: whole arrays, of which each step picks rows; and the choice of a source."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends.base import Stage
from minicnn.data.forms import Batches, as_list, dtype_name, host, mapped, numeric
from minicnn.data.order import Indices, batch_indices, epoch_order, num_batches, picked
from minicnn.loop.adapters import same_length, taken_over
from minicnn.loop.loaders import LoaderSource, on_device, on_host
from minicnn.loop.prefetch import Chunk, Gatherer, HostArray, row_specs, staged, steps_of_a_slot
from minicnn.loop.sources import BatchSource
from minicnn.loop.standardizer import Standardizer
from minicnn.loop.tracing import Feed, Run
from minicnn.program.graph import ITEMSIZE

if TYPE_CHECKING:
    from minicnn.distribution import DataParallel


class ArraySource(BatchSource):
    """Batches picked by index from whole arrays: on the device, or in the host's memory if they are not kept there.

    Arrays of the host that are kept on the device go there in the order of the first pass, whose steps begin as soon as
    their rows are there, and stay in that order.

    Memory maps of which either would take a copy are read and converted batch by batch, as what a loader gives is.

    Args:
        standardizer: What the batches are for.
        xs: Inputs, arrays that were checked.
        y: Labels; None where predictions are made.
        weight: Sample weights or None.
        batch_size: Samples in a batch.
        last_batch: What becomes of a last batch that is not full: see `batch_indices`.
    """

    def __init__(
        self, standardizer: Standardizer, xs: list[Any], y: Any, weight: Any, *, batch_size: int, last_batch: Any
    ) -> None:
        self._backend = standardizer.backend
        self._stages: dict[Any, Stage] = {}
        labelled = standardizer.losses or standardizer.free
        ys = [numeric(a, "Labels") for a in as_list(y, len(standardizer.outputs))] if labelled and y is not None else []
        ws = [] if weight is None else [numeric(weight, "Sample weights")]
        xs, ys, ws = ([taken_over(a, self._backend) for a in arrays] for arrays in (xs, ys, ws))
        self._samples = int(xs[0].shape[0])
        self._batch_size, self._last_batch = batch_size, last_batch
        self._batches = num_batches(self._samples, batch_size, last_batch)
        self._ahead: tuple[tuple[int, int], Indices] | None = None  # seed and epoch, order
        self._standardizer, self._gather = standardizer, None
        self._mapped: list[list[HostArray]] = []  # inputs, labels, weights
        stays = _stays(standardizer, *xs, *ys, *ws)
        if _takes_copies(standardizer, stays, xs, ys, ws):
            same_length("inputs, labels and weights", *xs, *ys, *ws)
            self._mapped = [[host(a) for a in arrays] for arrays in (xs, ys, ws)]
            return
        labels = ys[0] if len(ys) == 1 else ys or None
        self._stays = stays
        self._places: Indices | None = None  # of the samples on the device, where they are in another order
        nbytes = sum(int(getattr(a, "nbytes", 0)) for a in (*xs, *ys, *ws))
        # What goes through one slot waits for all of it in any case.
        comes = stays and nbytes > self._backend.stage_bytes > 0 and not on_device([*xs, *ys, *ws], self._backend)
        whole = (on_host(standardizer) if comes or not stays else standardizer).run(xs, labels, *ws)
        self._whole, self._arrays = whole.feed, whole.arrays
        self._gather = Gatherer(self._arrays) if comes or not stays else None

    def batches(self) -> int:
        """See `BatchSource`."""
        return self._batches

    def one_pass(self, *, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        """See `BatchSource`."""
        ahead, self._ahead = self._ahead, None
        if shuffle and ahead is not None and ahead[0] == (seed, epoch):
            order = ahead[1]
        else:
            order = epoch_order(self._samples, shuffle=shuffle, seed=seed, epoch=epoch)
        batches = batch_indices(order, self._batch_size, self._last_batch)
        if self._mapped:
            loader = (self._read(rows) if number >= skip else () for number, rows in enumerate(batches))
            source = LoaderSource(self._standardizer, loader, several_epochs=False)
            source._stages = self._stages
            yield from source.runs(shuffle=False, seed=0, epoch=0, skip=skip, longest=longest)
        elif self._gather is not None and self._stays:
            yield from self._arriving(batches, skip, self._gather, longest)
        elif self._gather is not None:
            yield from staged(self._chunks(batches[skip:], self._gather, longest), self._backend, self._stages)
        else:
            yield from self._there(batches[skip:], longest)
        if shuffle and longest > 1:  # the device is still at work: time for the next order
            self._ahead = (seed, epoch + 1), epoch_order(self._samples, shuffle=True, seed=seed, epoch=epoch + 1)

    def _there(self, batches: Iterable[Indices], longest: int) -> Iterator[Run]:
        """Steps on arrays of the device."""
        for size, rows in _grouped(batches, longest):
            feed = Feed(size, self._whole.x, self._whole.y, self._whole.weight, gathered=True)
            index = np.stack(rows)
            yield Run(feed, self._arrays, len(rows), index if self._places is None else self._places[index])

    def _arriving(self, batches: list[Indices], skip: int, gather: Gatherer, longest: int) -> Iterator[Run]:
        """The first pass of arrays that are to stay on the device: they come while it computes.

        A pass that begins later, or whose steps are taken one by one, has all of them from the beginning.
        """
        if skip or longest == 1:
            self._arrays = {name: self._backend.asarray(array) for name, array in self._arrays.items()}
            self._gather = None
            yield from self._there(batches[skip:], longest)
            return
        order = np.concatenate(batches)
        absent = np.ones(self._samples, bool)
        absent[order] = False
        left = np.flatnonzero(absent).astype(np.int32)  # in no batch of this pass
        total, stages = len(order) + len(left), dict[Any, Stage]()
        yield from staged(self._chunks(batches, gather, longest, total), self._backend, stages)
        (stage,) = stages.values()
        if len(left):
            stage.fill(0, len(left), partial(gather, left), len(order))
            stage.begin(0)
            stage.close()
        places = np.empty(self._samples, np.int32)
        places[order], places[left] = np.arange(len(order)), np.arange(len(order), total)
        self._whole = self._whole.of(total)
        self._arrays, self._places, self._gather = dict(stage.arrays), places, None
        weakref.finalize(self, stage.release)

    def _read(self, rows: Indices) -> tuple[Any, ...]:
        """A batch of memory maps, as a loader gives it."""
        xs, ys, ws = ([picked(array, rows) for array in arrays] for arrays in self._mapped)
        return xs, ys or None, *ws

    def _chunks(self, batches: Iterable[Indices], gather: Gatherer, longest: int, total: int = 0) -> Iterator[Chunk]:
        """Steps whose rows are on the host; of `total` rows those that are kept on the device, one behind the other."""
        specs = row_specs(self._arrays)
        steps = steps_of_a_slot(specs, self._batch_size, longest, self._backend.stage_bytes)
        at = 0
        for size, rows in _grouped(batches, steps):
            room, write = steps * self._batch_size, partial(gather, np.concatenate(rows))
            yield Chunk(self._whole.of(size), len(rows), specs, room, write, at if total else None, total)
            at += size * len(rows)


def _grouped(batches: Iterable[Indices], longest: int) -> Iterator[tuple[int, list[Indices]]]:
    """Size and rows of up to `longest` batches of one size at a time."""
    for size, equal in groupby(batches, key=len):
        while rows := list(islice(equal, longest)):
            yield size, rows


def _stays(standardizer: Standardizer, *arrays: Any) -> bool:
    """True if arrays are, or will be, where the backend computes."""
    backend, width = standardizer.backend, ITEMSIZE[standardizer.dtype]
    if any(backend.owns(a) for a in arrays):
        return True
    return backend.keeps(sum(math.prod(a.shape) * (1 if dtype_name(a) == "uint8" else width) for a in arrays))


def _takes_copies(
    standardizer: Standardizer, stays: bool, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]
) -> bool:
    """True if one of the arrays is a memory map that cannot be used as it is, and none is on a device.

    A device that has room for all of them is given them.
    """
    backend, dtype = standardizer.backend, standardizer.dtype
    arrays = [*xs, *ys, *ws]
    if (backend.stage_bytes and stays) or any(backend.owns(a) and not isinstance(a, np.ndarray) for a in arrays):
        return False
    forms: list[tuple[str, ...]] = [("uint8", dtype)] * len(xs)
    forms += [("int32",) if loss.integer_labels else (dtype,) for loss in standardizer.losses]
    forms += [(dtype,)] * len(ws)
    return any(
        mapped(a) and not ((backend.stage_bytes or backend.owns(a)) and a.dtype.isnative and a.dtype.name in form)
        for a, form in zip(arrays, forms, strict=False)
    )


def source_of(
    standardizer: Standardizer, x: Any, y: Any, weight: Any, *, batch_size: int, last_batch: Any = "keep",
    steps: int | None = None, several_epochs: bool = False, continues: bool = False,
    distribution: DataParallel | None = None,
) -> BatchSource:  # fmt: skip
    """The source of batches that data are.

    Args:
        standardizer: What the batches are for.
        x: Inputs, or `Batches`.
        y: Labels; None with a loader.
        weight: Sample weights or None.
        batch_size: Samples in a batch; a loader has its own.
        last_batch: What becomes of a last batch that is not full: see `batch_indices`.
        steps: Batches of an epoch; None for all of the data.
        several_epochs: Whether there are several epochs.
        continues: Whether an epoch of `steps` goes on where the one before has ended, the data being gone through again
            and again; else it is the first batches of the data.
        distribution: Who shares batches of a loader out.

    Raises:
        ValueError: If labels are missing or given twice, or it cannot be known how many batches an epoch has.
    """
    source: BatchSource
    if isinstance(x, Batches):
        if y is not None or weight is not None:
            raise ValueError(
                "A loader gives labels and sample weights itself. Received: a loader, and y or sample_weight."
            )
        sized, by_number = hasattr(x.loader, "__len__"), hasattr(x.loader, "__getitem__")
        if not sized or (continues and not by_number):  # going on is then better than beginning anew
            return LoaderSource(standardizer, x.loader, steps, several_epochs, distribution)
        source = LoaderSource(standardizer, x.loader, None, several_epochs, distribution)
    else:
        if y is None and not standardizer.free:
            raise ValueError("Arrays come with labels: pass y as well, or a loader of (x, y). Received: y=None.")
        source = ArraySource(
            standardizer, standardizer.checked(x), y, weight, batch_size=batch_size, last_batch=last_batch
        )
    if steps is not None and (continues or steps < len(source)):
        source.steps = steps
    return source
