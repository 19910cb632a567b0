"""Models and weights of other libraries, and the way back; ONNX files."""

from minicnn.interop.onnx import from_onnx
from minicnn.interop.onnx.pages import export_page
from minicnn.interop.torch_modules import from_torch
from minicnn.interop.torch_weights import load_torch_weights, to_torch_weights

__all__ = ["export_page", "from_onnx", "from_torch", "load_torch_weights", "to_torch_weights"]
