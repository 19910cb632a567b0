"""NamespaceBackend: the references on any namespace of the Array API."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from minicnn.backends.base import Array, Backend, Executable, Kernel
from minicnn.program.graph import Program


class NamespaceBackend(Backend):
    """Trains on the arrays of any library that has the Array API.

    What a library lacks, or does in another way, a shim makes good: a module whose names stand in place of the
    namespace's, such as `astype`. Three names of it are for the way in and out:

    - `from_numpy(array)`: an array of the library from one of NumPy; else `asarray` of a copy;
    - `to_numpy(array)`: the way back; else DLPack, or what `numpy.asarray` takes;
    - `force(arrays)`: a list of arrays that are computed, of arrays that may be lazy; else they are as they are.

    Args:
        namespace: The namespace, or the name of the module that it is, such as "dask.array".
        shim: A module, or its name; or None.
        eager: Whether results are computed node by node, for times, where the library would wait.
        reference_only: See `get_backend`; there are no kernels.
        strict: See `get_backend`.

    Raises:
        ImportError: If a module of that name is missing.

    Example:
        >>> NamespaceBackend("array_api_compat.numpy")
        <backend namespace:array_api_compat.numpy>
    """

    name = "namespace"

    def __init__(
        self,
        namespace: Any,
        shim: str | ModuleType | None = None,
        *,
        eager: bool = False,
        reference_only: bool = False,
        strict: bool = False,
    ) -> None:
        super().__init__(None, reference_only=reference_only, strict=strict)
        # Modules by their names, by which they can be pickled.
        self.namespace = namespace.__name__ if isinstance(namespace, ModuleType) else namespace
        self.shim = shim.__name__ if isinstance(shim, ModuleType) else shim
        self.eager = eager
        module = None if shim is None else shim if isinstance(shim, ModuleType) else importlib.import_module(shim)
        library = importlib.import_module(namespace) if isinstance(namespace, str) else namespace
        self.xp = _Overlaid(module, library)
        self.device = str(self.namespace)
        self._from_numpy: Callable[[Any], Array] = getattr(module, "from_numpy", self.xp.asarray)
        self._to_numpy: Callable[[Array], Any] = getattr(module, "to_numpy", _to_numpy)
        self._force: Callable[[list[Array]], list[Array]] | None = getattr(module, "force", None)
        self._kind = type(self.asarray(np.zeros(1, "float32")))

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        """See `Backend.asarray`."""
        if hasattr(self, "_kind") and self.owns(data) and not isinstance(data, np.ndarray):
            return data if dtype is None else self.xp.astype(data, getattr(self.xp, dtype))
        return self._from_numpy(np.array(data, dtype=dtype))  # a copy, as a library may go on using the memory

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """See `Backend.to_numpy`."""
        return np.asarray(self._to_numpy(array))

    def owns(self, array: Any) -> bool:
        """See `Backend.owns`."""
        return isinstance(array, self._kind)

    def functions(self, program: Program) -> list[Kernel]:
        """See `Backend.functions`."""
        functions = super().functions(program)
        return [partial(_at_once, f, self._force) for f in functions] if self.eager and self._force else functions

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; what is lazy is computed at the end, or it would grow from step to step."""
        run, force = super().compile(program), self._force
        if force is None:
            return run

        def forced(arrays: Mapping[str, Array]) -> dict[str, Array]:
            results = run(arrays)
            return dict(zip(results, force(list(results.values())), strict=True))

        return forced


class _Overlaid:
    """The names of a namespace, those of a shim in front."""

    def __init__(self, *parts: Any) -> None:
        self._parts = [part for part in parts if part is not None]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        *front, last = self._parts
        for part in front:
            if hasattr(part, name):
                return getattr(part, name)
        return getattr(last, name)  # whose error names it


def _at_once(function: Kernel, force: Callable[[list[Array]], list[Array]], *arrays: Array) -> Any:
    result = function(*arrays)
    return tuple(force(list(result))) if isinstance(result, tuple) else force([result])[0]


def _to_numpy(array: Array) -> Any:
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return np.array(np.from_dlpack(array))
    return np.asarray(array)
