"""ONNX files as models that can be trained."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from minicnn.backends.base import Backend
from minicnn.files import SavedModelError
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.files import Tensors, load
from minicnn.interop.onnx.graph import OnnxGraph
from minicnn.interop.onnx.operators import OPERATORS
from minicnn.interop.onnx.tensors import HostArray
from minicnn.layers import Input
from minicnn.models import Model
from minicnn.program.graph import MOST_NODES

# Inputs of operators, by their places, that training changes if the file holds them, and those that it updates.
TRAINED = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (0, 1, 2), "MatMul": (0, 1), "Add": (0, 1), "PRelu": (1,),
    "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2), "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2),
}  # fmt: skip
UPDATED = {"BatchNormalization": (3, 4)}
KERNELS = ("Conv", "ConvTranspose")
MOVING = ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze")


def model_of(path: str | os.PathLike[str], backend: str | Backend | None, seed: int) -> Model:
    """The model of a file; see `minicnn.from_onnx`."""
    try:
        layer, inputs, arrays = _read(path)
        tensors = inputs[0] if len(inputs) == 1 else inputs
        result = Model(tensors, layer(tensors), backend=backend, seed=seed)
        result.set_weights({path: arrays[weight.name] for path, weight in result._weights.items()})
    except NoCounterpartError as error:
        raise _refused(path, [str(error)]) from error
    except (ValueError, OSError):
        raise
    except Exception as error:  # of a message that breaks a rule of ONNX, such as a name that is no text
        raise SavedModelError(path, f"its graph breaks a rule ({type(error).__name__}: {error})") from error
    return result


def _read(path: str | os.PathLike[str]) -> tuple[OnnxGraph, list[Any], dict[str, HostArray]]:
    """The layer of a file, the inputs that it takes, and its weights by name."""
    model, tensors = load(path), Tensors(path)
    graph = model.graph
    _check_operators(path, model)
    held = {t.name: tensors.array(t) for t in graph.initializer}
    infos = [info for info in graph.input if info.name not in held]
    inputs = [_input(path, info) for info in infos]
    trained, updated = _weights_of(graph, held)
    kernels = _kernels(graph, trained)
    arrays = {n: held[n].transpose(2, 3, 1, 0) if n in kernels else held[n] for n in trained + updated}
    del graph.initializer[:]
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in held.items() if n not in arrays)
    layer = OnnxGraph(
        base64.b64encode(model.SerializeToString()).decode(),
        {n: list(arrays[n].shape) for n in trained}, {n: list(arrays[n].shape) for n in updated}, list(kernels),
        _fixed_batch(infos),
    )  # fmt: skip
    return layer, inputs, arrays


def _refused(path: Any, what: Sequence[str]) -> ValueError:
    return ValueError(
        f"An ONNX file becomes a model where primitives cover its operators. Received: {os.fspath(path)!r} with "
        f"{'; '.join(sorted(set(what)))}. Export it in simpler operators, or run it with ONNX Runtime."
    )


def _check_operators(path: Any, model: onnx.ModelProto) -> None:
    """Refuse a graph with operators that are not covered, all of them by name, or with more than a Program holds."""
    if len(model.graph.node) > MOST_NODES:
        raise SavedModelError(path, f"it has {len(model.graph.node)} operators", "Use a smaller model")
    functions = {(f.domain, f.name) for f in model.functions}
    unknown = [
        f"{n.domain + '.' if n.domain else ''}{n.op_type}" for n in model.graph.node
        if (n.domain not in ("", "ai.onnx") or n.op_type not in OPERATORS) or (n.domain, n.op_type) in functions
    ]  # fmt: skip
    if unknown:
        raise _refused(path, unknown)


def _input(path: Any, info: onnx.ValueInfoProto) -> Any:
    tensor = info.type.tensor_type
    dims = tensor.shape.dim if tensor.HasField("shape") else []
    lengths = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    if not lengths or any(n is None or n < 1 for n in lengths[1:]):
        raise ValueError(
            "Inputs of an ONNX file that becomes a model have the batch as their first axis and known lengths beside. "
            f"Received: {os.fspath(path)!r} with {info.name!r} of shape "
            f"{[d.dim_value or d.dim_param or None for d in dims]}. Export it with fixed sizes."
        )
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    return Input(tuple(n for n in lengths[1:] if n is not None), dtype=dtype, name=info.name)


def _fixed_batch(infos: Sequence[onnx.ValueInfoProto]) -> int | None:
    sizes = {info.type.tensor_type.shape.dim[0].dim_value for info in infos}
    return next(iter(sizes)) if len(sizes) == 1 and 0 not in sizes else None


def _weights_of(graph: onnx.GraphProto, held: Mapping[str, HostArray]) -> tuple[list[str], list[str]]:
    """Names of the arrays that training changes, and of those that it updates, in the order in which they are read."""
    names: dict[str, dict[str, None]] = {"trained": {}, "updated": {}}
    moved: dict[str, str] = {}  # the array of which another one has the elements, by the name of that
    for node in graph.node:
        if node.op_type in MOVING and node.input:
            moved |= {node.output[0]: moved.get(node.input[0], node.input[0])}
        for which, places in (("trained", TRAINED), ("updated", UPDATED)):
            for place in places.get(node.op_type, ()):
                name = node.input[place] if place < len(node.input) else ""
                name = moved.get(name, name)
                if name in held and held[name].dtype == np.float32 and held[name].ndim:
                    names[which][name] = None
    return list(names["trained"]), [n for n in names["updated"] if n not in names["trained"]]


def _kernels(graph: onnx.GraphProto, trained: Sequence[str]) -> list[str]:
    """Weights that convolutions alone read, as their kernels: they are kept as (KH, KW, C, F)."""
    reads = [(name, node.op_type in KERNELS and place == 1 and len(node.input) > 1)
             for node in graph.node for place, name in enumerate(node.input)]  # fmt: skip
    others = {name for name, kernel in reads if not kernel}
    sizes = {t.name: len(t.dims) for t in graph.initializer}
    return [n for n in trained if n not in others and (n, True) in reads and sizes[n] == 4]
