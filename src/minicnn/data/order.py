"""The order of the samples in an epoch, and its cut into batches: the same for every backend."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from minicnn.arguments import plain_arguments
from minicnn.ops.groups import rows

LastBatch = Literal["keep", "drop", "pad"]
Indices = npt.NDArray[np.int32]


def philox(seed: int, stream: int, part: int = 0) -> np.random.Generator:
    """A random generator keyed with (seed, stream), at a place of its own for each part.

    Args:
        seed: From 0 to 2**64 - 1.
        stream: From 0 to 2**64 - 1.
        part: From 0 to 2**64 - 1: the highest word of the 256-bit counter, so that parts never meet.

    Returns:
        The NumPy Generator.

    Raises:
        ValueError: If a number is out of its range.
    """
    if not all(0 <= number < 2**64 for number in (seed, stream, part)):
        raise ValueError(f"Seeds and epochs are from 0 to 2**64 - 1. Received: {seed}, {stream}.")
    # As uint64 from the start: a list with a large number would pass through float64.
    key = np.array([seed, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, part], np.uint64)))


@plain_arguments
def epoch_order(n: int, *, shuffle: bool, seed: int, epoch: int) -> Indices:
    """Order in which one epoch visits `n` samples.

    Args:
        n: Number of samples.
        shuffle: Whether to permute them, by a Philox generator keyed with (seed, epoch).
        seed: Seed, from 0 to 2**64 - 1.
        epoch: Number of the epoch, from 0.

    Returns:
        Every index from 0 to n - 1 once, int32, shape (n,).

    Raises:
        ValueError: If an argument is out of its range.
    """
    if not 0 <= n <= 2**31 - 1:
        raise ValueError(f"An epoch has from 0 to {2**31 - 1} samples. Received: {n}.")
    if not shuffle:
        return np.arange(n, dtype=np.int32)
    # By epoch, so that a resumed training goes on in the same order without replaying the epochs before.
    return philox(seed, epoch).permutation(n).astype(np.int32)


def num_batches(n: int, batch_size: int, last_batch: LastBatch) -> int:
    """Number of batches that `batch_indices` cuts `n` samples into.

    Args:
        n: Number of samples.
        batch_size: Samples in a batch.
        last_batch: What becomes of a last batch that is not full: see `batch_indices`.

    Returns:
        The number, at least 1.

    Raises:
        ValueError: If no batch would result, or an argument is out of its range.
    """
    if batch_size < 1:
        raise ValueError(f"A batch holds at least one sample. Received: batch_size={batch_size}.")
    if last_batch not in ("keep", "drop", "pad"):
        raise ValueError(f"last_batch is 'keep', 'drop' or 'pad'. Received: {last_batch!r}.")
    count = n // batch_size if last_batch == "drop" else -(-n // batch_size)
    if count < 1:
        raise ValueError(
            f"An epoch has at least one batch. Received: {n} samples, batch_size={batch_size}, "
            f"last_batch={last_batch!r}. Give more samples, a smaller batch_size or another last_batch."
        )
    return count


@plain_arguments
def batch_indices(order: Indices, batch_size: int, last_batch: LastBatch) -> list[Indices]:
    """Cut an order into batches.

    Args:
        order: Indices of the samples, shape (n,).
        batch_size: Samples in a batch.
        last_batch: What becomes of a last batch that is not full: "keep" it, "drop" it, or "pad" it by
            repeating from the start of the order, as often as it takes.

    Returns:
        One int32 array a batch, each of shape (batch_size,), the last one shorter if it is kept.

    Raises:
        ValueError: If no batch would result, or an argument is out of its range.

    Example:
        >>> [batch.tolist() for batch in batch_indices(np.arange(5, dtype=np.int32), 2, "pad")]
        [[0, 1], [2, 3], [4, 0]]
    """
    count = num_batches(len(order), batch_size, last_batch)
    if last_batch == "pad":
        # Repeats from the beginning: padded samples are real ones.
        order = np.resize(order, count * batch_size)
    return [order[i * batch_size : (i + 1) * batch_size] for i in range(count)]


@plain_arguments
def shard_rows(samples: int, index: int, count: int) -> slice:
    """The rows of a batch that one of several ranks computes: all others but for one as many.

    Args:
        samples: Samples of the batch.
        index: Number of the rank, from 0.
        count: Number of ranks.

    Raises:
        ValueError: If there is no such rank.

    Example:
        >>> [shard_rows(50, index, 4) for index in range(4)][-2:]
        [slice(25, 37, None), slice(37, 50, None)]
    """
    if not 0 <= index < count:
        raise ValueError(
            f"A part of a batch has a number from 0 to below the number of parts. Received: {index} of {count}."
        )
    cut = rows(samples, count, index)
    return slice(cut.start, cut.stop)


def picked(array: npt.NDArray[Any], rows: Indices) -> npt.NDArray[Any]:
    """Rows of an array, a new one; of one that is not contiguous np.take would first copy all."""
    return np.take(array, rows, axis=0) if array.flags.c_contiguous else array[rows]
