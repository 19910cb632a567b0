"""Methods of a model that compile it, train it, evaluate it and predict with it: `Model` names them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import NDArray

from minicnn.arguments import plain
from minicnn.callbacks import Callback, Callbacks, History, progress
from minicnn.data.forms import Batches
from minicnn.data.order import LastBatch
from minicnn.distribution import DataParallel
from minicnn.loop import predictions
from minicnn.loop.adapters import split_off
from minicnn.loop.objective import Objective
from minicnn.loop.sources import BatchSource
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import PRECISIONS, Precision
from minicnn.losses import Loss, LossName
from minicnn.models.checks import (
    as_asked,
    check_counts,
    check_distribution,
    check_optional,
    check_seed,
    validated,
    with_labels,
)
from minicnn.names import known_name
from minicnn.optimizers import Optimizer, get_optimizer

if TYPE_CHECKING:
    from minicnn.models.model import Model

# "X | Any" is the type of what is X but for models of several outputs or metrics, which give a list: a type checker
# knows X's attributes, and takes a list as well.


def compile(
    model: Model,
    optimizer: str | Optimizer | type[Optimizer] = "sgd",
    loss: LossName | str | Loss | Callable[..., Any] | Sequence[Any] | Mapping[str, Any] | None = None,
    metrics: Any = (),
    *,
    loss_weights: float | Sequence[float] | Mapping[str, float] | None = None,
    precision: Precision | str = "float32",
    distribution: DataParallel | None = None,
    accumulate: int = 1,
) -> None:
    """Say what to train for and how.

    Args:
        optimizer: Name or Optimizer.
        loss: Name, Loss or function of (y_true, y_pred); or a list, or a dictionary by `output_names`, of these.
            None is "sparse_categorical_crossentropy", and no loss for a model with a step of its own. An empty list
            is for a model whose layers add all there is to the loss.
        metrics: Names, Metrics or functions; for several outputs a dictionary by name, or a list with an entry for
            each, of one, a list of them, or None; any other list is of all outputs. A loss stands for its mean.
            Sample weights weigh metrics too: Keras calls these weighted metrics.
        loss_weights: Weight of each output's loss in the sum, as a list or a dictionary; a number for one output.
        precision: "float32", "float64", or "mixed_bfloat16" and "mixed_float16": products of shorter operands,
            images stored in 16 bits, weights, optimizer and sums in float32. In float16 the loss is scaled, and
            the log "skipped_steps" counts the steps whose gradients were not finite, which change no weight.
        distribution: How training and evaluation are shared out between processes, and cut into shards.
        accumulate: Parts that each batch is cut into, whose gradients are summed one after the other: less memory,
            the bits of `DataParallel(shards=accumulate)`. A distribution has shards of its own.

    Raises:
        ValueError: If a name is unknown, a number of entries is wrong, or the backend lacks the precision. The
            model stays as it was.
        RuntimeError: If the model is in training.
    """
    known_name("precision", precision, PRECISIONS)
    distribution = check_distribution(distribution, accumulate)
    if loss is None:
        loss = [] if model._writes_steps() else "sparse_categorical_crossentropy"
    objective = Objective.of(loss, metrics, loss_weights, model.output_names)
    model._training.compile(
        precision, distribution, objective=objective, optimizer=get_optimizer(optimizer),
        trainable=model._trainable_now(), author=model if model._writes_steps() or not objective.losses else None,
    )  # fmt: skip
    if model._training.step.graph is not None and objective.losses:
        objective.check_outputs(model._graph.outputs)


def fit(
    model: Model,
    x: Any,
    y: Any = None,
    batch_size: int = 32,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Callback | Sequence[Callback] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    *,
    last_batch: LastBatch = "keep",
    seed: int | None = None,
) -> History:
    """Train.

    Args:
        x: Inputs, shape (N, ...), of any array library; a list for several inputs; or a loader, an iterable of
            (x, y) or (x, y, sample_weight) batches with a length, such as a list of tuples or a
            `minicnn.utils.PyDataset`; or a generator of such batches, with `steps_per_epoch`.
        y: Labels; None with a loader.
        batch_size: Samples in a step; a loader has its own.
        epochs: Number of the last epoch, counted from 1.
        verbose: 0 is silent, 1 shows progress bars, 2 one line an epoch; "auto" is 1 on a terminal, else 2.
        callbacks: A callback, or several.
        validation_split: Share of the samples, the last ones, that are kept for validation.
        validation_data: (x, y), (x, y, sample_weight) or a loader to evaluate after each epoch.
        shuffle: Whether the order changes from epoch to epoch: that of samples, of a PyDataset that of batches.
        class_weight: Weight of each class number in the loss of the training; 1 for those not named.
        sample_weight: Weight of each sample in the loss, shape (N,), or of each of its predictions, (N, ...).
        initial_epoch: Epochs already done.
        steps_per_epoch: Batches of an epoch; None for all of the data. Each epoch goes on where the one before has
            ended; data that are not a generator begin anew at their end.
        validation_steps: Batches to validate on; None for all.
        validation_batch_size: Samples in a step of the validation; those of the training if None.
        validation_freq: Epochs from one validation to the next; or the numbers, counted from 1, of those that end
            with one.
        last_batch: What happens to a last batch that is not full: "keep", "drop", or "pad" by repeating
            samples from the start of the epoch's order.
        seed: Seed of the shuffles; the model's if None.

    Returns:
        The logs of each epoch.

    Raises:
        RuntimeError: If the model is not compiled.
        ValueError: If shapes, lengths, labels or arguments do not fit.
        TypeError: If data do not hold numbers, or are on another device than the model.
    """
    model._training.step.compiled()
    epochs, initial_epoch = check_counts(0, epochs=epochs, initial_epoch=initial_epoch)
    (batch_size,) = check_counts(batch_size=batch_size)
    steps_per_epoch, validation_steps, validation_batch_size = check_optional(
        steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
        validation_batch_size=validation_batch_size,
    )  # fmt: skip
    validation_freq = plain(validation_freq)
    validates = validated(validation_freq)
    seed = check_seed(model.seed if seed is None else seed)
    several = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
    with model._training.alone(), model._training.together(), received(model, x, y) as (x, y):
        _note_trainable(model)
        training = model._training
        if validation_split and (isinstance(x, Batches) or validation_data is not None):
            raise ValueError(
                "validation_split cuts arrays. Received: a loader, or validation_data as well. Use validation_data."
            )
        if validation_split and y is not None:
            (x, y, sample_weight), validation_data = split_off(x, y, sample_weight, validation_split, *_counts(model))
        source = training.source(
            x, y, sample_weight, batch_size, class_weight, last_batch=last_batch, steps=steps_per_epoch,
            several_epochs=True, continues=True,
        )  # fmt: skip
        validation = None
        if validation_data is not None:
            size = batch_size if validation_batch_size is None else validation_batch_size
            inputs, targets, weights = with_labels(validation_data)
            validation = training.source(
                *model._placed(inputs, targets), weights, size, steps=validation_steps, several_epochs=True
            )
        history = History()
        params: dict[str, Any] = {
            "epochs": epochs, "steps": len(source), "verbose": verbose, "shuffle": shuffle,
            "batch_size": None if isinstance(x, Batches) else batch_size, "last_batch": last_batch,
            "seed": seed,
        }  # fmt: skip
        about = {
            "validation_freq": repr(validation_freq),
            "validation steps": None if validation is None else _length(validation),
            "class_weight": repr(class_weight),
            "sample_weight": "none" if sample_weight is None else "given",
        }  # fmt: skip
        display = progress(verbose if training.chief else 0)
        with Callbacks([*several, history, *display], model, params) as everyone:
            training.fit(source, validation, validates, everyone, shuffle, seed, range(initial_epoch, epochs), about)
    return history


def train_on_batch(
    model: Model, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Mapping[int, float] | None = None, *,
    return_dict: bool = False,
) -> Any:  # fmt: skip
    """One training step; returns loss and metrics of this batch before the step, as `evaluate` gives them."""
    training = model._training
    training.step.compiled()
    _note_trainable(model)
    with training.together(), received(model, x, y) as (x, y):
        run = training.standardizer(class_weight).batch(x, y, sample_weight)
        return as_asked(training.logs(training.train(run, Totals())), return_dict)


@overload
def evaluate(
    model: Model, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
    steps: int | None = None, *, return_dict: Literal[True], callbacks: Sequence[Callback] = (),
) -> dict[str, Any]: ...  # fmt: skip
@overload
def evaluate(
    model: Model, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
    steps: int | None = None, *, return_dict: Literal[False] = False, callbacks: Sequence[Callback] = (),
) -> float | Any: ...  # fmt: skip
@overload
def evaluate(
    model: Model, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
    steps: int | None = None, *, return_dict: bool, callbacks: Sequence[Callback] = (),
) -> Any: ...  # fmt: skip
def evaluate(
    model: Model, x: Any, y: Any = None, batch_size: int = 32, verbose: str | int = 0, sample_weight: Any = None,
    steps: int | None = None, *, return_dict: bool = False, callbacks: Sequence[Callback] = (),
) -> Any:  # fmt: skip
    """Loss and metrics on given data.

    Args:
        x: Inputs or a loader, as in `fit`; a loader needs no length.
        y: Labels; None with a loader.
        batch_size: Samples in a step.
        verbose: 0 is silent; 1, 2 and "auto" print the result.
        sample_weight: Weight of each sample.
        steps: Batches to take; None for all.
        return_dict: Whether the result is a dictionary by name, such as {"loss": 0.3, "accuracy": 0.9}.
        callbacks: Callbacks, whose methods that begin with `on_test` are called.

    Returns:
        As in Keras: the loss, or a list [loss, metric, ...] if there are metrics, in the order in which `fit`
        logs them, or the dictionary.
    """
    progress(verbose)  # which refuses what is none
    (steps,) = check_optional(steps=steps)
    (batch_size,) = check_counts(batch_size=batch_size)
    training = model._training
    training.step.compiled()
    with training.together(), received(model, x, y) as (x, y):
        source = training.source(x, y, sample_weight, batch_size, steps=steps)
        with Callbacks(callbacks, model, {"steps": _length(source), "verbose": verbose}) as everyone:
            logs = training.evaluate(source, everyone)
    if verbose and training.chief:
        print(" - ".join(f"{k}: {v:.4f}" for k, v in logs.items() if isinstance(v, float)))
    return as_asked(logs, return_dict)


def test_on_batch(model: Model, x: Any, y: Any = None, sample_weight: Any = None, *, return_dict: bool = False) -> Any:
    """Loss and metrics on one batch, as `evaluate` gives them."""
    training = model._training
    training.step.compiled()
    with training.together(), received(model, x, y) as (x, y):
        run = training.standardizer().batch(x, y, sample_weight)
        return as_asked(training.logs(training.executor.evaluate(run, Totals())), return_dict)


@overload
def predict(
    model: Model, x: NDArray[Any], batch_size: int = 32, verbose: str | int = 0, steps: int | None = None, *,
    callbacks: Sequence[Callback] = (),
) -> NDArray[Any] | Any: ...  # fmt: skip
@overload
def predict(
    model: Model, x: Any, batch_size: int = 32, verbose: str | int = 0, steps: int | None = None, *,
    callbacks: Sequence[Callback] = (),
) -> Any: ...  # fmt: skip
def predict(
    model: Model, x: Any, batch_size: int = 32, verbose: str | int = 0, steps: int | None = None, *,
    callbacks: Sequence[Callback] = (),
) -> Any:  # fmt: skip
    """Outputs for given inputs, batch by batch.

    Args:
        x: Inputs, or a loader: an iterable of inputs, or of tuples (x, y) of which y is not used. It keeps the
            order of the data: one that is known to shuffle is refused.
        batch_size: Samples in a step; a loader has its own.
        verbose: 0 is silent; 1, 2 and "auto" print a line when it is done.
        steps: Batches to take; None for all.
        callbacks: Callbacks, whose methods that begin with `on_predict` are called.

    Returns:
        Array of the kind that x is, NumPy for lists; a list of them for several outputs.
    """
    # A network of few samples computes for less time than it takes to check what it is given.
    if not verbose and not callbacks and steps is None and model._training.step.author is None:
        outputs = predictions.predict_alike(model._training, x, batch_size)
        if outputs is not None:
            return outputs[0] if model._graph.one_output else outputs
    progress(verbose)  # which refuses what is none
    (batch_size,), (steps,) = check_counts(batch_size=batch_size), check_optional(steps=steps)
    start = time.perf_counter()
    with received(model, x) as (x, _), Callbacks(callbacks, model, {"batch_size": batch_size}) as everyone:
        outputs = predictions.predict(model._training, x, batch_size, steps, everyone)
    if verbose and model._training.chief:
        print(f"{len(outputs[0])} samples predicted - {time.perf_counter() - start:.1f} s")
    return outputs[0] if model._graph.one_output else outputs


@overload
def predict_on_batch(model: Model, x: NDArray[Any]) -> NDArray[Any] | Any: ...
@overload
def predict_on_batch(model: Model, x: Any) -> Any: ...
def predict_on_batch(model: Model, x: Any) -> Any:
    """Outputs for given inputs in one step, as `predict` gives them."""
    return model(x)


@contextmanager
def received(model: Model, x: Any, y: Any = None) -> Iterator[tuple[Any, Any]]:
    """Data by place, while the device of the backend, which they may choose, is the current one."""
    x, y = model._placed(x, y)
    model._build_for(x)
    if model._writes_steps():
        model._take_up()  # now, and not within the step, in which the locks of all its weights are held
    model._training.choose_backend(x, y)
    with model.backend.active():
        yield x, y


def _note_trainable(model: Model) -> None:
    """Warn, once after each compile, where `trainable` of a layer was set since."""
    step, compiled = model._training.step, model._training.step.trainable
    changed = [layer or model for layer, now in model._trainable_now().items() if now is not compiled.get(layer, now)]
    if changed and not step.warned:
        step.warned = True
        warnings.warn(
            "Training changes what was trainable when the model was compiled. Received: trainable set since then, "
            f"on {', '.join(sorted(repr(layer.name) for layer in changed)):.200}. Call compile() again to take it "
            "up, which begins with new optimizer state; nothing is to be done where another model is to leave "
            "these layers alone.",
            stacklevel=3,
        )


def _counts(model: Model) -> tuple[int, int]:
    """Numbers of input and output arrays."""
    return (1, 1) if model._training.step.graph is None else (len(model.inputs), len(model.outputs))


def _length(source: BatchSource) -> int | None:
    """Batches of a source; None for a loader that does not know it."""
    try:
        return len(source)
    except TypeError:
        return None
