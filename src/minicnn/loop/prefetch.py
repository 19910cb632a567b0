"""Data on their way to the device: batches are made ready in the host's memory and copied while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.backends.base import Backend, Stage
from minicnn.loop.tracing import Feed, Run
from minicnn.machine import cores
from minicnn.program.graph import Spec

HostArray = np.ndarray[Any, Any]

GRAPH_STEPS = 16  # a slot holds a multiple of them, if it holds so many


@dataclass(frozen=True)
class Chunk:
    """Steps whose rows are still in the host's memory.

    Attributes:
        feed: What each step would be given on its own.
        steps: Number of steps.
        specs: Shape and dtype of one row of each array.
        room: Rows of the slot that it goes through.
        write: Writes all rows, one step after the other, to the first rows of arrays by name.
        first: Row where they are kept on the device; None if they are not.
        total: Rows that are kept in all.
    """

    feed: Feed
    steps: int
    specs: tuple[tuple[str, Spec], ...]
    room: int
    write: Callable[[Mapping[str, HostArray]], None]
    first: int | None = None
    total: int = 0


def row_specs(arrays: Mapping[str, HostArray]) -> tuple[tuple[str, Spec], ...]:
    """Shape and dtype of one row of each array."""
    return tuple((name, Spec(a.shape[1:], a.dtype.name)) for name, a in arrays.items())


def steps_of_a_slot(specs: tuple[tuple[str, Spec], ...], batch: int, longest: int, nbytes: int) -> int:
    """Number of steps that a slot of so many bytes holds: at least one.

    Args:
        specs: Shape and dtype of one row of each array.
        batch: Rows of a step.
        longest: Most steps that are wanted together.
        nbytes: Bytes of the slot.
    """
    step = max(1, batch * sum(spec.nbytes for _, spec in specs))
    count = max(1, min(longest, nbytes // step))
    return count // GRAPH_STEPS * GRAPH_STEPS or count


_Waiting = tuple[Run | Chunk, Stage | None, int, Future[None] | None]  # and the slot between


def staged(items: Iterable[Run | Chunk], backend: Backend, stages: dict[Any, Stage]) -> Iterator[Run]:
    """Each item as a run: those in the host's memory are copied while earlier ones are computed.

    Args:
        items: What comes, in order.
        backend: Whose stages they go through.
        stages: Stages made so far; new ones are added.
    """
    waiting: deque[_Waiting] = deque()
    counts: dict[int, int] = {}  # chunks that each stage was given
    coming = iter(items)
    with ExitStack() as stack:
        stack.callback(_close, stages)
        worker = stack.enter_context(ThreadPoolExecutor(1, "minicnn-staging"))
        stack.callback(_cancel, waiting)

        def ask() -> None:
            """Begin with the next item."""
            item = next(coming, None)
            if isinstance(item, Run):
                waiting.append((item, None, 0, None))
            elif item is not None:
                key = (item.specs, item.room, item.total)
                if key not in stages:
                    stages[key] = backend.stage(dict(item.specs), item.room, item.total)
                stage = stages[key]
                number = counts[id(stage)] = counts.get(id(stage), -1) + 1
                slot = number % stage.slots
                future = worker.submit(stage.fill, slot, item.steps * item.feed.batch, item.write, item.first)
                waiting.append((item, stage, slot, future))

        for _ in range(Stage.slots):
            ask()
        while waiting:
            item, stage, slot, future = waiting.popleft()
            if isinstance(item, Run):
                yield item
            elif stage is not None and future is not None:
                future.result()
                stage.begin(slot)
                yield _run(item, stage, slot)
                stage.end(slot)
            ask()


def _cancel(waiting: Iterable[_Waiting]) -> None:
    for *_, future in waiting:
        if future is not None:
            future.cancel()


def _close(stages: Mapping[Any, Stage]) -> None:
    for stage in stages.values():
        stage.close()


def _run(chunk: Chunk, stage: Stage, slot: int) -> Run:
    """A chunk in a slot, as steps that pick its rows."""
    feed, first = chunk.feed, slot * chunk.room if chunk.first is None else chunk.first
    index = np.arange(first, first + chunk.steps * feed.batch, dtype=np.int32).reshape(chunk.steps, -1)
    whole = chunk.total or stage.slots * chunk.room
    return Run(feed.of(feed.batch, whole), dict(stage.arrays), chunk.steps, index)


# Rows on the host ---------------------------------------------------------------------------------

_PARTS = min(4, cores())


class Gatherer:
    """Picks rows of arrays in the host's memory, several threads side by side.

    Args:
        arrays: The arrays by name; none is copied.
    """

    def __init__(self, arrays: Mapping[str, HostArray]) -> None:
        self._arrays = arrays
        self._pool = ThreadPoolExecutor(_PARTS, "minicnn-gather") if _PARTS > 1 else None

    def __call__(self, index: HostArray, out: Mapping[str, HostArray]) -> None:
        """Write rows `index` of each array to the first rows of `out`."""
        jobs = []
        for name, array in self._arrays.items():
            parts = _PARTS if array.nbytes // max(1, len(array)) * len(index) > 2**18 else 1
            for rows, target in zip(
                np.array_split(index, parts), np.array_split(out[name][: len(index)], parts), strict=True
            ):
                jobs.append((array, rows, target))
        if self._pool is None or len(jobs) == len(self._arrays):
            for job in jobs:
                _take(*job)
        else:
            for future in [self._pool.submit(_take, *job) for job in jobs]:
                future.result()


def _take(array: HostArray, rows: HostArray, out: HostArray) -> None:
    if array.flags.c_contiguous:
        np.take(array, rows, axis=0, out=out, mode="clip")  # "raise" would go through a copy
    else:  # of which take would make a copy
        out[...] = array[rows]
