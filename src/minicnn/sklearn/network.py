"""NetworkEstimator: a network that is built for the data and trained on them, in the ways of scikit-learn."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from minicnn import zoo
from minicnn.callbacks import EarlyStopping
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.models import Model
from minicnn.names import known_name
from minicnn.optimizers import get_optimizer
from minicnn.saving import model_from_bytes, model_to_bytes
from minicnn.sklearn.arrays import Array, beside, namespace_of, place_of

Build = Callable[[SymbolicTensor, int], SymbolicTensor]


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of both estimators: a network that is built for the data, and trained on them."""

    model_: Model

    def _keep(self, arguments: dict[str, Any]) -> None:
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
        return namespace_of(x).reshape(x, (x.shape[0], *shape))

    def _weight(self, sample_weight: Any, x: Array) -> Array | None:
        """Sample weights as floating-point numbers (N,)."""
        if sample_weight is None:
            return None
        namespace = namespace_of(sample_weight)
        dtypes = [namespace.float64, namespace.float32]
        weight = beside(check_array(sample_weight, ensure_2d=False, dtype=dtypes, input_name="sample_weight"), x)
        if tuple(weight.shape) != (x.shape[0],):
            raise ValueError(
                f"sample_weight has a number for each sample: shape ({x.shape[0]},). Received: {tuple(weight.shape)}."
            )
        if not namespace_of(weight).any(weight != 0):
            raise ValueError("Of the sample weights some are not zero. Received: weights that are all zero.")
        return weight

    def _checked(self, *data: Any, reset: bool, **options: Any) -> list[Array]:
        """Inputs, and labels if they are given, as arrays that scikit-learn and the network take."""
        xp = namespace_of(data[0])
        options |= {"allow_nd": True, "dtype": [xp.float64, xp.float32], "reset": reset}
        checked = validate_data(self, *data, **options)
        x, *y = checked if len(data) > 1 else (checked,)
        if reset:
            self._place = place_of(x)
        return [self._images(x), *(beside(labels, x) for labels in y)]

    def _outputs(self, x: Any, method: str) -> Array:
        """Outputs of the network, of the kind of the inputs, for a method."""
        check_is_fitted(self, "model_")
        (x,) = self._checked(x, reset=False)
        if get_config()["array_api_dispatch"] and place_of(x) != self._place:
            raise ValueError(
                f"Inputs to {type(self).__name__}.{method}() must use the same namespace and the same device as those "
                f"of fit. Received: {' on '.join(place_of(x))} after {' on '.join(self._place)}."
            )
        return self.model_.predict(x, max(self.batch_size, 32))

    def _strata(self, y: Array) -> Array | None:
        return None


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
