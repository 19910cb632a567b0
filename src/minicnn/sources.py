"""Where batches come from: whole arrays, of which each step picks rows, or loaders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from minicnn.backends.base import Array
from minicnn.data.order import Indices, batch_indices, epoch_order, num_batches
from minicnn.feeding import Batch, Standardizer, as_list, checked_inputs, host, is_loader, numeric, same_length
from minicnn.steps import Feed

# What several steps are given: the feed of each, arrays, and the rows that each picks (none: one step on the arrays).
Run = tuple[Feed, dict[str, Array], list[Indices]]


class ArraySource:
    """Batches picked by index from whole arrays on the device."""

    def __init__(
        self, standardizer: Standardizer, x: Any, y: Any, weight: Any, *, batch_size: int, last_batch: Any
    ) -> None:
        self._whole, self._arrays = standardizer.batch(x, y, weight)
        self._backend = standardizer.backend
        self._batch_size, self._last_batch = batch_size, last_batch
        self._batches = num_batches(self._whole.batch, batch_size, last_batch)

    def __len__(self) -> int:
        return self._batches

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out."""
        order = epoch_order(self._whole.batch, shuffle=shuffle, seed=seed, epoch=epoch)
        for index in batch_indices(order, self._batch_size, self._last_batch)[skip:]:
            feed = Feed(len(index), self._whole.x, self._whole.y, self._whole.weighted, gathered=True)
            yield feed, {**self._arrays, "index": self._backend.asarray(index, "int32")}

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        """The same batches, up to `longest` of one size at a time, by the indices of their rows."""
        order = epoch_order(self._whole.batch, shuffle=shuffle, seed=seed, epoch=epoch)
        batches = batch_indices(order, self._batch_size, self._last_batch)[skip:]
        for size, equal in groupby(batches, key=len):
            feed = Feed(size, self._whole.x, self._whole.y, self._whole.weighted, gathered=True)
            rows = list(equal)
            for at in range(0, len(rows), longest):
                yield feed, self._arrays, rows[at : at + longest]


class LoaderSource:
    """Batches as a loader gives them: an iterable of (x, y) or (x, y, sample_weight), with a length."""

    def __init__(self, standardizer: Standardizer, loader: Any) -> None:
        self._standardizer, self._loader = standardizer, loader
        if not hasattr(loader, "__len__") or len(loader) < 1:
            message = (
                "A loader can be iterated over again and again, and has a length, the number of its batches, of at "
                f"least 1. Received: {type(loader).__name__}{' of length 0' * hasattr(loader, '__len__')}. A list of "
                "batches is one."
            )
            raise ValueError(message)

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Batches of one epoch, the first `skip` left out; the loader itself decides on their order."""
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(epoch)
        given = 0
        for given, batch in enumerate(self._loader, start=1):
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                message = f"A loader gives (x, y) or (x, y, sample_weight). Received: {_describe(batch)}."
                raise ValueError(message)
            if given > skip:
                yield self._standardizer.batch(*batch)
        if not given:
            message = "A loader gives at least one batch whenever it is iterated over. Received: none."
            raise ValueError(message)

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        """The same batches one by one, without indices."""
        for feed, arrays in self.epoch(shuffle=shuffle, seed=seed, epoch=epoch, skip=skip):
            yield feed, arrays, []


Source = ArraySource | LoaderSource


def prediction_batches(x: Any, standardizer: Standardizer, batch_size: int) -> Iterator[tuple[list[Any], Any]]:
    """The arrays that were given, and a batch of inputs from them; in order.

    Args:
        x: Arrays, or a loader of inputs; where it gives (x, y) or (x, y, sample_weight) only x is used.
        standardizer: What the batches are for.
        batch_size: Samples in a batch; a loader has its own.
    """
    shapes, backend = standardizer.inputs, standardizer.backend
    if is_loader(x):
        for batch in x:
            labelled = isinstance(batch, tuple | list) and (len(shapes) == 1 or isinstance(batch[0], tuple | list))
            given = batch[0] if labelled else batch
            yield as_list(given, len(shapes)), given
        return
    arrays = [a if backend.owns(a) else host(a, str(backend)) for a in checked_inputs(x, shapes)]
    samples = int(arrays[0].shape[0])
    for start in range(0, samples, batch_size):
        stop = min(start + batch_size, samples)
        yield as_list(x, len(shapes)), [a[start:stop, ...] for a in arrays]


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
        message = f"validation_split is a share of the samples between 0 and 1. Received: {fraction}."
        raise ValueError(message)
    xs = [numeric(a, "Inputs") for a in as_list(x, inputs)]
    ys = [numeric(a, "Labels") for a in as_list(y, outputs)]
    ws = [] if weight is None else [numeric(weight, "Sample weights")]
    samples = same_length("inputs, labels and weights", *xs, *ys, *ws)
    at = int(samples * (1 - fraction) + 1e-9)  # 1 - 0.9 is a little below 0.1
    if at in (0, samples):
        message = (
            f"validation_split leaves samples for training and validation. Received: {fraction} of {samples} samples."
        )
        raise ValueError(message)

    def part(rows: slice) -> tuple[Any, ...]:
        cut = [[a[rows, ...] for a in arrays] for arrays in (xs, ys, ws)]
        return cut[0], cut[1], cut[2][0] if ws else None

    return part(slice(0, at)), part(slice(at, samples))


def _describe(batch: Any) -> str:
    return f"{type(batch).__name__}{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}"
