"""Source: where the batches of a training or an evaluation come from, epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from minicnn.loop.tracing import Run


class BatchSource(ABC):
    """Batches of each epoch, as runs of steps.

    Attributes:
        steps: Batches of an epoch, if each goes on where the one before has ended, the data being gone through again
            and again, in the order of their first, second ... pass; None if an epoch is one pass.
    """

    steps: int | None = None

    @abstractmethod
    def batches(self) -> int:
        """Batches of one pass through the data."""

    @abstractmethod
    def one_pass(self, *, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        """The batches of one pass: see `runs`."""

    def __len__(self) -> int:
        return self.batches() if self.steps is None else self.steps

    def runs(self, *, shuffle: bool, seed: int, epoch: int, skip: int = 0, longest: int = 1) -> Iterator[Run]:
        """The batches of one epoch.

        Args:
            shuffle: Whether the order is another one in each epoch.
            seed: Seed of the orders.
            epoch: Number of the epoch, from 0.
            skip: Batches at its beginning that are left out.
            longest: Most batches, of one size, that a run has.
        """
        if self.steps is None:
            return self.one_pass(shuffle=shuffle, seed=seed, epoch=epoch, skip=skip, longest=longest)
        return self._continued(self.steps, shuffle, seed, epoch, skip, longest)

    def _continued(self, steps: int, shuffle: bool, seed: int, epoch: int, skip: int, longest: int) -> Iterator[Run]:
        at, end = epoch * steps + skip, (epoch + 1) * steps
        while at < end:
            number, first = divmod(at, self.batches())
            most = min(longest, end - at)
            for run in self.one_pass(shuffle=shuffle, seed=seed, epoch=number, skip=first, longest=most):
                count = min(run.steps, end - at)
                at += count
                if count < run.steps:
                    run = replace(run, steps=count, index=None if run.index is None else run.index[:count])
                yield run
                if at == end:
                    break
