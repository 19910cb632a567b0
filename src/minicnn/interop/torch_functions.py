"""PyTorch's functions and tensors' methods, by name, on symbolic tensors of channels-first images."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from minicnn import layers, ops
from minicnn.interop.torch_modules import FIRST, applied, layer_of
from minicnn.layers import Layer
from minicnn.layers.symbolic import SymbolicTensor

UNKNOWN = object()  # value of a node without counterpart, and of all that depend on it


@dataclass(frozen=True)
class Parameter:
    """A parameter of a module that a function is given."""

    name: str
    tensor: Any


def _view(x: SymbolicTensor, *shape: Any) -> Any:
    batch, *lengths = shape if isinstance(shape[0], int | None) else shape[0]
    elements, known = math.prod(x.trial()), math.prod(n for n in lengths if n != -1)
    if batch not in (None, -1) or lengths.count(-1) + (batch == -1) > 1 or (known != elements and -1 not in lengths):
        raise ValueError(f"samples of shape {x.shape[1:]} as {shape}")
    return layers.Flatten()(x) if len(lengths) == 1 else layers.Reshape(lengths)(x)


def _flatten(x: SymbolicTensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = (axis % len(x.shape) for axis in (start_dim, end_dim))
    return _view(x, *x.shape[:first], -1, *x.shape[last + 1 :])


def _permute(x: SymbolicTensor, *dims: Any) -> Any:
    batch, *axes = (d % len(x.shape) for d in (dims if isinstance(dims[0], int) else dims[0]))
    if batch != 0:
        raise ValueError("the batch as another axis than the first")
    return layers.Permute(axes)(x)


def _transpose(x: SymbolicTensor, first: int, second: int) -> Any:
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return _permute(x, axes)


def _split(x: SymbolicTensor, size: int | Sequence[int], dim: int = 0) -> list[Any]:
    axis, n = dim % len(x.shape), x.shape[dim] or 0
    lengths = [min(size, n - i) for i in range(0, n, size)] if isinstance(size, int) else size
    ends = list(accumulate(lengths))
    return [x[(slice(None),) * axis + (slice(end - m, end),)] for m, end in zip(lengths, ends, strict=True)]


def _chunk(x: SymbolicTensor, chunks: int, dim: int = 0) -> list[Any]:
    return _split(x, -(-(x.shape[dim] or 0) // chunks), dim)


def _size(x: SymbolicTensor, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


def _attribute(x: SymbolicTensor, name: str) -> Any:
    return {"shape": x.shape, "ndim": len(x.shape)}.get(name, UNKNOWN)


def _as_it_is(x: Any, *_: Any, **__: Any) -> Any:
    """The input: of functions that change it in training alone, or its place in memory."""
    return x


def _by_module(kind: str, x: Any, *arguments: Any, **options: Any) -> Any:
    """A function by the module that does the same."""
    from torch import nn

    if "pool" in kind.lower() and len(arguments) > 4:  # from there on the order of the module's is another
        raise ValueError("options that have no name")
    options = {name: value for name, value in options.items() if value is not None and name != "_stacklevel"}
    module = getattr(nn, kind)(*arguments, **options)
    return applied(module, layer_of(module, None), x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name.rstrip("_")) for name in (
        "add", "add_", "iadd", "sub", "sub_", "isub", "mul", "mul_", "imul", "truediv", "floordiv", "pow", "neg",
        "getitem",
    )},
    "div": operator.truediv,
    **dict.fromkeys(("cat", "concat"), lambda tensors, dim=0: layers.Concatenate(axis=dim)(tensors)),
    "mean": lambda x, dim, keepdim=False: ops.mean(x, axes=dim, keepdims=keepdim),
    "flatten": _flatten, "view": _view, "reshape": _view, "permute": _permute, "transpose": _transpose,
    "chunk": _chunk, "split": _split, "size": _size, "getattr": _attribute,
    **dict.fromkeys(("contiguous", "dropout", "stochastic_depth"), _as_it_is),
    **{name: partial(_by_module, kind) for name, kind in {
        "relu": "ReLU", "relu_": "ReLU", "relu6": "ReLU6", "sigmoid": "Sigmoid", "tanh": "Tanh", "gelu": "GELU",
        "silu": "SiLU", "hardswish": "Hardswish", "hardsigmoid": "Hardsigmoid", "leaky_relu": "LeakyReLU",
        "elu": "ELU", "softplus": "Softplus", "mish": "Mish", "softmax": "Softmax", "max_pool2d": "MaxPool2d",
        "avg_pool2d": "AvgPool2d", "adaptive_avg_pool2d": "AdaptiveAvgPool2d",
    }.items()},
}  # fmt: skip


# Functions of parameters: the layer, what it is applied to, and its weights -------------------------


def _scaled(a: Any, b: Any) -> tuple[Layer, Any, list[Any]]:
    """Each channel of an image times a number, as ConvNeXt has it: a depthwise convolution of one pixel."""
    x, scale = (a, b) if isinstance(b, Parameter) else (b, a)
    if scale.tensor.shape != (x.shape[1], 1, 1):
        raise ValueError(f"a product with {scale.name} of shape {tuple(scale.tensor.shape)}")
    return layers.DepthwiseConv2D(1, use_bias=False, name=scale.name, **FIRST), x, [scale.tensor]


def _layer_norm_of(
    x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float = 1e-5
) -> tuple[Layer, Any, list[Any]]:
    tensors = [p.tensor for p in (weight, bias) if p is not None]
    options: dict[str, Any] = {"scale": weight is not None, "center": bias is not None}
    name = (weight or bias).name.rpartition(".")[0]
    return layers.LayerNormalization(axis=tuple(range(-len(shape), 0)), epsilon=eps, name=name, **options), x, tensors


WEIGHTED: dict[str, Callable[..., tuple[Layer, Any, list[Any]]]] = {
    "mul": _scaled, "imul": _scaled, "layer_norm": _layer_norm_of,
}  # fmt: skip
