"""Arrays as scikit-learn takes them: of which namespace they are, and where."""

from __future__ import annotations

from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np
from sklearn import get_config

from minicnn.data.forms import host

Array = Any


def namespace_of(array: Any) -> Any:
    """Namespace of an array's functions: scikit-learn makes all arrays NumPy's unless told otherwise."""
    if get_config()["array_api_dispatch"] and array_api_compat.is_array_api_obj(array):
        return array_api_compat.array_namespace(array)
    return array_api_compat.numpy


def place_of(array: Array) -> tuple[str, str]:
    """Namespace and device of an array."""
    return str(namespace_of(array).__name__), str(array_api_compat.device(array))


def beside(array: Any, other: Array) -> Array:
    """An array in the library and on the device of another, because everything follows X; text stays NumPy's."""
    xp = namespace_of(other)
    there = array if array_api_compat.is_array_api_obj(array) else np.asarray(array)
    if namespace_of(there) is xp:
        return array_api_compat.to_device(there, array_api_compat.device(other))
    there = host(there)
    return there if there.dtype.kind in "OSU" else xp.asarray(there, device=array_api_compat.device(other))
