"""PyDataset: batches by number, as in Keras."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class PyDataset:
    """Base class of data sets that give whole batches by number; the name and the methods are Keras's.

    A subclass says in `__len__`, or as `num_batches`, how many batches there are, and gives each in `__getitem__` as
    (x, y) or (x, y, sample_weight). `fit` shuffles the order of the batches, by its seed and the same on every backend,
    unless shuffle=False. For batches that background threads make ready see `Loader`. With a method
    `set_shard(index, count)` it is asked for the rows of one of several ranks alone: see `minicnn.data.shard_rows`.

    Args:
        workers: Taken as Keras's classes pass it on, and without effect; so are the other arguments.
        use_multiprocessing: See workers.
        max_queue_size: See workers.

    Example:
        >>> class Squares(PyDataset):
        ...     def __len__(self):
        ...         return 2
        ...     def __getitem__(self, index):
        ...         return [[index]], [[index**2]]
        >>> list(Squares())
        [([[0]], [[0]]), ([[1]], [[1]])]
    """

    def __init__(self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10) -> None: ...

    num_batches: int | None = None

    def __len__(self) -> int:
        """Number of batches."""
        if self.num_batches is None:
            raise TypeError(
                "A PyDataset says in __len__ or num_batches how many batches it has. Received: "
                f"{type(self).__name__} with neither. Give a generator where there is no end."
            )
        return self.num_batches

    def __getitem__(self, index: int) -> Any:
        """The batch of a number, from 0."""
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """After an epoch, when all batches have been given."""

    def __iter__(self) -> Iterator[Any]:
        """The batches in their order."""
        return (self[i] for i in range(len(self)))
