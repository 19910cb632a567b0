"""Methods of a model that write and read files: `Model` names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from minicnn.files import Path

if TYPE_CHECKING:
    from minicnn.models.model import Model


def save(model: Model, path: Path) -> None:
    """Write architecture, weights and optimizer state to one safetensors file; see `minicnn.saving`.

    Of several ranks the first writes it.
    """
    from minicnn.saving import save_model

    model.join()
    if model._training.chief:
        save_model(model, path)


def save_weights(model: Model, path: Path) -> None:
    """Write the weights to one safetensors file; see `minicnn.saving`. Of several ranks the first writes it."""
    from minicnn.saving import save_weights

    model.join()
    if model._training.chief:
        save_weights(model, path)


def load_weights(model: Model, path: Path, skip_mismatch: bool = False) -> None:
    """Read weights that `save_weights` or `save` wrote; see `minicnn.saving`."""
    from minicnn.saving import load_weights

    load_weights(model, path, skip_mismatch)


def export(
    model: Model, path: Path, kind: Literal["predict", "evaluate", "train", "state"] = "predict", *,
    hold_weights: bool = True,
) -> None:  # fmt: skip
    """Write a step as an ONNX file of standard operators, for any batch size, in float32.

    What a step carries to the next one, such as the weights, comes in by its name, and goes out as "next/NAME";
    outputs that begin with "metric/" are the totals of metrics over the batch. Before the file is written, ONNX
    Runtime computes one step with it, and the results are those of NumPy.

    Args:
        path: File to write, usually with the ending ".onnx".
        kind: "predict"; "evaluate", loss and metrics; "train", a whole training step with the backward pass and
            the update; or "state", which takes nothing and gives what the first training step takes.
        hold_weights: Whether the file holds the weights; else they are inputs. Those of "train" are always.

    Raises:
        ValueError: If primitives have no form in ONNX, of which all are named, the precision is not float32, or
            there are more than 2 GB of weights.
        RuntimeError: If the model is not compiled, where the kind takes it, or the file does not agree with NumPy.
        OSError: If the file cannot be written; names the path and a remedy.
        ImportError: If onnx or onnxruntime is missing.
    """
    from minicnn.interop.onnx.exporting import export

    export(model, path, kind, hold_weights=hold_weights)
