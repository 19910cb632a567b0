"""Networks as scikit-learn's estimators: `CNNClassifier` and `CNNRegressor`.

They go into pipelines, grids and cross-validation. With scikit-learn's `array_api_dispatch` they take arrays of any
library of the Array API, and give predictions, `classes_` included, in its arrays and on its device.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import array_api_compat
import array_api_compat.numpy
import numpy as np

from minicnn import zoo
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, EarlyStopping
from minicnn.data.forms import host
from minicnn.extras import install
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import Model
from minicnn.names import known_name
from minicnn.optimizers import Optimizer, get_optimizer
from minicnn.saving import model_from_bytes, model_to_bytes

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    message = f"minicnn.sklearn makes estimators of scikit-learn: {install('sklearn')}."
    raise ImportError(message, name=error.name) from error

__all__ = ["CNNClassifier", "CNNRegressor"]

Array = Any
Build = Callable[[SymbolicTensor, int], SymbolicTensor]


class _Network(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of both estimators: a network that is built for the data, and trained on them."""

    model_: Model

    def _keep(self, arguments: Mapping[str, Any]) -> None:
        """Attributes of the arguments' names, as scikit-learn wants of a constructor."""
        self.__dict__.update({name: value for name, value in arguments.items() if name != "self"})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if isinstance(state.get("model_"), Model):
            state = state | {"model_": (model_to_bytes(self.model_), self.model_.backend)}  # data, no code
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state.get("model_"), tuple):
            state = state | {"model_": model_from_bytes(*state["model_"])}
        super().__setstate__(state)

    # Training -----------------------------------------------------------------------------------

    def _train(self, x: Array, y: Array, weight: Array | None, **options: Any) -> None:
        """Train the model; with `early_stopping` a part of the data tells when to end."""
        callbacks, validation = list(self.callbacks), None
        if self.early_stopping:
            parts = [x, y] if weight is None else [x, y, weight]
            split = train_test_split(
                *parts, test_size=self.validation_fraction, random_state=self.model_.seed % 2**32,
                stratify=self._strata(y),
            )  # fmt: skip
            (x, y, *rest), validation = split[::2], tuple(split[1::2])
            weight = rest[0] if rest else None
            callbacks.append(EarlyStopping(patience=self.n_iter_no_change, restore_best_weights=True))
        history = self.model_.fit(
            x, y, self.batch_size, self.epochs, self.verbose, callbacks, validation_data=validation,
            shuffle=self.shuffle, sample_weight=weight, **options,
        )  # fmt: skip
        self.history_ = history.history
        self.n_iter_ = len(history.epoch)

    def _train_on(self, x: Array, y: Array, weight: Array | None, **options: Any) -> None:
        """One epoch over these data, after those before."""
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        self.history_ = self.model_.fit(
            x, y, self.batch_size, self.n_iter_, self.verbose, list(self.callbacks), shuffle=self.shuffle,
            sample_weight=weight, initial_epoch=self.n_iter_ - 1, **options,
        ).history  # fmt: skip

    def _new_model(self, x: Array, outputs: int, loss: Any, metrics: Sequence[str]) -> Model:
        inputs = Input(tuple(x.shape[1:]))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        model = Model(inputs, self._network()(inputs, outputs), backend=self.backend, seed=seed)
        if model.output_shape != (None, outputs):
            raise ValueError(
                "network is a function from a symbolic tensor and a number of outputs to a tensor (N, outputs). "
                f"Received: one that gives {model.output_shape} for {outputs}."
            )
        optimizer = copy.deepcopy(get_optimizer(self.optimizer))
        if self.learning_rate is not None:
            optimizer.learning_rate = self.learning_rate
        model.compile(optimizer, loss, metrics, precision=self.precision)
        return model

    def _network(self) -> Build:
        if self.network is None:
            return small_network
        if isinstance(self.network, str):
            return zoo.NETWORKS[known_name("network", self.network, zoo.NETWORKS)].build
        if not callable(self.network):
            raise TypeError(
                "network is None, a name of minicnn.zoo, or a function from a symbolic tensor and a number of outputs "
                f"to a symbolic tensor. Received: {self.network!r:.80}."
            )
        return self.network

    # Data ---------------------------------------------------------------------------------------

    def _images(self, x: Array) -> Array:
        """Samples in the network's shape."""
        shape = self.input_shape
        if shape is None:
            return x
        if math.prod(x.shape[1:]) != math.prod(shape):
            raise ValueError(
                f"input_shape is that of one sample. Received: input_shape={tuple(shape)} for samples of shape "
                f"{tuple(x.shape[1:])}."
            )
        return _namespace(x).reshape(x, (x.shape[0], *shape))

    def _weight(self, sample_weight: Any, x: Array) -> Array | None:
        """Sample weights as floating-point numbers (N,)."""
        if sample_weight is None:
            return None
        xp = _namespace(sample_weight)
        dtypes = [xp.float64, xp.float32]
        weight = _like(check_array(sample_weight, ensure_2d=False, dtype=dtypes, input_name="sample_weight"), x)
        if tuple(weight.shape) != (x.shape[0],):
            raise ValueError(
                f"sample_weight has a number for each sample: shape ({x.shape[0]},). Received: {tuple(weight.shape)}."
            )
        if not _namespace(weight).any(weight != 0):
            raise ValueError("Of the sample weights some are not zero. Received: weights that are all zero.")
        return weight

    def _checked(self, *data: Any, reset: bool, **options: Any) -> list[Array]:
        """Inputs, and labels if they are given, as arrays that scikit-learn and the network take."""
        xp = _namespace(data[0])
        options |= {"allow_nd": True, "dtype": [xp.float64, xp.float32], "reset": reset}
        checked = validate_data(self, *data, **options)
        x, *y = checked if len(data) > 1 else (checked,)
        if reset:
            self._place = _place(x)
        return [self._images(x), *(_like(labels, x) for labels in y)]

    def _outputs(self, x: Any, method: str) -> Array:
        """Outputs of the network, of the kind of the inputs, for a method."""
        check_is_fitted(self, "model_")
        (x,) = self._checked(x, reset=False)
        if get_config()["array_api_dispatch"] and _place(x) != self._place:
            raise ValueError(
                f"Inputs to {type(self).__name__}.{method}() must use the same namespace and the same device as those "
                f"of fit. Received: {' on '.join(_place(x))} after {' on '.join(self._place)}."
            )
        return self.model_.predict(x, max(self.batch_size, 32))

    def _strata(self, y: Array) -> Array | None:
        return None


class CNNClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A network that is a classifier of scikit-learn.

    Args:
        network: Function (x, outputs) from a symbolic tensor to logits of so many classes, such as those of
            `minicnn.zoo.NETWORKS`, or the name of one; if None two convolutions for images (H, W, C), a hidden layer
            for everything else.
        input_shape: Shape of one sample, such as (8, 8, 1), for rows of features that are images.
        class_weight: Weight of each class by its label, 1 for those not named; or "balanced".
        optimizer: Name or Optimizer.
        learning_rate: Of the optimizer; its own if None.
        epochs: Most epochs of `fit`.
        batch_size: Samples in a step.
        shuffle: Whether the order of the samples changes from epoch to epoch.
        early_stopping: Whether training ends when the loss on `validation_fraction` of the data has not fallen for
            `n_iter_no_change` epochs. The best weights are kept.
        validation_fraction: Share of the samples that is kept for that, of each class alike.
        n_iter_no_change: Epochs to wait.
        callbacks: Callbacks of the training.
        backend: See `Model`: if None that of the arrays.
        precision: See `Model.compile`.
        random_state: Seed of first weights, shuffles and random layers, or a RandomState that draws it.
        verbose: See `Model.fit`.

    Attributes:
        classes_: The labels, sorted, in the library of `y`.
        model_: The trained Model; it returns logits.
        history_: Logs of the epochs by name.
        n_iter_: Epochs so far.
        n_features_in_: Length of the samples' first axis.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> digits = CNNClassifier(input_shape=(8, 8, 1), epochs=3, random_state=0)
        >>> digits.fit(x[:1000] / 16, y[:1000]).score(x[1000:] / 16, y[1000:]) > 0.8
        True
    """

    classes_: Array

    def __init__(
        self, network: str | Build | None = None, *, input_shape: Sequence[int] | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        optimizer: str | Optimizer = "adam", learning_rate: float | None = None, epochs: int = 20, batch_size: int = 32,
        shuffle: bool = True, early_stopping: bool = False, validation_fraction: float = 0.1, n_iter_no_change: int = 5,
        callbacks: Sequence[Callback] = (), backend: str | Backend | None = None, precision: str = "float32",
        random_state: Any = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self._keep(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network on samples (N, ...) and labels (N,); a weight of each sample counts in the loss."""
        X, y = self._checked(X, y, reset=True)
        check_classification_targets(y)
        weight = self._weight(sample_weight, X)
        xp = _namespace(y)
        self.classes_, counts = xp.unique_counts(y)
        by_class = self._class_weights(counts, y.shape[0])
        self._begin(X)
        self._train(X, self._codes(y), weight, class_weight=by_class)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on samples and labels, after all before; the first call names all classes."""
        first = not hasattr(self, "classes_")
        X, y = self._checked(X, y, reset=first)
        check_classification_targets(y)
        if first and classes is None:
            raise ValueError("The first partial_fit names all classes. Received: classes=None.")
        xp = _namespace(y)
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight is a dictionary for partial_fit, which does not know how many samples of each class are "
                "to come. Received: 'balanced'."
            )
        if first:
            self.classes_ = xp.unique_values(_like(classes, y))
            self._begin(X)
        elif classes is not None and host(xp.unique_values(_like(classes, y))).tolist() != host(self.classes_).tolist():
            raise ValueError(
                f"classes stay those of the first partial_fit: {self.classes_}. Received: {classes!r:.200}."
            )
        self._train_on(X, self._codes(y), self._weight(sample_weight, X), class_weight=self._class_weights(None, 0))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probability of each class, in the order of `classes_`, shape (N, classes)."""
        logits = self._outputs(X, "predict_proba")
        xp = array_api_compat.array_namespace(logits)
        powers = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
        return powers / xp.sum(powers, axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities."""
        logits = self._outputs(X, "predict_log_proba")
        xp = array_api_compat.array_namespace(logits)
        apart = logits - xp.max(logits, axis=1, keepdims=True)
        return apart - xp.log(xp.sum(xp.exp(apart), axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """The likeliest label of each sample, shape (N,)."""
        logits = self._outputs(X, "predict")
        likeliest = array_api_compat.array_namespace(logits).argmax(logits, axis=1)
        return _namespace(self.classes_).take(self.classes_, _like(likeliest, self.classes_), axis=0)

    def _begin(self, x: Array) -> None:
        self.n_iter_ = 0
        loss = SparseCategoricalCrossentropy(from_logits=True)
        self.model_ = self._new_model(x, int(self.classes_.shape[0]), loss, ("accuracy",))

    def _codes(self, y: Array) -> Array:
        """Numbers of the labels in `classes_`."""
        xp = _namespace(y)
        codes = xp.searchsorted(self.classes_, y)
        codes = xp.where(codes < self.classes_.shape[0], codes, xp.zeros_like(codes))
        if not xp.all(xp.take(self.classes_, codes, axis=0) == y):
            raise ValueError(f"Labels are among the classes {self.classes_}. Received: others, in {y!r:.200}.")
        return codes

    def _class_weights(self, counts: Array | None, samples: int) -> dict[int, float] | None:
        """Weights by class number."""
        if self.class_weight is None:
            return None
        labels = host(self.classes_).tolist()
        if isinstance(self.class_weight, Mapping):
            unknown = [label for label in self.class_weight if label not in labels]
            if unknown:
                raise ValueError(f"class_weight maps labels to weights. Received: {unknown[0]!r}, which is no label.")
            return {i: float(self.class_weight.get(label, 1)) for i, label in enumerate(labels)}
        if self.class_weight != "balanced" or counts is None:
            raise ValueError(
                f"class_weight is a dictionary, 'balanced' or None. Received: class_weight={self.class_weight!r}."
            )
        return {i: samples / (len(labels) * count) for i, count in enumerate(host(counts).tolist())}

    def _strata(self, y: Array) -> Array:
        return y


class CNNRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A network that is a regressor of scikit-learn.

    Args:
        network: See `CNNClassifier`; the outputs are the targets.
        loss: Name or Loss.
        others: See `CNNClassifier`.

    Attributes:
        model_: The trained Model.
        history_: Logs of the epochs by name.
        n_iter_: Epochs so far.
        n_features_in_: Length of the samples' first axis.
    """

    def __init__(
        self, network: str | Build | None = None, *, input_shape: Sequence[int] | None = None, loss: Any = "mse",
        optimizer: str | Optimizer = "adam", learning_rate: float | None = None, epochs: int = 20, batch_size: int = 32,
        shuffle: bool = True, early_stopping: bool = False, validation_fraction: float = 0.1, n_iter_no_change: int = 5,
        callbacks: Sequence[Callback] = (), backend: str | Backend | None = None, precision: str = "float32",
        random_state: Any = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self._keep(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network on samples (N, ...) and targets (N,) or (N, outputs), with a weight of each sample."""
        X, y = self._checked(X, y, reset=True, multi_output=True, y_numeric=True)
        weight = self._weight(sample_weight, X)
        self._begin(X, y)
        self._train(X, self._rows(y), weight)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one epoch on samples and targets, after all before."""
        first = not hasattr(self, "model_")
        X, y = self._checked(X, y, reset=first, multi_output=True, y_numeric=True)
        if first:
            self._begin(X, y)
        self._train_on(X, self._rows(y), self._weight(sample_weight, X))
        return self

    def predict(self, X: Any) -> Array:
        """The targets of each sample, in the shape in which they were given: (N,) or (N, outputs)."""
        outputs = self._outputs(X, "predict")
        return array_api_compat.array_namespace(outputs).reshape(outputs, (-1,)) if self._one_target else outputs

    def _begin(self, x: Array, y: Array) -> None:
        self.n_iter_ = 0
        self._one_target = len(y.shape) == 1
        self.model_ = self._new_model(x, 1 if self._one_target else int(y.shape[1]), copy.deepcopy(self.loss), ())

    def _rows(self, y: Array) -> Array:
        return _namespace(y).reshape(y, (y.shape[0], -1)) if self._one_target else y


def small_network(x: SymbolicTensor, outputs: int) -> SymbolicTensor:
    """Two convolutions for images (H, W, C) of at least 4 x 4, and a hidden layer of 64 units."""
    shape = x.shape[1:]
    if len(shape) == 3 and all(n and n >= 4 for n in shape[:2]):
        for filters in (16, 32):
            x = Conv2D(filters, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
            x = MaxPooling2D(2)(x)
    if len(shape) > 1:
        x = Flatten()(x)
    return Dense(outputs)(Dense(64, "relu", kernel_initializer="he_normal")(x))


def _namespace(array: Any) -> Any:
    """Where functions of an array are: scikit-learn makes all arrays NumPy's unless told otherwise."""
    if get_config()["array_api_dispatch"] and array_api_compat.is_array_api_obj(array):
        return array_api_compat.array_namespace(array)
    return array_api_compat.numpy


def _place(array: Array) -> tuple[str, str]:
    """Namespace and device of an array."""
    return str(_namespace(array).__name__), str(array_api_compat.device(array))


def _like(array: Any, other: Array) -> Array:
    """An array in the library and on the device of another, because everything follows X; text stays NumPy's."""
    xp = _namespace(other)
    there = array if array_api_compat.is_array_api_obj(array) else np.asarray(array)
    if _namespace(there) is xp:
        return array_api_compat.to_device(there, array_api_compat.device(other))
    there = host(there)
    return there if there.dtype.kind in "OSU" else xp.asarray(there, device=array_api_compat.device(other))
