"""Report of a classifier class by class, with the samples on which it errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn import html
from minicnn.html import Drawing
from minicnn.visual.confusion import ConfusionMatrixDisplay, names_of_classes
from minicnn.visual.gallery import gallery, pixels

Array = np.ndarray[Any, Any]


class ClassificationReport:
    """Report on a classifier's predictions for labelled samples; `print` shows the table of the classes.

    Precision is the share of the samples predicted as a class that are of it, recall the share of the samples of a
    class that are predicted as it, F1 their harmonic mean, support the number of samples of the class.

    Args:
        x: Inputs (N, ...).
        y: Class numbers (N,) or (N, 1), or one-hot rows (N, K).
        outputs: What the model makes of them: scores or probabilities (N, K); (N, 1) of two classes.
        class_names: Names of the classes; their numbers if None.
        channels_first: Whether images are (N, C, H, W).

    Attributes:
        y_true: Class numbers (N,).
        y_pred: Predicted class numbers (N,).
        probabilities: (N, K): the outputs, or the softmax of scores.

    Raises:
        ValueError: If shapes do not fit, or there are no samples.
    """

    def __init__(
        self, x: Any, y: Any, outputs: Any, class_names: Sequence[str] | None = None, *, channels_first: bool = False
    ) -> None:
        self.probabilities = probabilities(np.asarray(outputs))
        self._x, self._channels_first = np.asarray(x), channels_first
        count, classes = self.probabilities.shape
        self.class_names = names_of_classes(class_names, classes)
        true = np.asarray(y)
        if true.ndim == 2:
            true = true[:, 0] if true.shape[1] == 1 else true.argmax(1)
        if true.shape != (count,) or not count:
            raise ValueError(
                f"A report is of at least one sample, with a label for each of them. Received: {len(self._x)} samples "
                f"and labels of shape {np.shape(y)}."
            )
        self.y_true, self.y_pred = true.astype(np.int64), self.probabilities.argmax(1)
        self.confusion_matrix = ConfusionMatrixDisplay.from_predictions(self.y_true, self.y_pred, self.class_names)

    @property
    def accuracy(self) -> float:
        """Share of the samples that are predicted right."""
        return float(np.mean(self.y_true == self.y_pred))

    @property
    def table(self) -> dict[str, dict[str, float]]:
        """For each class precision, recall, F1 and support; 0 where a class is never predicted, or has no samples."""
        counts = self.confusion_matrix.confusion_matrix
        right = np.diag(counts)
        precision, recall = (right / np.maximum(counts.sum(axis), 1) for axis in (0, 1))
        f1 = 2 * right / np.maximum(counts.sum(0) + counts.sum(1), 1)
        columns = {"precision": precision, "recall": recall, "f1": f1, "support": counts.sum(1)}
        return {name: {c: v[k].item() for c, v in columns.items()} for k, name in enumerate(self.class_names)}

    def mistakes(self, count: int = 25) -> Drawing:
        """The samples on which the model errs, those of which it is surest first.

        Args:
            count: Samples to show, at most.

        Returns:
            A drawing, which a notebook shows and `save("mistakes.svg")` writes.

        Raises:
            ValueError: If the samples are no images.
        """
        if self._x.ndim != 4:
            raise ValueError(f"Mistakes are shown of images (N, H, W, C). Received: samples of shape {self._x.shape}.")
        wrong = np.flatnonzero(self.y_true != self.y_pred)
        sure = self.probabilities.max(1)
        worst = wrong[np.argsort(-sure[wrong], kind="stable")][:count]
        captions = [
            (f"{self.class_names[self.y_true[i]]}, number {i}",
             f"as {self.class_names[self.y_pred[i]]}, {sure[i]:.0%}")
            for i in worst
        ]  # fmt: skip
        title = f"{len(wrong):,} mistakes in {len(self.y_true):,} samples"
        return gallery(title, list(pixels(self._x[worst], self._channels_first)), captions)

    def _rows(self) -> list[tuple[str, ...]]:
        numbers = self.table
        rows = [
            (name, *(f"{row[c]:.3f}" for c in ("precision", "recall", "f1")), f"{row['support']:,}")
            for name, row in numbers.items()
        ]
        means = (f"{np.mean([row[c] for row in numbers.values()]):.3f}" for c in ("precision", "recall", "f1"))
        return [*rows, ("mean of the classes", *means, f"{len(self.y_true):,}")]

    def __str__(self) -> str:
        rows = [("class", "precision", "recall", "F1", "support"), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        return "\n".join([*lines, f"accuracy {self.accuracy:.2%}"])

    def __repr__(self) -> str:
        return f"<ClassificationReport of {len(self.y_true):,} samples: accuracy {self.accuracy:.2%}>"

    def _repr_html_(self) -> str:
        header = ("class", "precision", "recall", "F1", "support")
        return html.block(repr(self).strip("<>"), html.table(header, self._rows()), self.confusion_matrix._repr_html_())


def probabilities(outputs: Array) -> Array:
    """Outputs of a classifier as probabilities (N, K): as they are if they are such, else their softmax.

    Raises:
        ValueError: If they are no rows of numbers.
    """
    if outputs.ndim != 2 or not outputs.shape[1]:
        raise ValueError(f"A classifier has outputs of shape (N, classes). Received: {outputs.shape}.")
    outputs = outputs.astype(np.float64)
    if outputs.shape[1] == 1:
        inside = bool(np.all((outputs >= 0) & (outputs <= 1)))
        positive = outputs if inside else 1 / (1 + np.exp(-outputs))
        return np.concatenate([1 - positive, positive], axis=1)
    sums = outputs.sum(1)
    if np.all(outputs >= 0) and np.all(np.abs(sums - 1) < 1e-2):  # as far as short floats may be off
        return outputs
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    scaled: Array = powers / powers.sum(1, keepdims=True)
    return scaled
