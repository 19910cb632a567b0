"""A Program, traced at two batch sizes, as one ONNX model with a symbolic batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

import minicnn
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.merging import Merged, dims
from minicnn.interop.onnx.primitives import written
from minicnn.interop.onnx.tensors import HostArray, Operator, Sheet, Tensor
from minicnn.program.graph import Program, Value
from minicnn.program.layout import channels_first

# Of the standard operators: the newest that the lowest onnx, ONNX Runtime and the runtime of browsers all know.
OPSET = 24
IR_VERSION = 10
NEXT = "next/"  # in front of the name of an input: the output that is given in its place to the next step
MOST_BYTES = 2**31 - 1  # of a protobuf


def model_of(programs: tuple[Program, Program], held: Mapping[str, HostArray]) -> onnx.ModelProto:
    """The model of a Program that was traced for both of `merging.SIZES`.

    Args:
        programs: The Program for each size.
        held: Arrays of inputs, by name, that the file is to hold; the other inputs are the model's.

    Raises:
        ValueError: If primitives have no form in ONNX, or the step does not follow from the batch; all are named.
    """
    sheets, refused = zip(*(_sheet(program, held) for program in programs), strict=True)
    if refused[0]:
        raise ValueError(
            "A step is exported whose primitives are operators of ONNX, or have references that only need what "
            f"minicnn.interop.onnx.tensors.XP has. Received: {'; '.join(sorted(refused[0]))}. Replace them, or enter "
            "how they are written in minicnn.interop.onnx.primitives.RULES."
        )
    first, second = programs
    batch = next((v.name for v, w in zip(first.inputs, second.inputs, strict=True) if v.shape != w.shape), "")
    try:
        merged = Merged((sheets[0], sheets[1]), batch)
        infos = [_info(v, w) for v, w in zip(first.inputs, second.inputs, strict=True)]
        outputs = [
            _info(v, w, result_name(name, first))
            for (name, v), w in zip({**first.outputs, **first.updates}.items(), second.results, strict=True)
        ]
    except NoCounterpartError as error:
        raise ValueError(
            f"A step is exported whose sizes and numbers are multiples or shares of the batch size. Received: {error}. "
            "Take means over samples, and let no shape depend on the batch in another way."
        ) from None
    graph = helper.make_graph(
        [_node(o) for o in merged.operators], first.name,
        [info for v, info in zip(first.inputs, infos, strict=True) if v.kind != "metric" and v.name not in held],
        outputs,
        [numpy_helper.from_array(np.asarray(a, order="C"), n) for n, a in (*merged.constants.items(), *held.items())],
    )  # fmt: skip
    return finished(graph)


def finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A model of a graph, checked by onnx, with the inference of all shapes."""
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="minicnn",
        producer_version=minicnn.__version__,
    )  # fmt: skip
    onnx.checker.check_model(model, full_check=True)
    return model


def _sheet(program: Program, held: Collection[str]) -> tuple[Sheet, set[str]]:
    """The operators of a Program, and what has no form in ONNX, with the reason."""
    program = channels_first(program.copy())
    sheet, refused = Sheet(held), set[str]()
    tensors: dict[int, Tensor] = {}
    for v in program.inputs:
        if v.kind == "metric":  # totals begin at zero in each step, so that a step gives those of its batch
            tensors[id(v)] = sheet.constant(np.zeros(v.shape, v.dtype))
        else:
            tensors[id(v)] = Tensor(sheet, v.name, v.shape, v.dtype)
    tensors |= {id(v): sheet.constant(v.data, v.dtype) for v in program.constants}
    for node in program.nodes:
        try:
            results: Sequence[Tensor] = written(sheet, node, [tensors[id(v)] for v in node.inputs])
        except NoCounterpartError:
            raise
        except Exception as error:  # a reference of the caller's raises what it likes
            refused.add(f"{node.op.name} in {node.scope or program.name} ({type(error).__name__}: {error})")
            results = [Tensor(sheet, v.name, v.shape, v.dtype) for v in node.outputs]
        tensors |= {id(v): t for v, t in zip(node.outputs, results, strict=True)}
    leaving = {**program.outputs, **program.updates}
    sheet.leave({result_name(name, program): tensors[id(v)] for name, v in leaving.items()})
    return sheet, refused


def result_name(name: str, program: Program) -> str:
    """Name in ONNX of a result of a Program: of what replaces an input, NEXT and the input's."""
    carried = name in program.updates and program.value(name).kind != "metric"
    return NEXT + name if carried else name


def _info(v: Value, w: Value, name: str = "") -> onnx.ValueInfoProto:
    """Description of an array that enters or leaves a graph."""
    return helper.make_tensor_value_info(name or v.name, element_type(v.dtype), dims(v.shape, w.shape))


def element_type(dtype: str) -> int:
    """ONNX's number of an element type."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _node(o: Operator) -> onnx.NodeProto:
    types = {key: element_type(v.name) if isinstance(v, np.dtype) else v for key, v in o.attributes.items()}
    return helper.make_node(o.kind, list(o.inputs), list(o.outputs), name=o.name, **types)


def state_model(arrays: Mapping[str, HostArray]) -> onnx.ModelProto:
    """A model without inputs that gives arrays by name."""
    held = [numpy_helper.from_array(np.asarray(a, order="C"), f"held/{name}") for name, a in arrays.items()]
    nodes = [helper.make_node("Identity", [f"held/{name}"], [name], name=f"{name}/Identity") for name in arrays]
    outputs = [helper.make_tensor_value_info(n, element_type(a.dtype.name), a.shape) for n, a in arrays.items()]
    return finished(helper.make_graph(nodes, "state", [], outputs, held))


def serialized(model: onnx.ModelProto) -> bytes:
    """The bytes of a model's file."""
    size = model.ByteSize()
    if size > MOST_BYTES:
        raise ValueError(
            f"An ONNX file has less than 2 GB. Received: a model of {size / 1e9:.1f} GB. Give hold_weights=False, and "
            "the weights at each call."
        )
    return model.SerializeToString()
