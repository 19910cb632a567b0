"""Prints as JSON the kernels that the namespace launches: run in the simulator, compiled by another process."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from minicnn.backends.numba_cuda import device
from minicnn.backends.numba_cuda import namespace as xp
from minicnn.backends.numba_cuda.elementwise import FUNCTIONS, OPERATIONS

seen: dict[str, Any] = {}
_launch = device.Device.launch


def _record(self: Any, kernel: Any, *rest: Any) -> None:
    seen[kernel.text + str(kernel.signature)] = (kernel.text, kernel.signature, kernel.threads)
    _launch(self, kernel, *rest)


def main() -> None:
    """Calls everything on every type once, on contiguous and on strided arrays."""
    device.Device.launch = _record  # type: ignore[method-assign]
    kinds = {"f": ("float32", "float64"), "i": ("int32", "int64", "uint8"), "b": ("bool",)}
    for name, function in FUNCTIONS.items():
        template, families, _ = OPERATIONS[name]
        for kind in (k for family in families for k in kinds[family]):
            x = xp.asarray(np.ones((2, 3)).astype(kind))
            function(*[x] * (2 if "{1}" in template else 1))
            if "{1}" in template:
                function(x, x[:, :1])
                function(x, True if kind == "bool" else 2)
    for kind in (k for family in kinds.values() for k in family):
        x = xp.asarray(np.ones((2, 3)).astype(kind))
        for name in ("all", "any", "count_nonzero"):
            getattr(xp, name)(x, axis=0)
        for other in (k for family in kinds.values() for k in family):
            xp.astype(x.T, other)
        xp.where(x == x, x, x)
        xp.concat([x, x], axis=1)
        xp.take(x, xp.asarray([0, 1]), axis=1)
        xp.take_along_axis(x, xp.asarray([[0], [1]]), axis=1)
        xp.tril(x)
        xp.full((2,), 1, dtype=kind)
        xp.sort(xp.reshape(xp.tile(x, (12, 1)), (-1,)), descending=True)
        xp.searchsorted(x[0], x)
        xp.unique_all(x)
        xp.nonzero(x)
        x[x == x] = x[0, 0]
        x[1, xp.asarray([0, -1], dtype="int8")]
        xp.repeat(x, xp.asarray([1, 2]), axis=0)
        x[0] = True if kind == "bool" else 1
        if kind == "bool":
            continue
        for name in ("sum", "prod", "max", "min", "argmax", "argmin", "cumulative_sum", "cumulative_prod"):
            getattr(xp, name)(x, axis=1)
        xp.sum(xp.reshape(xp.tile(x, (30, 1)), (-1,)))
        xp.max(xp.reshape(xp.tile(x, (30, 1)), (-1,)))
        xp.matmul(x, x.T)
        xp.matmul(xp.expand_dims(x, axis=0), x.T)
        xp.arange(4, dtype=kind)
        xp.eye(3, dtype=kind)
    for kind in kinds["f"]:
        xp.nextafter(xp.ones(2, dtype=kind), xp.asarray([[0.0], [1.0]], dtype=kind))
    xp.isin(xp.arange(3, dtype="uint8"), 2)
    xp.linspace(0, 1, 5)
    json.dump(list(seen.values()), sys.stdout)


if __name__ == "__main__":
    main()
