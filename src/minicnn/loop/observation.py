"""A step that is looked at: its values by name, or when its parts run."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.loop.totals import Totals
from minicnn.loop.training import Training
from minicnn.trace import StepTrace, Timeline, traced


def trace(training: Training, x: Any, y: Any, weight: Any, kernels: bool) -> StepTrace:
    """Every value of one step on one batch: see `Model.trace`."""
    predicts = y is None and training.step.graph is not None
    kind: Any = "predict" if predicts else "train"
    executor, variables = training.executor, training.variables
    run = training.standardizer(labelled=not predicts).batch(x, y, weight)
    arrays = {name: variables.get(name) for name in variables.cells}
    if not predicts:
        rates = executor.step.rates(executor.steps_taken, 1)
        arrays = {name: np.asarray(value) for name, (value,) in rates.items()} | arrays
    arrays |= {name: training.backend.to_numpy(array) for name, array in run.arrays.items()}
    program = executor.step.trace(kind, run.feed)
    inputs = {v.name: arrays.get(v.name, np.zeros(v.shape)) for v in program.inputs}
    return traced(program, training.backend, inputs, kernels=kernels)


def timeline(training: Training, x: Any, y: Any, weight: Any) -> Timeline:
    """When each part of a training step runs, on each rank: see `Model.timeline`."""
    run, executor, distribution = training.standardizer().batch(x, y, weight), training.executor, training.distribution
    training.train(run, Totals())  # which compiles it
    spans = Timeline.told(executor.timeline(run, executor.step.rates(executor.steps_taken, 1)))
    return Timeline.of([spans] if distribution is None else distribution.communicator.share(spans))
