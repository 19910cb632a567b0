"""The public names: importable, exact, documented, and typed."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import minicnn
from minicnn.layers.activations import ACTIVATIONS, ActivationName
from minicnn.loop.tracing import PRECISIONS, Precision
from minicnn.losses import LossName

PACKAGES = [
    "callbacks", "data", "interop", "layers", "losses", "metrics", "models", "ops", "optimizers", "program", "zoo",
]  # fmt: skip


def public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def test_names_of_minicnn() -> None:
    assert minicnn.__all__ == sorted(minicnn.__all__)
    assert set(minicnn.__all__) == {
        "Input", "Layer", "Model", "Sequential", "callbacks", "constraints", "data", "from_onnx", "from_torch",
        "get_backend", "gradients",
        "initializers", "interop", "keras", "layers", "load_keras", "losses", "metrics", "models", "ops",
        "optimizers", "regularizers", "saving", "schedules", "utils", "zoo",
    }  # fmt: skip
    for name, value in public(minicnn).items():
        home = f"minicnn.{name}"
        assert value is importlib.import_module(home) if inspect.ismodule(value) else callable(value)
    assert dir(minicnn) == sorted([*minicnn.__all__, "__version__"])
    assert minicnn.Sequential is importlib.import_module("minicnn.models").Sequential
    assert minicnn.Layer is minicnn.layers.Layer


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(inspect.getfile(minicnn)).read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    names = {alias.name for n in ast.walk(block) if isinstance(n, ast.ImportFrom) for alias in n.names}
    assert names == set(minicnn.__all__)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match=r"module 'minicnn' has no attribute 'Sequentail'"):
        minicnn.Sequentail  # type: ignore[attr-defined]  # noqa: B018


def test_import_of_everything() -> None:
    scope: dict[str, Any] = {}
    exec("from minicnn import *", scope)
    assert set(minicnn.__all__) <= set(scope)


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_packages(package: str) -> None:
    module = importlib.import_module(f"minicnn.{package}")
    names = public(module)
    assert len(names) == len(module.__all__), "a name twice"
    assert not [name for name in names if name.startswith("_")]
    scope: dict[str, Any] = {}
    exec(f"from minicnn.{package} import *", scope)
    assert set(scope) - {"__builtins__"} == set(names)
    for name, value in names.items():
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith(f"minicnn.{package}"), f"{name} belongs to {value.__module__}"
            assert inspect.getdoc(value), f"{name} has no docstring"


@pytest.mark.parametrize("package", ["callbacks", "layers", "models", "ops", "program"])
def test_packages_hold_nothing_else(package: str) -> None:
    """What these packages import from their modules is what they offer."""
    module = importlib.import_module(f"minicnn.{package}")
    found = {n for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert found == set(module.__all__)


@pytest.mark.parametrize("module", [*PACKAGES, "schedules", "initializers", "regularizers", "constraints"])
def test_public_classes_and_their_methods_are_documented(module: str) -> None:
    """A method that implements one of a base class has the documentation of that."""
    found = importlib.import_module(f"minicnn.{module}")
    classes = [v for n, v in vars(found).items() if inspect.isclass(v) and not n.startswith("_")]
    for value in (c for c in classes if c.__module__.startswith("minicnn")):
        assert inspect.getdoc(value)
        for name, method in inspect.getmembers(value, inspect.isfunction):
            theirs = not method.__module__.startswith("minicnn")
            assert theirs or name.startswith("_") or inspect.getdoc(getattr(value, name)), f"{value}.{name}"


LAYERS = [v for v in public(minicnn.layers).values() if inspect.isclass(v)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layers_document_all_arguments_and_shapes(layer: Any) -> None:
    text = inspect.getdoc(layer) or ""
    for name in inspect.signature(layer).parameters:
        assert f"\n    {name}: " in text or (name == "limits" and not layer._limited), name
    if layer is not minicnn.Layer:
        assert text.count("Input shape:\n") == text.count("Output shape:\n") == 1


def test_signatures_of_layers_have_the_arguments_of_all_layers() -> None:
    expected = (
        "(data_format: 'str' = 'channels_last', *, name: 'str | None' = None, trainable: 'bool' = True) -> 'None'"
    )
    assert str(inspect.signature(minicnn.layers.Flatten)) == expected
    assert list(inspect.signature(minicnn.layers.Dense).parameters)[-3:] == ["name", "trainable", "limits"]
    assert list(inspect.signature(minicnn.layers.Dense(1)).parameters) == ["inputs", "more", "training", "named"]


def test_the_package_is_typed_and_has_a_version() -> None:
    assert (Path(inspect.getfile(minicnn)).parent / "py.typed").is_file()
    assert minicnn.__version__.count(".") == 2


def test_type_checkers_know_the_names_that_there_are() -> None:
    assert get_args(ActivationName) == tuple(ACTIVATIONS)
    assert get_args(LossName) == tuple(minicnn.losses.LOSSES)
    assert get_args(Precision) == tuple(PRECISIONS)


def test_a_model_shows_what_users_use() -> None:
    model = minicnn.Sequential([minicnn.Input((4,)), minicnn.layers.Dense(2)], backend="numpy")
    shown = {name for name in dir(model) if not name.startswith("_")}
    documented = {name for name in shown if inspect.getdoc(getattr(type(model), name, None)) or name == "built"}
    assert shown == documented
    internal = {"chief", "limited", "saved_as", "described_as", "of_graph", "trace_call", "trace_graph", "build_once"}
    assert not shown & internal
