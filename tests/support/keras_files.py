"""Files in the form of Keras 3, written without Keras."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Groups = Mapping[str, Sequence[Array]]  # variables by the path of their layer's group


def layer(kind: str, name: str, *, module: str = "keras.layers", **config: Any) -> dict[str, Any]:
    """A layer in a description."""
    full = {"name": name, "trainable": True, "dtype": {"class_name": "DTypePolicy", "config": {"name": "float32"}}}
    return {"module": module, "class_name": kind, "config": full | config, "registered_name": None}


def chain(*layers: dict[str, Any], shape: Sequence[int | None] = (4,)) -> dict[str, Any]:
    """The description of a Sequential."""
    first = layer("InputLayer", "input", batch_shape=[None, *shape], dtype="float32")
    return layer("Sequential", "chain", module="keras", layers=[first, *layers])


def called(entry: dict[str, Any], *sources: tuple[str, int, int], **options: Any) -> dict[str, Any]:
    """A layer of a Functional, called once with some tensors."""
    tensors = [{"class_name": "__keras_tensor__", "config": {"keras_history": list(source)}} for source in sources]
    node = {"args": [tensors[0] if len(tensors) == 1 else tensors], "kwargs": options}
    return {**entry, "name": entry["config"]["name"], "inbound_nodes": [node] if sources else []}


def functional(*layers: dict[str, Any], ends: str, shape: Sequence[int] = (4,)) -> dict[str, Any]:
    """The description of a Functional with one input, "in", and one output."""
    first = called(layer("InputLayer", "in", batch_shape=[None, *shape], dtype="float32"))
    graph = {"layers": [first, *layers], "input_layers": ["in", 0, 0], "output_layers": [ends, 0, 0]}
    return layer("Functional", "net", module="keras", **graph)


def dense(name: str, units: int, **config: Any) -> dict[str, Any]:
    """A Dense layer."""
    return layer("Dense", name, **{"units": units, "activation": "linear", "use_bias": True, **config})


def weights(groups: Groups, names: Mapping[str, str] | None = None) -> bytes:
    """A file of weights."""
    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for path, variables in groups.items():
            group = file.create_group(f"{path}/vars")
            if names and path in names:
                group.attrs["name"] = names[path]
            for number, variable in enumerate(variables):
                group.create_dataset(str(number), data=variable)
    return stream.getvalue()


def archive(path: Path, config: Any, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A file .keras."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("metadata.json", "{}")
        file.writestr("config.json", config if isinstance(config, bytes) else json.dumps(config))
        file.writestr("model.weights.h5", content)
    return path


def small() -> tuple[dict[str, Any], bytes]:
    """Description and weights of a Dense layer from 4 to 2 that Keras would load."""
    kernel, bias = np.arange(8, dtype="float32").reshape(4, 2), np.ones(2, "float32")
    return chain(dense("d", 2)), weights({"layers/dense": [kernel, bias]}, {"layers/dense": "d"})
