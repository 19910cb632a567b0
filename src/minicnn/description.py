"""Description of a model as plain data, without its numbers; and the states that it can take up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.configured import encode
from minicnn.layers.serialization import check_size, graph_to_config
from minicnn.optimizers import Optimizer
from minicnn.schedules import Schedule
from minicnn.states import arrays_like, check_state, count, duration, flag, host_dtype, record

if TYPE_CHECKING:
    from minicnn.models import Model


def describe(model: Model, *, by_name: bool = False) -> dict[str, Any]:
    """All of a model but its arrays, as plain data.

    Args:
        model: The model.
        by_name: Whether the name of its class will do for a model with a `call` or a step of its own.

    Raises:
        RuntimeError: If the model is not built.
        TypeError: If an argument of a layer, loss, metric or optimizer is no plain data.
    """
    step = model._training.step
    objective, optimizer = step.objective, step.optimizer
    # A compile of one's own may take anything: what it was told is in no file, and in a back-up by name alone.
    known = by_name or type(model).compile.__module__.startswith("minicnn.")
    compiled = None if objective is None or optimizer is None or not known else {
        "optimizer": encode(optimizer),
        "losses": [encode(loss) for loss in objective.losses],
        "metrics": [[encode(metric) for metric in metrics] for metrics in objective.metrics],
        "loss_weights": list(objective.loss_weights),
        "precision": model.precision,
    }  # fmt: skip
    if compiled is not None and step.trainable != model._trainable_now():  # which the layers describe
        compiled["trainable"] = list(step.trainable.values())
    if compiled is not None and not by_name and step.author is not None:
        compiled["rates"] = model._training.further_rates()
    of_own = model._writes("call") or model._writes_steps()
    graph: Any = None if of_own else graph_to_config(model._graph)
    check_size(graph or {"layers": [], "calls": []})
    settings = {} if not of_own else {
        "model": type(model).__name__
        if by_name else {"class": type(model).__name__, "config": encode(model.get_config())},
        "inputs": [] if step.graph is None else [[list(t.sample_shape), t.dtype] for t in model.inputs],
    }  # fmt: skip
    return {
        **settings,
        "class": "Written" if of_own else model._described_as,
        "name": model._name,
        "seed": model.seed,
        **({} if model.trainable else {"trainable": False}),
        **({} if model.class_names is None else {"class_names": list(model.class_names)}),
        "graph": graph,
        "weights": list(model._weights),
        "compile": compiled,
    }


def check_model_state(model: Model, state: Any) -> None:
    """Raise a ValueError unless `Model.set_state` can take the state up, and training can go on from there."""
    batch = _batch(state)
    written = model._training.step.author is not None
    metrics: dict[str, tuple[tuple[int, ...], str]] = {}
    if not written and batch is not None and (batch or _has_totals(state)):
        shards = 1 if model.distribution is None else model.distribution.shards
        training = model._training
        inputs = training.executor.program("evaluate", training.step.feed(max(2, shards))).inputs
        metrics = {v.name: (v.shape, v.dtype) for v in inputs if v.kind == "metric"}
    optimizer = model.optimizer
    arrays = arrays_like(expected_arrays(model), frozenset(model._weights), more=written)

    def steps(value: Any) -> bool:
        return count(value) and value < 2**31 and (optimizer is None or duration(_rate(optimizer, value)))

    def sums(value: Any) -> bool:
        # What a written step carries and logs is known once it is traced.
        if not arrays_like(metrics, frozenset(metrics if batch else ()), more=written)(value):
            return False
        return not batch or all(np.all(a >= 1) for n, a in value.items() if n.endswith("loss/count"))

    earlier = arrays_like(
        {n: (shape, host_dtype(dtype)) for n, (shape, dtype) in metrics.items()}, frozenset(), more=written
    )
    totals = record(arrays=sums, earlier=earlier, steps=count, counted=count)

    def rate(value: Any) -> bool:
        fixed = optimizer is not None and not isinstance(optimizer.learning_rate, Schedule)
        return duration(value) if fixed else value is None

    further = model._training.step.further_optimizers()

    def rates(value: Any) -> bool:
        fixed = {name for name, o in further.items() if not isinstance(o.learning_rate, Schedule)}
        return isinstance(value, Mapping) and set(value) == fixed and all(map(duration, value.values()))

    check_state(
        model, state, position=lambda _: batch is not None, arrays=arrays, steps_taken=steps, totals=totals,
        samples_seen=count, stop_training=flag, learning_rate=rate, rates=rates,
    )  # fmt: skip


def _has_totals(state: Mapping[str, Any]) -> bool:
    totals = state.get("totals")
    return isinstance(totals, Mapping) and any(isinstance(part, Mapping) and part for part in totals.values())


def _batch(state: Any) -> int | None:
    """The batch that comes next in a state of a model; None if it has no position."""
    position = state.get("position") if isinstance(state, Mapping) else None
    if not isinstance(position, list) or len(position) != 2 or not all(map(count, position)):
        return None
    return int(position[1])


def _rate(optimizer: Optimizer, step: int) -> Any:
    try:
        return optimizer.rate(step)
    except ValueError:  # of a schedule that grows without end
        return None


def expected_arrays(model: Model) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every tensor in the file of a model."""
    dtype = model._training.variables.dtype
    expected = {path: (weight.shape, dtype) for path, weight in model._weights.items()}
    if model.optimizer is None:
        return expected
    for path in model._training.trained_paths():
        shape = model._weights[path].shape
        expected |= dict.fromkeys(model.optimizer.state_names(path, shape), (shape, dtype))
    return expected | {"step": ((), "int32")}
