"""The layer that an ONNX file becomes: its operators, emitted one after the other."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minicnn.configured import register
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.onnx.emitting import Emitter, permuted
from minicnn.interop.onnx.operators import OPERATORS
from minicnn.layers.layer import Layer
from minicnn.program.graph import Value


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
        from minicnn.interop.onnx.files import parsed

        model = parsed(base64.b64decode(self.graph))
        tensors = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        held = {name: getattr(self, f"trained_{i}") for i, name in enumerate(self.trained)}
        attribute = {name: f"updated_{i}" for i, name in enumerate(self.updated)}
        held |= {name: getattr(self, at) for name, at in attribute.items()}
        by_value = {id(v): attribute[name] for name, v in held.items() if name in attribute}
        for name in self.kernels:
            held[name] = permuted(held[name], (3, 2, 0, 1))
        emitter = Emitter(
            tensors[0].program, opset_of(model), training=training and self.trainable,
            draw=partial(self.random_uniform) if training else None,
            assign=lambda old, new: self.assign(by_value[id(old)], new) if id(old) in by_value else None,
            batch=None if self.batch is None else (self.batch, tensors[0].shape[0]), dtype=self._tracing().dtype,
        )  # fmt: skip
        names = [info.name for info in model.graph.input if info.name not in held]
        values = emitted(model, emitter, dict(zip(names, tensors, strict=True)) | held)
        missing = [info.name for info in model.graph.output if info.name not in values]
        if missing or not model.graph.output:
            raise NoCounterpartError(f"outputs that nothing makes: {', '.join(map(repr, missing)) or 'none is named'}")
        results = [values[info.name] for info in model.graph.output]
        return results if len(results) > 1 else results[0]


def opset_of(model: Any) -> int:
    """The version of the standard operators that a file uses."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def emitted(model: Any, emitter: Emitter, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Emit the operators of a graph; returns the values of all its names.

    Args:
        model: The file.
        emitter: Where they are emitted.
        inputs: Values of the inputs, and of weights, by name.

    Raises:
        NoCounterpartError: If an operator asks for what primitives do not do; names it.
    """
    from minicnn.interop.onnx.files import Tensors, attributes

    tensors = Tensors("")
    values: dict[str, Value] = {t.name: emitter.constant(tensors.array(t)) for t in model.graph.initializer}
    values |= inputs
    for node in model.graph.node:
        a = attributes(node, tensors)
        wanted = [name for name in node.output if name]
        extra = {"outputs": len(node.output)} if node.op_type == "Split" else {}
        try:
            with emitter.program.scope(node.name.strip("/").replace("/", ".")):
                read = [values[name] if name else None for name in node.input]
                emission = OPERATORS[node.op_type](emitter, a, *read, **extra)
        except NoCounterpartError as error:
            raise NoCounterpartError(f"{node.op_type} {node.name!r} ({error})") from None
        except Exception as error:  # of a primitive's shape rule, or of a file that breaks a rule of its operators
            raise NoCounterpartError(f"{node.op_type} {node.name!r} ({type(error).__name__}: {error})") from error
        results = emission if isinstance(emission, tuple) else (emission,)
        if any(v.dtype in ("float16", "bfloat16") for v in results):
            raise NoCounterpartError(f"{node.op_type} {node.name!r} (numbers of 16 bits)")
        if len(wanted) > len(results):
            raise NoCounterpartError(f"{node.op_type} {node.name!r} (its result {wanted[-1]!r})")
        values |= dict(zip(node.output, results, strict=False))
    return values


register(OnnxGraph)
