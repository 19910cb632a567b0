"""The training and the evaluation step as methods, which subclasses of Model may write anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minicnn.layers.functional import Functional
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.loop.held import Measured, Stepping, bind_held
from minicnn.loop.traced_step import TracedStep
from minicnn.loop.tracing import several
from minicnn.metrics import Mean
from minicnn.program.graph import Value

if TYPE_CHECKING:
    from minicnn.layers.trace import Trace
    from minicnn.loop.training import Training


def gradients(loss: Value, of: Any) -> Any:
    """Gradients of a scalar in a step of one's own: further nodes of its Program, of which gradients may be taken.

    On several shards the loss is a mean over samples, and the gradients are those of the mean over all of them. What an
    optimizer has changed, and what `ops.stop_gradient` gives, is a constant.

    Args:
        loss: The scalar.
        of: A Weight or a Value, or a list of them: what it is differentiated by.

    Returns:
        A Value of the same shape for each; zeros where the loss does not depend on it.

    Raises:
        RuntimeError: If the Value is not of a step that is traced.
        ValueError: If the loss is no scalar, or on several shards no mean over samples.
        TypeError: If a gradient reaches a primitive that has no gradient rule.
    """
    trace = loss.program.tracing if isinstance(loss, Value) else None
    if not isinstance(trace, TracedStep):
        raise RuntimeError(
            f"gradients belongs inside train_step or test_step of a model. Received: {loss!r:.80}. In a Program "
            "written by hand take minicnn.program.gradients."
        )
    slopes = trace.gradients(loss, list(of) if isinstance(of, list | tuple) else [of])
    return slopes if isinstance(of, list | tuple) else slopes[0]


class Steps(Functional):
    """The methods that are traced into a model's steps, with `self` as it is in them.

    Layers and models that `self` holds are called on Values there, weights that it holds are Values, its optimizers
    have `apply(gradients, weights)`, and its metrics `update_state` and `result`.

    Args:
        graph: The layers.
    """

    _training: Training
    _step: TracedStep | None = None  # the one that is traced
    _measured: list[Measured] | None = None  # its metrics
    _of_the_run = (*Functional._of_the_run, "backend", "seed")

    def __init__(self, graph: Graph) -> None:
        Layer.__init__(self)
        self._wired = graph

    def train_step(self, data: Any) -> Mapping[str, Any]:
        """One step of the training; as it is here that of every model without one of its own.

        It is run once for each size of batches, and its Program from then on, so that what it does to attributes of
        `self` is lost: state is held in weights that are not trainable, and replaced by `assign`.

        Args:
            data: What `fit` was given of one batch, as Values: x, (x, y) or (x, y, sample_weight); lists for several
                inputs or outputs.

        Returns:
            Logs by name: scalars, of which the logs of an epoch are the means over its samples, or results of metrics.
        """
        x, y, weight = unpack(data)
        y_pred = self(x, training=True)
        trace = self._traced_step()
        trace.total_loss = loss = self.compute_loss(x, y, y_pred, weight)
        logs = self.compute_metrics(x, y, y_pred, weight)
        weights = trace.trained_weights()
        self._stepping().apply(gradients(loss, weights), weights)
        return logs

    def test_step(self, data: Any) -> Mapping[str, Any]:
        """One step of the evaluation: see `train_step`; weights stay as they are."""
        x, y, weight = unpack(data)
        y_pred = self(x, training=False)
        self._traced_step().total_loss = self.compute_loss(x, y, y_pred, weight, training=False)
        return self.compute_metrics(x, y, y_pred, weight)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Value | None = None,
        training: bool = True,
    ) -> Value:  # fmt: skip
        """The loss that the model was compiled for, with penalties of weights and what layers add; in a step.

        Args:
            x: Inputs.
            y: Labels; a list for several outputs.
            y_pred: Outputs.
            sample_weight: Weight of each sample.
            training: Whether it is a training step.

        Raises:
            ValueError: If there is nothing of all that.
        """
        return self._traced_step().loss(y, y_pred, sample_weight)

    def compute_metrics(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Value | None = None
    ) -> dict[str, Any]:
        """Logs: the loss that `compute_loss` gave last, and the metrics that the model was compiled with; in a step."""
        trace = self._traced_step()
        objective, logs = trace.source.compiled()[0], dict[str, Any]()
        if trace.total_loss is not None:
            logs["loss"] = trace.total_loss
        for name, total in zip(objective.names, trace.output_losses, strict=False):
            if name:
                logs[f"{name}loss"] = measured = Measured(Mean(f"{name}loss"), trace)
                measured.add({"total": total, "count": trace.program.constant(float(trace.samples), trace.dtype)})
        each = zip(objective.names, objective.metrics, several(y), several(y_pred), strict=False)
        for name, metrics, target, output in sorted(each, key=lambda one: one[0]):  # as in Keras
            for metric in metrics:
                measured = logs[f"{name}{metric.name}"] = Measured(metric, trace)
                measured.update_state(target, output, sample_weight=sample_weight)
        return logs

    @property
    def metrics(self) -> list[Any]:
        """The mean loss and the metrics that the model was compiled with; in a step such as can be updated."""
        objective = self._training.step.objective
        several = [] if objective is None else [metric for metrics in objective.metrics for metric in metrics]
        every: list[Any] = [Mean("loss"), *several]
        if self._step is None:
            return every
        self._measured = self._measured or [Measured(metric, self._step) for metric in every]
        return list(self._measured)

    @property
    def losses(self) -> list[Value]:
        """In a step: penalties of the weights of layers that were called, and what these have added."""
        trace = self._traced_step()
        return [*trace.penalties(), *trace.losses]

    # In a step ------------------------------------------------------------------------------------

    def value_of(self, weight: Any) -> Value:
        """The number of a weight of any layer that the model holds, at this point of the step."""
        return self._traced_step().current(weight)

    def gather(self, x: Value) -> Value:
        """Numbers of all samples of the batch, of which a step on a shard has some: for losses between samples.

        Args:
            x: Numbers of the step's samples, shape (samples, ...); whole ones below 2**24.

        Returns:
            Shape (batch, ...); x itself without shards. Gradients go through it.

        Raises:
            ValueError: If x does not have the samples along its first axis.
        """
        return self._traced_step().gather(x)

    def sample_numbers(self) -> Value:
        """Places of the step's samples among those of the batch, counted from 0: int32 (samples,)."""
        return self._traced_step().numbers()

    def _traced_step(self) -> TracedStep:
        if self._step is None:
            raise RuntimeError(
                "compute_loss, compute_metrics, losses, value_of, gather and sample_numbers belong inside train_step "
                f"and test_step. Received: a call outside, on {self.name!r}. Give evaluate the data, or read weights "
                "by get_weights."
            )
        return self._step

    def _stepping(self) -> Stepping:
        trace = self._traced_step()
        return Stepping(trace.source.compiled()[1], trace)

    def _in_step(self, trace: TracedStep) -> Any:
        """The model as `self` is in a step."""
        bound = Layer._bind(self, trace, "")
        bound._step = trace
        for name, held in vars(self).items():
            of_step = bind_held(held, name, trace)
            if of_step is not None:
                setattr(bound, name, of_step)
        return bound

    def _bind(self, trace: Trace, path: str) -> Any:
        # As a layer it is what its graph or its `call` says.
        return super()._bind(trace, path) if type(self).call is Functional.call else Layer._bind(self, trace, path)

    @classmethod
    def _writes_steps(cls) -> bool:
        """True if a subclass has a step of its own, or a part of one."""
        return cls._writes("train_step", "test_step", "compute_loss", "compute_metrics")

    @classmethod
    def _writes(cls, *names: str) -> bool:
        """True if a subclass has methods of these names of its own."""
        return any(getattr(cls, name) is not getattr(Steps, name) for name in names)


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Inputs, labels and sample weights of what a step is given; None for what there is not."""
    if isinstance(data, tuple):
        x, y, weight = (*data, None, None)[:3]
        return x, y, weight
    return data, None, None
