"""What ndonnx does in another way: `minicnn conformance ndonnx --shim ndonnx_shim.py`."""

import ndonnx


def take(x, indices, *, axis=None):
    """Elements by index: ndonnx takes integers of 64 bits alone."""
    return ndonnx.take(x, ndonnx.astype(indices, ndonnx.int64), axis=axis)


def to_numpy(array):
    """The array as one of NumPy."""
    return array.unwrap_numpy()
