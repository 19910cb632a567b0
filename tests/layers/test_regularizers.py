"""Regularizers and constraints: values by hand, in the loss and after a step, saved, and refused without a weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, ops
from minicnn.configured import decode, encode
from minicnn.constraints import CONSTRAINTS, MaxNorm, MinMaxNorm, NonNeg, UnitNorm
from minicnn.layers import BatchNormalization, Conv2D, Dense, DepthwiseConv2D, Input, PReLU, SeparableConv2D
from minicnn.optimizers import SGD
from minicnn.regularizers import (
    L1,
    L1L2,
    L2,
    REGULARIZERS,
    OrthogonalRegularizer,
)
from minicnn.saving import load_model
from support.gradcheck import check_gradients
from support.model_cases import run
from support.strategies import away_from_zero, normal
from support.tolerances import ELEMENT, STEP, SUM

W = away_from_zero((3, 4), 1)
UNIT = W / np.linalg.norm(W, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("regularizer", "expected"),
    [
        (L1(0.3), 0.3 * np.abs(W).sum()),
        (L2(0.2), 0.2 * (W**2).sum()),
        (L1L2(0.3, 0.2), 0.3 * np.abs(W).sum() + 0.2 * (W**2).sum()),
        (L1L2(), 0.0),
        (OrthogonalRegularizer(0.5), 0.5 * (np.abs(UNIT @ UNIT.T).sum() - 3) / 6),
    ],
)
def test_regularizers(regularizer: Any, expected: float) -> None:
    assert run(regularizer, W) == pytest.approx(expected)
    check_gradients(regularizer, W, rtol=ELEMENT)


NORMS = np.linalg.norm(W, axis=0)


@pytest.mark.parametrize(
    ("constraint", "norms"),
    [
        (MaxNorm(1.0), np.minimum(NORMS, 1)),
        (UnitNorm(), np.ones(4)),
        (MinMaxNorm(1.0, 1.5), np.clip(NORMS, 1, 1.5)),
        (MinMaxNorm(1.0, 1.5, rate=0.5), (np.clip(NORMS, 1, 1.5) + NORMS) / 2),
    ],
)
def test_norms(constraint: Any, norms: Any) -> None:
    np.testing.assert_allclose(run(constraint, W), W * norms / NORMS, rtol=ELEMENT)


def test_other_constraints() -> None:
    np.testing.assert_array_equal(run(NonNeg(), W), np.maximum(W, 0))
    filters = normal((3, 3, 2, 4), 0)
    sizes = np.linalg.norm(run(UnitNorm([0, 1, 2]), filters).reshape(-1, 4), axis=0)
    np.testing.assert_allclose(sizes, 1, rtol=SUM)


def test_penalties_are_in_the_loss_and_in_the_gradient() -> None:
    x, y = normal((6, 3), 0), normal((6, 2), 1)
    layer = Dense(2, kernel_regularizer=L2(0.5), bias_regularizer="l1")
    model = Sequential([Input((3,)), layer], backend="numpy")
    model.compile(SGD(0.1), "mse", precision="float64")
    model.set_weights({"dense/bias": [1.0, -2.0]})
    kernel = model.get_weights()["dense/kernel"]
    difference = x @ kernel + [1.0, -2.0] - y
    expected = (difference**2).mean() + 0.5 * (kernel**2).sum() + 0.01 * 3
    assert model.evaluate(x, y, batch_size=4) == pytest.approx(expected)
    assert model.train_on_batch(x, y, return_dict=True)["loss"] == pytest.approx(expected)
    found = model.get_weights()
    np.testing.assert_allclose(found["dense/kernel"], kernel - 0.1 * (x.T @ difference / 6 + kernel))
    np.testing.assert_allclose(
        found["dense/bias"], [1, -2] - 0.1 * (difference.mean(axis=0) + np.asarray([0.01, -0.01]))
    )
    layer.trainable = False  # then it is no matter of training, as in Keras
    frozen = Sequential([Input((3,)), layer], backend="numpy")
    frozen.compile("sgd", "mse", precision="float64")
    kernel = frozen.get_weights()["dense/kernel"]
    expected = ((x @ kernel + found["dense/bias"] - y) ** 2).mean()
    assert frozen.evaluate(x, y) == pytest.approx(expected)


def test_constraints_hold_after_each_step() -> None:
    layer = Dense(2, kernel_constraint=lambda w: ops.maximum(w, 0.0), bias_constraint=UnitNorm())
    model = Sequential([Input((3,)), layer], backend="numpy")
    model.compile(SGD(0.1), "mse")
    assert model.get_weights()["dense/kernel"].min() < 0
    model.fit(normal((8, 3), 0), normal((8, 2), 1), verbose=0)
    found = model.get_weights()
    assert found["dense/kernel"].min() == 0
    assert np.linalg.norm(found["dense/bias"]) == pytest.approx(1, rel=STEP)


@pytest.mark.parametrize(
    ("layer", "shape", "limited"),
    [
        (Conv2D(2, 3, kernel_regularizer="l2", bias_constraint="NonNeg"), (5, 5, 2), {"kernel": 1, "bias": 2}),
        (DepthwiseConv2D(3, depthwise_regularizer="L1", bias_regularizer=L2(0.1)), (5, 5, 2), {"kernel": 1, "bias": 1}),
        (SeparableConv2D(3, 3, depthwise_constraint="max_norm", pointwise_regularizer="l1_l2"), (5, 5, 2),
         {"depthwise_kernel": 2, "pointwise_kernel": 1, "bias": 0}),
        (BatchNormalization(gamma_regularizer="l2", beta_constraint="unit_norm"), (4,), {"gamma": 1, "beta": 2}),
        (PReLU(alpha_constraint="min_max_norm"), (4,), {"alpha": 2}),
    ],
)  # fmt: skip
def test_every_weight_and_its_plain_data(layer: Any, shape: Any, limited: dict[str, int]) -> None:
    config = encode(layer)
    for made in (layer, decode(config)):
        assert encode(made) == config
        made(Input(shape))
        for name, kinds in limited.items():
            weight = getattr(made, name)
            assert (weight.regularizer is not None, weight.constraint is not None) == (kinds == 1, kinds == 2)


def test_a_saved_model_keeps_them(tmp_path: Any) -> None:
    model = Sequential([Input((3,)), Dense(2, kernel_regularizer=L1L2(0.1, 0.2), kernel_constraint=MaxNorm(1.0, 0))])
    model.compile("sgd", "mse")
    model.save(tmp_path / "m")
    layer = load_model(tmp_path / "m").layers[0]
    assert (layer.kernel_regularizer, layer.kernel_constraint) == (L1L2(0.1, 0.2), MaxNorm(1.0, 0))


def test_names() -> None:
    assert {type(kind()) for kind in REGULARIZERS.values()} == {L1, L2, L1L2, OrthogonalRegularizer}
    assert set(CONSTRAINTS) == {"max_norm", "min_max_norm", "non_neg", "unit_norm"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Dense(2, gamma_regularizer="l2"),
            TypeError,
            "Dense takes the arguments units, .*, kernel_regularizer, .*Received: gamma_regularizer='l2'",
        ),
        (lambda: Dense(2, kernel_regularizer="l3"), ValueError, "A regularizer is one of l1, l2, l1_l2"),
        (lambda: Dense(2, kernel_constraint="l2"), ValueError, "A constraint is one of max_norm"),
        (lambda: L2(-1.0), ValueError, "l2 is a finite number of at least 0"),
        (lambda: OrthogonalRegularizer(mode="x"), ValueError, "mode is 'rows' or 'columns'"),
        (lambda: run(OrthogonalRegularizer(), np.ones(3)), ValueError, "is for matrices"),
    ],
)
def test_wrong_arguments(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
