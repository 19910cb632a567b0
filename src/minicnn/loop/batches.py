"""Where batches come from: whole arrays, of which each step picks rows, or loaders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count as numbers
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend, Stage
from minicnn.data.forms import Batches, as_list, dtype_name, host, mapped, numeric, shuffles
from minicnn.data.order import Indices, batch_indices, epoch_order, num_batches, picked
from minicnn.loop.adapters import Batch, Standardizer, checked_inputs, one_row, same_length
from minicnn.loop.prefetch import Chunk, Gatherer, HostArray, Run, row_specs, staged, steps_of_a_slot
from minicnn.loop.tracing import Feed
from minicnn.program.graph import ITEMSIZE, Spec

if TYPE_CHECKING:
    from minicnn.distribution import DataParallel


class ArraySource:
    """Batches picked by index from whole arrays: on the device, or in the host's memory if they are not kept there.

    Memory maps of which either would take a copy are read and converted batch by batch, as what a loader gives is.

    Args:
        standardizer: What the batches are for.
        x: Inputs.
        y: Labels; None where predictions are made.
        weight: Sample weights or None.
        batch_size: Samples in a batch.
        last_batch: What becomes of a last batch that is not full: see `batch_indices`.
    """

    def __init__(
        self, standardizer: Standardizer, x: Any, y: Any, weight: Any, *, batch_size: int, last_batch: Any
    ) -> None:
        self._backend = standardizer.backend
        self._stages: dict[Any, Stage] = {}
        xs = checked_inputs(x, standardizer.inputs)
        ys = [numeric(a, "Labels") for a in as_list(y, len(standardizer.outputs))] if standardizer.losses else []
        ws = [] if weight is None else [numeric(weight, "Sample weights")]
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
        labels = ys[0] if len(ys) == 1 else ys
        self._whole, self._arrays = (standardizer if stays else on_host(standardizer)).batch(xs, labels, *ws)
        self._gather = None if stays else Gatherer(self._arrays)

    def __len__(self) -> int:
        return self._batches

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out."""
        for run in self.runs(shuffle=shuffle, seed=seed, epoch=epoch, skip=skip, longest=1):
            index = np.empty((1, 0), np.int32) if run.index is None else run.index
            yield run.feed, {**run.arrays, "index": self._backend.asarray(index[0], "int32")}

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0, longest: int = 1) -> Iterator[Run]:
        """The same batches, up to `longest` of one size at a time."""
        ahead, self._ahead = self._ahead, None
        if shuffle and ahead is not None and ahead[0] == (seed, epoch):
            order = ahead[1]
        else:
            order = epoch_order(self._samples, shuffle=shuffle, seed=seed, epoch=epoch)
        batches = batch_indices(order, self._batch_size, self._last_batch)
        if self._mapped:
            loader = (self._read(rows) if number >= skip else () for number, rows in enumerate(batches))
            source = LoaderSource(self._standardizer, loader, again=False)
            source._stages = self._stages
            yield from source.runs(shuffle=False, seed=0, epoch=0, skip=skip, longest=longest)
        elif self._gather is not None:
            yield from staged(self._chunks(batches[skip:], self._gather, longest), self._backend, self._stages)
        else:
            for size, rows in _grouped(batches[skip:], longest):
                feed = Feed(size, self._whole.x, self._whole.y, self._whole.weight, gathered=True)
                yield Run(feed, self._arrays, len(rows), np.stack(rows))
        if shuffle and longest > 1:  # the device is still at work: time for the next order
            self._ahead = (seed, epoch + 1), epoch_order(self._samples, shuffle=True, seed=seed, epoch=epoch + 1)

    def _read(self, rows: Indices) -> tuple[Any, ...]:
        """A batch of memory maps, as a loader gives it."""
        xs, ys, ws = ([picked(array, rows) for array in arrays] for arrays in self._mapped)
        return xs, ys, *ws

    def _chunks(self, batches: Iterable[Indices], gather: Gatherer, longest: int) -> Iterator[Chunk]:
        specs = row_specs(self._arrays)
        steps = steps_of_a_slot(specs, self._batch_size, longest, self._backend.stage_bytes)
        for size, rows in _grouped(batches, steps):
            x, y = (tuple(Spec((size, *s.shape[1:]), s.dtype) for s in part) for part in (self._whole.x, self._whole.y))
            feed = Feed(size, x, y, self._whole.weight)
            yield Chunk(feed, len(rows), specs, steps * self._batch_size, partial(gather, np.concatenate(rows)))


class LoaderSource:
    """Batches as a loader gives them: (x, y) or (x, y, sample_weight).

    Args:
        standardizer: What the batches are for.
        loader: An iterable, such as a list or an iterator; or a `minicnn.utils.PyDataset`, or one of Keras, whose
            batches may be shuffled.
        steps: Batches of an epoch, if each is to go on where the one before has ended; None for all that it has.
        again: Whether it is iterated over again and again: then it has a length, or there are `steps`.
        distribution: Who shares the batches out: each rank asks a loader with `set_shard` for its rows alone.
    """

    def __init__(
        self, standardizer: Standardizer, loader: Any, steps: int | None = None, again: bool = True,
        distribution: DataParallel | None = None,
    ) -> None:  # fmt: skip
        parts = distribution is not None and distribution.loads_parts and hasattr(loader, "set_shard")
        self._distribution = distribution if parts else None
        self._standardizer, self._loader = replace(standardizer, parts=True), loader
        self._stages: dict[Any, Stage] = {}
        self._indexed = hasattr(loader, "__getitem__") and hasattr(loader, "on_epoch_end")
        self._steps = steps
        self._stream: Iterator[Any] = iter(())
        self._at = -1  # number of the batch that the stream gives next
        if again and steps is None and (not hasattr(loader, "__len__") or len(loader) < 1):
            raise ValueError(
                "A loader can be iterated over again and again, and has a length, the number of its batches, of at "
                f"least 1. Received: {type(loader).__name__}{' of length 0' * hasattr(loader, '__len__')}. A list of "
                "batches is one; for a generator say how many batches to take: steps_per_epoch, validation_steps."
            )

    def __len__(self) -> int:
        return len(self._loader) if self._steps is None else self._steps

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out; the loader itself decides on their order."""
        for run in self.runs(shuffle=shuffle, seed=seed, epoch=epoch, skip=skip):
            yield run.feed, run.arrays

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0, longest: int = 1) -> Iterator[Run]:
        """The same batches, up to `longest` of one size at a time."""
        given = self._given(skip, shuffle, seed, epoch)
        if self._distribution is not None:
            yield from self._parts(given, self._distribution)
        elif longest > 1:
            yield from staged(self._items(given, longest), self._standardizer.backend, self._stages)
        else:
            for number, batch, count in given:
                feed, arrays = _checked(self._standardizer, batch, number)
                for _ in range(count):
                    yield Run(feed, arrays)
        if self._indexed:
            self._loader.on_epoch_end()

    def _parts(self, batches: Iterator[tuple[int, Any, int]], distribution: DataParallel) -> Iterator[Run]:
        """Batches of which this rank has its rows; outside of `fit` and `evaluate` the loader gives whole ones."""
        try:
            while True:
                self._loader.set_shard(distribution.rank, distribution.ranks)  # callbacks may have used it
                number, batch, _ = next(batches, (0, None, 0))
                if batch is None:
                    break
                samples = len(as_list(batch[0], len(self._standardizer.inputs))[0])
                whole = distribution.whole_batch(samples)
                # Of a batch of fewer samples than ranks some have none, and compute along, uncounted.
                feed, arrays = _checked(self._standardizer, batch if samples else one_row(batch), number)
                x, y = (tuple(Spec((whole, *s.shape[1:]), s.dtype) for s in part) for part in (feed.x, feed.y))
                yield Run(replace(feed, batch=whole, x=x, y=y), arrays)
        finally:
            self._loader.set_shard(0, 1)

    def _given(self, skip: int, shuffle: bool, seed: int, epoch: int) -> Iterator[tuple[int, Any, int]]:
        """Number of each batch, batch, how many times a list has it in a row; the first `skip` left out."""
        wanted = None
        if self._steps is not None:
            wanted, skip = self._steps - skip, 0
            batches: Any = islice(self._from(epoch * self._steps + self._steps - wanted), wanted)
        elif self._indexed:
            order = epoch_order(len(self._loader), shuffle=shuffle, seed=seed, epoch=epoch)
            batches = (self._loader[int(i)] if n >= skip else () for n, i in enumerate(order))
        else:
            batches = self._once(epoch)
        # Objects in a list are alive, so that equal ids are one object.
        groups = groupby(batches, key=id) if isinstance(batches, list) else (((), [batch]) for batch in batches)
        given = 0
        for _, same in groups:
            times = 0
            for batch in same:  # noqa: B007  # the last is all of them
                given, times = given + 1, times + (given >= skip)
            if not times:
                continue
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                raise ValueError(f"A loader gives (x, y) or (x, y, sample_weight). Received: {_describe(batch)}.")
            yield given - times, batch, times
        if wanted is not None and given < wanted:
            raise ValueError(
                f"An epoch of a generator has as many batches as it is to have. Received: {given} of {wanted}, and no "
                "more. Let it begin anew at its end, or take fewer steps, or fewer epochs."
            )
        if not given and wanted != 0:  # none is wanted where training resumes at the end of an epoch
            raise ValueError("A loader gives at least one batch whenever it is iterated over. Received: none.")

    def _once(self, epoch: int) -> Any:
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(epoch)
        return self._loader

    def _from(self, at: int) -> Iterator[Any]:
        """The batches from that number on, the loader being gone through again and again; an iterator just goes on."""
        if isinstance(self._loader, Iterator):
            return self._loader
        if at != self._at:  # as where training resumes
            number, first = divmod(at, len(self._loader)) if hasattr(self._loader, "__len__") else (0, at)
            self._stream, self._at = islice(self._endless(number), first, None), at
        return self._counted()

    def _endless(self, epoch: int) -> Iterator[Any]:
        for number in numbers(epoch):
            given = 0
            for given, batch in enumerate(self._once(number), 1):  # noqa: B007
                yield batch
            if not given:
                return

    def _counted(self) -> Iterator[Any]:
        for batch in self._stream:
            self._at += 1
            yield batch

    def _items(self, batches: Iterable[tuple[int, Any, int]], longest: int) -> Iterator[Run | Chunk]:
        """Batches as runs if they are on the device or come again and again, else as chunks."""
        standardizer, backend = self._standardizer, self._standardizer.backend
        hosted = on_host(standardizer)
        parts: list[dict[str, HostArray]] = []
        last: Feed | None = None
        steps = 1
        for number, batch, count in batches:
            here = backend.stage_bytes and count == 1 and not _on_device(batch, backend)
            feed, arrays = _checked(hosted if here else standardizer, batch, number)
            if last is not None and (not here or feed != last or len(parts) == steps):
                yield _chunk(last, parts, steps)
                parts, last = [], None
            if here:
                last = feed
                steps = steps_of_a_slot(row_specs(arrays), feed.batch, longest, backend.stage_bytes)
                parts.append(arrays)
            else:
                for at in range(0, count, longest):
                    yield Run(feed, arrays, min(longest, count - at))
        if last is not None:
            yield _chunk(last, parts, steps)


def _checked(standardizer: Standardizer, batch: tuple[Any, ...], number: int) -> Batch:
    """A loader's batch in standard form; an error says which it was, and where that leaves the model."""
    try:
        return standardizer.batch(*batch)
    except (TypeError, ValueError) as error:
        error.add_note(
            f"In batch {number} of the epoch, counted from 0. Nothing of it was trained on; those before it were, "
            "but for what was still being made ready."
        )
        raise


def _grouped(batches: Iterable[Indices], longest: int) -> Iterator[tuple[int, list[Indices]]]:
    """Size and rows of up to `longest` batches of one size at a time."""
    for size, equal in groupby(batches, key=len):
        while rows := list(islice(equal, longest)):
            yield size, rows


def _chunk(feed: Feed, parts: list[dict[str, HostArray]], steps: int) -> Chunk:
    """Batches of a loader, one step each."""

    def write(out: Mapping[str, HostArray]) -> None:
        for name, rows in out.items():
            np.concatenate([part[name] for part in parts], out=rows[: len(parts) * feed.batch])

    return Chunk(feed, len(parts), row_specs(parts[0]), steps * feed.batch, write)


def on_host(standardizer: Standardizer) -> Standardizer:
    """The same for arrays in the host's memory."""
    return replace(standardizer, backend=get_backend("numpy"))


def _on_device(given: Any, backend: Backend) -> bool:
    """Whether one of the arrays, or lists of them, is the backend's own."""
    return any(backend.owns(a) for part in as_list(given) for a in as_list(part))


def _stays(standardizer: Standardizer, *arrays: Any) -> bool:
    """Whether arrays are, or will be, where the backend computes."""
    backend, width = standardizer.backend, ITEMSIZE[standardizer.dtype]
    if any(backend.owns(a) for a in arrays):
        return True
    return backend.keeps(sum(math.prod(a.shape) * (1 if dtype_name(a) == "uint8" else width) for a in arrays))


def _takes_copies(
    standardizer: Standardizer, stays: bool, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]
) -> bool:
    """Whether one of the arrays is a memory map that cannot be used as it is, and none is on a device.

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


def prediction_runs(x: Any, standardizer: Standardizer, batch_size: int) -> Iterator[tuple[list[Any], Run]]:
    """Input arrays, all of them or those of a batch, and a run of predictions on them; in order.

    Args:
        x: Arrays, or a loader of inputs; where it gives (x, y) or (x, y, sample_weight) only x is used.
        standardizer: What the batches are for.
        batch_size: Samples in a batch; a loader has its own.
    """
    shapes, backend = standardizer.inputs, standardizer.backend
    if isinstance(x, Batches):
        if shuffles(x.loader):
            raise ValueError(
                "Predictions are in the order of the data. Received: a loader that shuffles. Make it with "
                "shuffle=False, or give the arrays."
            )
        for batch in x.loader:
            labelled = isinstance(batch, tuple | list) and (len(shapes) == 1 or isinstance(batch[0], tuple | list))
            given = checked_inputs(batch[0] if labelled else batch, shapes, least=0)
            yield given, Run(*standardizer.batch(given))
        return
    given = checked_inputs(x, shapes, least=0)
    arrays = [a if backend.owns(a) else host(a, str(backend)) for a in given]
    samples = int(arrays[0].shape[0])
    if samples and backend.predictions_at_once > 1:
        source = ArraySource(standardizer, arrays, None, None, batch_size=batch_size, last_batch="keep")
        for run in source.runs(shuffle=False, seed=0, epoch=0, longest=backend.predictions_at_once):
            yield given, run
        return
    for start in range(0, max(1, samples), batch_size):
        stop = min(start + batch_size, samples)
        yield given, Run(*standardizer.batch([a[start:stop, ...] for a in arrays]))


def split_off(
    x: Any, y: Any, weight: Any, fraction: float, inputs: int, outputs: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(x, y, weight) of a first part and of a last part that is `fraction` of the samples, as Keras does.

    Args:
        x: Inputs.
        y: Labels.
        weight: Sample weights or None.
        fraction: Share of the samples between 0 and 1.
        inputs: Number of inputs of the model.
        outputs: Number of its outputs.

    Raises:
        ValueError: If a part would be empty, or the arrays differ in length.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation_split is a share of the samples between 0 and 1. Received: {fraction}.")
    xs = [numeric(a, "Inputs") for a in as_list(x, inputs)]
    ys = [numeric(a, "Labels") for a in as_list(y, outputs)]
    ws = [] if weight is None else [numeric(weight, "Sample weights")]
    samples = same_length("inputs, labels and weights", *xs, *ys, *ws)
    at = int(samples * (1 - fraction) + 1e-9)  # 1 - 0.9 is a little below 0.1
    if at in (0, samples):
        raise ValueError(
            f"validation_split leaves samples for training and validation. Received: {fraction} of {samples} samples."
        )

    def part(rows: slice) -> tuple[Any, ...]:
        cut = [[a[rows, ...] for a in arrays] for arrays in (xs, ys, ws)]
        return cut[0], cut[1], cut[2][0] if ws else None

    return part(slice(0, at)), part(slice(at, samples))


def _describe(batch: Any) -> str:
    return f"{type(batch).__name__}{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}"
