"""Logits where probabilities are meant: a warning, if the layers leave no doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, ops
from minicnn.layers import (
    Activation,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    Input,
    Lambda,
    Reshape,
    Softmax,
)
from minicnn.losses import CategoricalCrossentropy, SparseCategoricalCrossentropy


class Halved(Dense):
    """A layer of one's own, of which nobody knows what it gives."""

    def call(self, inputs: Any) -> Any:
        return ops.sigmoid(super().call(inputs)) * 0.5


def chain(*more: Any) -> Sequential:
    return Sequential([Input((4, 4, 2)), *more], backend="numpy")


LOGITS: dict[str, Callable[[], Any]] = {
    "Dense": lambda: chain(Flatten(), Dense(3)),
    "Dense of images": lambda: chain(Dense(3, "linear")),
    "Conv2D, then a mean": lambda: chain(Conv2D(3, 1), GlobalAveragePooling2D()),
    "Conv2D and shapes": lambda: chain(Conv2D(3, 4), Dropout(0.1), Flatten(), Activation("linear"), Reshape((3,))),
    "a nested model": lambda: chain(Flatten(), Sequential([Input((32,)), Dense(3)], backend="numpy")),
}
PROBABILITIES: dict[str, Callable[[], Any]] = {
    "softmax": lambda: chain(Flatten(), Dense(3, "softmax")),
    "a layer of softmax": lambda: chain(Flatten(), Dense(3), Softmax()),
    "an activation": lambda: chain(Flatten(), Dense(3), Activation("sigmoid")),
    "a function": lambda: chain(Flatten(), Dense(3), Lambda(lambda x: ops.softmax(x))),
    "a layer of one's own": lambda: chain(Flatten(), Halved(3)),
    "a constraint": lambda: chain(Flatten(), Dense(3, kernel_constraint="non_neg")),
    "inputs": lambda: chain(),
    "what is not negative": lambda: chain(Flatten(), Dense(3, "relu")),
}


def divided() -> Model:
    x = Input((4,))
    y = Dense(3)(x)
    return Model(x, y / ops.sum(y, axes=-1, keepdims=True), backend="numpy")


@pytest.mark.parametrize("model", LOGITS.values(), ids=LOGITS)
@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "binary_crossentropy", CategoricalCrossentropy()])
def test_logits_under_a_cross_entropy_of_probabilities_warn_once(model: Any, loss: Any) -> None:
    made = model()
    remedy = "sigmoid" if loss == "binary_crossentropy" else "softmax"
    with pytest.warns(UserWarning, match=f"takes probabilities .*: the output of '.*from_logits.*'{remedy}'") as seen:
        made.compile("sgd", loss)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    made.program("train")
    made.program("evaluate")


@pytest.mark.parametrize("model", [*PROBABILITIES.values(), divided], ids=[*PROBABILITIES, "shares"])
def test_what_may_be_probabilities_does_not_warn(model: Any) -> None:
    for loss in ("sparse_categorical_crossentropy", "binary_crossentropy", "categorical_crossentropy"):
        model().compile("sgd", loss)


def test_other_losses_do_not_warn() -> None:
    for loss in (SparseCategoricalCrossentropy(from_logits=True), "mse", "kl_divergence"):
        chain(Flatten(), Dense(3)).compile("sgd", loss)


def test_a_sequential_that_is_built_later_warns_then() -> None:
    model = Sequential([Dense(3)], backend="numpy")
    model.compile("sgd", "categorical_crossentropy")
    with pytest.warns(UserWarning, match="takes probabilities") as warned:
        model.fit(np.zeros((2, 4)), np.eye(3)[:2], epochs=2, verbose=0)
    assert len(warned) == 1
