"""Batches of loaders, in standard form and made ready ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count as numbers
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend, Stage
from minicnn.data.forms import as_list
from minicnn.data.order import epoch_order
from minicnn.loop.adapters import one_row, taken_over
from minicnn.loop.prefetch import Chunk, HostArray, row_specs, staged, steps_of_a_slot
from minicnn.loop.sources import BatchSource
from minicnn.loop.standardizer import Standardizer
from minicnn.loop.tracing import Feed, Run

if TYPE_CHECKING:
    from minicnn.distribution import DataParallel


class LoaderSource(BatchSource):
    """Batches as a loader gives them: (x, y) or (x, y, sample_weight).

    Args:
        standardizer: What the batches are for.
        loader: An iterable, such as a list or an iterator; or a `minicnn.utils.PyDataset`, or one of Keras, whose
            batches may be shuffled.
        steps: Batches of an epoch, if each is to go on where the one before has ended; None for all that it has.
        several_epochs: Whether it is iterated over many times: then it has a length, or there are `steps`.
        distribution: Who shares the batches out: each rank asks a loader with `set_shard` for its rows alone.
    """

    def __init__(
        self, standardizer: Standardizer, loader: Any, steps: int | None = None, several_epochs: bool = True,
        distribution: DataParallel | None = None,
    ) -> None:  # fmt: skip
        parts = distribution is not None and distribution.loads_parts and hasattr(loader, "set_shard")
        self._distribution = distribution if parts else None
        self._standardizer, self._loader = replace(standardizer, parts=True), loader
        self._stages: dict[Any, Stage] = {}
        self._indexed = hasattr(loader, "__getitem__") and hasattr(loader, "on_epoch_end")
        self._stream_steps = steps
        self._stream: Iterator[Any] = iter(())
        self._at = -1  # number of the batch that the stream gives next
        if several_epochs and steps is None and (not hasattr(loader, "__len__") or len(loader) < 1):
            raise ValueError(
                "A loader can be iterated over again and again, and has a length, the number of its batches, of at "
                f"least 1. Received: {type(loader).__name__}{' of length 0' * hasattr(loader, '__len__')}. A list of "
                "batches is one; for a generator say how many batches to take: steps_per_epoch, validation_steps."
            )

    def batches(self) -> int:
        """See `BatchSource`; the loader itself decides on their order."""
        return len(self._loader) if self._stream_steps is None else self._stream_steps

    def one_pass(self, *, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        """See `BatchSource`."""
        batches = self._numbered(skip, shuffle, seed, epoch)
        if self._distribution is not None:
            yield from self._parts(batches, self._distribution)
        elif longest > 1:
            yield from staged(self._items(batches, longest), self._standardizer.backend, self._stages)
        else:
            for number, batch, count in batches:
                run = _checked(self._standardizer, batch, number)
                for _ in range(count):
                    yield run
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
                run = _checked(self._standardizer, batch if samples else one_row(batch), number)
                yield replace(run, feed=run.feed.of(whole))
        finally:
            self._loader.set_shard(0, 1)

    def _numbered(self, skip: int, shuffle: bool, seed: int, epoch: int) -> Iterator[tuple[int, Any, int]]:
        """Number of each batch, batch, how many times a list has it in a row; the first `skip` left out."""
        wanted = None
        if self._stream_steps is not None:
            wanted, skip = self._stream_steps - skip, 0
            batches: Any = islice(self._from(epoch * self._stream_steps + self._stream_steps - wanted), wanted)
        elif self._indexed:
            order = epoch_order(len(self._loader), shuffle=shuffle, seed=seed, epoch=epoch)
            batches = (self._loader[int(i)] if n >= skip else () for n, i in enumerate(order))
        else:
            batches = self._once(epoch)
        # Objects in a list are alive, so that equal ids are one object.
        groups = groupby(batches, key=id) if isinstance(batches, list) else (((), [batch]) for batch in batches)
        seen = 0
        for _, same in groups:
            times = 0
            for batch in same:  # noqa: B007  # the last is all of them
                seen, times = seen + 1, times + (seen >= skip)
            if not times:
                continue
            if self._standardizer.free and not isinstance(batch, tuple | list):
                batch = (batch,)
            if not isinstance(batch, tuple | list) or len(batch) not in (1 if self._standardizer.free else 2, 2, 3):
                raise ValueError(f"A loader gives (x, y) or (x, y, sample_weight). Received: {_describe(batch)}.")
            yield seen - times, batch, times
        if wanted is not None and seen < wanted:
            raise ValueError(
                f"An epoch of a generator has as many batches as it is to have. Received: {seen} of {wanted}, and no "
                "more. Let it begin anew at its end, or take fewer steps, or fewer epochs."
            )
        if not seen and wanted != 0:  # none is wanted where training resumes at the end of an epoch
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
            count = 0
            for count, batch in enumerate(self._once(number), 1):  # noqa: B007
                yield batch
            if not count:
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
            here = backend.stage_bytes and count == 1 and not on_device(batch, backend)
            run = _checked(hosted if here else standardizer, batch, number)
            feed = run.feed
            if last is not None and (not here or feed != last or len(parts) == steps):
                yield _chunk(last, parts, steps)
                parts, last = [], None
            if here:
                last = feed
                steps = steps_of_a_slot(row_specs(run.arrays), feed.batch, longest, backend.stage_bytes)
                parts.append(run.arrays)
            else:
                for at in range(0, count, longest):
                    yield replace(run, steps=min(longest, count - at))
        if last is not None:
            yield _chunk(last, parts, steps)


def _checked(standardizer: Standardizer, batch: tuple[Any, ...], number: int) -> Run:
    """A loader's batch in standard form; an error says which it was, and where that leaves the model."""
    try:
        x, *labels = batch
        return standardizer.run(standardizer.checked(x), *labels)
    except (TypeError, ValueError) as error:
        error.add_note(
            f"In batch {number} of the epoch, counted from 0. Nothing of it was trained on; those before it were, "
            "but for what was still being made ready."
        )
        raise


def _chunk(feed: Feed, parts: list[dict[str, HostArray]], steps: int) -> Chunk:
    """Batches of a loader, one step each."""

    def write(out: Mapping[str, HostArray]) -> None:
        for name, rows in out.items():
            np.concatenate([part[name] for part in parts], out=rows[: len(parts) * feed.batch])

    return Chunk(feed, len(parts), row_specs(parts[0]), steps * feed.batch, write)


def on_host(standardizer: Standardizer) -> Standardizer:
    """The same for arrays in the host's memory."""
    return replace(standardizer, backend=get_backend("numpy"))


def on_device(arrays: Any, backend: Backend) -> bool:
    """True if one of the arrays, or lists of them, is the backend's own, or becomes so where it is."""
    return any(backend.owns(taken_over(a, backend)) for part in as_list(arrays) for a in as_list(part))


def _describe(batch: Any) -> str:
    return f"{type(batch).__name__}{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}"
