"""Keras's files: whole models in files `.keras`, and weights in files `.weights.h5`.

A file `.keras` is an archive of a description, config.json, and of weights, model.weights.h5. The description is
translated into that of minicnn's own files and read as these are: within bounds, and without running anything. Both
libraries have the same order of axes, so weights are taken as they are.
"""

from __future__ import annotations

import io
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.extras import needing
from minicnn.files import LEAST_HOLE, MOST_DEPTH, MOST_TEXT, Path, parse_json
from minicnn.interop.keras_descriptions import MODELS, Config, Reading, graph_of
from minicnn.interop.model_weights import paths_of, weights_of
from minicnn.layers import Layer
from minicnn.layers.graph import Graph
from minicnn.layers.serialization import Budget, graph_from_config
from minicnn.models import Model, Sequential

Array = np.ndarray[Any, Any]


class KerasFileError(ValueError):
    """A file of Keras that cannot be read: names the file, what is wrong, and the remedy."""

    def __init__(self, path: Path, wrong: str, remedy: str = "Save it again with Keras 3, or use another copy") -> None:
        super().__init__(f"A file of Keras is one that Keras 3 wrote, whole. Received: {os.fspath(path)!r}: {wrong}. "
                         f"{remedy}.")  # fmt: skip


def load_keras(path: Path, model: Model | None = None, *, backend: str | Backend | None = None, seed: int = 0) -> Model:
    """A model from Keras's file `.keras`, or a model with the weights of a file `.weights.h5`.

    Args:
        path: What Keras's `model.save` or `model.save_weights` wrote.
        model: For a file of weights, the model that takes them, built like Keras's: the layers have the names that they
            have there, or come in the same order.
        backend: For a whole model, see `Model`.
        seed: For a whole model, see `Model`.

    Returns:
        The model; a whole one is not compiled.

    Raises:
        KerasFileError: If the file is damaged or has layers without counterpart, of which all are named; a ValueError.
        ValueError: If the ending is another, or `model` is missing or too many.
        OSError: If the file cannot be read.
        ImportError: If h5py is missing.

    Example:
        >>> model = load_keras("digits.keras")  # doctest: +SKIP
    """
    name = os.fspath(path)
    whole = name.endswith(".keras")
    if not whole and not name.endswith(".h5"):
        raise ValueError(f"Keras's models are in files .keras, its weights in files .weights.h5. Received: {name!r}.")
    if whole is (model is not None):
        raise ValueError(
            "A file .keras makes a model of its own, a file .weights.h5 is for one that there is. Received: "
            f"{name!r} {'and' if whole else 'without'} a model."
        )
    chosen = None if backend is None else get_backend(backend)
    content = _content(path)
    if model is not None:
        model.input_shape  # noqa: B018  # a model that is not built has none, and says so
        with _Weights(path, content) as file:
            file.load(model, file.places(model))
        return model
    config, packed = _unpacked(path, content)
    model, places = _model(path, config, chosen, seed)
    with _Weights(path, packed) as file:
        file.load(model, places)
    return model


# Files --------------------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        raise KerasFileError(path, "it is no regular file", "Copy it to one")
    if about.st_size > LEAST_HOLE and getattr(about, "st_blocks", about.st_size) * 512 < about.st_size // 100:
        raise KerasFileError(path, "nearly all of it is a hole")
    with open(path, "rb") as file:
        try:
            return file.read()
        except (MemoryError, OverflowError) as error:
            wrong = f"its {about.st_size} bytes do not fit into memory"
            raise KerasFileError(path, wrong, "Read it where there is more") from error


def _unpacked(path: Path, content: bytes) -> tuple[Config, bytes]:
    """Description and file of weights of an archive, which has both uncompressed."""
    members = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name, most in (("config.json", MOST_TEXT), ("model.weights.h5", len(content))):
                info = archive.getinfo(name)
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > min(most, len(content)):
                    raise ValueError(f"{name} is compressed or too large")
                members.append(archive.read(info))
        config = parse_json(members[0])
        if not isinstance(config, dict):
            raise ValueError("config.json is no object")
    except Exception as error:  # zipfile raises BadZipFile, KeyError, NotImplementedError, RuntimeError, struct.error
        raise KerasFileError(path, f"it is damaged, or no archive of Keras ({error})") from error
    return config, members[1]


class _Weights:
    """An open file of weights; a context manager."""

    def __init__(self, path: Path, content: bytes) -> None:
        with needing("Files of Keras need", "h5py", extra="keras"):
            import h5py
        self._h5py, self._path, self._size = h5py, path, len(content)
        try:
            self._file = h5py.File(io.BytesIO(content), "r")
        except Exception as error:
            raise KerasFileError(path, f"it is damaged, or no file of HDF5 ({error})") from error

    def __enter__(self) -> _Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def load(self, model: Model, places: Mapping[Layer, str]) -> None:
        """Give a model its weights, of each layer from its group."""
        paths, arrays, left = paths_of(model), {}, self._size
        try:
            for layer, place in places.items():
                weights = weights_of(layer)
                variables = self._variables(place) if weights else []
                if len(variables) != len(weights):
                    raise ValueError(f"{place} has {len(variables)} variables, and {layer!r} {len(weights)}")
                for weight, variable in zip(weights, variables, strict=True):
                    if variable.shape != weight.shape:
                        raise ValueError(f"{variable.name} has shape {variable.shape}, and {weight!r} {weight.shape}")
                    if variable.dtype.kind not in "fiuV":
                        raise ValueError(f"{variable.name} holds {variable.dtype}, no numbers")
                    left -= variable.nbytes
                    if left < 0:
                        raise ValueError("its variables are larger than the file")
                    arrays[paths[weight]] = _array(variable)
            if missing := [path for path in paths.values() if path not in arrays]:
                raise ValueError(f"there is nothing for {', '.join(missing):.200}")
        except Exception as error:  # HDF5's errors are OSError, KeyError, RuntimeError, ValueError, TypeError
            remedy = "Save it again, or build the model like Keras's"
            raise KerasFileError(self._path, f"its weights are not those of the model ({error})", remedy) from error
        model.set_weights(arrays)

    def places(self, model: Model) -> dict[Layer, str]:
        """The group of each layer with weights: by names where all are there, else by classes in their order."""
        ordered = dict(_places(_entries(model._graph)))
        try:
            names: dict[Any, str] = {
                name: place for name, place in self._names(self._file, "", 0) if isinstance(name, str)
            }
        except Exception as error:
            raise KerasFileError(self._path, f"it is damaged ({error})") from error
        holding = [layer for layer in ordered if weights_of(layer)]
        if all(layer._name in names for layer in holding):
            return {layer: names[layer._name] for layer in holding}
        return {layer: ordered[layer] for layer in holding}

    def _names(self, group: Any, place: str, depth: int) -> Iterator[tuple[Any, str]]:
        """Names of layers in Keras, each with its group."""
        for key in group if depth < MOST_DEPTH else ():
            below = self._below(group, key)
            if key == "vars":
                yield below.attrs.get("name"), place
            elif isinstance(below, self._h5py.Group):
                yield from self._names(below, f"{place}/{key}".lstrip("/"), depth + 1)

    def _below(self, group: Any, key: str) -> Any:
        """A member of a group that is in the file itself."""
        if not isinstance(group.get(key, getlink=True), self._h5py.HardLink):
            raise ValueError(f"{key} of {group.name} is missing, or a link")
        return group[key]

    def _variables(self, place: str) -> list[Any]:
        group = self._file
        for key in (*place.split("/"), "vars"):
            group = self._below(group, key)
        variables = [self._below(group, str(number)) for number in range(len(group))]
        for variable in variables:
            if not isinstance(variable, self._h5py.Dataset) or variable.is_virtual or variable.external:
                raise ValueError(f"{variable.name} is no array, or in another file")
        return variables


def _array(variable: Any) -> Array:
    if variable.attrs.get("dtype") == "bfloat16":  # the first half of a float32, as bytes
        return (np.asarray(variable[()]).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(variable[()])


# Layers and their groups --------------------------------------------------------------------------

# A layer by its class in Keras: None if the outputs do not depend on it; with its own layers, if it is a model.
Entry = tuple[str, Layer | None, "list[Entry] | None"]


def _entries(graph: Graph) -> list[Entry]:
    """The layers of a model as those of one in Keras."""
    return [
        (type(layer).__name__, layer, None) if layer._wired is None
        else ("Sequential" if isinstance(layer, Sequential) else "Functional", layer, _entries(layer._wired))
        for layer in graph.layers
    ]  # fmt: skip


def _entries_of(config: Config, graph: Graph | None) -> list[Entry]:
    """The layers of a description, as far as they are in the graph that was made of it."""
    layers_by_name = {layer._name: layer for layer in graph.layers} if graph is not None else {}
    entries: list[Entry] = []
    for entry in config["layers"]:
        layer = layers_by_name.get(entry["config"]["name"])
        inner = None if layer is None else layer._wired
        below = _entries_of(entry["config"], inner) if entry["class_name"] in MODELS else None
        entries.append((entry["class_name"], layer, below))
    return entries


def _places(entries: list[Entry], prefix: str = "") -> Iterator[tuple[Layer, str]]:
    """Each layer with the path of its group: its class and its number among those of the class."""
    counts: dict[str, int] = {}
    for kind, layer, below in entries:
        name = re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind)).lower()
        counts[name] = counts.get(name, -1) + 1
        place = f"{prefix}layers/{name}" + (f"_{counts[name]}" if counts[name] else "")
        if below is not None:
            yield from _places(below, f"{place}/")
        elif layer is not None:
            yield layer, place


# Descriptions -------------------------------------------------------------------------------------


def _model(path: Path, saved: Config, backend: Backend | None, seed: int) -> tuple[Model, dict[Layer, str]]:
    """The model of a description, and the group of each of its layers."""
    reading = Reading()
    try:
        if saved["class_name"] not in MODELS:
            raise ValueError(f"it is a {saved['class_name']!r:.80}, whose code is not in the file")
        config = saved["config"]
        graph = graph_of(saved, reading)
        if not reading.unknown:
            inputs, outputs = graph_from_config(graph, Budget())
            kind: Any = Sequential._of_tensors if saved["class_name"] == "Sequential" else Model
            model: Model = kind(inputs, outputs, backend=backend, seed=seed, name=config["name"])
            places: dict[Layer, str] = {}
            for layer, place in _places(_entries_of(config, model._graph)):
                places.setdefault(layer, place)  # one that is shared has its weights where it comes first
            return model, places
    except Exception as error:
        wrong = f"its model cannot be built ({type(error).__name__}: {error})"
        raise KerasFileError(path, wrong) from error
    remedy = "Replace them, or build the model in minicnn and load its weights"
    raise KerasFileError(path, f"it has what minicnn has no layer for: {', '.join(reading.unknown)}", remedy)
