"""Saved models that a command works with: where they are, and images as they take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from minicnn import backends
from minicnn.cli.options import BACKEND
from minicnn.layers import Normalization, Rescaling
from minicnn.models import Model

FILE = "model.safetensors"  # within the folder of a training
Array = np.ndarray[Any, Any]


class SavedModel(click.Path):
    """A file that `train` or `Model.save` wrote, or the folder of a training."""

    name = "model"

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        path = Path(str(super().convert(value, param, ctx)))
        if path.is_dir():
            if not (path / FILE).is_file():
                self.fail(f"A model is a file, or a folder with one named {FILE}. Received: {str(path)!r}.", param, ctx)
            path = path / FILE
        return path


def model_options(function: Any) -> Any:
    """Decorator: adds the argument MODEL, and the option of its backend."""
    backend = click.option(
        "--backend", type=BACKEND, metavar="NAME", envvar="MINICNN_BACKEND", default="numpy", show_default=True,
        show_envvar=True, help='Backend, with a device if wanted: "torch:cuda".',
    )  # fmt: skip
    return click.argument("model", type=SavedModel())(backend(function))


def load(path: Path, backend: str) -> Model:
    """The model, which is to take images and give a score for each class.

    Raises:
        click.ClickException: If it takes something else.
    """
    model = Model.load(path, backend=backends.get_backend(backend))
    shape, scores = model.input_shape, model.output_shape
    if not (isinstance(shape, tuple) and len(shape) == 4 and isinstance(scores, tuple) and len(scores) == 2):
        raise click.ClickException(
            f"A classifier of images takes (N, H, W, C) and gives (N, classes). Received: {path}, from {shape} to "
            f"{scores}."
        )
    return model


def image_shape(model: Model) -> tuple[int, int, int]:
    """Shape (H, W, C) of the images that a model takes, channels last.

    Raises:
        click.ClickException: If it takes images of any size, or neither grey nor RGB.
    """
    from minicnn.visual.attribution import channels_first

    shape: Any = model.input_shape
    H, W, C = (*shape[2:], shape[1]) if channels_first(model) else shape[1:]
    if H is None or W is None or C not in (1, 3):
        raise click.ClickException(
            f"Images are read to a fixed size, in grey or RGB. Received: a model that takes {shape[1:]}."
        )
    return H, W, C


def scale(model: Model) -> float:
    """Factor from pixels of 0 to 255 to those that a model takes.

    One that has no layer which scales pixels, and does not take bytes, was trained on numbers that somebody scaled:
    they are taken to be from 0 to 1.
    """
    scales = any(isinstance(layer, Rescaling | Normalization) for layer in model.layers)
    return 1.0 if scales or "int" in model.inputs[0].dtype else 1 / 255


def as_taken(model: Model, images: Array) -> Array:
    """Images, uint8 (N, H, W, C), as the model takes them."""
    from minicnn.visual.attribution import channels_first

    factor = scale(model)
    scaled = images if factor == 1 else images.astype(np.float32) * np.float32(factor)
    return scaled.transpose(0, 3, 1, 2) if channels_first(model) else scaled


def names(model: Model) -> list[str]:
    """Names of the model's classes; their numbers if it has none."""
    count: Any = model.output_shape
    return list(model.class_names or map(str, range(max(count[-1], 2))))
