"""Graphs of layers as plain data (what JSON holds), and back.

Layers are described as in `minicnn.configured`. A graph is

    {"inputs":  {"tensors": [{"shape", "dtype", "name"}, ...], "list": whether they came as a list},
     "layers":  [layer, ...], each once; {"shared": i} is the i-th layer met so far, nested graphs included,
     "calls":   [{"layer": number, "inputs": [tensor, ...], "list": bool, "training": bool or None}, ...], which of
                several arguments have "names", for each tensor a name or None, and "constants" by name,
     "outputs": {"tensors": [tensor, ...], "list": bool}}

where a tensor is [number of the call, number of its result], or [-1, number] for an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from minicnn.configured import CLASSES, Config, CustomObjects, decode, encode, rebuild
from minicnn.layers.calling import Arguments
from minicnn.layers.graph import Graph
from minicnn.layers.layer import Layer
from minicnn.layers.symbolic import Input, SymbolicTensor, Tensors, connect

# Bounds of a description: layers, each counted as often as it is made and called, and graphs within graphs.
MOST_LAYERS, MOST_NESTED = 5_000, 50
# Nodes that all its calls emit: ResNet-152 has 1,755.
MOST_EMITTED = 20_000


def graph_to_config(graph: Graph) -> Config:
    """Describe structure and layers of a graph as plain data; weights are not part of it.

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
        """Number of layers that a graph calls, with those within them; `known` has that of each layer met so far."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise ValueError(
                f"Graphs nest at most {MOST_NESTED} deep. Received: more. Put the inner layers into the outer one."
            )
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
            raise ValueError(
                f"A saved graph has at most {MOST_LAYERS:,} layers, each counted as often as it is called. "
                f"Received: {max(total, self._made):,}. Save its weights alone, and build it in Python."
            )
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
        if layer._wired is not None:  # a model
            frozen = {} if layer.trainable else {"trainable": False}
            config = {"name": layer._name, **_graph_to_config(layer._wired, known), **frozen}
            entries.append({"class": "Graph", "config": config})
        else:
            entries.append(encode(layer))
    places: dict[Any, list[int]] = {t.key: [-1, i] for i, t in enumerate(graph.inputs)}
    calls = {id(call): i for i, call in enumerate(graph.calls)}
    numbers = {layer: i for i, layer in enumerate(graph.layers)}

    def place(tensor: SymbolicTensor) -> list[int]:
        return places.get(tensor.key) or [calls[id(tensor.source)], tensor.index]

    return {
        "inputs": {
            "tensors": [{"shape": list(t.sample_shape), "dtype": t.dtype, "name": t.name} for t in graph.inputs],
            "list": not graph.one_input,
        },
        "layers": entries,
        "calls": [
            {
                "layer": numbers[call.layer],
                "inputs": [place(t) for t in call.inputs],
                "list": call.as_list,
                "training": call.training,
                **({} if call.form is None else _form_to_config(call.form, call.layer)),
            }
            for call in graph.calls
        ],
        "outputs": {"tensors": [place(t) for t in graph.outputs], "list": not graph.one_output},
    }


def _form_to_config(form: Arguments, layer: Layer) -> Config:
    """Names and constants of a call with several arguments."""
    return {"names": list(form.names), "constants": encode(form.constants, f"an argument of a call of {layer!r}")}


def _names_of(part: Mapping[str, Any], count: int) -> list[str | None]:
    names = part["names"]
    if not isinstance(names, list) or len(names) != count or not all(isinstance(n, str | None) for n in names):
        raise ValueError(f"A call of several arguments has a name or None for each tensor. Received: {names!r:.60}.")
    return names


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
            raise ValueError(
                f"The layers of a saved graph emit at most {MOST_EMITTED:,} nodes, 4 KB of constants counted as one. "
                "Received: more. Save its weights alone, and build it in Python."
            )


@contextmanager
def _described() -> Iterator[None]:
    """Context manager: an entry that a description lacks becomes an error that names it."""
    try:
        yield
    except (KeyError, IndexError) as error:
        raise ValueError(
            "The description of a graph names its inputs, layers, calls and outputs, each before it is "
            f"used. Received: one in which {error.args[0]!r} is missing. Save the model again."
        ) from error


def _graph_from_config(
    config: Mapping[str, Any], custom_objects: Budget, known: list[Layer | None]
) -> tuple[Tensors, Tensors]:
    with _described():
        results = [[Input(t["shape"], dtype=t["dtype"], name=t["name"]) for t in config["inputs"]["tensors"]]]
        layers = [_entry(entry, custom_objects, known) for entry in config["layers"]]

        def tensors(part: Mapping[str, Any], key: str) -> Tensors:
            # Result number -1 is the inputs, which come first here.
            inputs = [results[source + 1][index] for source, index in part[key]]
            if "names" in part:
                return Arguments(inputs, _names_of(part, len(inputs)), decode(part["constants"], custom_objects))
            return inputs if part["list"] else inputs[0]

        for call in config["calls"]:
            if not isinstance(call["training"], bool | None):
                raise ValueError(f"training is True, False or None. Received: training={call['training']!r:.60}.")
            result = connect(layers[call["layer"]], tensors(call, "inputs"), call["training"], custom_objects.left)
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
        layer: Layer = CLASSES["Graph"](*_graph_from_config(config, custom_objects, known), name=config["name"])
        layer._trainable = config.get("trainable", True) is not False
    else:
        layer = rebuild(entry, custom_objects)
    known[number] = layer
    return layer
