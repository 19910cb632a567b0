"""Losses against plain formulas and torch, at extreme inputs, and their gradients against differences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import Sequential, ops
from minicnn.backends import get_backend
from minicnn.layers import Dense, Input
from minicnn.losses import (
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CosineSimilarity,
    Dice,
    Huber,
    KLDivergence,
    LogCosh,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    Poisson,
    SparseCategoricalCrossentropy,
    Tversky,
)
from minicnn.optimizers import SGD
from minicnn.program import Program, gradients
from support.gradcheck import check_gradients
from support.model_cases import identity, run
from support.numerics import assert_close
from support.strategies import away_from_zero, normal, seeds
from support.tolerances import ELEMENT, SUM, TRAINING

Array = np.ndarray[Any, Any]

rows = st.sampled_from([(1, 2), (4, 3), (3, 2, 5), (2, 1, 2, 4)])
smoothings = st.sampled_from([0.0, 0.1, 0.9])
TERMS = 40


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def distribution(shape: tuple[int, ...], seed: int) -> Array:
    return softmax(normal(shape, seed, 7))


def class_numbers(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng([seed, 3]).integers(0, shape[-1], shape[:-1]).astype("int32")


def one_hot(labels: Array, classes: int) -> Array:
    return np.eye(classes)[labels]


@given(shape=rows, seed=seeds, smoothing=smoothings, from_logits=st.booleans())
def test_categorical_crossentropy(shape: tuple[int, ...], seed: int, smoothing: float, from_logits: bool) -> None:
    target, logits = distribution(shape, seed), normal(shape, seed)
    loss = CategoricalCrossentropy(from_logits, smoothing)
    spread = target * (1 - smoothing) + smoothing / shape[-1]
    expected = -np.sum(spread * np.log(softmax(logits)), axis=-1)
    assert_close(run(loss.call, target, logits if from_logits else softmax(logits)), expected, TERMS)


@given(shape=rows, seed=seeds, smoothing=smoothings, from_logits=st.booleans())
def test_sparse_is_categorical_of_one_hot_labels(
    shape: tuple[int, ...], seed: int, smoothing: float, from_logits: bool
) -> None:
    labels, predictions = class_numbers(shape, seed), normal(shape, seed)
    predictions = predictions if from_logits else softmax(predictions)
    sparse = SparseCategoricalCrossentropy(from_logits, label_smoothing=smoothing)
    dense = CategoricalCrossentropy(from_logits, smoothing)
    expected = run(dense.call, one_hot(labels, shape[-1]), predictions)
    assert_close(run(sparse.call, labels, predictions), expected, TERMS)


@given(shape=rows, seed=seeds, smoothing=smoothings, from_logits=st.booleans())
def test_binary_crossentropy(shape: tuple[int, ...], seed: int, smoothing: float, from_logits: bool) -> None:
    logits = 3 * normal(shape, seed)
    target = np.random.default_rng(seed).random(shape)
    p = 1 / (1 + np.exp(-logits))
    t = target * (1 - smoothing) + smoothing / 2
    expected = -np.mean(t * np.log(p) + (1 - t) * np.log(1 - p), axis=-1)
    loss = BinaryCrossentropy(from_logits, smoothing)
    assert_close(run(loss.call, target, logits if from_logits else p), expected, TERMS)


@given(shape=rows, seed=seeds, delta=st.sampled_from([0.3, 1.0, 2.5]))
def test_regression_losses(shape: tuple[int, ...], seed: int, delta: float) -> None:
    target, predictions = 2 * normal(shape, seed), normal(shape, seed, 1)
    d = np.abs(target - predictions)
    assert_close(run(MeanSquaredError().call, target, predictions), (d**2).mean(axis=-1), TERMS)
    assert_close(run(MeanAbsoluteError().call, target, predictions), d.mean(axis=-1), TERMS)
    huber = np.where(d <= delta, d**2 / 2, delta * (d - delta / 2)).mean(axis=-1)
    assert_close(run(Huber(delta).call, target, predictions), huber, TERMS)


@given(shape=rows, seed=seeds, gamma=st.sampled_from([0.0, 1.5, 2.0]), from_logits=st.booleans())
def test_focal_losses(shape: tuple[int, ...], seed: int, gamma: float, from_logits: bool) -> None:
    logits, target = normal(shape, seed), distribution(shape, seed)
    p = 1 / (1 + np.exp(-logits))
    truth = np.where(p * target + (1 - p) * (1 - target) < 1, p * target + (1 - p) * (1 - target), 1)
    expected = (-((1 - truth) ** gamma) * (target * np.log(p) + (1 - target) * np.log(1 - p))).mean(axis=-1)
    binary = BinaryFocalCrossentropy(gamma=gamma, from_logits=from_logits)
    assert_close(run(binary.call, target, logits if from_logits else p), expected, 2 * TERMS)
    p = softmax(logits)
    expected = (-0.25 * (1 - p) ** gamma * target * np.log(p)).sum(axis=-1)
    categorical = CategoricalFocalCrossentropy(gamma=gamma, from_logits=from_logits)
    assert_close(run(categorical.call, target, logits if from_logits else 3 * p), expected, 2 * TERMS)
    for loss in (binary, categorical):
        check_gradients(loss.call, target, logits if from_logits else p, wrt=[1], rtol=SUM)


@given(shape=rows, seed=seeds)
def test_losses_of_likeness(shape: tuple[int, ...], seed: int) -> None:
    t, p = distribution(shape, seed), distribution(shape, seed + 1)
    both, axes = t * p, tuple(range(1, len(shape)))
    expected = {
        KLDivergence(): (t * np.log(t / p)).sum(axis=-1),
        Poisson(): (p - t * np.log(p + 1e-7)).mean(axis=-1),
        LogCosh(): np.log(np.cosh(p - t)).mean(axis=-1),
        CosineSimilarity(): -both.sum(axis=-1) / np.sqrt((t * t).sum(axis=-1) * (p * p).sum(axis=-1)),
        Dice(): np.full(shape[0], 1 - 2 * both.sum() / (t.sum() + p.sum() + 1e-7)),
        Dice(axis=axes): 1 - 2 * both.sum(axis=axes) / (t.sum(axis=axes) + p.sum(axis=axes) + 1e-7),
        Tversky(0.3, 0.9): np.full(
            shape[0], 1 - both.sum() / (both.sum() + 0.3 * (p - both).sum() + 0.9 * (t - both).sum() + 1e-7)),
    }  # fmt: skip
    for loss, values in expected.items():
        assert_close(run(loss.call, t, p), values, 4 * TERMS)
        check_gradients(loss.call, t, p, wrt=[1], rtol=SUM)


@pytest.mark.parametrize(
    "loss", [CategoricalCrossentropy(), CategoricalFocalCrossentropy(), CategoricalCrossentropy(False, 0.1)]
)
def test_rows_of_zeros_are_unlikely_and_have_no_gradient(loss: Loss) -> None:
    """As a ReLU may give them: a quotient of zeros would make all weights NaN."""
    program = Program()
    t, p = program.input("t", (2, 3)), program.input("p", (2, 3))
    program.outputs["loss"] = each = loss.call(t, p)
    program.outputs["gradient"] = gradients(program, ops.sum(each), [p])[0]
    given = {"t": np.eye(3, dtype="float32")[:2], "p": np.asarray([[0, 0, 0], [1, 2, 1]], "float32")}
    found = get_backend("numpy").compile(program)(given)
    unlikely = -np.log(1e-7) * (0.25 if isinstance(loss, CategoricalFocalCrossentropy) else 1)
    np.testing.assert_allclose(found["loss"][0], unlikely, rtol=SUM)
    np.testing.assert_array_equal(found["gradient"][0], 0)
    assert np.isfinite(found["gradient"][1]).all()
    assert found["gradient"][1].any()


def test_cosine_similarity_to_nothing_is_0() -> None:
    assert run(CosineSimilarity().call, np.zeros((1, 3)), np.ones((1, 3))) == 0


def test_targets_of_the_new_losses_outside_their_domain() -> None:
    backend = get_backend("numpy")
    for loss, wrong in (
        (KLDivergence(), [[0.5, 0.6]]), (CategoricalFocalCrossentropy(), [[1.0, 1.0]]),
        (BinaryFocalCrossentropy(), [[-1.0]]), (Poisson(), [[-1.0]]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"Targets of {type(loss).__name__} are"):
            loss.check_targets(np.asarray(wrong), backend)
    with pytest.raises(ValueError, match=r"gamma is a finite number of at least 0\. Received: gamma=-1"):
        BinaryFocalCrossentropy(gamma=-1)


# A loss of ours; torch's for (functional, predictions, targets) in its order of arguments; the kind of targets.
TORCH: dict[str, tuple[Loss, Callable[[Any, Any, Any], Any], str]] = {
    "sparse": (SparseCategoricalCrossentropy(True, label_smoothing=0.1), lambda F, p, t: F.cross_entropy(
        p, t.long(), reduction="none", label_smoothing=0.1), "labels"),
    "sparse_plain": (SparseCategoricalCrossentropy(True), lambda F, p, t: F.cross_entropy(
        p, t.long(), reduction="none"), "labels"),
    "categorical": (CategoricalCrossentropy(True, 0.2), lambda F, p, t: F.cross_entropy(
        p, t, reduction="none", label_smoothing=0.2), "shares"),
    "binary": (BinaryCrossentropy(True), lambda F, p, t: F.binary_cross_entropy_with_logits(
        p, t, reduction="none").mean(-1), "shares"),
    "probability": (BinaryCrossentropy(), lambda F, p, t: F.binary_cross_entropy(
        p.sigmoid(), t, reduction="none").mean(-1), "shares"),
    "mse": (MeanSquaredError(), lambda F, p, t: F.mse_loss(p, t, reduction="none").mean(-1), "any"),
    "mae": (MeanAbsoluteError(), lambda F, p, t: F.l1_loss(p, t, reduction="none").mean(-1), "any"),
    "huber": (Huber(0.7), lambda F, p, t: F.huber_loss(p, t, reduction="none", delta=0.7).mean(-1), "any"),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    loss, theirs, kind = TORCH[name]
    shape = (6, 5)
    predictions = normal(shape, 1)
    targets = {"labels": class_numbers(shape, 2), "shares": distribution(shape, 3), "any": normal(shape, 4)}[kind]
    expected = theirs(torch.nn.functional, torch.tensor(predictions), torch.tensor(targets)).numpy()
    given = 1 / (1 + np.exp(-predictions)) if name == "probability" else predictions
    assert_close(run(loss.call, targets, given), expected, TERMS)


@given(shape=rows, seed=seeds, smoothing=smoothings, from_logits=st.booleans())
def test_gradients_of_crossentropies(shape: tuple[int, ...], seed: int, smoothing: float, from_logits: bool) -> None:
    predictions = normal(shape, seed) if from_logits else distribution(shape, seed)
    labels, target = class_numbers(shape, seed), distribution(shape, seed + 1)
    sparse = SparseCategoricalCrossentropy(from_logits, label_smoothing=smoothing)
    check_gradients(sparse.call, labels, predictions, rtol=ELEMENT)
    check_gradients(CategoricalCrossentropy(from_logits, smoothing).call, target, predictions, wrt=[1], rtol=ELEMENT)
    check_gradients(BinaryCrossentropy(from_logits, smoothing).call, target, predictions, wrt=[1], rtol=ELEMENT)


@given(shape=rows, seed=seeds)
def test_gradients_of_regression_losses(shape: tuple[int, ...], seed: int) -> None:
    target = normal(shape, seed)
    predictions = target + away_from_zero(shape, seed + 1)
    for loss in (MeanSquaredError(), MeanAbsoluteError(), Huber(100.0)):
        check_gradients(loss.call, target, predictions, wrt=[1])
    check_gradients(Huber(1e-3).call, target, predictions, wrt=[1], rtol=ELEMENT)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("size", [100.0, 1e4, 1e30])
def test_extreme_logits(backend: str, size: float) -> None:
    logits = np.asarray([[size, -size], [-size, size]], "float32")
    labels = np.asarray([0, 0], "int32")
    # -log softmax: 0 for the sure and right, the distance of the logits for the sure and wrong.
    expected = np.asarray([0.0, 2 * size], "float32")
    crossentropy = run(SparseCategoricalCrossentropy(from_logits=True).call, labels, logits, backend=backend)
    np.testing.assert_allclose(crossentropy, expected, rtol=ELEMENT)
    dense = CategoricalCrossentropy(from_logits=True).call
    one = np.asarray([[1, 0], [1, 0]], "float32")
    # 0 times minus infinity must not appear.
    np.testing.assert_allclose(run(dense, one, logits, backend=backend), expected, rtol=ELEMENT)
    binary = run(BinaryCrossentropy(from_logits=True).call, one, logits, backend=backend)
    np.testing.assert_allclose(binary, [0.0, size], rtol=ELEMENT, atol=1e-40)


def test_certain_probabilities_are_clipped() -> None:
    # Keras's epsilon of 1e-7 on both sides; 1 - 1e-7 in float32 is 1 - 2^-23.
    most = -np.log(1e-7)
    sure = np.asarray([[1.0, 0.0], [0.0, 1.0]], "float32")
    labels = np.asarray([0, 0], "int32")
    sparse = run(SparseCategoricalCrossentropy().call, labels, sure)
    np.testing.assert_allclose(sparse, [2.0**-23, most], rtol=TRAINING)
    binary = run(BinaryCrossentropy().call, sure, sure[::-1].copy())
    assert np.isfinite(binary).all()
    np.testing.assert_allclose(binary, most, rtol=0.02)


def test_labels_of_every_integer_type_mean_the_same() -> None:
    logits = normal((4, 3), 0)
    labels = np.asarray([0, 2, 1, 1])
    loss = SparseCategoricalCrossentropy(from_logits=True).call
    expected = run(loss, labels.astype("int32"), logits)
    for dtype in ("int64", "uint8", "int8"):
        np.testing.assert_array_equal(run(loss, labels.astype(dtype), logits), expected)


def test_defaults_are_keras_s() -> None:
    assert SparseCategoricalCrossentropy().from_logits is False
    assert CategoricalCrossentropy().label_smoothing == 0.0
    assert Huber().delta == 1.0


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 2, float("nan")])
@pytest.mark.parametrize("loss", [SparseCategoricalCrossentropy, CategoricalCrossentropy, BinaryCrossentropy])
def test_smoothing_out_of_range(loss: Any, smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing is at least 0 and below 1\. Received: "):
        loss(label_smoothing=smoothing)


@pytest.mark.parametrize("delta", [0.0, -1.0, float("inf"), float("nan")])
def test_delta_out_of_range(delta: float) -> None:
    with pytest.raises(ValueError, match=r"delta is a finite number above 0\. Received: delta="):
        Huber(delta)


@pytest.mark.parametrize(
    "loss", [CategoricalCrossentropy(), BinaryCrossentropy(), MeanSquaredError(), MeanAbsoluteError(), Huber()]
)
def test_targets_of_another_shape(loss: Loss) -> None:
    with pytest.raises(ValueError, match=r"takes targets of the shape .*targets \(4, 1\), predictions \(4, 3\)"):
        run(loss.call, np.ones((4, 1)), np.ones((4, 3)))


@pytest.mark.parametrize("from_logits", [False, True])
def test_labels_of_another_shape(from_logits: bool) -> None:
    loss = SparseCategoricalCrossentropy(from_logits)
    with pytest.raises(ValueError, match=r"one class number .*labels \(4, 3\), predictions \(4, 3\).*One-hot"):
        run(loss.call, np.ones((4, 3), "int32"), np.ones((4, 3)))


def test_a_loss_without_call() -> None:
    with pytest.raises(NotImplementedError):
        Loss().call(None, None)  # type: ignore[arg-type]


def test_sample_weights_as_in_keras() -> None:
    # sum(w * l) / N, not / sum(w).
    predictions, target = np.asarray([[1.0], [2.0], [4.0]]), np.zeros((3, 1))
    logs = identity((1,)).evaluate(predictions, target, sample_weight=[1.0, 0.5, 2.0], return_dict=True)
    assert logs["loss"] == pytest.approx((1 * 1 + 0.5 * 4 + 2 * 16) / 3)


def test_several_predictions_a_sample_are_averaged_before_weighting() -> None:
    predictions = normal((4, 2, 3), 0)
    weights = np.asarray([1.0, 0.0, 2.0, 0.5])
    logs = identity((2, 3)).evaluate(predictions, np.zeros((4, 2, 3)), 3, sample_weight=weights, return_dict=True)
    assert logs["loss"] == pytest.approx(np.sum(weights * (predictions**2).mean(axis=(1, 2))) / 4)


def test_a_loss_of_one_s_own_keeps_the_samples_apart() -> None:
    class Total(Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return ops.sum(y_pred, axes=0)

    with pytest.raises(
        ValueError, match=r"A loss gives a number .* 2 samples, .*\. Received: float64\[3\] from 'total'"
    ):
        identity((3,), Total()).evaluate(np.ones((2, 3)), np.ones((2, 3)))


@pytest.mark.parametrize("weight", [None, np.asarray([1.0, 3.0])])
def test_a_loss_may_give_one_number_for_the_batch(weight: Any) -> None:
    """As Keras takes it, whose own reductions give one."""

    def mean(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.square(y_pred - y_true))

    def root(y_true: Any, y_pred: Any) -> Any:
        return ops.sqrt(mean(y_true, y_pred))

    x = np.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = identity((3,), mean, [root]).evaluate(x, np.zeros((2, 3)), sample_weight=weight, return_dict=True)
    expected = np.mean(x**2)
    assert found["root"] == pytest.approx(np.sqrt(expected))
    assert found["loss"] == pytest.approx(expected * (1 if weight is None else weight.mean()))


@pytest.mark.parametrize(("targets", "shape"), [((4, 1), (4, 4)), ((4, 1, 3), (4, 4, 3))])
def test_a_loss_or_a_metric_of_broadcast_targets_names_the_shapes(targets: Any, shape: Any) -> None:
    """(N, 1) against (N,) is (N, N): the mean over all pairs."""

    def distance(y_true: Any, y_pred: Any) -> Any:
        return ops.abs(ops.reshape(y_pred, shape=(4, *targets[2:])) - y_true)

    y, x = np.zeros(targets), np.ones(targets)
    expected = rf"gives a number for each of the 4 samples.*Received: float64\[{','.join(map(str, shape))}\] from "
    expected += rf"'distance', of targets {re.escape(str(targets))} and predictions {re.escape(str(targets))}\. Targets"
    with pytest.raises(ValueError, match=f"A loss {expected}"):
        identity(targets[1:], distance).evaluate(x, y)
    with pytest.raises(ValueError, match=f"A metric {expected}"):
        identity(targets[1:], "mse", [distance]).evaluate(x, y)


@pytest.mark.parametrize("axes", [(1,), (1, 2), (3,), (2, 3)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_loss_of_one_s_own_may_leave_out_any_axes(axes: Any, keepdims: bool) -> None:
    def distance(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_pred - y_true), axes=axes, keepdims=keepdims)

    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    assert identity(x.shape[1:], distance).evaluate(x, 0 * x) == pytest.approx(np.abs(x).mean())


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (SparseCategoricalCrossentropy(), np.array([0, 1])), (CategoricalCrossentropy(), np.eye(2)),
        (CategoricalFocalCrossentropy(), np.eye(2)), (BinaryCrossentropy(), np.eye(2)), (KLDivergence(), np.eye(2)),
        (CosineSimilarity(), np.eye(2)), (Poisson(), np.eye(2)), (Dice(), np.eye(2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0.0, 1e-30, 1e-12])
def test_rows_of_no_prediction_leave_weights_finite(loss: Loss, targets: Array, value: float) -> None:
    """As after ReLU, and of the smallest numbers."""
    model = Sequential([Input((1,)), Dense(2, "relu", kernel_initializer="zeros")])
    model.compile(SGD(0.1), loss)
    model.set_weights({"dense/bias": np.array([value, 0.0])})
    loss_before = model.train_on_batch(np.ones((2, 1)), targets)
    assert np.isfinite(loss_before)
    assert all(np.isfinite(w).all() for w in model.get_weights().values())


def test_binary_crossentropy_is_smooth_at_a_logit_of_zero() -> None:
    program = Program()
    logits, targets = program.input("x", (2, 1), "float64"), program.input("t", (2, 1), "float64")
    loss = ops.sum(BinaryCrossentropy(from_logits=True).call(targets, logits))
    (program.outputs["gradient"],) = gradients(program, loss, [logits])
    arrays = {"x": np.zeros((2, 1)), "t": np.asarray([[0.0], [1.0]])}
    np.testing.assert_array_equal(get_backend("numpy").compile(program)(arrays)["gradient"], [[0.5], [-0.5]])


@pytest.mark.parametrize("loss", ["categorical_crossentropy", "sparse_categorical_crossentropy"])
def test_predictions_that_are_no_distribution_are_divided_by_their_sum(loss: str) -> None:
    x, y = np.zeros((2, 1)), np.array([0, 1])
    model = Sequential([Input((1,)), Dense(2, "relu")])
    model.layers[0].set_weights([np.zeros((1, 2), "float32"), np.array([6.0, 2.0], "float32")])
    model.compile("sgd", loss)
    found = model.evaluate(x, np.eye(2)[y] if loss.startswith("cat") else y)
    assert found == pytest.approx(-np.log([0.75, 0.25]).mean(), rel=ELEMENT)
