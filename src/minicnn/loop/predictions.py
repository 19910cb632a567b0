"""Predictions: outputs for arrays or for a loader of them, batch by batch, as arrays of the kind that came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import array_api_compat
import numpy as np

from minicnn.backends import refuse_after_fork
from minicnn.backends.base import Array, Backend
from minicnn.callbacks import Callbacks
from minicnn.data.forms import Batches, dtype_name, host, shuffles
from minicnn.loop.adapters import taken_over
from minicnn.loop.batches import ArraySource
from minicnn.loop.standardizer import Standardizer
from minicnn.loop.tracing import Run
from minicnn.loop.training import Training


def predict(training: Training, x: Any, batch_size: int, steps: int | None, callbacks: Callbacks) -> list[Any]:
    """Each output for all inputs, as an array of the kind that the inputs are.

    Args:
        training: Of the model.
        x: Arrays, or `Batches`.
        batch_size: Samples in a batch; a loader has its own.
        steps: Batches to take; None for all.
        callbacks: What is called before and after each batch.

    Raises:
        ValueError: If a loader is empty, or known to shuffle.
    """
    if isinstance(x, Batches) and training.distribution is not None and hasattr(x.loader, "set_shard"):
        x.loader.set_shard(0, 1)  # predictions are not shared out
    standardizer = training.standardizer(labelled=False)
    parts: list[list[Array]] = [[] for _ in standardizer.outputs]
    first: Any = None
    stays = False
    callbacks("on_predict_begin")
    for batch, (inputs, run) in enumerate(_runs(x, standardizer, batch_size, steps)):
        if first is None:
            first, stays = inputs[0], _stays(inputs[0], standardizer.backend)
        callbacks("on_predict_batch_begin", batch)
        results = training.executor.predict(run, training.next_draw())
        outputs = _beside(stays, results, inputs[0].shape[0], standardizer.backend)
        for part, output in zip(parts, outputs, strict=True):
            part.append(output)
        callbacks("on_predict_batch_end", batch, {"outputs": outputs})
    callbacks("on_predict_end")
    if (
        first is not None
        and first.shape[0] == inputs[0].shape[0] <= batch_size
        and not _is_looked_at(first, standardizer)
    ):
        training.executor.remember(x, run)
    if first is None:
        raise ValueError("There is at least one batch to predict. Received: an empty loader.")
    return _joined(first, stays, parts, standardizer.backend)


def predict_alike(training: Training, x: Any, batch_size: int) -> list[Any] | None:
    """Each output for an array of one batch that is like the last; None if it is not."""
    executor = training.executor
    alike = executor.remembered(x, batch_size) if type(batch_size) is int else None
    if alike is None:
        return None  # before the backend is asked for: the first array decides which it is
    refuse_after_fork(training.backend)
    return executor.predict_alike(x, *alike, training.next_draw())


def predict_batch(training: Training, x: Any, as_in_training: bool = False) -> list[Any]:
    """Each output for one batch."""
    standardizer = training.standardizer(labelled=False)
    inputs = standardizer.checked(x)
    run = standardizer.run(inputs)
    run = replace(run, feed=replace(run.feed, training=as_in_training))
    outputs = training.executor.predict(run, training.next_draw())
    first, stays = inputs[0], _stays(inputs[0], standardizer.backend)
    outputs = _beside(stays, outputs, first.shape[0], standardizer.backend)
    return _joined(first, stays, [[array] for array in outputs], standardizer.backend)


def _runs(x: Any, standardizer: Standardizer, batch_size: int, steps: int | None) -> Iterator[tuple[list[Any], Run]]:
    """Input arrays, all of them or those of a batch, and a run of predictions on them; in order.

    Args:
        x: Arrays, or a loader of inputs; where it gives (x, y) or (x, y, sample_weight) only x is used.
        standardizer: What the batches are for.
        batch_size: Samples in a batch; a loader has its own.
        steps: Batches to take; None for all.
    """
    backend = standardizer.backend
    if isinstance(x, Batches):
        if shuffles(x.loader):
            raise ValueError(
                "Predictions are in the order of the data. Received: a loader that shuffles. Make it with "
                "shuffle=False, or give the arrays."
            )
        for batch in islice(x.loader, steps):
            several = len(standardizer.inputs) > 1
            labelled = isinstance(batch, tuple | list) and (not several or isinstance(batch[0], tuple | list))
            inputs = standardizer.checked(batch[0] if labelled else batch)
            yield inputs, standardizer.run(inputs)
        return
    inputs = standardizer.checked(x)
    if steps is not None:
        inputs = [a[: steps * batch_size, ...] for a in inputs]
    arrays = [a if backend.owns(a) else host(a, backend) for a in (taken_over(a, backend) for a in inputs)]
    samples = int(arrays[0].shape[0])
    if samples and backend.predictions_at_once > 1:
        source = ArraySource(standardizer, arrays, None, None, batch_size=batch_size, last_batch="keep")
        for run in source.runs(shuffle=False, seed=0, epoch=0, longest=backend.predictions_at_once):
            yield inputs, run
        return
    for start in range(0, max(1, samples), batch_size):
        yield inputs, standardizer.run([a[start : min(start + batch_size, samples), ...] for a in arrays])


def _is_looked_at(first: Any, standardizer: Standardizer) -> bool:
    """True if the elements of an input must be checked each time: that floating-point numbers are whole."""
    return any("int" in declared for declared in standardizer.declared) and "float" in dtype_name(first)


def _stays(first: Any, backend: Backend) -> bool:
    """True if the first input is where the backend computes, in whatever library: then outputs stay there, too."""
    return backend.owns(taken_over(first, backend))


def _beside(stays: bool, outputs: Sequence[Array], rows: int, backend: Backend) -> list[Array]:
    """Outputs where the first input is; none of those of the row that stands for no rows."""
    arrays = [array if stays else backend.to_numpy(array) for array in outputs]
    return arrays if rows else [array[:0, ...] for array in arrays]


def _joined(first: Any, stays: bool, parts: Sequence[Sequence[Array]], backend: Backend) -> list[Any]:
    """The parts of each output as one array, of the kind that the first input is."""
    xp = backend.xp if stays else np
    with backend.active():
        joined = [xp.concat(part, axis=0) for part in parts]  # new arrays, even of a single part
        if backend.owns(first) or not array_api_compat.is_array_api_obj(first):
            return joined
        xp, device = array_api_compat.array_namespace(first), array_api_compat.device(first)
        return [xp.from_dlpack(a) if stays else xp.asarray(a, device=device) for a in joined]
