"""Models in files: one safetensors file holds architecture, weights and all that training needs to go on.

Tensors are the weights by path, the optimizer's state and the step counter; the metadata hold JSON. Reading
builds only classes that minicnn or the caller names, and runs nothing that is in the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

import minicnn
from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.configured import decode, rebuild
from minicnn.description import describe, expected_arrays
from minicnn.files import (
    Path,
    SavedModelError,
    Tensors,
    check_ending,
    pack_tensors,
    read_tensors,
    unpack_tensors,
    write_file,
    write_tensors,
)
from minicnn.layers.serialization import Budget, graph_from_config
from minicnn.losses import Loss
from minicnn.metrics import Metric
from minicnn.models import Model, Sequential
from minicnn.optimizers import Optimizer

__all__ = [
    "SavedModelError", "load_model", "load_weights", "model_from_bytes", "model_to_bytes", "save_model", "save_weights",
]  # fmt: skip

Content = tuple[Tensors, dict[str, Any]]

_FORMAT = 1
_MODEL, _WEIGHTS = "model", "weights"


def save_model(model: Model, path: Path) -> None:
    """Write a model to one file: architecture, weights, what `compile` was told, and the optimizer's state.

    The file is written atomically: an interruption leaves the one that was there whole.

    Args:
        model: The model, built.
        path: File to write, in a folder that is there. The usual ending is ".safetensors".

    Raises:
        RuntimeError: If the model is not built.
        TypeError: If an argument of a layer, loss, metric or optimizer is no plain data, such as a function.
        ValueError: If the optimizer has state that it does not name, or a class of the caller has the name of one of
            minicnn's own, or the path the ending of another format, such as ".keras".
        OSError: If the file cannot be written; names the path and a remedy.
        ImportError: If safetensors is missing.

    Example:
        >>> from minicnn.layers import Dense, Input
        >>> model = Sequential([Input((4,)), Dense(2)])
        >>> save_model(model, "model.safetensors")
        >>> load_model("model.safetensors").count_params()
        10
    """
    check_ending(path)
    write_file(path, model_to_bytes(model))


def model_to_bytes(model: Model) -> bytes:
    """The content of the file that `save_model` writes."""
    about = describe(model)
    variables = model._training.variables
    there = list(variables.cells)
    if about["compile"] is None or model._training.step.author is not None:
        # What a step of one's own carries beside weights is known once it is traced.
        tensors = {name: variables.get(name) for name in (there if about["compile"] else model._weights)}
    else:
        expected = expected_arrays(model)
        unknown = set(there) - set(expected) - {"step"}
        if unknown:
            raise ValueError(
                "An optimizer that is saved has its state in the arrays that state_names() lists. "
                f"Received: {', '.join(sorted(unknown))} besides. Name them there."
            )
        # State that training has not needed yet is zero.
        tensors = {
            name: variables.get(name) if name in there else np.zeros(shape, dtype)
            for name, (shape, dtype) in expected.items()
        }
    return pack_tensors(tensors, {"kind": _MODEL, "format": _FORMAT, "minicnn": minicnn.__version__, **about})


def load_model(
    path: Path, backend: str | Backend | None = None, custom_objects: Mapping[str, type[Any]] | None = None
) -> Model:
    """Read a model that `save_model` wrote. It predicts and trains on as the saved one would have.

    Args:
        path: The file.
        backend: Backend of the model, whatever the saved one ran on; see `Model`.
        custom_objects: Classes that are not minicnn's own, by name: layers, losses, metrics ...

    Returns:
        A Sequential or a Model; compiled if the saved one was.

    Raises:
        SavedModelError: If the file is damaged, or not the file of a model; a ValueError.
        OSError: If the file cannot be read.
        ImportError: If safetensors is missing.
    """
    # A wrong name is the caller's mistake, and is to be said before the file is blamed for anything.
    chosen = None if backend is None else get_backend(backend)
    return _load(path, read_tensors(path), chosen, custom_objects)


def model_from_bytes(
    data: bytes, backend: str | Backend | None = None, custom_objects: Mapping[str, type[Any]] | None = None
) -> Model:
    """The model whose file has the given content; see `load_model`."""
    chosen = None if backend is None else get_backend(backend)
    return _load("bytes", unpack_tensors(data), chosen, custom_objects)


def _load(path: Path, content: Content, chosen: Backend | None, custom_objects: Mapping[str, Any] | None) -> Model:
    tensors, about = _checked(path, content, _MODEL)
    try:
        model = build_model(about, chosen, custom_objects or {})
        expected = expected_arrays(model)
        if model._training.step.author is not None:
            # What its step carries has the shapes that this has when it is traced, which is looked at then.
            expected = {n: expected[n] for n in model._weights} | {
                n: (a.shape, a.dtype.name) for n, a in tensors.items() if n not in model._weights
            }
    # Whatever a damaged or malicious description leads to, the error names the file.
    except Exception as error:
        wrong = f"its model cannot be built ({type(error).__name__}: {error})"
        remedy = "Pass all classes that are not minicnn's own as custom_objects, or save the model again"
        raise SavedModelError(path, wrong, remedy) from error
    # Before any weight is taken up, so that a model is loaded whole or not at all.
    _check(path, tensors, expected)
    model._training.executor.restore(tensors, int(tensors.get("step", 0)))
    return model


def save_weights(model: Model, path: Path) -> None:
    """Write the weights of a model to one file, atomically.

    Args:
        model: The model, built.
        path: File to write, in a folder that is there.

    Raises:
        RuntimeError: If the model is not built.
        ValueError: If the path has the ending of another format, such as ".h5".
        OSError: If the file cannot be written; names the path and a remedy.
        ImportError: If safetensors is missing.
    """
    model.input_shape  # noqa: B018  # a model that is not built has none, and says so
    write_tensors(path, model.get_weights(), {"kind": _WEIGHTS, "format": _FORMAT})


def load_weights(model: Model, path: Path, skip_mismatch: bool = False) -> None:
    """Read weights that `save_weights` or `save_model` wrote into a model of the same architecture.

    Args:
        model: The model, built; it is not changed if there is an error.
        path: The file.
        skip_mismatch: Whether layers whose weights differ in name or shape keep their own, with a warning, as the new
            head of a network does.

    Raises:
        SavedModelError: If the file is damaged, or its weights are not those of the model; a ValueError.
        RuntimeError: If the model is not built.
        OSError: If the file cannot be read.
        ImportError: If safetensors is missing.
    """
    model.input_shape  # noqa: B018  # as above
    tensors, about = _checked(path, read_tensors(path), _MODEL, _WEIGHTS)
    if about["kind"] == _MODEL:
        tensors = {name: array for name, array in tensors.items() if name in about.get("weights", ())}
    dtype = model._training.variables.dtype  # the file may hold another precision
    tensors = {name: a.astype(dtype) if a.dtype.kind == "f" else a for name, a in tensors.items()}
    expected = {p: (w.shape, dtype) for p, w in model._weights.items()}
    if skip_mismatch:
        skipped = _differences(tensors, expected)
        tensors = {name: array for name, array in tensors.items() if _layer_of(name) not in skipped}
        if skipped:
            warnings.warn(
                f"Layers keep their weights where the file's differ: {'; '.join(skipped.values())}.", stacklevel=3
            )
    else:
        remedy = "Build the model like the one whose weights these are, or load with skip_mismatch=True"
        _check(path, tensors, expected, remedy)
    model.set_weights(tensors)


def _checked(path: Path, content: Content, *kinds: str) -> Content:
    """Tensors and description of a file, if it is of one of these kinds and of this format."""
    tensors, about = content
    if about.get("kind") not in kinds:
        wrong = f"it holds a {about.get('kind')!r:.40}, no {' or '.join(kinds)}"
        raise SavedModelError(path, wrong, "Use the file that save or save_weights wrote")
    if about.get("format") != _FORMAT:
        wrong = f"it has format {about.get('format')!r:.40}, this version of minicnn reads {_FORMAT}"
        raise SavedModelError(path, wrong, "Read it with the version that wrote it, or upgrade minicnn")
    return tensors, about


def build_model(about: Mapping[str, Any], backend: Backend | None, classes: Mapping[str, Any]) -> Model:
    """The model that `minicnn.description.describe` described, with first weights.

    Raises:
        Exception: Of any kind, if the description does not hold together.
    """
    import minicnn.interop.onnx.graph  # noqa: F401 - registers its layer, which files of models may name

    name, seed = about["name"], about["seed"]
    if not (name is None or isinstance(name, str)) or not isinstance(seed, int):
        raise ValueError(f"the name is a string and the seed an integer, not {name!r:.40} and {seed!r:.40}")
    if about["class"] not in ("Model", "Sequential", "Written"):
        raise ValueError(f"a model is a Model or a Sequential, not {about['class']!r:.40}")
    if about["class"] == "Written":
        model = _written(about, backend, classes)
    else:
        inputs, outputs = graph_from_config(about["graph"], Budget(classes))
        made_of = Sequential._of_tensors if about["class"] == "Sequential" else Model
        model = made_of(inputs, outputs, backend=backend, seed=seed, name=name)
    model._trainable = about.get("trainable", True) is not False
    model.class_names = about.get("class_names")
    compiled = about["compile"]
    if compiled is not None:
        compiled_with = decode({k: v for k, v in compiled.items() if k != "precision"}, classes)
        measured = compiled_with["metrics"] if len(compiled_with["metrics"]) > 1 else compiled_with["metrics"][0]
        precision = compiled["precision"]
        for kind, several in (
            (Optimizer, [compiled_with["optimizer"]]),
            (Loss, compiled_with["losses"]),
            (Metric, chain(*compiled_with["metrics"])),
        ):
            if wrong := [part for part in several if not isinstance(part, kind)]:
                raise ValueError(f"a model is compiled with an Optimizer, Losses and Metrics, not {wrong[0]!r:.60}")
        model.compile(
            compiled_with["optimizer"],
            compiled_with["losses"],
            metrics=measured,
            loss_weights=compiled_with["loss_weights"] or None,
            precision=precision,
        )
        for attribute, rate in compiled.get("rates", {}).items():
            model._training.step.further_optimizers()[attribute].learning_rate = rate
        if "trainable" in compiled:
            flags, layers = compiled["trainable"], model._trainable_now()
            if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
                raise ValueError(f"a model is compiled with layers that are trainable or not, not {flags!r:.60}")
            model._training.step.trainable = dict(zip(layers, flags, strict=True))
    return model


def _written(about: Mapping[str, Any], backend: Backend | None, classes: Mapping[str, Any]) -> Model:
    """A model with a `call` or a step of its own, whose class the caller has given."""
    model = rebuild(about["model"], {"Graph": Model, **classes})  # models among its arguments predict, too
    if not isinstance(model, Model):
        raise ValueError(f"a model is of a class derived from Model, not {type(model).__name__}")
    model._name, model._training.step.seed = about["name"], about["seed"]
    if backend is not None:
        model._training.variables.backend = backend
    shapes = [(None, *shape) for shape, _ in about["inputs"]]
    if shapes and not model.built:
        Model.build(model, shapes if len(shapes) > 1 else shapes[0])
    return model


def _check(
    path: Path,
    tensors: Tensors,
    expected: Mapping[str, tuple[tuple[int, ...], str]],
    remedy: str = "Save the model again, or use another copy",
) -> None:
    different = list(_differences(tensors, expected).values())
    if different:
        more = f"; and so on in {len(different) - 5} more layers" if len(different) > 5 else ""
        raise SavedModelError(path, "; ".join(different[:5]) + more, remedy)


def _differences(tensors: Tensors, expected: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, str]:
    """The first way in which each layer's tensors are not those expected, by the layer's path."""
    different: dict[str, str] = {}
    for name in [*expected, *sorted(tensors)]:
        wrong = ""
        if name not in tensors:
            wrong = "missing"
        elif name not in expected:
            wrong = "one too many"
        elif (stored := (tensors[name].shape, tensors[name].dtype.name)) != expected[name]:
            wrong = f"{stored[1]} {stored[0]}, not {expected[name][1]} {expected[name][0]}"
        if wrong:
            different.setdefault(_layer_of(name), f"tensor {name!r} is {wrong}")
    return different


def _layer_of(path: str) -> str:
    return path.rpartition("/")[0]
