"""Metrics against NumPy, over ties, weights and partial batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn import ops
from minicnn.description import describe
from minicnn.losses import BinaryCrossentropy, MeanAbsoluteError
from minicnn.metrics import (
    AUC,
    Accuracy,
    BinaryAccuracy,
    ConfusionMatrix,
    F1Score,
    FBetaScore,
    MeanIoU,
    MeanLoss,
    Metric,
    Precision,
    Recall,
    RootMeanSquaredError,
    TopKCategoricalAccuracy,
)
from support.model_cases import identity, measure
from support.strategies import seeds
from support.tolerances import DOUBLE

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
    assert measure(TopKCategoricalAccuracy(k), given_labels, p, w) == pytest.approx(np.average(larger < k, weights=w))


def test_top_1_is_accuracy_where_nothing_ties() -> None:
    p = np.random.default_rng(0).permutation(40).reshape(8, 5) / 40
    y = labels((8,), 5, 0)
    assert measure(TopKCategoricalAccuracy(1), y, p) == measure(Accuracy(), y, p)


def test_top_k_with_what_is_no_number() -> None:
    inf, nan = math.inf, math.nan
    p = np.asarray([[-inf, 2.0, 1.0], [inf, -inf, 0.0], [nan, 1.0, 0.0], [0.0, nan, 1.0]])
    assert measure(TopKCategoricalAccuracy(1), np.asarray([1, 0, 0, 2], "int32"), p) == 0.5  # NaN never counts as a hit
    assert measure(TopKCategoricalAccuracy(2), np.asarray([0, 0, 0, 1], "int32"), p) == 0.25


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


def counted(p: Array, y: Array, w: Array, limit: float) -> tuple[float, float, float, float]:
    """True and false positives, false negatives and true negatives, one by one."""
    sums = {(True, True): 0.0, (True, False): 0.0, (False, True): 0.0, (False, False): 0.0}
    for i in np.ndindex(p.shape):
        sums[bool(p[i] > limit), bool(y[i] > 0.5)] += w[i[0]]
    return sums[True, True], sums[True, False], sums[False, True], sums[False, False]


@given(size=sizes, seed=seeds, limit=st.sampled_from([0.1, 0.5, 0.9]))
def test_precision_and_recall(size: tuple[int, int], seed: int, limit: float) -> None:
    p, w = predictions(size, seed), weights(size[0], seed)
    y = np.random.default_rng(seed).integers(0, 2, size).astype(float)
    tp, fp, fn, _ = counted(p, y, w, limit)
    assert measure(Precision(limit), y, p, w) == pytest.approx(tp / (tp + fp) if tp + fp else 0.0)
    assert measure(Recall(limit), y, p, w) == pytest.approx(tp / (tp + fn) if tp + fn else 0.0)


@given(size=sizes, seed=seeds, k=st.integers(1, 3))
def test_recall_of_class_numbers_among_the_largest_is_top_k_accuracy(size: tuple[int, int], seed: int, k: int) -> None:
    p = np.random.default_rng(seed).permutation(size[0] * size[1]).reshape(size) / 100
    y = labels(size[:1], size[1], seed)
    assert measure(Recall(top_k=k), y, p) == pytest.approx(measure(TopKCategoricalAccuracy(k), y, p))


@given(n=st.integers(4, 30), seed=seeds)
def test_auc_is_the_share_of_pairs_in_order(n: int, seed: int) -> None:
    p = predictions((n, 1), seed)  # quarters, between which there are thresholds
    y = np.arange(n) % 2
    pairs = [(a > b) + (a == b) / 2 for a in p[y == 1, 0] for b in p[y == 0, 0]]
    assert measure(AUC(), y, p) == pytest.approx(np.mean(pairs))
    assert measure(AUC(from_logits=True), y, np.log((p + 0.01) / (1.01 - p))) == pytest.approx(np.mean(pairs))


def test_area_under_precision_and_recall_by_hand() -> None:
    p, y = np.asarray([[0.9], [0.7], [0.4], [0.2]]), np.asarray([1.0, 0.0, 1.0, 0.0])
    # Recall 1/2 at precision 1, then 1/2 at 1/2, then 1 at 2/3, then 1 at 1/2.
    assert measure(AUC(curve="PR", summation_method="minoring"), y, p) == pytest.approx(0.0 * 0.5 + 0.5 * 0.5)
    assert measure(AUC(curve="PR", summation_method="majoring"), y, p) == pytest.approx(1.0 * 0.5 + 0.5 * 2 / 3)


@given(size=sizes, seed=seeds, threshold=st.sampled_from([None, 0.3]))
def test_f1_score(size: tuple[int, int], seed: int, threshold: float | None) -> None:
    n, k = size
    p, y, w = predictions(size, seed), labels((n,), k, seed), weights(n, seed)
    hot = np.eye(k)[y]
    positive = np.eye(k)[p.argmax(axis=1)] if threshold is None else (p > threshold).astype(float)
    tp, found, true = ((w[:, None] * v).sum(axis=0) for v in (positive * hot, positive, hot))
    each = np.where(found + true > 0, 2 * tp / np.maximum(found + true, 1e-30), 0.0)
    np.testing.assert_allclose(measure(F1Score(threshold=threshold), hot, p, w), each, atol=DOUBLE)
    assert measure(F1Score("macro", threshold), y, p, w) == pytest.approx(each.mean())
    assert measure(F1Score("weighted", threshold), y, p, w) == pytest.approx(np.average(each, weights=true))
    assert measure(F1Score("micro", threshold), y, p, w) == pytest.approx(2 * tp.sum() / (found + true).sum())


@given(size=sizes, seed=seeds, ignored=st.sampled_from([None, 0]))
def test_mean_iou_of_images(size: tuple[int, int], seed: int, ignored: int | None) -> None:
    n, k = size
    p, y, w = predictions((n, 2, 3, k), seed), labels((n, 2, 3), k, seed), weights(n, seed)
    guess, each = p.argmax(axis=-1), []
    counts = np.broadcast_to(w[:, None, None], y.shape) * (y != ignored)
    for c in range(k):
        either = counts[(y == c) | (guess == c)].sum()
        if either:
            each.append(counts[(y == c) & (guess == c)].sum() / either)
    expected = np.mean(each) if each else np.nan
    found = measure(MeanIoU(k, ignore_class=ignored, sparse_y_pred=False), y, p, w)
    assert found == pytest.approx(expected, nan_ok=True)


def test_mean_iou_counts_the_labels_of_predictions_that_are_of_no_class() -> None:
    y, p = np.array([[0, 0, 1, 1]], "int32"), np.array([[0.0, 7.0, 1.0, -3.0]])
    assert measure(MeanIoU(2), y, p) == pytest.approx((1 / 2 + 1 / 2) / 2)


@pytest.mark.parametrize("from_labels", ["sparse", "float"])
def test_mean_iou_refuses_labels_beyond_its_classes(from_labels: str) -> None:
    loss = "sparse_categorical_crossentropy" if from_labels == "sparse" else lambda y_true, y_pred: y_pred[..., 0]
    y = np.array([[0, 1], [2, 2]])
    with pytest.raises(ValueError, match=r"from 0 to 1, or ignore_class, None\. Received: labels from 0.* Say num_cl"):
        identity((2, 3), loss, [MeanIoU(2, sparse_y_pred=False)]).evaluate(np.ones((2, 2, 3)), y)
    model = identity((2, 3), loss, [MeanIoU(2, ignore_class=2, sparse_y_pred=False)])
    with pytest.raises(ValueError, match=r"num_classes=2\. Received: labels \(2, 2\), predictions \(2, 2, 3\)"):
        model.evaluate(np.ones((2, 2, 3)), y)
    model = identity((2, 3), loss, [MeanIoU(3, ignore_class=2, sparse_y_pred=False)])
    assert model.evaluate(np.eye(3)[[[0, 1], [1, 1]]], y)[1] == 1


@pytest.mark.parametrize("metric", [Precision, Recall])
def test_a_class_that_there_is_not(metric: Any) -> None:
    with pytest.raises(ValueError, match=r"class_id of .* below the number of predictions, 3\. Received: class_id=3"):
        measure(metric(class_id=3), np.arange(3, dtype="int32"), np.eye(3))
    assert measure(metric(class_id=2), np.arange(3, dtype="int32"), np.eye(3)) == 1


@pytest.mark.parametrize(
    ("curve", "targets", "area"), [("ROC", 1, None), ("ROC", 0, None), ("PR", 0, None), ("PR", 1, 1.0)]
)
def test_areas_of_one_class(curve: str, targets: float, area: float | None) -> None:
    found = measure(AUC(curve=curve), np.full((4, 1), targets), np.array([[0.1], [0.4], [0.6], [0.9]]))
    assert math.isnan(found) if area is None else found == pytest.approx(area)


def test_labels_of_another_shape() -> None:
    """A column of class numbers against rows of predictions would be compared all with all."""
    y, p = np.array([[0], [1], [2], [0]]), np.eye(3)[[0, 1, 2, 2]]
    for metric in (Accuracy(), ConfusionMatrix(), F1Score("micro"), TopKCategoricalAccuracy(1), Precision()):
        found = measure(metric, y, p)
        np.testing.assert_allclose(found, measure(metric, y[:, 0].astype("int32"), p), err_msg=metric.name)
        with pytest.raises(ValueError, match=r"a class number for each row .*labels \(4, 2\), predictions \(4, 3\)"):
            measure(metric, np.zeros((4, 2)), p)


def test_mean_iou_of_predictions_for_each_class_says_which_argument_it_needs() -> None:
    model = identity((3,), "sparse_categorical_crossentropy", [MeanIoU(3)])
    with pytest.raises(ValueError, match=r"labels \(5,\), predictions \(5, 3\)\..*sparse_y_pred=False"):
        model.evaluate(predictions((5, 3), 0), np.arange(5) % 3)


def test_functions_classes_and_losses_as_metrics() -> None:
    def distance(y_true: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y_true - y_pred), axes=-1)

    model = identity((3,), distance, [distance, "mae", MeanAbsoluteError, RootMeanSquaredError, "MeanSquaredError"])
    p, y = predictions((5, 3), 0), predictions((5, 3), 1)
    found = model.evaluate(p, y, return_dict=True)
    assert found["loss"] == found["distance"] == found["mae"] == pytest.approx(np.abs(p - y).mean())
    assert found["root_mean_squared_error"] == pytest.approx(found["MeanSquaredError"] ** 0.5)
    with pytest.raises(TypeError, match="Functions cannot be saved"):
        describe(model)


@pytest.mark.parametrize("targets", [[[0.5], [7.0]], [[0.5], [0.7]], [[0.2, 0.1, 0.0], [0.5, 0.5, 0.3]]])
def test_accuracy_of_a_regression_is_one_warning(targets: list[list[float]]) -> None:
    y = np.asarray(targets)
    model = identity((y.shape[1],), "mse", ["accuracy"])
    with pytest.warns(UserWarning, match=r"compares classes\. Received: targets from 0\..*Watch"):
        model.evaluate(np.zeros(y.shape), y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("targets", [[[0], [1]], [[-1], [1]], [[0.2, 0.7, 0.1], [0, 0, 1]], [[0, 1, 1], [0, 0, 0]]])
def test_accuracy_of_classes_and_of_their_shares_does_not_warn(targets: list[list[float]]) -> None:
    y = np.asarray(targets, "float32")
    identity((y.shape[1],), "mse", ["accuracy"]).evaluate(np.zeros(y.shape), y)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: AUC(curve="roc"), lambda: AUC(1), lambda: F1Score("mean"), lambda: Precision(top_k=0),
        lambda: Precision([]), lambda: Recall(2), lambda: Precision([0.5, math.nan]), lambda: AUC(thresholds=[]),
        lambda: AUC(thresholds=[0.5, 1.5]), lambda: Precision("0.5"), lambda: Recall(class_id=-1),
        lambda: Precision(class_id=1.5), lambda: F1Score(threshold=-0.1), lambda: FBetaScore(beta=math.inf),
        lambda: Accuracy(threshold=math.nan), lambda: BinaryAccuracy(threshold=math.inf),
        lambda: MeanIoU(3, ignore_class=0.5), lambda: MeanIoU(0),
    ],
)  # fmt: skip
def test_arguments_out_of_range(wrong: Any) -> None:
    with pytest.raises(ValueError, match="Received: "):
        wrong()


def test_mean_loss_names() -> None:
    assert MeanLoss("mae").name == "mae"
    assert MeanLoss(MeanAbsoluteError()).name == "mean_absolute_error"
    assert MeanLoss("mae", "distance").name == "distance"


def test_without_any_weight_there_is_no_mean() -> None:
    assert math.isnan(measure(Accuracy(), np.zeros(2, "int32"), np.eye(2), [0, 0]))


@given(n=st.integers(2, 20), batch=st.integers(1, 20), seed=seeds, weighted=st.booleans())
@settings(max_examples=40)
def test_partial_batches_add_up(n: int, batch: int, seed: int, weighted: bool) -> None:
    metrics = ["accuracy", TopKCategoricalAccuracy(2), "confusion_matrix", "mse"]
    model = identity((3,), "mse", metrics)
    p, y = predictions((n, 3), seed), np.eye(3)[labels((n,), 3, seed)]
    w = weights(n, seed) if weighted else None
    found = model.evaluate(p, y, batch, sample_weight=w, return_dict=True)
    whole = model.evaluate(p, y, n, sample_weight=w, return_dict=True)
    assert list(found) == ["loss", "accuracy", "top_k_categorical_accuracy", "confusion_matrix", "mse"]
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=DOUBLE, err_msg=name)
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


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", True])
def test_k_out_of_range(k: Any) -> None:
    with pytest.raises(ValueError, match=r"k is an integer of at least 1\. Received: k="):
        TopKCategoricalAccuracy(k)


def test_a_metric_without_formulas() -> None:
    with pytest.raises(NotImplementedError):
        measure(Metric("nothing"), np.zeros(2), np.zeros((2, 2)))
    with pytest.raises(NotImplementedError):
        Metric("nothing").result({})
