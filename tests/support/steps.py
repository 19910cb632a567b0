"""Steps of a model without its loop over epochs."""

from __future__ import annotations

from typing import Any

from minicnn import Model
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import Run


def runs_of(model: Model, x: Any, y: Any, batch: int, *, shuffle: bool = False, seed: int = 0) -> list[Run]:
    """The steps of one epoch, one by one."""
    source = model._training.source(x, y, None, batch)
    return list(source.runs(shuffle=shuffle, seed=seed, epoch=0))


def arrays_of(run: Run) -> dict[str, Any]:
    """What the first step of a run is given, by name."""
    return run.arrays | ({} if run.index is None else {"index": run.index[0]})


def one_step(model: Model, x: Any, y: Any) -> Run:
    """A step on a batch."""
    return model._training.standardizer().batch(x, y)


def evaluated(model: Model, run: Run, totals: Totals | None = None) -> Totals:
    """Totals after evaluation steps."""
    return model._training.executor.evaluate(run, totals or Totals())
