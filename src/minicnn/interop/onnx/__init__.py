"""ONNX: models as its files, and its files as models."""

from minicnn.interop.onnx.exporting import export

__all__ = ["export"]
