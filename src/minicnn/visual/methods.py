"""Methods of a model that show what it makes of images: `Model` names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.layers import Layer
from minicnn.pictures import Picture, picture
from minicnn.visual.attribution import Attribution, attributed, channels_first
from minicnn.visual.report import ClassificationReport

if TYPE_CHECKING:
    from minicnn.models import Model
MOST_NAMES = 100_000  # of classes, in a file


def report(model: Model, x: Any, y: Any, *, batch_size: int = 32) -> ClassificationReport:
    """Report of the model class by class: precision, recall and F1, confusion, and the mistakes to look at.

    Args:
        x: Inputs (N, ...).
        y: Class numbers (N,), or one-hot rows (N, classes).
        batch_size: Samples in a step.

    Raises:
        ValueError: If the model does not give one score for each class, or labels do not fit.
    """
    inputs, outputs = np.asarray(x), model.predict(np.asarray(x), batch_size)
    return ClassificationReport(inputs, y, outputs, model._class_names, channels_first=channels_first(model))


def saliency(model: Model, x: Any, target: Any = None) -> Attribution:
    """Maps of how much each pixel changes the score of a class: the absolute derivative, largest of the channels.

    Args:
        x: Images, shape (N, H, W, C).
        target: Class number, or one for each image; the predicted one if None.

    Raises:
        ValueError: If the model has several inputs or outputs, or the input are no images.
    """
    return attributed(model, x, target, None, "saliency", model._class_names)


def grad_cam(model: Model, x: Any, layer: str | Layer | None = None, target: Any = None) -> Attribution:
    """Maps of the places whose features speak for a class, at the size of a convolution's feature maps.

    Args:
        x: Images, shape (N, H, W, C).
        layer: A convolution or its name; the last one if None.
        target: Class number, or one for each image; the predicted one if None.

    Raises:
        ValueError: As `saliency`, or if there is no such convolution.
    """
    return attributed(model, x, target, layer, "Grad-CAM", model._class_names)


def filters(model: Model, layer: str | Layer | None = None) -> Picture:
    """The kernel of a convolution as a picture: the taps of each pair of channels.

    Args:
        layer: The layer or its name; the first with a kernel of four axes if None.

    Raises:
        ValueError: If there is no such layer.
    """
    kernels = {path.rpartition("/")[0]: a for path, a in model.get_weights().items() if a.ndim == 4}
    name = model.layer_name(layer) if isinstance(layer, Layer) else layer or next(iter(kernels), None)
    if name not in kernels:
        raise ValueError(
            f"Filters are those of a convolution: {', '.join(kernels) or 'the model has none'}. Received: {layer!r}."
        )
    kernel = kernels[name]
    return picture(kernel.transpose(3, 2, 0, 1).reshape(-1, *kernel.shape[:2]), f"filters of {name}")


def checked_names(names: Any, model: Model) -> tuple[str, ...]:
    """Names of classes; a ValueError if they are none, or not as many as the model has outputs."""
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else None
    if listed is None or not all(isinstance(name, str) for name in listed) or not 0 < len(listed) <= MOST_NAMES:
        raise ValueError(f"class_names is a list of names. Received: {names!r:.80}.")
    shape = model.output_shape if model.built else (None,)
    classes = shape[-1] if isinstance(shape, tuple) else None
    if isinstance(classes, int) and len(listed) != classes and not (classes == 1 and len(listed) == 2):
        raise ValueError(f"There is a name for each of the {classes} outputs. Received: {len(listed)} names.")
    return tuple(listed)
