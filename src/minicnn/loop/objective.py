"""Objective: the losses and metrics of a model; and the logs of a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from minicnn.arguments import plain
from minicnn.layers import (
    Activation,
    Conv1D,
    Conv2D,
    Conv2DTranspose,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    Permute,
    Reshape,
    SeparableConv2D,
)
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.losses import BinaryCrossentropy, Loss, get_loss
from minicnn.losses.crossentropy import Crossentropy
from minicnn.metrics import Accuracy, Metric, get_metric

# Program inputs that sum up a metric are called "metric/<log>/<key>".
PREFIX = "metric/"
_PRODUCTS = (Dense, Conv1D, Conv2D, Conv2DTranspose, SeparableConv2D)
_PASSING = (Dropout, Flatten, GlobalAveragePooling2D, Permute, Reshape)  # layers after which numbers are still any
SKIPPED = "skipped_steps"  # log of the steps that changed no weight, because a gradient was not finite in float16


@dataclass
class Objective:
    """Losses and metrics that a model is trained for, one entry an output.

    Attributes:
        losses: Losses.
        loss_weights: Their weights in the sum that is minimised.
        metrics: Metrics of each output.
        names: Prefixes of the logs: empty for a single output.
    """

    losses: list[Loss]
    loss_weights: list[float]
    metrics: list[list[Metric]]
    names: list[str]

    @classmethod
    def of(cls, loss: Any, metrics: Any, loss_weights: Any, outputs: Sequence[str]) -> Objective:
        """The objective that the arguments of `Model.compile` describe.

        Args:
            loss: Loss or its name, or a list or a dictionary by name with one for each output.
            metrics: Metrics or their names; for several outputs a dictionary by name, or a list with an entry for each,
                of one, a list of them, or None. Any other list is of all outputs.
            loss_weights: One number for each output, by place or by name, a number for one output, or None.
            outputs: Names of the outputs of the model.

        Raises:
            ValueError: If a name is unknown, a number of entries is wrong, or two logs have one name.
        """
        count = len(outputs)
        losses = _each("loss", loss, outputs)
        losses = losses if isinstance(losses, list) else [losses] * count
        added_alone = losses == []  # by layers, or by a step of one's own
        entries = _each("metrics", metrics, outputs, ())
        entries = entries if isinstance(entries, list) else [] if entries is None else [entries]
        nested = any(m is None or isinstance(m, list | tuple) for m in entries)
        listed = isinstance(metrics, Mapping) or (count > 1 and (nested or len(entries) == count))
        per_output = [() if ms is None else ms for ms in entries] if listed else [entries] * count
        weights = [1.0] * count if loss_weights is None else plain(loss_weights)
        weights = _each("loss_weights", weights, outputs, 1.0)
        weights = [weights] if isinstance(weights, Real) else weights
        if not isinstance(weights, list | np.ndarray) or not all(isinstance(w, Real) and isfinite(w) for w in weights):
            raise ValueError(
                "loss_weights are finite numbers, one for each output by place or by name. Received: "
                f"{loss_weights!r:.80}. Use 1.0 where a loss is not to be weighted."
            )
        if added_alone:
            weights = []
        if not added_alone and not len(losses) == len(per_output) == len(weights) == count:
            raise ValueError(
                f"loss, metrics and loss_weights have one entry for each of the {count} outputs. Received: "
                f"{len(losses)} losses, metrics for {len(per_output)}, {len(weights)} weights."
            )
        chosen = [get_loss(v) for v in losses]
        of_outputs: list[Loss | None] = [*chosen] if chosen else [None] * count
        measured = [
            [_metric(m, loss_of_output) for m in (ms if isinstance(ms, list | tuple) else [ms])]
            for ms, loss_of_output in zip(per_output, of_outputs, strict=True)
        ]
        names = [""] if count == 1 else [f"{name}_" for name in outputs]
        objective = cls(chosen, [float(w) for w in weights], measured, names)
        logs = [name for name, _ in objective.readers()]
        twice = sorted({name for name in logs if logs.count(name) > 1})
        if twice:
            raise ValueError(
                f"Every metric has a log of its own. Received: {', '.join(twice)} twice. Give one another name."
            )
        return objective

    def check_outputs(self, outputs: Sequence[SymbolicTensor]) -> None:
        """Warn where a cross-entropy of probabilities is to train on sums of any size and sign."""
        for loss, output in zip(self.losses, outputs, strict=True):
            layer = _linear_layer(output) if isinstance(loss, Crossentropy) and not loss.from_logits else None
            if layer is not None:
                name = type(loss).__name__
                message = (
                    f"{name} takes probabilities unless it is told otherwise. Received: the output of {layer.name!r}, "
                    f"{layer!r}, which has no activation and gives numbers below 0. Use {name}(from_logits=True), or "
                    f"the activation {'sigmoid' if loss.soft_labels else 'softmax'!r} there."
                )
                warnings.warn(message, stacklevel=3)

    def readers(self) -> list[tuple[str, Callable[[Mapping[str, Any]], Any]]]:
        """Names of the logs in their order, and what makes each from its totals."""
        readers: list[tuple[str, Callable[[Mapping[str, Any]], Any]]] = [("loss", read_mean)]
        readers += [(f"{prefix}loss", read_mean) for prefix in self.names if prefix]
        for prefix, metrics in sorted(zip(self.names, self.metrics, strict=True), key=lambda pair: pair[0]):  # as Keras
            readers += [(f"{prefix}{metric.name}", metric.result) for metric in metrics]
        return readers


def read_logs(
    totals: Mapping[str, np.ndarray[Any, Any]], readers: Mapping[str, Callable[[Mapping[str, Any]], Any]]
) -> dict[str, Any]:
    """Logs by name, from the sums of a step: by their readers and in their order, others as means."""
    sums: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for name, value in totals.items():
        log, _, key = name.removeprefix(PREFIX).rpartition("/")
        sums.setdefault(log, {})[key] = value
    every = {**readers, SKIPPED: _count}
    every |= {log: read_mean for log in sums if log not in every}  # what a layer or a step has logged itself
    return {log: read(sums[log]) for log, read in every.items() if log in sums}


class LazyLogs(Mapping[str, Any]):
    """Logs that are read from the device when first looked at.

    Args:
        read: Reads them; it is called once.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._make: Callable[[], dict[str, Any]] | None = read
        self._values: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """The values; waits for the device."""
        if self._make is not None:
            self._values, self._make = self._make(), None
        return self._values

    def __getitem__(self, key: str) -> Any:
        return self.read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __repr__(self) -> str:
        return repr(self.read())


def _linear_layer(output: SymbolicTensor) -> Layer | None:
    """The layer of minicnn's own without an activation that makes an output, if one does."""
    while (call := output.source) is not None:
        layer = call.layer
        linear = getattr(layer, "activation", None) in (None, "linear")
        if layer._wired is not None:
            output = layer._wired.outputs[output.index]
        elif isinstance(layer, _PASSING) or (isinstance(layer, Activation) and linear):
            output = call.inputs[0]
        else:
            limited = any(getattr(layer, f"{word}_constraint", None) for _, word in layer._limited)
            return layer if type(layer) in _PRODUCTS and linear and not limited else None
    return None


def _each(what: str, entries: Any, outputs: Sequence[str], otherwise: Any = None) -> Any:
    """A dictionary by the names of the outputs, or a tuple, as a list; anything else as it is."""
    if not isinstance(entries, Mapping):
        return list(entries) if isinstance(entries, tuple) else entries
    needed = outputs if otherwise is None else ()
    if not set(needed) <= set(entries) <= set(outputs):
        raise ValueError(
            f"A dictionary of {what} has the names of the outputs as keys{'' if otherwise is not None else ', all'}. "
            f"Received: {', '.join(map(repr, entries))}; the outputs are {', '.join(map(repr, outputs))}."
        )
    return [entries.get(name, otherwise) for name in outputs]


def read_mean(totals: Mapping[str, Any]) -> float:
    """The mean that a total and a count stand for."""
    return float(totals["total"]) / float(totals["count"])


def _count(totals: Mapping[str, Any]) -> int:
    return round(float(totals["total"]))


def _metric(metric: Any, loss: Loss | None) -> Metric:
    """A metric by name; the accuracy of a single logit has its threshold at 0."""
    if metric in ("accuracy", "acc") and isinstance(loss, BinaryCrossentropy) and loss.from_logits:
        return Accuracy(metric, threshold=0.0)
    return get_metric(metric)
