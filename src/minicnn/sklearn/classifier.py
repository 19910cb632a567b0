"""CNNClassifier: a network that is a classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import array_api_compat
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from minicnn.backends.base import Backend
from minicnn.callbacks import Callback
from minicnn.data.forms import host
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Optimizer
from minicnn.sklearn.arrays import Array, beside, namespace_of
from minicnn.sklearn.network import Build, NetworkEstimator


class CNNClassifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
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
        xp = namespace_of(y)
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
        xp = namespace_of(y)
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight is a dictionary for partial_fit, which does not know how many samples of each class are "
                "to come. Received: 'balanced'."
            )
        if first:
            self.classes_ = xp.unique_values(beside(classes, y))
            self._begin(X)
        elif (
            classes is not None and host(xp.unique_values(beside(classes, y))).tolist() != host(self.classes_).tolist()
        ):
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
        return namespace_of(self.classes_).take(self.classes_, beside(likeliest, self.classes_), axis=0)

    def _begin(self, x: Array) -> None:
        self.n_iter_ = 0
        loss = SparseCategoricalCrossentropy(from_logits=True)
        self.model_ = self._new_model(x, int(self.classes_.shape[0]), loss, ("accuracy",))

    def _codes(self, y: Array) -> Array:
        """Numbers of the labels in `classes_`."""
        xp = namespace_of(y)
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
