"""Models whose methods take Keras's arguments."""

from __future__ import annotations

import functools
import operator
import os
from types import SimpleNamespace
from typing import Any

import numpy as np

import minicnn
from minicnn import gradients, ops, saving
from minicnn.data.forms import Batches
from minicnn.models import clone_model as clone_model

__all__ = ["GradientTape", "Model", "Sequential", "clone_model", "load_model", "save_model"]


def file_of(path: Any) -> str:
    """The file that stands for a path: one that promises another format is given the ending .safetensors."""
    name = os.fspath(path)
    return f"{name}.safetensors" if name.endswith((".keras", ".h5", ".hdf5")) else name


def load_model(filepath: Any, custom_objects: Any = None, compile: bool = True, **options: Any) -> Any:  # noqa: A002
    """Read a model: see `minicnn.saving.load_model` and `file_of`; a file of Keras's as `minicnn.load_keras` does."""
    if _of_keras(filepath):
        model = minicnn.load_keras(filepath, **options)
    else:
        model = saving.load_model(file_of(filepath), custom_objects=custom_objects, **options)
    # Its methods take Keras's arguments, too.
    model.__class__ = {minicnn.Model: Model, minicnn.Sequential: Sequential}.get(type(model), type(model))
    return model


def _of_keras(path: Any) -> bool:
    """True if there is a file of that very name, which Keras has written, and none that stands for it."""
    return file_of(path) != os.fspath(path) and os.path.exists(path) and not os.path.exists(file_of(path))


def save_model(model: Any, filepath: Any, overwrite: bool = True) -> None:
    """Write a model: see `minicnn.saving.save_model` and `file_of`."""
    saving.save_model(model, file_of(filepath))


def _with_last_axis(x: Any, shape: tuple[int | None, ...]) -> Any:
    missing = hasattr(x, "shape") and len(x.shape) == len(shape) and shape[-1:] == (1,) and len(shape) > 1
    return x[..., None] if missing else x


def _class_numbers(model: Any, y: Any) -> Any:
    """Labels of a loss by class numbers as such, where they are whole numbers in floating point."""
    objective = model._training.step.objective
    losses = [] if objective is None else objective.losses
    whole = len(losses) == 1 and losses[0].integer_labels and isinstance(y, np.ndarray) and y.dtype.kind == "f"
    return y.astype("int32") if whole and bool(np.all(y == np.round(y))) else y


class Model(minicnn.Model):
    """`minicnn.Model`, whose methods take Keras's arguments in Keras's order."""

    def compile(  # type: ignore[override]  # as in Keras
        self, optimizer: Any = "rmsprop", loss: Any = None, loss_weights: Any = None, metrics: Any = None,
        weighted_metrics: Any = None, run_eagerly: bool = False, steps_per_execution: int = 1,
        jit_compile: Any = "auto", auto_scale_loss: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        """Say what to train for and how: see `minicnn.Model.compile`.

        Args:
            optimizer: See there.
            loss: See there; with none a model trains for what its step or its layers say.
            loss_weights: See there.
            metrics: See there.
            weighted_metrics: More metrics, as weights weigh all.
            run_eagerly: Taken, and without effect, as are the next three: each backend has one way to run steps.
            steps_per_execution: See run_eagerly.
            jit_compile: See run_eagerly.
            auto_scale_loss: See run_eagerly.
            options: What minicnn's alone takes.
        """
        if isinstance(loss_weights, str) or (isinstance(loss_weights, list) and loss_weights and isinstance(
            loss_weights[0], str)):  # fmt: skip
            loss_weights, metrics = None, loss_weights  # minicnn's order
        loss = [] if loss is None else loss
        both = metrics or []
        if weighted_metrics:
            both = [*(both if isinstance(both, list) else [both]), *weighted_metrics]
        super().compile(optimizer, loss, both, loss_weights=loss_weights, **options)

    # Of Keras 2, in a step.

    @property
    def compiled_loss(self) -> Any:
        """A function of (y, y_pred, sample_weight=None), whose result has the penalties in it."""
        return lambda y, y_pred, sample_weight=None, **_: self.compute_loss(None, y, y_pred, sample_weight)

    @property
    def compiled_metrics(self) -> Any:
        """An object that updates the metrics of `compile`."""

        def update_state(y: Any, y_pred: Any, sample_weight: Any = None) -> None:
            for metric in self.metrics:
                if metric.name != "loss":
                    metric.update_state(y, y_pred, sample_weight=sample_weight)

        return SimpleNamespace(update_state=update_state)

    def get_metrics_result(self) -> dict[str, Any]:
        """The metrics of `compile` by name, and the loss."""
        loss = None if self._step is None else self._step.total_loss
        metrics = {m.name: m.result() for m in self.metrics}
        return metrics if loss is None or metrics["loss"].totals else {**metrics, "loss": loss}

    @functools.wraps(minicnn.Model.fit)
    def fit(  # type: ignore[override]  # as in Keras  # noqa: D102
        self, x: Any = None, y: Any = None, batch_size: int | None = None, *more: Any, **options: Any
    ) -> Any:
        return super().fit(x, y, 32 if batch_size is None else batch_size, *more, **options)

    def evaluate(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, verbose: Any = 0, sample_weight: Any = None,
        steps: int | None = None, callbacks: Any = None, return_dict: bool = False,
    ) -> Any:  # fmt: skip
        """Loss and metrics: see `minicnn.Model.evaluate`."""
        return super().evaluate(
            x, y, 32 if batch_size is None else batch_size, verbose, sample_weight, steps, return_dict=return_dict,
            callbacks=callbacks or (),
        )  # fmt: skip

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = 0, steps: int | None = None, callbacks: Any = None
    ) -> Any:
        """Outputs: see `minicnn.Model.predict`."""
        size = 32 if batch_size is None else batch_size
        return super().predict(x, size, verbose, steps, callbacks=callbacks or ())

    def _placed(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Data by place; inputs get a last axis of length 1 where the model has one, labels of classes are integers."""
        x, y = super()._placed(x, y)
        if isinstance(x, Batches) or self._training.step.graph is None:
            return x, y
        many = isinstance(x, list | tuple)
        shapes = [t.sample_shape for t in self.inputs]
        arrays = list(x) if many else [x]
        if len(arrays) == len(shapes):
            arrays = [_with_last_axis(a, shape) for a, shape in zip(arrays, shapes, strict=True)]
        return arrays if many else arrays[0], _class_numbers(self, y)

    def save(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the model: see `save_model`."""
        super().save(file_of(filepath))

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the weights: see `minicnn.Model.save_weights` and `file_of`."""
        super().save_weights(file_of(filepath))

    def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
        """Read weights: see `minicnn.Model.load_weights` and `file_of`; Keras's as `minicnn.load_keras` does."""
        if _of_keras(filepath):
            minicnn.load_keras(filepath, self)
        else:
            super().load_weights(file_of(filepath), skip_mismatch)


class GradientTape:
    """A place in `train_step` where losses are computed: `gradient` is `minicnn.gradients`, and nothing is recorded.

    Args:
        options: Taken, and without effect: gradients may be taken as often as they are asked for.
    """

    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> GradientTape:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watch(self, tensor: Any) -> None:
        """Nothing, as gradients by any Value may be taken."""

    def gradient(self, target: Any, sources: Any) -> Any:
        """Gradients of a Value, or of the sum of its elements, or of several."""
        several = target if isinstance(target, list | tuple) else [target]
        total = functools.reduce(operator.add, [ops.sum(t) if getattr(t, "shape", ()) else t for t in several])
        return gradients(total, sources)


class Sequential(Model, minicnn.Sequential):
    """`minicnn.Sequential`, whose methods take Keras's arguments."""

    def __init__(self, layers: Any = (), trainable: bool = True, name: str | None = None, **options: Any) -> None:
        super().__init__(() if layers is None else layers, name=name, **options)
        self._trainable = trainable
