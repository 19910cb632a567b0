"""Batches from arrays, in a seeded order, with transforms in background threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from minicnn import html
from minicnn.arguments import PlainArguments
from minicnn.data.augment import Transform
from minicnn.data.order import Indices, LastBatch, batch_indices, epoch_order, num_batches, philox, picked, shard_rows

Array = npt.NDArray[Any]


class Loader(metaclass=PlainArguments):
    """Iterate over the batches of one epoch.

    Each batch is a tuple of new NumPy arrays: `(x,)`, `(x, y)` or `(x, y, sample_weight)`. An epoch is set by
    `set_epoch`; iterating twice over the same epoch gives the same batches, whatever the number of workers.

    Args:
        x: Samples, shape (n, ...).
        y: Labels or targets, shape (n, ...); may be left out.
        batch_size: Samples in a batch.
        shuffle: Whether to permute the samples in every epoch: see `epoch_order`.
        seed: Seed of the order and of the transforms, from 0 to 2**64 - 1.
        last_batch: What becomes of a last batch that is not full: "keep" it, "drop" it, or "pad" it by
            repeating from the start of the order.
        sample_weight: Weight of each sample, shape (n,), or of each of its predictions, (n, ...); needs `y`.
        transform: `transform(x_batch, rng)` returns the batch to use instead, with as many samples. `rng` is
            a NumPy Generator of its own, keyed with the seed, the epoch and the number of the batch. See
            `augment.Part` for one that can make a part of a batch.
        workers: Threads that make batches ahead of their use; 0 makes each batch when it is asked for.
        prefetch: Batches that the workers keep ready, at least 1; more than the workers can be useful where
            the time of a transform varies.

    Raises:
        ValueError: If the arrays have different lengths or an argument is out of its range.

    Example:
        >>> loader = Loader(np.zeros((100, 28, 28, 1), np.uint8), np.arange(100), batch_size=32)
        >>> [x.shape for x, y in loader]
        [(32, 28, 28, 1), (32, 28, 28, 1), (32, 28, 28, 1), (4, 28, 28, 1)]
    """

    def __init__(
        self,
        x: Array,
        y: Array | None = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        last_batch: LastBatch = "keep",
        sample_weight: Array | None = None,
        transform: Transform | None = None,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        arrays = {"x": x}
        arrays |= {"y": y} if y is not None else {}
        arrays |= {"sample_weight": sample_weight} if sample_weight is not None else {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise ValueError(f"A Loader takes NumPy arrays of shape (n, ...). Received: {name} is {array!r:.60}.")
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"A Loader takes arrays of the same length. Received: {lengths}.")
        if y is None and sample_weight is not None:
            raise ValueError("A sample_weight weighs a loss, so it needs y. Received: sample_weight without y.")
        if workers < 0 or prefetch < 1:
            raise ValueError(f"A Loader takes workers from 0 and prefetch from 1. Received: {workers=}, {prefetch=}.")
        self.num_samples = len(x)
        self.batch_size = batch_size
        self._arrays = tuple(arrays.values())
        self.shuffle = shuffle
        self._seed = seed
        self._last_batch = last_batch
        self._transform = transform
        self._workers = workers
        self._prefetch = prefetch
        self._num_batches = num_batches(len(x), batch_size, last_batch)
        self.set_shard(0, 1)
        self.set_epoch(0)

    def set_shard(self, index: int, count: int) -> None:
        """Make only the rows of each batch that `shard_rows` gives; `fit` asks each of several ranks for its part.

        A transform without a `part` is given whole batches, of whose result the rows are taken.

        Args:
            index: Number of the part, from 0.
            count: Number of parts; 1 for whole batches.

        Raises:
            ValueError: If there is no such part.
        """
        shard_rows(0, index, count)
        self._shard = index, count

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, counted from 0, that the next iteration goes through."""
        philox(self._seed, epoch)  # refuses a bad seed or epoch here rather than in a thread
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        # Taken now: a consumer may set the next epoch while threads still make batches of this one.
        epoch, shard = self.epoch, self._shard
        order = epoch_order(self.num_samples, shuffle=self.shuffle, seed=self._seed, epoch=epoch)
        batches = batch_indices(order, self.batch_size, self._last_batch)
        if self._workers == 0:
            return (self._make(epoch, number, indices, shard) for number, indices in enumerate(batches))
        return self._threaded(epoch, batches, shard)

    def _repr_html_(self) -> str:
        rows = [(name, a.shape, a.dtype) for name, a in zip(("x", "y", "sample_weight"), self._arrays, strict=False)]
        return html.block(repr(self).strip("<>"), html.table(("array", "shape", "dtype"), rows))

    def __repr__(self) -> str:
        how = f"{'' if self.shuffle else 'not '}shuffled, {self._workers} workers"
        samples = f"{self.num_samples:,} samples {self._arrays[0].shape[1:]}"
        return f"<Loader: {samples} in {len(self):,} batches of {self.batch_size}, {how}>"

    def _threaded(self, epoch: int, batches: list[Indices], shard: tuple[int, int]) -> Iterator[tuple[Array, ...]]:
        from concurrent.futures import Future, ThreadPoolExecutor

        executor = ThreadPoolExecutor(self._workers, thread_name_prefix="minicnn-loader")
        pending: deque[Future[tuple[Array, ...]]] = deque()
        try:
            for number, indices in enumerate(batches):
                pending.append(executor.submit(self._make, epoch, number, indices, shard))
                # Enough for all workers, and no more: each batch that waits takes memory.
                if len(pending) > max(self._prefetch, self._workers):
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # also when the consumer stops early: closing the generator comes here
            executor.shutdown(wait=True, cancel_futures=True)

    def _make(self, epoch: int, number: int, indices: Indices, shard: tuple[int, int]) -> tuple[Array, ...]:
        rows = shard_rows(len(indices), *shard)
        part = getattr(self._transform, "part", None)
        # A transform that cannot make a part is given the whole batch, so that all ranks draw the same numbers.
        whole = self._transform is not None and part is None and shard != (0, 1)
        x, *rest = (picked(array, indices[rows]) for array in self._arrays)
        if self._transform is None:
            return (x, *rest)
        x = picked(self._arrays[0], indices) if whole else x
        samples, rng = len(x), philox(self._seed, epoch, number + 1)  # part 0 is the order's
        try:
            x = self._transform(x, rng) if part is None else part(x, rng, rows, len(indices))
        except Exception as error:
            kind = type(error).__name__
            raise RuntimeError(f"The transform failed on batch {number} of epoch {epoch}: {kind}: {error}") from error
        if not isinstance(x, np.ndarray) or x.shape[:1] != (samples,):
            received = f"shape {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
            raise ValueError(
                f"A transform returns a NumPy array with as many samples as it gets, {samples}. "
                f"Received on batch {number} of epoch {epoch}: {received}."
            )
        return (x[rows] if whole else x, *rest)
