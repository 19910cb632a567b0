"""Descriptions of Keras's models as descriptions of minicnn's: plain data from plain data, layer by layer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from minicnn import layers
from minicnn.constraints import CONSTRAINTS
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.layers import Layer
from minicnn.layers.serialization import MOST_LAYERS
from minicnn.regularizers import REGULARIZERS

Config = Mapping[str, Any]

LAYERS: dict[str, type[Layer]] = {
    name: kind
    for name, kind in vars(layers).items()
    if name in layers.__all__ and isinstance(kind, type) and kind not in (Layer, layers.Lambda)
}
MODELS = ("Functional", "Model", "Sequential")
_SETTINGS = {kind.__name__ for kind in (*REGULARIZERS.values(), *CONSTRAINTS.values())}
# What every layer of Keras has and means nothing here: weights come from the file, and numbers drawn are minicnn's own.
_PASSED_OVER = re.compile(r"name|trainable|dtype|seed|.*_initializer|renorm_.*")  # the last ones: if renorm is on


@dataclass
class Reading:
    """State of reading a description.

    Attributes:
        unknown: Layers without counterpart.
        numbers: Of layers that several models have, by Keras's numbers.
        count: Layers so far, those within models included.
    """

    unknown: list[str] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    count: int = 0


def graph_of(saved: Config, reading: Reading) -> Config:
    """The description of a model in minicnn's form; see `minicnn.layers.serialization`."""
    config = saved["config"]
    if saved["class_name"] == "Sequential":
        return _chain(config, reading)
    inputs: dict[str, Config] = {}
    numbers: dict[str, int] = {}
    entries: list[Config] = []
    nodes: dict[tuple[str, int], tuple[list[tuple[str, int, int]], bool, bool | None]] = {}
    for entry in config["layers"]:
        name = entry["config"]["name"]
        if entry["class_name"] == "InputLayer":
            inputs[name] = _input(entry["config"])
            continue
        numbers[name] = len(entries)
        entries.append(_layer(entry, reading))
        for number, node in enumerate(entry["inbound_nodes"]):
            try:
                nodes[name, number] = _node(node)
            except NoCounterpartError as error:
                reading.unknown.append(f"{entry['class_name']} {name!r} called with {error}")
    starts, several_inputs = _references(config["input_layers"])
    results, several_outputs = _references(config["output_layers"])
    if reading.unknown:
        return {}
    places = {(name, 0): -1 for name in inputs}
    positions = {name: i for i, (name, _, _) in enumerate(starts)}
    calls: list[Config] = []

    def place(name: str, node: int, index: int) -> list[int]:
        return [-1, positions[name]] if name in positions else [places[name, node], index]

    sources = {key: [(name, node) for name, node, _ in tensors] for key, (tensors, _, _) in nodes.items()}
    for key in TopologicalSorter(sources).static_order():
        if key in nodes:
            tensors, as_list, training = nodes[key]
            places[key] = len(calls)
            calls.append(
                {"layer": numbers[key[0]], "inputs": [place(*t) for t in tensors], "list": as_list,
                 "training": training}
            )  # fmt: skip
    ends = [(name, node if (name, node) in places else node - 1, index) for name, node, index in results]
    return {
        "inputs": {"tensors": [inputs[name] for name, _, _ in starts], "list": several_inputs},
        "layers": entries,
        "calls": calls,
        "outputs": {"tensors": [place(*end) for end in ends], "list": several_outputs},
    }


def _chain(config: Config, reading: Reading) -> Config:
    """The same of layers one after the other."""
    first = config["layers"][0]
    begins = first["class_name"] == "InputLayer"
    start = _input(first["config"] if begins else {"batch_shape": config["build_input_shape"]})
    entries = [_layer(entry, reading) for entry in config["layers"][begins:]]
    return {
        "inputs": {"tensors": [start], "list": False},
        "layers": entries,
        "calls": [{"layer": i, "inputs": [[i - 1, 0]], "list": False, "training": None} for i in range(len(entries))],
        "outputs": {"tensors": [[len(entries) - 1, 0]], "list": False},
    }


def _input(config: Config) -> Config:
    return {"shape": config["batch_shape"][1:], "dtype": config.get("dtype", "float32"), "name": config.get("name")}


def _layer(entry: Config, reading: Reading) -> Config:
    """A layer in minicnn's form; one without counterpart is noted."""
    kind, config, shared = entry["class_name"], entry["config"], entry.get("shared_object_id")
    if shared in reading.numbers:
        return {"shared": reading.numbers[shared]}
    if shared is not None:
        reading.numbers[shared] = reading.count
    reading.count += 1
    if reading.count > MOST_LAYERS:
        raise ValueError(f"a saved model has at most {MOST_LAYERS:,} layers")
    frozen = {} if config.get("trainable", True) else {"trainable": False}
    of_keras = str(entry.get("module")).partition(".")[0] == "keras"
    if of_keras and kind in MODELS:
        return {"class": "Graph", "config": {"name": config["name"], **graph_of(entry, reading), **frozen}}
    try:
        if kind == "Lambda":
            raise NoCounterpartError(", whose code is not run")
        if not of_keras or kind not in LAYERS:
            raise NoCounterpartError
        arguments = _arguments(LAYERS[kind], config)
    except NoCounterpartError as error:
        reading.unknown.append(f"{kind} {config['name']!r}{error}")
        return {}
    return {"class": LAYERS[kind].__name__, "config": {"name": config["name"], **arguments, **frozen}}


def _arguments(kind: type[Layer], config: Config) -> dict[str, Any]:
    known = {*inspect.signature(kind.__init__).parameters, *kind._limit_names()}
    arguments = {}
    for name, value in config.items():
        if _PASSED_OVER.fullmatch(name):
            continue
        if name in known:
            arguments[name] = _argument(name, value)
        elif value:  # None, False and 0 switch off what minicnn does not have
            raise NoCounterpartError(f" with {name}={value!r:.40}")
    return arguments


def _argument(name: str, value: Any) -> Any:
    """An argument as plain data in minicnn's form."""
    if isinstance(value, list):
        return [_argument(name, each) for each in value]
    if not isinstance(value, dict):
        return value
    kind, config = value.get("class_name"), value.get("config")
    if kind == "__tuple__":
        return [_argument(name, each) for each in value["items"]]
    if kind == "function" and isinstance(config, str):
        return config  # the name of an activation
    if kind == "__numpy__":
        return config["value"] if isinstance(config, dict) else None
    if kind in _SETTINGS and isinstance(config, dict):
        return {"class": kind, "config": {key: _argument(key, each) for key, each in config.items()}}
    raise NoCounterpartError(f" with {name}={kind!r:.40}")


def _node(node: Config) -> tuple[list[tuple[str, int, int]], bool, bool | None]:
    """Tensors that a call is given, whether as a list, and whether as in training."""
    options = {name: value for name, value in node["kwargs"].items() if value is not None}
    training = options.pop("training", None)
    if options or len(node["args"]) != 1:
        raise NoCounterpartError(f"{len(node['args'])} arguments, {', '.join(options)}".rstrip(", "))
    (argument,) = node["args"]
    as_list = isinstance(argument, list)
    tensors = []
    for each in argument if as_list else [argument]:
        if not isinstance(each, dict) or each.get("class_name") != "__keras_tensor__":
            raise NoCounterpartError(f"{each!r:.40}")
        name, number, index = each["config"]["keras_history"]
        tensors.append((name, number, index))
    return tensors, as_list, training


def _references(tensors: Any) -> tuple[list[tuple[str, int, int]], bool]:
    """Tensors that a model takes or gives, and whether as a list."""
    if isinstance(tensors, dict):
        tensors = list(tensors.values())
    one = len(tensors) == 3 and isinstance(tensors[0], str)
    return [(name, number, index) for name, number, index in ([tensors] if one else tensors)], not one
