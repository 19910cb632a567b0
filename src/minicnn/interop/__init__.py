"""Models and weights of other libraries, and the way back; ONNX files."""

from minicnn.interop.folders import load_pretrained, save_pretrained
from minicnn.interop.keras_files import KerasFileError, load_keras
from minicnn.interop.onnx import from_onnx
from minicnn.interop.onnx.pages import export_page
from minicnn.interop.torch_models import from_torch
from minicnn.interop.torch_weights import load_torch_weights, to_torch_weights

__all__ = [
    "KerasFileError", "export_page", "from_onnx", "from_torch", "load_keras", "load_pretrained", "load_torch_weights",
    "save_pretrained", "to_torch_weights",
]  # fmt: skip
