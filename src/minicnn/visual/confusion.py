"""Confusion matrices as pictures and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from minicnn.html import Drawing, escape
from minicnn.names import known_name

Array = np.ndarray[Any, Any]

RIGHT, WRONG, STRONGEST = "#0072B2", "#D55E00", 0.55  # a cell's letters are readable on it, in light and in dark
CELL, LETTER = 38, 6.6  # pixels
MOST = 25  # classes in a drawing
NORMALIZE = {"true": 1, "pred": 0}


class ConfusionMatrixDisplay:
    r"""A confusion matrix with the names of its classes: row k counts the samples of class k by predicted class.

    A notebook shows the drawing, `print` the numbers.

    Args:
        confusion_matrix: Counts (K, K), as the metric `ConfusionMatrix` gives them.
        display_labels: Names of the classes; their numbers if None.

    Raises:
        ValueError: If the matrix is not square, or there are not as many names.

    Example:
        >>> print(ConfusionMatrixDisplay.from_predictions([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], ["cat", "dog"]))
        true \ predicted  cat  dog
        cat                 1    1
        dog                 1    2
    """

    def __init__(self, confusion_matrix: Any, display_labels: Sequence[str] | None = None) -> None:
        self.confusion_matrix: Array = np.asarray(confusion_matrix)
        shape = self.confusion_matrix.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"A confusion matrix has as many rows as columns. Received: shape {shape}.")
        self.display_labels = names_of_classes(display_labels, shape[0])

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_pred: Any, display_labels: Sequence[str] | None = None
    ) -> ConfusionMatrixDisplay:
        """The matrix of given classes.

        Args:
            y_true: Class numbers (N,).
            y_pred: Predicted class numbers (N,).
            display_labels: Names of all classes; else there are as many as the largest number says.
        """
        true, predicted = np.asarray(y_true), np.asarray(y_pred)
        if true.ndim != 1 or true.shape != predicted.shape or {true.dtype.kind, predicted.dtype.kind} - set("iu"):
            raise ValueError(
                "y_true and y_pred are class numbers of one shape (N,). Received: "
                f"{true.dtype} {true.shape} and {predicted.dtype} {predicted.shape}. Take the argmax of scores."
            )
        largest = int(max(true.max(initial=-1), predicted.max(initial=-1)))
        classes = largest + 1 if display_labels is None else len(display_labels)
        if largest >= classes or min(true.min(initial=0), predicted.min(initial=0)) < 0:
            raise ValueError(
                f"Class numbers are from 0 to {classes - 1}, as there are {classes} names. Received: {largest} or a "
                "negative one."
            )
        matrix = np.zeros((classes, classes), np.int64)
        np.add.at(matrix, (true, predicted), 1)
        return cls(matrix, display_labels)

    def plot(self, *, normalize: Literal["true", "pred"] | None = None) -> Drawing:
        """The drawing: right ones blue, wrong ones orange, the darker the larger their share of the class.

        Args:
            normalize: Whether cells say shares of the true or of the predicted class; counts if None. Colours are of
                shares of the true class in either case.

        Returns:
            A drawing, which a notebook shows and `save("confusion.svg")` writes. Of more than 25 classes it has those
            that are most often confused.
        """
        if normalize is not None:
            known_name("normalize", normalize, NORMALIZE)
        counts, names = self.confusion_matrix, self.display_labels
        shares = _shares(counts, 1)
        cells = counts if normalize is None else _shares(counts, NORMALIZE[normalize])
        wrong = counts.sum(1) + counts.sum(0) - 2 * np.diag(counts)
        kept = np.sort(np.argsort(-wrong, kind="stable")[:MOST])
        left = int(12 + LETTER * max((len(names[k]) for k in kept), default=0)) + 8
        top, side = left + 16, CELL * len(kept)
        parts = [f'<text x="{left}" y="12" font-weight="bold">predicted</text>',
                 f'<text x="0" y="{top - 6}" font-weight="bold">true</text>']  # fmt: skip
        for i, row in enumerate(kept):
            middle = CELL * i + CELL / 2 + 4
            name = escape(names[row])
            parts.append(f'<text x="{left - 8}" y="{top + middle:.0f}" text-anchor="end">{name}</text>')
            parts.append(f'<text transform="translate({left + middle:.0f} {top - 6}) rotate(-90)">{name}</text>')
            parts += [
                _cell(left + CELL * j, top + CELL * i, cells[row, column], shares[row, column], row == column,
                      f"{names[row]} as {names[column]}: {counts[row, column]}")
                for j, column in enumerate(kept)
            ]  # fmt: skip
        dropped = f", the {MOST} most confused of {len(names)} classes" if len(kept) < len(names) else ""
        return Drawing(f"confusion matrix{dropped}", left + side + 2, top + side + 2, "".join(parts))

    def __str__(self) -> str:
        head = "true \\ predicted"
        first = max(len(head), *map(len, self.display_labels)) if self.display_labels else len(head)
        widths = [max(len(name), len(str(c.max()))) for name, c in zip(self.display_labels, self._columns, strict=True)]
        rows = [[head, *self.display_labels]]
        rows += [[n, *map(str, row)] for n, row in zip(self.display_labels, self.confusion_matrix, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], widths, strict=True))])
            for row in rows
        )

    @property
    def _columns(self) -> Array:
        return self.confusion_matrix.T

    def __repr__(self) -> str:
        counts = self.confusion_matrix
        return f"<ConfusionMatrixDisplay of {len(counts)} classes: {np.trace(counts)} of {counts.sum()} right>"

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()


def names_of_classes(names: Sequence[str] | None, count: int) -> list[str]:
    """Names for so many classes; a ValueError if there are others."""
    listed = list(map(str, range(count) if names is None else names))
    if len(listed) != count:
        raise ValueError(f"There is a name for each of the {count} classes. Received: {len(listed)} names.")
    return listed


def _shares(counts: Array, axis: int) -> Array:
    total = counts.sum(axis, keepdims=True)
    shares: Array = counts / np.maximum(total, 1)
    return shares


def _cell(x: int, y: int, value: Any, share: float, right: bool, said: str) -> str:
    colour, opacity = RIGHT if right else WRONG, STRONGEST * float(share) ** 0.5  # so that few are seen, too
    box = f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}" fill-opacity="{opacity:.3f}"/>'
    number = "" if not value else f"{value:.2f}" if isinstance(value, float | np.floating) else str(value)
    middle = f'x="{x + CELL / 2:g}" y="{y + CELL / 2 + 4:g}"'
    return f'<g><title>{escape(said)}</title>{box}<text {middle} text-anchor="middle">{number}</text></g>'
