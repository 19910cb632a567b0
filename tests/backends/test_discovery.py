"""Backends are found by name, inferred from arrays, and say what is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicnn.backends
from minicnn.backends import backend_class, get_backend, infer_backend, names
from minicnn.backends.base import Backend
from minicnn.extras import install


def test_names_are_those_of_the_modules() -> None:
    found = names()
    assert {"numpy", "torch", "jax", "array_api_strict"} <= set(found)
    assert "base" not in found
    folder = Path(minicnn.backends.__path__[0])
    for name in found:
        assert (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "array_api_strict"])
def test_get_backend_by_name(name: str) -> None:
    pytest.importorskip(name)
    backend = get_backend(name)
    assert isinstance(backend, Backend)
    assert backend.name == name
    assert backend_class(name) is type(backend)
    assert backend.device.startswith("cpu")
    assert repr(backend) == f"<backend {name}:{backend.device}>"
    assert repr(get_backend(name, reference_only=True, strict=True)).endswith("reference_only=True, strict=True>")
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in backend.describe().items())
    backend.synchronize()
    assert backend.memory() is None


def test_two_backends_live_side_by_side() -> None:
    assert get_backend("numpy") is not get_backend("numpy")


def test_default_comes_from_the_environment_then_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)
    assert get_backend().name == "numpy"
    monkeypatch.setenv("MINICNN_BACKEND", "array_api_strict")
    pytest.importorskip("array_api_strict")
    assert get_backend().name == "array_api_strict"
    assert get_backend("numpy").name == "numpy"
    monkeypatch.setenv("MINICNN_BACKEND", "")
    assert get_backend().name == "numpy"


def test_a_backend_object_is_taken_as_it_is() -> None:
    backend = get_backend("numpy", reference_only=True)
    assert get_backend(backend) is backend
    with pytest.raises(ValueError, match=r"set when a backend is made\. Received: <backend numpy:cpu.*strict=True\."):
        get_backend(backend, strict=True)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"A backend is one of array_api_strict, .*numpy.*Received: 'nmupy'"):
        get_backend("nmupy")


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("torch", "torch", "torch"), ("jax", "jax", "jax"), ("array_api_strict", "array_api_strict", "test")],
)
def test_missing_library(name: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"minicnn.backends.{name}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)  # makes `import library` fail
    with pytest.raises(ImportError) as caught:
        get_backend(name)
    assert str(caught.value) == f"Backend '{name}' needs {library}: {install(extra)}."
    assert caught.value.name == library


def test_a_broken_library_shows_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr("minicnn.backends.importlib.import_module", broken)
    with pytest.raises(ImportError, match=r"needs libcudart\.so\.12: cannot open"):
        get_backend("torch")


@pytest.mark.parametrize("name", ["torch", "jax", "array_api_strict"])
def test_inference_from_arrays(name: str) -> None:
    pytest.importorskip(name)
    array = get_backend(name).asarray(np.ones(3, "float32"))
    found = infer_backend([np.ones(3), None, 5, array])
    assert found is not None
    assert found.name == name
    assert found.owns(array)


def test_inference_keeps_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    class Tensor:
        device = "cuda:1"

    Tensor.__module__ = "torch"
    found = infer_backend([Tensor()])
    assert found is not None
    assert (found.name, found.device) == ("torch", "cuda:1")


def test_numpy_arrays_and_foreign_objects_say_nothing() -> None:
    assert infer_backend([]) is None
    assert infer_backend([np.ones(3), [1.0], "x", object()]) is None


@pytest.mark.environment
def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """Importing the package, the primitives and the NumPy backend loads no other array library."""
    code = (
        "import sys, minicnn.ops, minicnn.program, minicnn.backends as b\n"
        "b.get_backend('numpy'); b.names(); b.infer_backend([1, 'x'])\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & "
        "{'torch', 'jax', 'jaxlib', 'array_api_strict', 'cupy', 'numba', 'matplotlib', 'rich', 'click', 'pooch'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.environment
def test_every_backend_module_has_one_class_of_its_own() -> None:
    for name in names():
        if importlib.util.find_spec(name) is not None:
            assert issubclass(backend_class(name), Backend)
