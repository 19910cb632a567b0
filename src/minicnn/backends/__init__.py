"""Backends, found by the name of their module: a new backend is a new file or folder here."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterable
from typing import Any

from minicnn.backends._namespace import NamespaceBackend as NamespaceBackend
from minicnn.backends.base import Backend
from minicnn.extras import install
from minicnn.names import meant

# The extra of a backend, where it has another name.
_EXTRAS = {"array_api_strict": "test", "cupy": "cuda13", "numba_cuda": "numba-cuda"}


def names() -> list[str]:
    """Names of all backends of this installation, whether or not their libraries are there."""
    modules = (m.name for m in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if name != "base" and not name.startswith("_"))


def remedy(name: str) -> str:
    """Suggest what somebody may have meant by a name that no backend has: a sentence, or nothing."""
    wanted = name.lower() in ("cuda", "gpu", "nvidia")
    return (
        " On a GPU of NVIDIA run cupy, numba_cuda, torch:cuda and jax:gpu; on any other, webgpu."
        if wanted
        else meant(name, names())
    )


def backend_class(name: str, source: str = "") -> type[Backend]:
    """The class of a backend.

    Args:
        name: Its name.
        source: Where the name comes from, for the error message.

    Raises:
        ValueError: If there is no backend of that name.
        ImportError: If its library is missing; says what to install.
    """
    if name not in names():
        raise ValueError(f"A backend is one of {', '.join(names())}. Received: {name!r}{source}.{remedy(name)}")
    spec = importlib.util.find_spec(f"{__name__}.{name}")
    home = f"{__name__}.{name}.backend" if spec and spec.submodule_search_locations else f"{__name__}.{name}"
    try:
        module = importlib.import_module(home)
    except ImportError as error:
        message = f"Backend {name!r}{source} needs {error.name or error}: {install(_EXTRAS.get(name, name))}."
        raise ImportError(message, name=error.name) from error
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Backend)]
    return next(c for c in classes if c.__module__ == module.__name__)


def get_backend(
    name: str | Backend | None = None,
    *,
    reference_only: bool = False,
    strict: bool = False,
    convolution: str | None = None,
) -> Backend:
    """A backend by name, such as "numpy", "torch" or "torch:cuda:1".

    Args:
        name: Name, with a device after a colon if wanted; a Backend is returned as it is; None takes
            the environment variable MINICNN_BACKEND, else "numpy".
        reference_only: Switch every kernel off, to find a wrong one.
        strict: Make a node without a kernel an error.
        convolution: Strategy that computes all convolutions that it can, a name in `minicnn.ops.strategies`; all
            else is then computed by references, too.

    Raises:
        ValueError: If there is no such backend, device or strategy, or flags come with a Backend, which has its own.
        ImportError: If its library is missing; says what to install.
    """
    if isinstance(name, Backend):
        if reference_only or strict or convolution:
            raise ValueError(
                "reference_only, strict and convolution are set when a backend is made. Received: "
                f"{name!r} with convolution={convolution!r}, reference_only={reference_only}, strict={strict}. "
                "Give its name instead."
            )
        return name
    full = name or os.environ.get("MINICNN_BACKEND") or "numpy"
    base, _, device = full.partition(":")
    kind = backend_class(base, "" if name else " from the environment variable MINICNN_BACKEND")
    if convolution is not None:
        from minicnn.backends._strategic import strategic
        from minicnn.ops.strategies import get_strategy

        kind = strategic(kind, get_strategy(convolution))
    return kind(device or None, reference_only=reference_only, strict=strict)


def infer_backend(arrays: Iterable[Any]) -> Backend | None:
    """The backend of the first array that is not NumPy's, with its device; None if all are NumPy's.

    Only libraries that are loaded already can have made an array, so none is imported here.
    """
    for array in arrays:
        parts = type(array).__module__.split(".")
        if parts[:-2] == __name__.split("."):  # an array of a backend's own
            return backend_class(parts[-2])(str(array.device))
        library = type(array).__module__.partition(".")[0]
        name = {"jaxlib": "jax"}.get(library, library)
        if name == "numpy" or name not in names() or library not in sys.modules:
            continue
        device = str(array.device) if name == "torch" else None
        device = f"cuda:{array.device.id}" if name == "cupy" else device
        if name == "array_api_strict":  # which plays devices, and names them "array_api_strict.Device('device1')"
            device = repr(array.device).split("'")[1].replace("CPU_DEVICE", "cpu")
        return backend_class(name)(device)
    return None


_used: set[str] = set()  # backends with threads or device memory that this process has computed with
_lost: set[str] = set()  # and those that the process had from which it was forked


def refuse_after_fork(backend: Backend) -> None:
    """Raise a RuntimeError where a backend would hang, because its threads or its device stayed in another process."""
    if backend.survives_fork:
        return
    if backend.name in _lost:
        raise RuntimeError(
            f"The threads and the device memory of {backend.name} do not survive a fork. Received: a process forked "
            f"from one that had computed with the {backend.name} backend. Start processes with "
            'multiprocessing.get_context("spawn"), or compute in the children only.'
        )
    _used.add(backend.name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _lost.update(_used))
