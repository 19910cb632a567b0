"""Layers and graphs as plain data (what JSON holds), and back.

Classes are looked up by name in a dict of minicnn's own and in the caller's `custom_objects`: reading data
never imports or runs anything else.

A layer is {"class": name, "config": its get_config()}. A graph is

    {"inputs":  {"tensors": [{"shape", "dtype", "name"}, ...], "list": whether they came as a list},
     "layers":  [layer, ...], each once; {"shared": i} is the i-th layer met so far, nested graphs included,
     "calls":   [{"layer": number, "inputs": [tensor, ...], "list": bool, "training": bool or None}, ...],
     "outputs": {"tensors": [tensor, ...], "list": bool}}

where a tensor is [number of the call, number of its result], or [-1, number] for an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minicnn import layers
from minicnn.initializers import INITIALIZER_CLASSES, Initializer
from minicnn.layers.activation import ACTIVATIONS
from minicnn.layers.graph import Graph, Input, SymbolicTensor, connect
from minicnn.layers.layer import Layer

# Bounds of a description: layers, each counted as often as it is made and called, and graphs within graphs.
MOST_LAYERS, MOST_NESTED = 5_000, 50
# Nodes that all its calls emit: ResNet-152 has 1,755.
MOST_EMITTED = 20_000

Config = dict[str, Any]
CustomObjects = Mapping[str, Any] | None

CLASSES: dict[str, type[Any]] = {
    c.__name__: c
    for c in (Graph, *INITIALIZER_CLASSES.values(), *(getattr(layers, n) for n in layers.__all__))
    if isinstance(c, type) and c is not Layer
}


def encode(value: Any, what: str = "the value") -> Any:
    """Plain data for an argument of a layer.

    Args:
        value: None, a number, a string, a list, a dict with string keys, a layer, an initializer, a built-in
            activation, or nested ones.
        what: What it is, for the error message.

    Raises:
        TypeError: If it is something else, such as a function.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [encode(v, what) for v in value]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: encode(v, what) for k, v in value.items()}
    if isinstance(value, Layer):
        return layer_to_config(value)
    if isinstance(value, Initializer):
        return {"class": type(value).__name__, "config": encode(value.get_config(), what)}
    for name, function in ACTIVATIONS.items():
        if function is value:
            return name
    if callable(value):
        message = (
            f"Functions cannot be saved, because a file holds data only. Received: {value!r} as {what}. Use "
            "the name of an activation, or write a Layer for it and load with custom_objects."
        )
        raise TypeError(message)
    message = f"What is saved is plain data, layers and initializers. Received: {type(value).__name__} as {what}."
    raise TypeError(message)


def decode(value: Any, custom_objects: CustomObjects = None) -> Any:
    """What `encode` made plain: dicts that name a class become its objects, all else stays."""
    if isinstance(value, list | tuple):
        return [decode(v, custom_objects) for v in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"class", "config"}:
        return {k: decode(v, custom_objects) for k, v in value.items()}
    chosen = _class(value["class"], custom_objects)
    if issubclass(chosen, Layer):
        return layer_from_config(value, custom_objects)
    return _build(chosen, lambda: chosen(**decode(value["config"], custom_objects)))


def layer_to_config(layer: Layer) -> Config:
    """The layer's class and arguments as plain data.

    Raises:
        TypeError: If an argument cannot be saved, such as a function.
    """
    # A nested model is saved as the graph that it is.
    name = "Graph" if isinstance(layer, Graph) else type(layer).__name__
    config = encode(layer.get_config(), f"an argument of {name}")
    return {"class": name, "config": config if layer.trainable else {**config, "trainable": False}}


def layer_from_config(config: Mapping[str, Any], custom_objects: CustomObjects = None) -> Layer:
    """The layer that `layer_to_config` described, without weights.

    Args:
        config: Class and arguments.
        custom_objects: Classes that are not minicnn's own, by name.

    Raises:
        ValueError: If the class is unknown, or does not take the arguments.
    """
    chosen = _class(config["class"], custom_objects)
    given = dict(config["config"])
    frozen = given.pop("trainable", True) is False
    layer: Layer = _build(chosen, lambda: chosen.from_config(given, custom_objects))
    layer._trainable = layer._trainable and not frozen  # of this layer: those within have their own
    return layer


def _class(name: str, custom_objects: CustomObjects) -> type[Any]:
    found = {**CLASSES, **(custom_objects or {})}.get(name)
    if not isinstance(found, type):
        message = (
            f"The classes in a saved model are minicnn's own or given by the caller. Received: {name!r}. "
            f"Pass the class as custom_objects={{{name!r}: {name}}}."
        )
        raise ValueError(message)
    return found


def _build(chosen: type[Any], make: Any) -> Any:
    try:
        return make()
    except TypeError as error:
        message = f"Saved arguments are those that the class takes. Received for {chosen.__name__}: {error}."
        raise ValueError(message) from error


def graph_to_config(graph: Graph) -> Config:
    """Structure and layers of a graph as plain data; weights are not part of it.

    Raises:
        TypeError: If a layer cannot be saved.
    """
    return _graph_to_config(graph, {})


def check_size(config: Mapping[str, Any]) -> None:
    """Refuse the description of a graph that would fill memory or take minutes, before anything is made of it.

    Raises:
        ValueError: If it is too large, or does not hold together.
    """
    _Size().calls(config, [])


class _Size:
    """Counts layers in descriptions of graphs: one as often as it is called, and as often as it is made."""

    def __init__(self) -> None:
        self._made = self._depth = 0

    def calls(self, config: Mapping[str, Any], known: list[int]) -> int:
        """How many layers a graph calls, those within them included; `known` has the same for layers met so far."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            message = (
                f"Graphs nest at most {MOST_NESTED} deep. Received: more. Put the inner layers into the outer one."
            )
            raise ValueError(message)
        sizes = []
        for entry in config["layers"]:
            if "shared" in entry:
                sizes.append(known[entry["shared"]])
                continue
            number = len(known)
            known.append(1)
            graph = entry["class"] == "Graph"
            known[number] = self.calls(entry["config"], known) if graph else 1 + self._within(entry["config"])
            sizes.append(known[number])
            self._made += known[number]
        total: int = sum(sizes[call["layer"]] for call in config["calls"])
        if max(total, self._made // 2) > MOST_LAYERS:
            message = (
                f"A saved graph has at most {MOST_LAYERS:,} layers, each counted as often as it is called. "
                f"Received: {max(total, self._made):,}. Save its weights alone, and build it in Python."
            )
            raise ValueError(message)
        self._depth -= 1
        return total

    def _within(self, value: Any) -> int:
        """The same for graphs among the arguments of a layer."""
        if isinstance(value, Mapping):
            if value.get("class") == "Graph":
                return self.calls(value["config"], [])
            return sum(map(self._within, value.values()))
        return sum(map(self._within, value)) if isinstance(value, list | tuple) else 0


def _graph_to_config(graph: Graph, known: dict[Layer, int]) -> Config:
    entries: list[Config] = []
    for layer in graph.layers:
        if layer in known:
            entries.append({"shared": known[layer]})
            continue
        known[layer] = len(known)
        if isinstance(layer, Graph):
            frozen = {} if layer.trainable else {"trainable": False}
            config = {"name": layer.name, **_graph_to_config(layer, known), **frozen}
            entries.append({"class": "Graph", "config": config})
        else:
            entries.append(layer_to_config(layer))
    places: dict[int, list[int]] = {id(t): [-1, i] for i, t in enumerate(graph._inputs)}
    calls = {id(call): i for i, call in enumerate(graph._calls)}
    numbers = {layer: i for i, layer in enumerate(graph.layers)}

    def place(tensor: SymbolicTensor) -> list[int]:
        return places.get(id(tensor)) or [calls[id(tensor.source)], tensor.index]

    return {
        "inputs": {
            "tensors": [{"shape": list(t.sample_shape), "dtype": t.dtype, "name": t.name} for t in graph._inputs],
            "list": not graph._one_input,
        },
        "layers": entries,
        "calls": [
            {
                "layer": numbers[call.layer],
                "inputs": [place(t) for t in call.inputs],
                "list": call.as_list,
                "training": call.training,
            }
            for call in graph._calls
        ],
        "outputs": {"tensors": [place(t) for t in graph._outputs], "list": not graph._one_output},
    }


Tensors = SymbolicTensor | Sequence[SymbolicTensor]


def graph_from_config(config: Mapping[str, Any], custom_objects: CustomObjects = None) -> tuple[Tensors, Tensors]:
    """Inputs and outputs of a graph as `graph_to_config` described it, with new layers between them.

    Args:
        config: The structure.
        custom_objects: Classes that are not minicnn's own, by name.

    Raises:
        ValueError: If a class is unknown, the structure does not hold together, or it is too large.
    """
    budget = custom_objects if isinstance(custom_objects, Budget) else Budget(custom_objects or {})
    with _described():
        check_size(config)
    return _graph_from_config(config, budget, [])


class Budget(dict[str, Any]):
    """The caller's classes by name, and the effort that may still be made, which everything that is read shares."""

    left = MOST_EMITTED

    def spend(self, effort: int) -> None:
        """Count what a call of a layer takes: see `Call.effort`.

        Raises:
            ValueError: If there have been too many.
        """
        self.left -= effort
        if self.left < 0:
            message = (
                f"The layers of a saved graph emit at most {MOST_EMITTED:,} nodes, 4 KB of constants counted as one. "
                "Received: more. Save its weights alone, and build it in Python."
            )
            raise ValueError(message)


@contextmanager
def _described() -> Iterator[None]:
    """Context manager: an entry that a description lacks becomes an error that names it."""
    try:
        yield
    except (KeyError, IndexError) as error:
        message = (
            "The description of a graph names its inputs, layers, calls and outputs, each before it is "
            f"used. Received: one in which {error.args[0]!r} is missing. Save the model again."
        )
        raise ValueError(message) from error


def _graph_from_config(
    config: Mapping[str, Any], custom_objects: Budget, known: list[Layer | None]
) -> tuple[Tensors, Tensors]:
    with _described():
        results = [[Input(t["shape"], dtype=t["dtype"], name=t["name"]) for t in config["inputs"]["tensors"]]]
        made = [_entry(entry, custom_objects, known) for entry in config["layers"]]

        def tensors(part: Mapping[str, Any], key: str) -> Tensors:
            # Result number -1 is the inputs, which come first here.
            found = [results[source + 1][index] for source, index in part[key]]
            return found if part["list"] else found[0]

        for call in config["calls"]:
            result = connect(made[call["layer"]], tensors(call, "inputs"), call["training"], custom_objects.left)
            results.append(result if isinstance(result, list) else [result])
            custom_objects.spend(sum(t.source.effort for t in results[-1][:1] if t.source))
        inputs = results[0] if config["inputs"]["list"] else results[0][0]
        return inputs, tensors(config["outputs"], "tensors")


def _entry(entry: Mapping[str, Any], custom_objects: Budget, known: list[Layer | None]) -> Layer:
    """A layer of a graph: one met before, or a new one, numbered before those within it."""
    if "shared" in entry:
        shared = known[entry["shared"]]
        if shared is None:
            raise KeyError(entry["shared"])
        return shared
    number = len(known)
    known.append(None)
    if entry["class"] == "Graph":
        config = entry["config"]
        layer: Layer = Graph(*_graph_from_config(config, custom_objects, known), name=config["name"])
        layer._trainable = config.get("trainable", True) is not False
    else:
        layer = layer_from_config(entry, custom_objects)
    known[number] = layer
    return layer
