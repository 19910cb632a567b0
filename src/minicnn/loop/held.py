"""Optimizers and metrics of a model within a step of its own, and the paths of its weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minicnn import ops
from minicnn.layers.layer import Layer
from minicnn.layers.weight import Weight
from minicnn.loop.objective import read_mean
from minicnn.loop.tracing import METRICS, mean_of, totals_of
from minicnn.metrics import Mean, Metric
from minicnn.optimizers import Optimizer
from minicnn.program.graph import Value

if TYPE_CHECKING:
    from minicnn.loop.traced_step import TracedStep


class Measured:
    """A metric in a step.

    Args:
        metric: The metric.
        trace: The step's.

    Attributes:
        totals: What the step adds to the metric's sums.
    """

    def __init__(self, metric: Metric, trace: TracedStep) -> None:
        # The trace holds what was measured, and would stay until garbage is collected if that held it.
        self.metric, self._tracing, self.name = metric, weakref.ref(trace), metric.name
        self.totals: dict[str, Value] = {}

    @property
    def _trace(self) -> TracedStep:
        trace = self._tracing()
        if trace is None:
            raise RuntimeError(
                "A metric of a step is updated while the step is traced. Received: one of a step that was. "
                "Use it in train_step or test_step alone."
            )
        return trace

    def update_state(self, *values: Any, sample_weight: Value | None = None) -> None:
        """Measure labels and predictions; or, for `metrics.Mean`, the mean of a Value.

        Args:
            values: y_true and y_pred; or the Value.
            sample_weight: Weight of each sample.
        """
        trace, program = self._trace, self._trace.program
        with program.scope(METRICS, "forward"):
            if type(self.metric) is Mean:
                mean = mean_of(values[0])
                totals = totals_of(mean, trace) | {"total": trace.sum_of(mean)}
            else:
                y_true, y_pred, *rest = values
                weight = rest[0] if rest else sample_weight
                samples = y_pred.shape[0]
                if weight is None:
                    weight = ops.broadcast_to(program.constant(1.0, trace.dtype), shape=(samples,))
                totals = self.metric.totals(y_true, y_pred, weight)
                whole = samples if trace.shard is None else samples * trace.shard.batch // trace.samples
                each = 1 if isinstance(self.metric, Mean) else y_pred.size // samples
                program.counted = max(program.counted, whole * each)
            self.add(totals)

    def add(self, totals: Mapping[str, Value]) -> None:
        """Add to the metric's sums."""
        self.totals = {key: self.totals[key] + v if key in self.totals else v for key, v in totals.items()}
        if self not in self._trace.metrics:
            self._trace.metrics.append(self)

    @property
    def reader(self) -> Callable[[Mapping[str, Any]], Any]:
        """The function that gives the number that sums stand for."""
        return read_mean if type(self.metric) is Mean else self.metric.result

    def result(self) -> Measured:
        """The metric's log, as `train_step` returns it."""
        return self

    def reset_state(self) -> None:
        """Nothing: each epoch and each evaluation begins with sums of zero."""

    def __call__(self, *values: Any, **options: Any) -> Measured:
        """`update_state`, and the result."""
        self.update_state(*values, **options)
        return self


class Stepping:
    """An optimizer in a step.

    Args:
        optimizer: The optimizer.
        trace: The step's.
    """

    def __init__(self, optimizer: Optimizer, trace: TracedStep) -> None:
        self._optimizer, self._trace = optimizer, trace

    def apply(self, gradients: Sequence[Value | None], weights: Sequence[Weight]) -> None:
        """Take a step on weights with their gradients, in the same order; None leaves a weight as it is."""
        self._trace.apply(self._optimizer, gradients, weights)

    def apply_gradients(self, pairs: Any) -> None:
        """The same with pairs (gradient, weight), as in Keras 2."""
        several = list(pairs)
        self.apply([gradient for gradient, _ in several], [weight for _, weight in several])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def bind_held(held: Any, name: str, trace: TracedStep) -> Any:
    """An optimizer or a metric that a model holds, or several in a container, as they are in a step; else None."""
    if isinstance(held, Optimizer):
        if held is not trace.source.optimizer:
            twin = object.__new__(type(held))
            vars(twin).update(vars(held), _name=name)
            held = twin
        return Stepping(held, trace)
    if isinstance(held, Metric):
        return Measured(held, trace)
    if isinstance(held, list | tuple) and held:
        items = [bind_held(part, f"{name}_{i}", trace) for i, part in enumerate(held)]
        return items if all(item is not None for item in items) else None
    return None


def held_weights(layer: Layer, path: str = "") -> Iterator[tuple[Weight, str]]:
    """Each weight that a layer holds, at any depth, and its path: as where the layer is called."""
    prefix = f"{path}/" if path else ""
    wired = layer._wired
    if wired is not None:
        for inner, name in wired.names.items():
            yield from held_weights(inner, prefix + name)
    if wired is None or not path:  # of a model within another its graph alone is called
        for attribute, held in vars(layer).items():
            yield from _held(held, attribute, prefix)


def _held(held: Any, attribute: str, prefix: str) -> Iterator[tuple[Weight, str]]:
    if isinstance(held, Weight):
        yield held, prefix + held.name
    elif isinstance(held, Layer) and attribute != "_origin":
        yield from held_weights(held, f"{prefix}{held._name or attribute}")
    elif isinstance(held, list | tuple | dict):
        for key, part in held.items() if isinstance(held, dict) else enumerate(held):
            yield from _held(part, f"{attribute}_{key}", prefix)
