"""CNNRegressor: a network that is a regressor of scikit-learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import array_api_compat
from sklearn.base import RegressorMixin

from minicnn.backends.base import Backend
from minicnn.callbacks import Callback
from minicnn.optimizers import Optimizer
from minicnn.sklearn.arrays import Array, namespace_of
from minicnn.sklearn.network import Build, NetworkEstimator


class CNNRegressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
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
        return namespace_of(y).reshape(y, (y.shape[0], -1)) if self._one_target else y
