"""Methods of a model that look at one step: its kernels, its values, when its parts run. `Model` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.loop.totals import Totals
from minicnn.loop.tracing import StepKind
from minicnn.models.fitting import received
from minicnn.summary import Explanation
from minicnn.trace import StepTrace, Timeline, traced

if TYPE_CHECKING:
    from minicnn.models.model import Model


def explain(model: Model, kind: StepKind | None = None, *, batch_size: int = 32) -> Explanation:
    """Name for each node the kernel of the backend that runs it, or why its reference does."""
    program = model.program(kind, batch_size=batch_size)
    return Explanation(program, model.backend.explain(program.copy()))


def trace(model: Model, x: Any, y: Any = None, sample_weight: Any = None, *, kernels: bool = False) -> StepTrace:
    """Every value of one step on one batch, by name: what the next training step would compute. Nothing changes.

    All values are kept on the host, so the batch is better a small one. It is not cut into shards.

    Args:
        x: Inputs of one batch, shape (N, ...).
        y: Labels; without them it is a prediction, but for a model without a graph.
        sample_weight: Weight of each sample.
        kernels: The backend's kernels compute it, with every result among those to be stored; otherwise the
            references do, node by node on the backend's arrays, also where the backend would merge nodes. On
            backends without kernels it is the same.

    Raises:
        RuntimeError: If there are labels and the model is not compiled.
    """
    with received(model, x, y) as (x, y):
        training = model._training
        predicts = y is None and training.step.graph is not None
        kind: Any = "predict" if predicts else "train"
        executor, variables = training.executor, training.variables
        run = training.standardizer(labelled=not predicts).batch(x, y, sample_weight)
        arrays = {name: variables.get(name) for name in variables.cells}
        if not predicts:
            rates = training.step.rates(executor.steps_taken, 1)
            arrays = {name: np.asarray(value) for name, (value,) in rates.items()} | arrays
        arrays |= {name: training.backend.to_numpy(array) for name, array in run.arrays.items()}
        program = training.step.trace(kind, run.feed)
        inputs = {v.name: arrays.get(v.name, np.zeros(v.shape)) for v in program.inputs}
        return traced(program, training.backend, inputs, kernels=kernels)


def timeline(model: Model, x: Any, y: Any = None, sample_weight: Any = None) -> Timeline:
    """Times at which the parts of a training step on one batch run, on each rank; some training steps are taken for it.

    On GPUs the parts are launches, which follow each other without a graph; on the CPU those between which ranks
    compute together. All ranks call it at the same time.

    Args:
        x: Inputs of one batch, shape (N, ...).
        y: Labels.
        sample_weight: Weight of each sample.
    """
    training = model._training
    training.step.compiled()
    with training.together(), received(model, x, y) as (x, y):
        run, executor = training.standardizer().batch(x, y, sample_weight), training.executor
        training.train(run, Totals())  # which compiles it
        spans = Timeline.told(executor.timeline(run, training.step.rates(executor.steps_taken, 1)))
        distribution = training.distribution
        return Timeline.of([spans] if distribution is None else distribution.communicator.share(spans))
