"""The source of batches that data are, whatever they are; epochs of a given number of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from minicnn.data.forms import Batches
from minicnn.loop.adapters import Standardizer
from minicnn.loop.batches import ArraySource, LoaderSource
from minicnn.loop.prefetch import Run

if TYPE_CHECKING:
    from minicnn.distribution import DataParallel


class Continued:
    """So many batches an epoch of a source, each epoch going on where the one before has ended.

    The source is gone through again and again, in the order of its first, second ... epoch.
    """

    def __init__(self, source: ArraySource | LoaderSource, steps: int) -> None:
        self._source, self._steps = source, steps

    def __len__(self) -> int:
        return self._steps

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0, longest: int = 1) -> Iterator[Run]:
        """The batches of one epoch, the first `skip` left out, up to `longest` of one size at a time."""
        at, end = epoch * self._steps + skip, (epoch + 1) * self._steps
        while at < end:
            number, first = divmod(at, len(self._source))
            most = min(longest, end - at)
            for run in self._source.runs(shuffle=shuffle, seed=seed, epoch=number, skip=first, longest=most):
                steps = min(run.steps, end - at)
                at += steps
                yield (
                    run
                    if steps == run.steps
                    else replace(run, steps=steps, index=None if run.index is None else run.index[:steps])
                )
                if at == end:
                    break


Source = ArraySource | LoaderSource | Continued


def source_of(
    standardizer: Standardizer, x: Any, y: Any, weight: Any, *, batch_size: int, last_batch: Any = "keep",
    steps: int | None = None, again: bool = False, onwards: bool = False,
    distribution: DataParallel | None = None,
) -> Source:  # fmt: skip
    """The source of batches that data are.

    Args:
        standardizer: What the batches are for.
        x: Inputs, or `Batches`.
        y: Labels; None with a loader.
        weight: Sample weights or None.
        batch_size: Samples in a batch; a loader has its own.
        last_batch: What becomes of a last batch that is not full: see `batch_indices`.
        steps: Batches of an epoch; None for all of the data.
        again: Whether there are several epochs.
        onwards: Whether an epoch of `steps` goes on where the one before has ended, the data being gone through again
            and again; else it is the first batches of the data.
        distribution: Who shares batches of a loader out.

    Raises:
        ValueError: If labels are missing or given twice, or it cannot be known how many batches an epoch has.
    """
    source: ArraySource | LoaderSource
    if isinstance(x, Batches):
        if y is not None or weight is not None:
            raise ValueError(
                "A loader gives labels and sample weights itself. Received: a loader, and y or sample_weight."
            )
        sized, by_number = hasattr(x.loader, "__len__"), hasattr(x.loader, "__getitem__")
        if not sized or (onwards and not by_number):  # going on is then better than beginning anew
            return LoaderSource(standardizer, x.loader, steps, again, distribution)
        source = LoaderSource(standardizer, x.loader, None, again, distribution)
    else:
        if y is None:
            raise ValueError("Arrays come with labels: pass y as well, or a loader of (x, y). Received: y=None.")
        source = ArraySource(standardizer, x, y, weight, batch_size=batch_size, last_batch=last_batch)
    if steps is None or (not onwards and steps >= len(source)):
        return source
    return Continued(source, steps)
