"""Optimizers, losses, metrics, schedules, initializers and regularizers as plain data and back, as in Keras."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from minicnn import constraints, initializers, losses, metrics, optimizers, regularizers, schedules
from minicnn.initializers import INITIALIZERS, Initializer
from minicnn.names import snake_case
from minicnn.schedules import Schedule

WITH_ARGUMENTS: list[Any] = [
    schedules.PiecewiseConstantDecay([1, 5], [0.1, 0.01, 0.001]), schedules.ExponentialDecay(0.1, 3, 0.5, True),
    schedules.PolynomialDecay(0.1, 4), schedules.InverseTimeDecay(0.1, 3, 0.5), schedules.CosineDecay(0.1, 5, 0.2),
    schedules.CosineDecayRestarts(0.1, 5), schedules.OneCycle(0.1, 9), optimizers.SGD(0.1, 0.9, True, clipnorm=1.0),
    optimizers.Adam(schedules.CosineDecay(0.1, 5)), losses.Huber(2.0), losses.SparseCategoricalCrossentropy(True),
    metrics.MeanLoss(losses.Huber(3.0)), metrics.MeanIoU(3), regularizers.L1L2(0.1, 0.2), constraints.MaxNorm(3.0),
    initializers.VarianceScaling(2.0), initializers.RandomNormal(stddev=0.1),
]  # fmt: skip
DEFAULT: list[Any] = [
    made()  # in an order that all of pytest-xdist's workers share, which a set's is not
    for made in dict.fromkeys([*optimizers.OPTIMIZERS.values(), *losses.LOSSES.values(), *metrics.METRICS.values()])
    if made not in (metrics.MeanIoU, metrics.ConfusionMatrix)
]  # fmt: skip
REGISTRIES: dict[str, tuple[Any, Any]] = {
    "A loss": (losses.get_loss, losses.LOSSES), "A metric": (metrics.get_metric, metrics.METRICS),
    "An optimizer": (optimizers.get_optimizer, optimizers.OPTIMIZERS),
    "An initializer": (initializers.get_initializer, initializers.INITIALIZERS),
}  # fmt: skip


@pytest.mark.parametrize("given", [*WITH_ARGUMENTS, *DEFAULT, *INITIALIZERS.values()], ids=repr)
def test_there_and_back(given: Any) -> None:
    config = json.loads(json.dumps(given.get_config()))
    made = type(given).from_config(config)
    assert type(made) is type(given)
    assert made.get_config() == given.get_config()
    assert repr(made) == repr(given)
    if isinstance(given, Schedule):
        assert [made(step) for step in range(12)] == [given(step) for step in range(12)]


@pytest.mark.parametrize("what", REGISTRIES)
def test_by_name(what: str) -> None:
    get, known = REGISTRIES[what]
    for name, kind in known.items():
        made = get(name)
        assert type(made) is (kind if isinstance(kind, type) else type(kind))
        assert getattr(made, "name", name) in (name, snake_case(type(made).__name__))
        assert get(made) is made
    wrongs = ["sparse", "", None, 3, [name]]
    if what != "A metric":  # which may be a class of a loss
        wrongs.append(int)
    for wrong in wrongs:
        with pytest.raises(ValueError, match=rf"{what} is one of .*{name}.*Received: "):
            get(wrong)


def test_keras_names() -> None:
    config = optimizers.SGD(0.1, momentum=0.9).get_config()
    assert (config["learning_rate"], config["momentum"], config["nesterov"]) == (0.1, 0.9, False)
    again = optimizers.Adam.from_config({"learning_rate": 0.5, "beta_1": 0.8})
    assert (again.learning_rate, again.beta_1) == (0.5, 0.8)
    nested = optimizers.Adam(schedules.CosineDecay(0.1, 5)).get_config()["learning_rate"]
    assert nested["class"] == "CosineDecay"


class Halving(Schedule):
    """Halves the rate after each step; no dataclass."""

    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, step: int) -> float:
        return self.first / 2**step


def test_classes_of_the_caller() -> None:
    config = optimizers.SGD(Halving(0.4)).get_config()
    with pytest.raises(
        ValueError, match=r"minicnn's own or given by the caller\. Received: 'Halving'\. Pass the class as"
    ):
        optimizers.SGD.from_config(config)
    made = optimizers.SGD.from_config(config, {"Halving": Halving})
    assert made.rate(1) == 0.2


def test_an_argument_that_is_not_kept() -> None:
    class Forgetful(Initializer):
        def __init__(self, scale: float) -> None:
            pass

        def __call__(self, shape: Any, rng: Any) -> Any:
            return np.zeros(shape)

    with pytest.raises(TypeError, match=r"keeps each argument .*Received: Forgetful without 'scale'\. Set self\.scale"):
        Forgetful(1.0).get_config()
    assert repr(Forgetful(1.0)) == "Forgetful()"
