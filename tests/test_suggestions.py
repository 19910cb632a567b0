"""A misspelt name is answered with the nearest one that there is, in Python as on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minicnn import Sequential, callbacks, data, get_backend, losses, metrics, optimizers, regularizers, zoo
from minicnn import layers as nn
from minicnn.configured import Configured
from minicnn.distribution import DataParallel
from minicnn.names import meant
from minicnn.schedules import CosineDecay


def compile_with(**options: Any) -> None:
    Sequential([nn.Input((2,)), nn.Dense(2)], backend="numpy").compile(**options)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "an activation": (lambda: nn.Dense(3, activation="rleu"), "relu"),
    "an activation in CamelCase": (lambda: nn.Activation("LeakyRelU6"), "leaky_relu"),
    "an optimizer": (lambda: compile_with(optimizer="adm"), "adam"),
    "a loss": (lambda: compile_with(loss="sparse_categorial_crossentropy"), "sparse_categorical_crossentropy"),
    "a metric": (lambda: compile_with(metrics=["acuracy"]), "accuracy"),
    "a precision": (lambda: compile_with(precision="mixed_bfloat"), "mixed_bfloat16"),
    "an initializer": (lambda: nn.Dense(3, kernel_initializer="gloroot_uniform"), "glorot_uniform"),
    "a regularizer": (lambda: nn.Dense(3, kernel_regularizer="l1_l3"), "l1_l2"),
    "a constraint": (lambda: nn.Dense(3, kernel_constraint="maxnorn"), "max_norm"),
    "a backend": (lambda: get_backend("nunpy"), "numpy"),
    "a strategy": (lambda: get_backend("numpy", convolution="winograd3"), "winograd4"),
    "a network": (lambda: zoo.get_model("reznet18"), "resnet18"),
    "an option of a network": (lambda: zoo.get_model("alexnet", droput=0.5), "dropout"),
    "a data set": (lambda: data.load("minst"), "mnist"),
    "a dtype": (lambda: nn.Input((2,), dtype="flaot32"), "float32"),
    "a data format": (lambda: nn.Flatten("chanels_last"), "channels_last"),
    "a padding": (lambda: nn.Conv2D(3, 3, padding="smae"), "same"),
    "a mode": (lambda: nn.RandomFlip("horizontl"), "horizontal"),
    "an argument of a layer": (lambda: nn.Conv2D(3, kernal_size=3), "kernel_size"),
    "a layer's regularizer": (lambda: nn.Dense(3, kernal_regularizer="l2"), "kernel_regularizer"),
    "an argument of a model": (lambda: Sequential([nn.Input((2,))], sede=3), "seed"),
    "an argument of an optimizer": (lambda: optimizers.Adam(beta1=0.5), "beta_1"),
    "an argument of a loss": (lambda: losses.BinaryCrossentropy(from_logit=True), "from_logits"),
    "an argument of a metric": (lambda: metrics.AUC(num_treshold=3), "num_thresholds"),
    "an argument of a schedule": (lambda: CosineDecay(0.1, decay_step=4), "decay_steps"),
    "an argument of a regularizer": (lambda: regularizers.L1L2(L1=0.5), "l1"),
    "an argument of a callback": (lambda: callbacks.EarlyStopping(patiense=3), "patience"),
    "an argument of a distribution": (lambda: DataParallel(shard=3), "shards"),
    "an argument of a loader": (lambda: data.Loader([], batchsize=3), "batch_size"),
}


@pytest.mark.parametrize("what", CASES)
def test_the_nearest_name_is_proposed(what: str) -> None:
    attempt, name = CASES[what]
    with pytest.raises((ValueError, TypeError), match=rf"Received: .*\. Did you mean '{name}'\?$"):
        attempt()


def test_the_arguments_that_there_are_are_named() -> None:
    message = r"^Conv2D takes the arguments filters, kernel_size, .*bias_constraint\. Received: kernal_size=3\. Did"
    with pytest.raises(TypeError, match=message):
        nn.Conv2D(3, kernal_size=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Poisson takes the arguments \(none\)\. Received: delta=1\.$"):
        losses.Poisson(delta=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("given", ["zzzzzz", "", "x" * 10_000, 3, None, ["relu"], {}])
def test_nothing_is_proposed_where_no_name_is_near(given: Any) -> None:
    assert meant(given, ["relu", "tanh"]) == ""
    for attempt in (lambda: data.load(given), lambda: zoo.get_model(given), lambda: nn.Flatten(given)):
        with pytest.raises(ValueError, match=r"is one of .*Received: .*\.$"):
            attempt()


def test_other_type_errors_stay_what_they_are() -> None:
    class Mine(Configured):
        def __init__(self, size: int) -> None:
            self.size = len(size)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Mine(size=3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'units'"):
        nn.Dense()  # type: ignore[call-arg]
