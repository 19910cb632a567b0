"""ONNX files as models that can be trained."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from minicnn.backends.base import Backend
from minicnn.files import SavedModelError
from minicnn.interop.onnx import images  # noqa: F401 - enters its operators
from minicnn.interop.onnx.files import Tensors, attributes, load
from minicnn.interop.onnx.operators import OPERATORS, Emitter, UnsupportedError, permuted
from minicnn.interop.onnx.tensors import HostArray
from minicnn.layers import Input
from minicnn.layers.layer import Layer
from minicnn.models import Model
from minicnn.program.graph import MOST_NODES, Value

# Inputs of operators, by their places, that training changes if the file holds them, and those that it updates.
TRAINED = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (0, 1, 2), "MatMul": (0, 1), "Add": (0, 1), "PRelu": (1,),
    "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2), "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2),
}  # fmt: skip
UPDATED = {"BatchNormalization": (3, 4)}
KERNELS = ("Conv", "ConvTranspose")


def from_onnx(path: str | os.PathLike[str], *, backend: str | Backend | None = None, seed: int = 0) -> Model:
    """A trainable model of an ONNX file, with its weights.

    It has one layer, an `OnnxGraph`, which names its nodes after those of the file. Weights have the file's names.
    Convolutions take images channels first, as in the file.

    Args:
        path: The file. Arrays outside of it are read from its own folder only.
        backend: See `Model`.
        seed: See `Model`.

    Returns:
        A model whose samples have the shapes of the file's inputs without their first axis, which is the batch.

    Raises:
        ValueError: If there are operators that primitives do not cover; all are named. Or if an input has no first
            axis, or one whose other lengths are not known.
        SavedModelError: If the file is damaged, or is no ONNX file; a ValueError.
        OSError: If the file cannot be read.
        ImportError: If onnx is missing.
    """
    model = load(path)
    tensors = Tensors(path)
    _check_operators(path, model)
    held = {t.name: tensors.array(t) for t in model.graph.initializer}
    given = [info for info in model.graph.input if info.name not in held]
    inputs = [_input(path, info) for info in given]
    trained, updated = _weights_of(model.graph, held)
    kernels = _kernels(model.graph, trained)
    arrays = {n: held[n].transpose(2, 3, 1, 0) if n in kernels else held[n] for n in trained + updated}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in held.items() if n not in arrays
    )  # fmt: skip
    layer = OnnxGraph(
        base64.b64encode(bare.SerializeToString()).decode(),
        {n: list(arrays[n].shape) for n in trained}, {n: list(arrays[n].shape) for n in updated}, list(kernels),
        _fixed_batch(given),
    )  # fmt: skip
    try:
        made = layer(inputs[0] if len(inputs) == 1 else inputs)
        result = Model(inputs[0] if len(inputs) == 1 else inputs, made, backend=backend, seed=seed)
    except UnsupportedError as error:
        raise _refused(path, [str(error)]) from error
    result.set_weights({path: arrays[weight.name] for weight, path in result._paths.items()})
    return result


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
            "Inputs of an ONNX file that becomes a model have the batch as their first axis and known lengths along the "
            f"others. Received: {os.fspath(path)!r} with {info.name!r} of shape "
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
    found: dict[str, dict[str, None]] = {"trained": {}, "updated": {}}
    for node in graph.node:
        for which, places in (("trained", TRAINED), ("updated", UPDATED)):
            for place in places.get(node.op_type, ()):
                name = node.input[place] if place < len(node.input) else ""
                if name in held and held[name].dtype == np.float32 and held[name].ndim:
                    found[which][name] = None
    return list(found["trained"]), [n for n in found["updated"] if n not in found["trained"]]


def _kernels(graph: onnx.GraphProto, trained: Sequence[str]) -> list[str]:
    """Weights that convolutions alone read, as their kernels: they are kept as (KH, KW, C, F)."""
    reads = [(name, node.op_type in KERNELS and place == 1 and len(node.input) > 1)
             for node in graph.node for place, name in enumerate(node.input)]  # fmt: skip
    others = {name for name, kernel in reads if not kernel}
    sizes = {t.name: len(t.dims) for t in graph.initializer}
    return [n for n in trained if n not in others and (n, True) in reads and sizes[n] == 4]


class OnnxGraph(Layer):
    """The operators of an ONNX file, in primitives.

    Args:
        graph: The file without its weights, in base64.
        trained: Shapes of the weights by name.
        updated: Shapes of moving statistics by name.
        kernels: Weights that are kept as (KH, KW, C, F).
        batch: The number of samples that the file was written for, if it is a fixed one.
        name: See `Layer`.
        trainable: See `Layer`.

    Input shape:
        Those of the file.

    Output shape:
        Those of the file.
    """

    def __init__(
        self, graph: str, trained: Mapping[str, Sequence[int]], updated: Mapping[str, Sequence[int]],
        kernels: Sequence[str] = (), batch: int | None = None, *, name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name=name, trainable=trainable)
        self.graph, self.trained, self.updated = graph, dict(trained), dict(updated)
        self.kernels, self.batch = list(kernels), batch

    def build(self, input_shape: Any) -> None:
        """Declare the file's weights."""
        for number, (name, shape) in enumerate(self.trained.items()):
            setattr(self, f"trained_{number}", self.add_weight(name, shape, "zeros"))
        for number, (name, shape) in enumerate(self.updated.items()):
            setattr(self, f"updated_{number}", self.add_weight(name, shape, "zeros", trainable=False))

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        """Emit all operators, each in a scope of its name."""
        model = onnx.ModelProto()
        model.ParseFromString(base64.b64decode(self.graph))
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        held = {name: getattr(self, f"trained_{i}") for i, name in enumerate(self.trained)}
        attribute = {name: f"updated_{i}" for i, name in enumerate(self.updated)}
        held |= {name: getattr(self, at) for name, at in attribute.items()}
        by_value = {id(v): attribute[name] for name, v in held.items() if name in attribute}
        for name in self.kernels:
            held[name] = permuted(held[name], (3, 2, 0, 1))
        emitter = Emitter(
            given[0].program, opset_of(model), training=training and self.trainable,
            draw=partial(self.random_uniform) if training else None,
            assign=lambda old, new: self.assign(by_value[id(old)], new) if id(old) in by_value else None,
            batch=None if self.batch is None else (self.batch, given[0].shape[0]),
        )  # fmt: skip
        names = [info.name for info in model.graph.input if info.name not in held]
        found = emitted(model, emitter, dict(zip(names, given, strict=True)) | held)
        results = [found[info.name] for info in model.graph.output]
        return results if len(results) > 1 else results[0]


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators that a file uses."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def emitted(model: onnx.ModelProto, emitter: Emitter, given: Mapping[str, Value]) -> dict[str, Value]:
    """Emit the operators of a graph; returns the values of all its names.

    Args:
        model: The file.
        emitter: Where they are emitted.
        given: Values of the inputs, and of weights, by name.

    Raises:
        UnsupportedError: If an operator asks for what primitives do not do; names it.
    """
    tensors = Tensors("")
    values: dict[str, Value] = {t.name: emitter.constant(tensors.array(t)) for t in model.graph.initializer}
    values |= given
    for node in model.graph.node:
        a = attributes(node, tensors)
        wanted = [name for name in node.output if name]
        extra = {"outputs": len(node.output)} if node.op_type == "Split" else {}
        try:
            with emitter.program.scope(node.name.strip("/").replace("/", ".")):
                read = [values[name] if name else None for name in node.input]
                made = OPERATORS[node.op_type](emitter, a, *read, **extra)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.op_type} {node.name!r} ({error})") from None
        except Exception as error:  # of a primitive's shape rule, or of a file that breaks a rule of its operators
            raise UnsupportedError(f"{node.op_type} {node.name!r} ({type(error).__name__}: {error})") from error
        results = made if isinstance(made, tuple) else (made,)
        if any(v.dtype in ("float16", "bfloat16") for v in results):
            raise UnsupportedError(f"{node.op_type} {node.name!r} (numbers of 16 bits)")
        if len(wanted) > len(results):
            raise UnsupportedError(f"{node.op_type} {node.name!r} (its result {wanted[-1]!r})")
        values |= dict(zip(node.output, results, strict=False))
    return values
