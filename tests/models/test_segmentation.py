"""Several predictions a sample: labels that are ignored, and weights of places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.distribution import DataParallel, Pipeline
from minicnn.layers import Dense, Input
from minicnn.losses import Dice, Loss, SparseCategoricalCrossentropy
from minicnn.metrics import ConfusionMatrix, Precision
from minicnn.optimizers import SGD
from support.distributed import digest
from support.model_cases import identity
from support.ranks import ThreadRanks
from support.tolerances import ELEMENT, STEP, SUM

Array = np.ndarray[Any, Any]
K = 3


def segmentation(backend: Any, loss: Loss, metrics: Any = (), **options: Any) -> tuple[Any, Array, Array]:
    """A model of a class for each of 2 x 3 places, images, and labels of which some are 255."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(7, 2, 3, K)).astype("float32")
    y = rng.integers(0, K, (7, 2, 3))
    y[rng.random(y.shape) < 0.4] = 255
    y[3] = 255
    activation = None if loss.from_logits else "softmax"  # type: ignore[attr-defined]
    model = Sequential([Input((2, 3, K)), Dense(K, activation, use_bias=False)], backend=backend)
    model.compile(SGD(1.0), loss, metrics, **options)
    model.set_weights({"dense/kernel": np.eye(K)})
    return model, x, y.astype("uint8")


def shares(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(x: Array, y: Array, smoothing: float = 0.0) -> Array:
    """Losses by hand; those of no class are 0."""
    log_p = np.log(shares(x.astype("float64")))
    target = (y[..., None] == np.arange(K)) * (1 - smoothing) + smoothing / K
    return np.where(y < K, -(target * log_p).sum(axis=-1), 0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "numba"])
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_labels_are_left_out_of_the_mean(backend: str, from_logits: bool, smoothing: float) -> None:
    loss = SparseCategoricalCrossentropy(from_logits, 255, smoothing)
    model, x, y = segmentation(backend, loss, [loss])
    expected = entropy(x, y, smoothing).sum() / (y < K).sum()
    found = model.evaluate(x, y, 7, return_dict=True)
    assert found["loss"] == pytest.approx(expected, rel=SUM)
    assert found["sparse_categorical_crossentropy"] == pytest.approx(expected, rel=SUM)
    counts = np.array([(y[rows] < K).sum() for rows in (slice(4), slice(4, 7))])
    means = np.array([entropy(x[rows], y[rows], smoothing).sum() for rows in (slice(4), slice(4, 7))]) / counts
    found = model.evaluate(x, y, 4, return_dict=True)
    assert found["loss"] == pytest.approx(np.average(means, weights=[4, 3]), rel=SUM), "a mean of batches, as ever"
    assert found["sparse_categorical_crossentropy"] == pytest.approx(expected, rel=SUM)
    # The gradient of the loss of kernel W is that of the places that count.
    p = shares(x.astype("float64"))
    target = (y[..., None] == np.arange(K)) * (1 - smoothing) + smoothing / K
    slope = np.where((y < K)[..., None], p - target, 0).reshape(-1, K) / (y < K).sum()
    model.train_on_batch(x, y)
    np.testing.assert_allclose(
        model.get_weights()["dense/kernel"], np.eye(K) - x.reshape(-1, K).T @ slope, rtol=STEP, atol=ELEMENT
    )


@pytest.mark.parametrize("ignored", [0, 1, 2, -1, 255])
def test_any_integer_is_ignored(ignored: int) -> None:
    model, x, y = segmentation("numpy", SparseCategoricalCrossentropy(True, ignored))
    y = np.where(y == 255, ignored, y.astype("int64"))
    counts = y != ignored
    assert model.evaluate(x, y, 7) == pytest.approx((entropy(x, y) * counts).sum() / counts.sum(), rel=SUM)


def test_where_no_label_counts_the_loss_is_0_and_nothing_changes() -> None:
    model, x, y = segmentation("numpy", SparseCategoricalCrossentropy(True, 255))
    assert model.train_on_batch(x, np.full_like(y, 255)) == 0
    np.testing.assert_array_equal(model.get_weights()["dense/kernel"], np.eye(K))


def test_labels_of_no_class_are_refused_all_the_same() -> None:
    for ignored, wrong, message in ((255, 254, ", or ignore_class, 255"), (None, 255, "")):
        model, x, y = segmentation("numpy", SparseCategoricalCrossentropy(True, ignored))
        with pytest.raises(ValueError, match=rf"from 0 to 2, one class for each output unit{message}\. .* to {wrong}"):
            model.fit(x, np.where(y == 255, wrong, y), verbose=0)
    with pytest.raises(ValueError, match=r"ignore_class is an integer or None\. Received: 0\.1"):
        SparseCategoricalCrossentropy(True, 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "numba"])
def test_weights_of_places(backend: str) -> None:
    """Places of weight 0 do not count in metrics, which are weighted means; the loss is sum(w l) / N, as ever."""
    loss = SparseCategoricalCrossentropy(True)
    model, x, y = segmentation(backend, loss, ["accuracy", loss, ConfusionMatrix(), Precision(class_id=0)])
    counts = (y < K).astype("float32") * np.random.default_rng(1).random(y.shape).astype("float32")
    y = np.where(y < K, y, 0)
    found = model.evaluate(x, y, 3, sample_weight=counts, return_dict=True)
    assert found["loss"] == pytest.approx((entropy(x, y) * counts).mean(), rel=SUM)
    assert found["accuracy"] == pytest.approx(np.average(x.argmax(axis=-1) == y, weights=counts), rel=SUM)
    assert found["sparse_categorical_crossentropy"] == pytest.approx(np.average(entropy(x, y), weights=counts), rel=SUM)
    pairs = np.zeros((K, K))
    np.add.at(pairs, (y, x.argmax(axis=-1)), counts)
    np.testing.assert_allclose(found["confusion_matrix"], pairs, rtol=SUM)
    over = x[..., 0] > 0.5
    assert found["precision"] == pytest.approx(np.average((y == 0)[over], weights=counts[over]), rel=SUM)


@pytest.mark.parametrize("shards", [2, 3, 7])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "numba"])
def test_shards_have_the_count_of_the_whole_batch(backend: str, shards: int) -> None:
    kernels = []
    for cut in (1, shards):
        model, x, y = segmentation(backend, SparseCategoricalCrossentropy(True, 255), ["accuracy"], accumulate=cut)
        weight = np.random.default_rng(2).random(y.shape).astype("float32")
        for rows in (slice(7), slice(0, 7)):
            loss, _ = model.train_on_batch(x[rows], y[rows], sample_weight=weight[rows])
        kernels.append((loss, model.get_weights()["dense/kernel"]))
    assert kernels[0][0] == pytest.approx(kernels[1][0], rel=SUM)
    np.testing.assert_allclose(kernels[0][1], kernels[1][1], rtol=SUM, atol=ELEMENT)


@pytest.mark.parametrize("shape", [(7, 3), (7, 2), (7, 2, 3, 1), (6,), ()])
def test_weights_of_other_shapes(shape: tuple[int, ...]) -> None:
    model, x, y = segmentation("numpy", SparseCategoricalCrossentropy(True, 255))
    with pytest.raises(ValueError, match=r"each prediction: shape \(7,\) or \(7, 2, 3\)\. Received: "):
        model.fit(x, y, verbose=0, sample_weight=np.ones(shape))


def test_weights_of_places_that_a_loss_has_summed_up() -> None:
    model = identity((2, 3, 1), Dice(axis=(1, 2)))
    with pytest.raises(ValueError, match=r"A loss is weighed .*weights \(4, 2, 3\), .*from 'dice'\. Use a weight"):
        model.evaluate(np.ones((4, 2, 3, 1)), np.ones((4, 2, 3, 1)), sample_weight=np.ones((4, 2, 3)))


def test_the_count_of_what_is_ignored_is_that_of_all_shards() -> None:
    """Of labels that none counts in some shards, on ranks and in stages."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2, 3, 3)), rng.integers(0, 3, (12, 2, 3))
    y[rng.random(y.shape) < 0.5], y[:3] = 255, 255
    weight = np.linspace(0, 1, y.size).reshape(y.shape)

    def work(distribution: Any) -> Any:
        body = [Dense(4, "relu"), Dense(3, name="head")]
        model = Sequential([Input((2, 3, 3)), *body], backend="numpy", seed=1)
        loss = SparseCategoricalCrossentropy(True, ignore_class=255)
        model.compile(SGD(0.5), loss, ["accuracy"], distribution=distribution)
        return [model.train_on_batch(x, y, weight) for _ in range(2)], model.evaluate(x, y, 5), digest(model)

    (cut,) = ThreadRanks(1).run(lambda c: work(DataParallel(5, communicator=c)))
    for ranks in (2, 3):
        assert ThreadRanks(ranks).run(lambda c: work(DataParallel(5, communicator=c))) == [cut] * ranks
    staged = ThreadRanks(2).run(lambda c: work(Pipeline(["head"], shards=5, communicator=c)))
    assert staged == [cut] * 2
    whole = work(None)
    np.testing.assert_allclose(cut[0], whole[0], rtol=SUM)
    np.testing.assert_allclose(cut[1], whole[1], rtol=SUM)
