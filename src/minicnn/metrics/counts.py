"""Metrics that count right and wrong predictions, by class or by threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends.base import Array, Backend
from minicnn.metrics.base import (
    NEVER,
    HostArray,
    Metric,
    checked_thresholds,
    class_numbers,
    count_pairs,
    finite,
    of_places,
    only_largest,
    ratio_of,
    truth_of,
)
from minicnn.ops.checks import as_integer, positive
from minicnn.program.graph import Value

_MOST_THRESHOLDS = 100_000

# Of a step of a curve, from its two ends.
_HEIGHTS: dict[str, Callable[[HostArray, HostArray], HostArray]] = {
    "interpolation": lambda a, b: (a + b) / 2, "minoring": np.minimum, "majoring": np.maximum,
}  # fmt: skip


class ConfusionMatrix(Metric):
    """Weighted counts (K, K): rows are labels, columns the largest predictions."""

    def __init__(self, name: str = "confusion_matrix") -> None:
        super().__init__(name)

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        k = y_pred.shape[-1]
        if k < 2:
            raise ValueError(
                f"A confusion matrix needs a prediction for each class. Received: predictions {y_pred.shape}."
            )
        weights = of_places(weight, y_pred.shape[:-1])
        # Counts of pairs are all that is needed: they add up over batches and ranks.
        return {"counts": count_pairs(class_numbers(y_true, y_pred), ops.argmax(y_pred), weights, k)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        return np.asarray(totals["counts"])


class MeanIoU(ConfusionMatrix):
    """Mean over the classes of |both| / |either|, of the places labelled and those predicted as the class.

    Classes in neither are left out; it is NaN if all are.

    Args:
        num_classes: Number of classes; labels are below it.
        ignore_class: Places with this label do not count.
        sparse_y_true: Whether labels are class numbers, not one-hot rows.
        sparse_y_pred: Whether predictions are class numbers, as by default in Keras, not one for each class.
    """

    def __init__(
        self, num_classes: int, name: str = "mean_io_u", ignore_class: int | None = None, sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name)
        if ignore_class is not None and as_integer(ignore_class) is None:
            raise ValueError(f"ignore_class is an integer or None. Received: ignore_class={ignore_class!r}.")
        self.num_classes, self.ignore_class = positive("num_classes", num_classes), ignore_class
        self.sparse_y_true, self.sparse_y_pred = sparse_y_true, sparse_y_pred

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        rows = [v.shape[-1] for v, sparse in ((y_true, self.sparse_y_true), (y_pred, self.sparse_y_pred)) if not sparse]
        if any(k != self.num_classes for k in rows):
            raise ValueError(
                f"Rows of MeanIoU have a number for each of its classes, num_classes={self.num_classes}. Received: "
                f"labels {y_true.shape}, predictions {y_pred.shape}."
            )
        labels = ops.cast(y_true, dtype="int32") if self.sparse_y_true else ops.argmax(y_true)
        guesses = ops.cast(y_pred, dtype="int32") if self.sparse_y_pred else ops.argmax(y_pred)
        if labels.size != guesses.size:
            raise ValueError(
                "MeanIoU takes a class number for each place from the labels and from the predictions. Received: "
                f"labels {y_true.shape}, predictions {y_pred.shape}. Predictions for each class take "
                "sparse_y_pred=False, one-hot labels sparse_y_true=False."
            )
        weights = of_places(weight, guesses.shape)
        if self.ignore_class is not None:
            weights = ops.where(ops.equal(ops.reshape(labels, shape=weights.shape), self.ignore_class), 0.0, weights)
        k = self.num_classes  # stands for all guesses of no class, so that the labels there are counted
        guesses = ops.where(ops.less(guesses, 0), np.int32(k), ops.minimum(guesses, k))
        return {"counts": count_pairs(labels, guesses, weights, k, k + 1)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        counts = np.asarray(totals["counts"], np.float64)
        chosen = list(self._classes())
        both, either = np.diag(counts), counts.sum(axis=0)[:-1] + counts.sum(axis=1) - np.diag(counts)
        both, either = both[chosen], either[chosen]
        there = either > 0
        return float((both[there] / either[there]).mean()) if there.any() else float("nan")

    def _classes(self) -> Sequence[int]:
        """Those whose mean it is."""
        return range(self.num_classes)

    def check_labels(self, y_true: Array, backend: Backend) -> None:
        """See `Metric.check_labels`: they are class numbers below `num_classes`, or `ignore_class`."""
        if not self.sparse_y_true:
            return
        labels = backend.to_numpy(y_true)
        labels = labels if self.ignore_class is None else labels[labels != self.ignore_class]
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise ValueError(
                f"Labels of MeanIoU are class numbers from 0 to {self.num_classes - 1}, or ignore_class, "
                f"{self.ignore_class}. Received: labels from {labels.min()} to {labels.max()}. Say num_classes="
                f"{int(labels.max()) + 1}, or relabel the data."
            )

    check_targets = check_labels


class IoU(MeanIoU):
    """`MeanIoU` over some of the classes.

    Args:
        target_class_ids: Those classes.
    """

    def __init__(
        self, num_classes: int, target_class_ids: Sequence[int], name: str = "io_u", ignore_class: int | None = None,
        sparse_y_true: bool = True, sparse_y_pred: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_classes, name, ignore_class, sparse_y_true, sparse_y_pred)
        ids = [as_integer(i) for i in target_class_ids]
        self.target_class_ids = [i for i in ids if i is not None and 0 <= i < self.num_classes]
        if not ids or self.target_class_ids != ids:
            raise ValueError(
                f"target_class_ids are classes from 0 to {num_classes - 1}, at least one. Received: "
                f"{target_class_ids!r:.80}."
            )

    def _classes(self) -> Sequence[int]:
        return self.target_class_ids


class Thresholded(Metric):
    """Base class of metrics made of how many predictions are above each threshold, by label.

    Args:
        thresholds: Predictions above it are positive, from 0 to 1; several give a value each. 0.5, or all of the
            top_k, if None.
        top_k: Only the k largest predictions of a sample may be positive.
        class_id: The only class that counts.
    """

    def __init__(
        self, name: str, thresholds: float | Sequence[float] | None, top_k: int | None = None,
        class_id: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.thresholds, self.top_k, self.class_id = thresholds, top_k, class_id
        if top_k is not None:
            positive("top_k", top_k)
        if class_id is not None and (as_integer(class_id) is None or class_id < 0):
            raise ValueError(f"class_id is an integer of at least 0, or None. Received: class_id={class_id!r}.")
        otherwise = [0.5 if top_k is None else NEVER / 2]
        self._limits = np.asarray(otherwise if thresholds is None else checked_thresholds(thresholds), np.float64)

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`: predictions above each threshold, of label 1 and all, (2, T); and their number."""
        truth, guesses = truth_of(y_true, y_pred), y_pred
        if self.top_k is not None:
            guesses = only_largest(guesses, self.top_k)
        if self.class_id is not None:
            if self.class_id >= guesses.shape[-1]:
                raise ValueError(
                    f"class_id of {type(self).__name__} is below the number of predictions, {guesses.shape[-1]}. "
                    f"Received: class_id={self.class_id}."
                )
            at = slice(self.class_id, self.class_id + 1)
            truth, guesses = truth[..., at], guesses[..., at]
        column = (guesses.size, 1)
        weights = of_places(weight, guesses.shape, guesses.size)
        positive = ops.reshape(truth, shape=column) * ops.reshape(weights, shape=column)
        # One product counts hits and all guesses above each threshold at once.
        both = ops.concat(positive, ops.reshape(weights, shape=column), axis=1)  # (M, 2)
        above = ops.greater(ops.reshape(guesses, shape=column), self._limits[None].astype(y_pred.dtype))
        over = ops.matmul(both, ops.as_float(above, y_pred.dtype), transpose_a=True)
        return {"over": over, "all": ops.sum(both, axes=0)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """See `Metric.result`: a number, or one for each of several thresholds."""
        positive, every = np.asarray(totals["over"], np.float64)
        ratios = self.ratio(positive, every - positive, float(totals["all"][0]) - positive)
        return float(ratios[0]) if len(ratios) == 1 else ratios

    def ratio(self, tp: HostArray, fp: HostArray, fn: HostArray) -> HostArray:
        """The metric at each threshold, from true and false positives and false negatives."""
        raise NotImplementedError


class Precision(Thresholded):
    """Share of the positive predictions that are true; 0 if there are none."""

    def __init__(
        self, thresholds: float | Sequence[float] | None = None, top_k: int | None = None, class_id: int | None = None,
        name: str = "precision",
    ) -> None:  # fmt: skip
        super().__init__(name, thresholds, top_k, class_id)

    def ratio(self, tp: HostArray, fp: HostArray, fn: HostArray) -> HostArray:
        """tp / (tp + fp)."""
        return ratio_of(tp, tp + fp)


class Recall(Thresholded):
    """Share of the positive labels that are found; 0 if there are none."""

    def __init__(
        self, thresholds: float | Sequence[float] | None = None, top_k: int | None = None, class_id: int | None = None,
        name: str = "recall",
    ) -> None:  # fmt: skip
        super().__init__(name, thresholds, top_k, class_id)

    def ratio(self, tp: HostArray, fp: HostArray, fn: HostArray) -> HostArray:
        """tp / (tp + fn)."""
        return ratio_of(tp, tp + fn)


class AUC(Thresholded):
    """Area under the curve of recall over false-positive rate (ROC), or of precision over recall (PR), by thresholds.

    The area under a PR curve is interpolated as in J. Davis, M. Goadrich, ICML 2006. It is NaN where it is not defined:
    without positive labels, and of ROC without negative ones.

    Args:
        num_thresholds: Number of thresholds, evenly from 0 to 1; at least 2.
        curve: "ROC" or "PR".
        summation_method: "interpolation", or the smaller ("minoring") or larger ("majoring") end of each step.
        thresholds: Thresholds between 0 and 1 instead.
        from_logits: Whether predictions are logits; otherwise probabilities.
    """

    def __init__(
        self, num_thresholds: int = 200, curve: str = "ROC", summation_method: str = "interpolation",
        name: str = "auc", thresholds: Sequence[float] | None = None, from_logits: bool = False,
    ) -> None:  # fmt: skip
        known = curve in ("ROC", "PR") and summation_method in _HEIGHTS
        if not known or not 2 <= positive("num_thresholds", num_thresholds) <= _MOST_THRESHOLDS:
            raise ValueError(
                f"AUC takes curve 'ROC' or 'PR', a summation_method of {sorted(_HEIGHTS)} and from 2 to "
                f"{_MOST_THRESHOLDS:,} thresholds. Received: {curve!r}, {summation_method!r}, {num_thresholds}."
            )
        super().__init__(name, thresholds)
        inner = np.arange(1, num_thresholds - 1) / (num_thresholds - 1) if thresholds is None else self._limits
        # Beyond both ends, so that the curve begins at all and ends at nothing.
        self._limits = np.array([-1e-7, *np.sort(inner), 1.0 + 1e-7])
        self.num_thresholds, self.curve, self.summation_method = num_thresholds, curve, summation_method
        self.from_logits = from_logits

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        return super().totals(y_true, ops.sigmoid(y_pred) if self.from_logits else y_pred, weight)

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> float:
        tp, every = np.asarray(totals["over"], np.float64)
        positive, count = np.asarray(totals["all"], np.float64)
        if positive == 0 or (self.curve == "ROC" and positive == count):
            return float("nan")
        recall = tp / positive
        if self.curve == "PR" and self.summation_method == "interpolation":
            # Between two thresholds precision is no straight line: the area is integrated (J. Davis, M. Goadrich, ICML
            # 2006).
            slope = ratio_of(-np.diff(tp), -np.diff(every))
            rest = tp[1:] - slope * every[1:]
            steps = np.where((every[1:] > 0) & (every[:-1] > 0), ratio_of(every[:-1], every[1:]), 1.0)
            return float((slope * (-np.diff(tp) + rest * np.log(steps)) / positive).sum())
        if self.curve == "ROC":
            x, y = (every - tp) / (count - positive), recall
        else:
            x, y = recall, ratio_of(tp, every)
        return float((-np.diff(x) * _HEIGHTS[self.summation_method](y[:-1], y[1:])).sum())


class FBetaScore(Metric):
    """(1 + beta^2) precision recall / (beta^2 precision + recall) of each class.

    Args:
        average: What becomes of the classes: None keeps a value each, "macro" is their mean, "weighted" the mean by
            their labels' number, "micro" counts all classes together.
        beta: How much more recall weighs than precision.
        threshold: Predictions above it are positive; only the largest of a sample if None.
    """

    def __init__(
        self, average: str | None = None, beta: float = 1.0, threshold: float | None = None, name: str = "fbeta_score"
    ) -> None:
        if average not in (None, "micro", "macro", "weighted") or not finite("beta", beta) > 0:
            raise ValueError(
                "average is None, 'micro', 'macro' or 'weighted', and beta is above 0. Received: "
                f"average={average!r}, beta={beta!r}."
            )
        if threshold is not None:
            checked_thresholds([threshold])
        super().__init__(name)
        self.average, self.beta, self.threshold = average, beta, threshold

    def totals(self, y_true: Value, y_pred: Value, weight: Value) -> dict[str, Value]:
        """See `Metric.totals`: true positives, positive predictions and positive labels of each class, (3, K)."""
        k = y_pred.shape[-1]
        rows = (y_pred.size // k, k)
        truth, guesses = (ops.reshape(v, shape=rows) for v in (truth_of(y_true, y_pred), y_pred))
        if self.threshold is None:
            positive = ops.greater(only_largest(guesses, 1), NEVER / 2)
        else:
            positive = ops.greater(guesses, self.threshold)
        predicted = ops.as_float(positive, y_pred.dtype)
        weights = ops.reshape(of_places(weight, y_pred.shape, rows[0]), shape=(rows[0], 1))
        sums = [ops.matmul(weights, v, transpose_a=True) for v in (predicted * truth, predicted, truth)]
        return {"sums": ops.concat(*sums, axis=0)}

    def result(self, totals: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """See `Metric.result`: a number, or (K,) without `average`."""
        sums = np.asarray(totals["sums"], np.float64)
        tp, positive, labels = sums.sum(axis=1, keepdims=True) if self.average == "micro" else sums
        precision, recall = ratio_of(tp, positive), ratio_of(tp, labels)
        score = ratio_of((1 + self.beta**2) * precision * recall, self.beta**2 * precision + recall)
        if self.average == "weighted":
            return float((score * labels).sum() / labels.sum()) if labels.sum() else 0.0
        return score if self.average is None else float(score.mean())


class F1Score(FBetaScore):
    """Harmonic mean of precision and recall of each class: `FBetaScore` with beta 1."""

    def __init__(self, average: str | None = None, threshold: float | None = None, name: str = "f1_score") -> None:
        super().__init__(average, 1.0, threshold, name)
