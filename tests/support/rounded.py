"""The reference of `mixed_bfloat16`: a Program in NumPy whose casts to bfloat16 round float32; sums stay float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from array_api_compat import numpy as xp

from minicnn.program import Program

Arrays = dict[str, np.ndarray[Any, Any]]


def bfloat16(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Float32 rounded to the nearest bfloat16, to even ones from the middle; denormal numbers become 0."""
    bits = np.asarray(x, "float32").view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(np.isnan(x), x, np.where(tiny, np.copysign(np.float32(0), x), rounded)).astype(np.float32)


def results(program: Program, inputs: Mapping[str, Any]) -> Arrays:
    """Outputs and updates of a Program by name."""
    values = {id(v): np.asarray(inputs[v.name], v.dtype) for v in program.inputs}
    values |= {id(v): np.asarray(v.data) for v in program.constants}
    for node in program.nodes:
        arguments = [values[id(v)] for v in node.inputs]
        if node.op.name == "cast" and "bfloat16" in (node.inputs[0].dtype, node.attrs["dtype"]):
            made: Any = bfloat16(arguments[0]) if node.attrs["dtype"] == "bfloat16" else arguments[0]
        else:
            made = node.op.reference(*arguments, xp=xp, **node.attrs)
        for value, array in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            values[id(value)] = array
    return {name: values[id(v)] for name, v in (program.outputs | program.updates).items()}
