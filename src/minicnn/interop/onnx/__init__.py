"""ONNX: models as its files, and its files as models."""

from __future__ import annotations

import os

from minicnn.backends.base import Backend
from minicnn.extras import install
from minicnn.interop.onnx.exporting import export
from minicnn.models.model import Model

__all__ = ["export", "from_onnx"]


def from_onnx(path: str | os.PathLike[str], *, backend: str | Backend | None = None, seed: int = 0) -> Model:
    """A trainable model of an ONNX file, with its weights.

    It has one layer, an `OnnxGraph`, which names its nodes after those of the file. Weights have the file's names.
    Convolutions take images channels first, as in the file.

    Args:
        path: The file. Arrays outside of it are read from its own folder only.
        backend: See `Model`.
        seed: See `Model`.

    Returns:
        A model whose samples have the shapes of the file's inputs without their first axis, which is the batch.

    Raises:
        ValueError: If there are operators that primitives do not cover; all are named. Or if an input has no first
            axis, or one whose other lengths are not known.
        SavedModelError: If the file is damaged, or is no ONNX file; a ValueError.
        OSError: If the file cannot be read.
        ImportError: If onnx is missing.
    """
    try:
        from minicnn.interop.onnx import reading
    except ImportError as error:
        raise ImportError(f"from_onnx needs onnx: {install('onnx')}.", name=error.name) from error
    return reading.model_of(path, backend, seed)
