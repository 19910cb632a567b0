"""What mlx.core lacks or has under another name: `minicnn conformance mlx.core --shim mlx_shim.py`."""

import mlx.core as mx

bool = mx.bool_  # noqa: A001


def argsort(x, *, axis=-1, descending=False, stable=True):
    """Indices that sort: mlx takes no other arguments."""
    return mx.argsort(x, axis)


def searchsorted(x, values, *, side="left"):
    """Positions, from which 1 can be taken: mlx has them without sign."""
    return mx.searchsorted(x, values, side=side).astype(mx.int32)


def from_numpy(array):
    """An array of the same type, where mlx would make float32 of float64."""
    return mx.array(array, dtype=getattr(mx, array.dtype.name.replace("bool", "bool_")))


def force(arrays):
    """Arrays that are computed."""
    mx.eval(*arrays)
    return arrays
