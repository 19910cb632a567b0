"""Metrics against NumPy, over ties, weights and partial batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.losses import BinaryCrossentropy, MeanAbsoluteError
from minicnn.metrics import METRICS, Accuracy, ConfusionMatrix, MeanLoss, Metric, TopKAccuracy, get_metric
from support.model_cases import identity, measure
from support.strategies import seeds

Array = np.ndarray[Any, Any]
sizes = st.tuples(st.integers(1, 12), st.integers(2, 6))


def predictions(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers with many ties."""
    return np.random.default_rng(seed).integers(0, 4, shape) / 4


def labels(shape: tuple[int, ...], classes: int, seed: int) -> Array:
    return np.random.default_rng([seed, 1]).integers(0, classes, shape).astype("int32")


def weights(n: int, seed: int) -> Array:
    return np.random.default_rng([seed, 2]).integers(0, 3, n) + 0.5


@given(size=sizes, seed=seeds, one_hot=st.booleans())
def test_accuracy(size: tuple[int, int], seed: int, one_hot: bool) -> None:
    p, y, w = predictions(size, seed), labels(size[:1], size[1], seed), weights(size[0], seed)
    hits = np.argmax(p, axis=1) == y
    given_labels = np.eye(size[1])[y] if one_hot else y
    assert measure(Accuracy(), given_labels, p) == pytest.approx(hits.mean())
    assert measure(Accuracy(), given_labels, p, w) == pytest.approx(np.average(hits, weights=w))


@given(size=sizes, seed=seeds)
def test_accuracy_of_several_predictions_a_sample(size: tuple[int, int], seed: int) -> None:
    n, k = size
    p, y, w = predictions((n, 3, k), seed), labels((n, 3), k, seed), weights(n, seed)
    hits = (np.argmax(p, axis=-1) == y).mean(axis=1)
    assert measure(Accuracy(), y, p, w) == pytest.approx(np.average(hits, weights=w))


@given(n=st.integers(1, 12), seed=seeds, threshold=st.sampled_from([0.0, 0.25, 0.5]), column=st.booleans())
def test_binary_accuracy(n: int, seed: int, threshold: float, column: bool) -> None:
    p, y = predictions((n, 1), seed) - 0.25, labels((n,), 2, seed)
    expected = np.mean((p[:, 0] > threshold) == (y == 1))
    metric = Accuracy(threshold=threshold)
    assert measure(metric, y[:, None].astype("float64") if column else y, p) == pytest.approx(expected)


@given(size=sizes, seed=seeds, k=st.integers(1, 7), one_hot=st.booleans())
def test_top_k_counts_ties_in_favour(size: tuple[int, int], seed: int, k: int, one_hot: bool) -> None:
    p, y, w = predictions(size, seed), labels(size[:1], size[1], seed), weights(size[0], seed)
    larger = (p > p[np.arange(len(p)), y][:, None]).sum(axis=1)
    given_labels = np.eye(size[1])[y] if one_hot else y
    assert measure(TopKAccuracy(k), given_labels, p, w) == pytest.approx(np.average(larger < k, weights=w))


def test_top_1_is_accuracy_where_nothing_ties() -> None:
    p = np.random.default_rng(0).permutation(40).reshape(8, 5) / 40
    y = labels((8,), 5, 0)
    assert measure(TopKAccuracy(1), y, p) == measure(Accuracy(), y, p)


def test_top_k_with_what_is_no_number() -> None:
    inf, nan = math.inf, math.nan
    p = np.asarray([[-inf, 2.0, 1.0], [inf, -inf, 0.0], [nan, 1.0, 0.0], [0.0, nan, 1.0]])
    assert measure(TopKAccuracy(1), np.asarray([1, 0, 0, 2], "int32"), p) == 0.5  # NaN never counts as a hit
    assert measure(TopKAccuracy(2), np.asarray([0, 0, 0, 1], "int32"), p) == 0.25


@given(size=sizes, seed=seeds, one_hot=st.booleans())
def test_confusion_matrix(size: tuple[int, int], seed: int, one_hot: bool) -> None:
    n, k = size
    p, y, w = predictions(size, seed), labels((n,), k, seed), weights(n, seed)
    expected = np.zeros((k, k))
    np.add.at(expected, (y, np.argmax(p, axis=1)), w)
    np.testing.assert_allclose(measure(ConfusionMatrix(), np.eye(k)[y] if one_hot else y, p, w), expected)


def test_confusion_matrix_of_several_predictions_a_sample() -> None:
    p, y, w = predictions((4, 2, 3, 5), 0), labels((4, 2, 3), 5, 0), weights(4, 0)
    expected = np.zeros((5, 5))
    np.add.at(expected, (y.ravel(), np.argmax(p, axis=-1).ravel()), np.repeat(w, 6))
    np.testing.assert_allclose(measure(ConfusionMatrix(), y, p, w), expected)


def test_confusion_matrix_needs_classes() -> None:
    with pytest.raises(ValueError, match=r"a prediction for each class\. Received: predictions \(3, 1\)"):
        measure(ConfusionMatrix(), np.zeros(3, "int32"), np.zeros((3, 1)))


@given(n=st.integers(1, 12), seed=seeds)
def test_mean_loss(n: int, seed: int) -> None:
    p, y, w = predictions((n, 3), seed), predictions((n, 3), seed + 1), weights(n, seed)
    expected = np.average(np.abs(p - y).mean(axis=1), weights=w)  # the mean over the weights, unlike the loss itself
    assert measure(MeanLoss("mae"), y, p, w) == pytest.approx(expected)


def test_mean_loss_names() -> None:
    assert MeanLoss("mae").name == "mae"
    assert MeanLoss(MeanAbsoluteError()).name == "meanabsoluteerror"
    assert MeanLoss("mae", "distance").name == "distance"


def test_without_any_weight_there_is_no_mean() -> None:
    assert math.isnan(measure(Accuracy(), np.zeros(2, "int32"), np.eye(2), [0, 0]))


@given(n=st.integers(2, 20), batch=st.integers(1, 20), seed=seeds, weighted=st.booleans())
@settings(max_examples=40)
def test_partial_batches_add_up(n: int, batch: int, seed: int, weighted: bool) -> None:
    metrics = ["accuracy", TopKAccuracy(2), "confusion_matrix", "mse"]
    model = identity((3,), "mse", metrics)
    p, y = predictions((n, 3), seed), np.eye(3)[labels((n,), 3, seed)]
    w = weights(n, seed) if weighted else None
    found = model.evaluate(p, y, batch, sample_weight=w, return_dict=True)
    whole = model.evaluate(p, y, n, sample_weight=w, return_dict=True)
    assert list(found) == ["loss", "accuracy", "top_2_accuracy", "confusion_matrix", "mse"]
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
    hits = np.argmax(p, axis=1) == y.argmax(axis=1)
    assert found["accuracy"] == pytest.approx(np.average(hits, weights=w))
    assert found["confusion_matrix"].sum() == pytest.approx(n if w is None else w.sum())


def test_values_are_plain_floats() -> None:
    found = identity((3,), "mse", ["accuracy"]).evaluate(np.eye(3), np.eye(3), return_dict=True)
    assert found == {"loss": 0.0, "accuracy": 1.0}
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize(
    ("loss", "threshold"),
    [("binary_crossentropy", 0.5), (BinaryCrossentropy(from_logits=True), 0.0), ("mse", 0.5)],
)
def test_threshold_of_accuracy_by_name_follows_the_loss(loss: Any, threshold: float) -> None:
    p = np.asarray([[0.2], [0.7], [-0.1], [0.4]])
    y = np.asarray([1, 1, 0, 0])
    found = identity((1,), loss, ["accuracy"]).evaluate(p, y, return_dict=True)
    assert found["accuracy"] == np.mean((p[:, 0] > threshold) == y)


def test_by_name() -> None:
    for name, kind in METRICS.items():
        assert type(get_metric(name)) is kind
    assert get_metric("top_k_accuracy").name == "top_5_accuracy"
    assert get_metric("mae").name == "mae"
    metric = Accuracy("hits")
    assert get_metric(metric) is metric


@pytest.mark.parametrize("wrong", ["loss", "acuracy", None, 1, ["accuracy"], Accuracy])
def test_unknown_names(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"A metric is one of accuracy, .*mse, .*or a Metric\. Received: "):
        get_metric(wrong)


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", True])
def test_k_out_of_range(k: Any) -> None:
    with pytest.raises(ValueError, match=r"k is an integer of at least 1\. Received: k="):
        TopKAccuracy(k)


def test_a_metric_without_formulas() -> None:
    with pytest.raises(NotImplementedError):
        measure(Metric("nothing"), np.zeros(2), np.zeros((2, 2)))
    with pytest.raises(NotImplementedError):
        Metric("nothing").result({})
