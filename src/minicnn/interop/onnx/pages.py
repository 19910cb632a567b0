"""A folder with a page in which a model is trained in a browser tab: static files, and no server that computes."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np

from minicnn.data.dataset import Dataset
from minicnn.files import write_file
from minicnn.interop.onnx.exporting import ExportKind, exported
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models.model import Model

PAGE = ("index.html", "trainer.js", "package.json")
TRAIN, TEST, BATCH = 4000, 500, 64  # samples that the page loads at most, and those of a step


def export_page(model: Model, folder: str | Path, data: Dataset) -> None:
    """Write a page that trains a classifier: its ONNX files, samples, and a script.

    `npm install` in the folder brings onnxruntime-web, and any server of static files shows the page.

    Args:
        model: A compiled model of one input and one output of scores, with a sparse categorical cross-entropy.
        folder: Where to; it is made if it is not there.
        data: Images of bytes that the model takes, flattened where it takes vectors, with at most 256 classes.

    Raises:
        ValueError: If the model is another one, or does not take the images; or what `Model.export` refuses.
        OSError: If a file cannot be written; names the path and a remedy.
        ImportError: If onnx or onnxruntime is missing.
    """
    shape, image = tuple(cast(Any, model.input_shape)[1:]), data.x_train.shape[1:]
    objective = model._training.step.objective
    losses = [] if objective is None else objective.losses
    if [type(loss) for loss in losses] != [SparseCategoricalCrossentropy] or len(model.inputs) != 1:
        raise ValueError(
            "A page trains a compiled classifier of one input with SparseCategoricalCrossentropy. Received: "
            f"{model!r} with {', '.join(type(loss).__name__ for loss in losses) or 'no loss'}."
        )
    if shape not in (image, (int(np.prod(image)),)) or data.x_train.dtype != np.uint8:
        raise ValueError(
            f"A page has samples that its model takes. Received: images of bytes {image} for a model of {shape}. "
            "Name other data."
        )
    kinds: tuple[ExportKind, ...] = ("state", "train", "predict")
    contents = {f"{kind}.onnx": exported(model, kind, hold_weights=False) for kind in kinds}
    n, m = min(TRAIN, len(data.x_train)), min(TEST, len(data.x_test))
    parts = (data.x_train[:n], data.x_test[:m], data.y_train[:n], data.y_test[:m])
    contents["samples.bin"] = b"".join(np.asarray(part, np.uint8).tobytes() for part in parts)
    optimizer = cast(Any, model.optimizer)
    about = {
        "shape": shape, "classes": cast(Any, model.output_shape)[-1], "dtype": model.inputs[0].dtype, "train": n,
        "test": m, "batch": min(BATCH, n), "learning_rate": optimizer.rate(0),
    }  # fmt: skip
    contents["model.json"] = json.dumps(about, indent=2).encode()
    contents |= {name: files("minicnn.interop.onnx").joinpath("page", name).read_bytes() for name in PAGE}
    for name, content in contents.items():
        write_file(Path(folder) / name, content, folders=True)
