"""PyTorch's modules as models: traced by torch.fx, layer for layer, channels first.

Nodes of the trace are read one after the other, on symbolic tensors. What depends on one without a counterpart is
looked up, but not applied, so that one error names everything that has none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from minicnn import layers, ops
from minicnn.backends.base import Backend
from minicnn.extras import install
from minicnn.interop.model_weights import paths_of, weights_of
from minicnn.interop.torch_weights import _host, _layout, _used
from minicnn.layers import Input, Layer
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.models import Model
from minicnn.ops.windows import padding_behind

FIRST: dict[str, Any] = {"data_format": "channels_first"}
UNKNOWN = object()  # value of a node without counterpart, and of all that depend on it


class _UnknownError(Exception):
    """No counterpart of a node: says of what."""


def from_torch(
    module: Any, input_shape: Sequence[int], *, backend: str | Backend | None = None, seed: int = 0
) -> Model:
    """A trainable model of a PyTorch module, with its weights.

    Args:
        module: A `torch.nn.Module` that torch.fx can trace, such as a Sequential or one of torchvision's convolutional
            networks. Its training mode does not matter, and it is not changed; functional dropout and stochastic depth
            are left out.
        input_shape: Shape of one sample, such as (3, 224, 224); channels are the first axis, as in PyTorch.
        backend: See `Model`.
        seed: See `Model`.

    Returns:
        A model whose layers have the names of the modules; its samples have the shape given.

    Raises:
        ValueError: If it has operations without counterpart; all are named.
        ImportError: If PyTorch is missing.

    Example:
        >>> import torch
        >>> from_torch(torch.nn.Sequential(torch.nn.Linear(4, 2)), (4,)).count_params()
        10
    """
    try:
        from torch import fx
    except ImportError as error:
        raise ImportError(f"from_torch reads PyTorch's modules with it: {install('torch')}.", name="torch") from error
    modes = [(part, part.training) for part in module.modules()]
    try:  # auxiliary outputs of a training have no use here
        graph = fx.symbolic_trace(module.eval()).graph
    finally:
        for part, training in modes:
            part.training = training
    inputs, reading = Input(tuple(input_shape)), _Reading(module)
    values: dict[Any, Any] = {}
    unknown = []
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        try:
            values[node] = inputs if node.op == "placeholder" else reading.value(node, args, kwargs)
        except _UnknownError as error:
            unknown.append(f"{node.name} ({error})")
            values[node] = UNKNOWN
    if unknown:
        raise ValueError(
            "A PyTorch module becomes a model where each of its operations is a layer of minicnn. Received: "
            f"{', '.join(unknown)}. Replace them, or write the model in minicnn and take the weights over with "
            "minicnn.interop.load_torch_weights."
        )
    outputs = values[node]
    model = Model(inputs, list(outputs) if isinstance(outputs, tuple | list) else outputs, backend=backend, seed=seed)
    paths, weights = paths_of(model), {}
    for layer, tensors in reading.tensors.items():
        for weight, tensor in zip(weights_of(layer), tensors, strict=True):
            layout = _layout(paths[weight], weight, layer, None)
            weights[layout.path] = _host(tensor).reshape(layout.split).transpose(layout.axes).reshape(layout.ours)
    model.set_weights(weights)
    return model


class _Reading:
    """Values of the nodes of a trace.

    Attributes:
        tensors: The weights of each layer in PyTorch, in the layer's order.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._modules = module, dict(module.named_modules())
        self._layers: dict[str, Layer] = {}
        self.tensors: dict[Layer, list[Any]] = {}

    def value(self, node: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of a node, of those of the nodes that it reads: a symbolic tensor, a size, or several of them."""
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(self._module)
            return _Parameter(node.target, tensor) if tensor.requires_grad else _host(tensor)
        if node.op == "call_module":
            name = str(node.target)
            module = self._modules[name]
            layer = self._layer(name, lambda: _layer(module, name), _used(module.state_dict()).values())
            return UNKNOWN if _depends(args) else _surrounded(module, layer, *args)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        parameters = [a.name for a in (*args, *kwargs.values()) if isinstance(a, _Parameter)]
        function = (WEIGHTED if parameters else FUNCTIONS).get(name)
        if function is None:
            raise _UnknownError(f"function {name}{' of ' if parameters else ''}{', '.join(parameters)}")
        if _depends([args, list(kwargs.values())]):
            return UNKNOWN
        try:
            if not parameters:
                return function(*args, **kwargs)
            layer, x, tensors = function(*args, **kwargs)
        except (TypeError, ValueError) as error:  # options, or axes, that are not those of the function here
            raise _UnknownError(f"{name}: {error}") from error
        return self._layer(parameters[0], lambda: layer, tensors)(x)

    def _layer(self, name: str, make: Callable[[], Layer], tensors: Iterable[Any]) -> Layer:
        """The layer of a name, which is made where it comes first."""
        if name not in self._layers:
            self._layers[name] = make()
            self.tensors[self._layers[name]] = list(tensors)
        return self._layers[name]


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a module that a function is given."""

    name: str
    tensor: Any


def _depends(value: Any) -> bool:
    """True if something among arguments has no counterpart."""
    return any(map(_depends, value)) if isinstance(value, list | tuple) else value is UNKNOWN


# Modules --------------------------------------------------------------------------------------------


def _layer(module: Any, name: str | None) -> Layer:
    make = MODULES.get(type(module).__name__) if type(module).__module__.startswith("torch.nn") else None
    if make is None:
        raise _UnknownError(f"module {type(module).__name__}")
    _refuse(module)
    return make(module, name)


def _refuse(module: Any) -> None:
    """Raise for options that the layers do not have."""
    if getattr(module, "padding_mode", "zeros") != "zeros":
        raise _UnknownError(f"{type(module).__name__} with padding_mode={module.padding_mode!r}")
    pools = "Pool" in type(module).__name__
    if pools and (_pair(getattr(module, "dilation", 1)) != (1, 1) or getattr(module, "return_indices", False)):
        raise _UnknownError(f"{type(module).__name__} with dilation or indices")
    if pools and getattr(module, "divisor_override", None):
        raise _UnknownError(f"{type(module).__name__} with divisor_override")
    if getattr(module, "track_running_stats", True) is False or getattr(module, "momentum", 0.1) is None:
        raise _UnknownError(f"{type(module).__name__} without running statistics of a fixed momentum")
    if type(module).__name__ == "Flatten" and (module.start_dim, module.end_dim) != (1, -1):
        raise _UnknownError(f"Flatten from axis {module.start_dim} to {module.end_dim}")
    if type(module).__name__ == "GELU" and module.approximate != "none":
        raise _UnknownError(f"GELU with approximate={module.approximate!r}")


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _convolution(m: Any, name: str | None) -> Layer:
    padding = m.padding if isinstance(m.padding, str) else _pair(m.padding)
    if padding == "same" and _pair(m.stride) == (1, 1):  # PyTorch too adds the odd one below and to the right
        padding = "same"
    options: dict[str, Any] = {"use_bias": m.bias is not None, "name": name, **FIRST}
    if m.groups == m.in_channels and m.groups > 1:
        multiplier = m.out_channels // m.groups
        return layers.DepthwiseConv2D(m.kernel_size, m.stride, padding, multiplier, dilation_rate=m.dilation, **options)
    return layers.Conv2D(
        m.out_channels, m.kernel_size, m.stride, padding, dilation_rate=m.dilation, groups=m.groups, **options
    )


def _transposed(m: Any, name: str | None) -> Layer:
    if m.groups != 1:
        raise _UnknownError("ConvTranspose2d with groups")
    return layers.Conv2DTranspose(
        m.out_channels, m.kernel_size, m.stride, _pair(m.padding), _pair(m.output_padding), dilation_rate=m.dilation,
        use_bias=m.bias is not None, name=name, **FIRST,
    )  # fmt: skip


def _batch_norm(m: Any, name: str | None) -> Layer:
    options: dict[str, Any] = {"center": m.affine, "scale": m.affine, "name": name}
    return layers.BatchNormalization(axis=1, momentum=1 - m.momentum, epsilon=m.eps, **options)


def _layer_norm(m: Any, name: str | None) -> Layer:
    axes = tuple(range(-len(m.normalized_shape), 0))
    scale, center = m.weight is not None, m.bias is not None
    return layers.LayerNormalization(axis=axes, epsilon=m.eps, scale=scale, center=center, name=name)


def _group_norm(m: Any, name: str | None) -> Layer:
    return layers.GroupNormalization(m.num_groups, axis=1, epsilon=m.eps, scale=m.affine, center=m.affine, name=name)


def _pooling(kind: type[layers.MaxPooling2D] | type[layers.AveragePooling2D], m: Any, name: str | None) -> Layer:
    stride = m.kernel_size if m.stride is None else m.stride
    padding = (0, 0) if "Avg" in type(m).__name__ and m.count_include_pad else _pair(m.padding)
    return kind(_pair(m.kernel_size), _pair(stride), padding, name=name, **FIRST)


def _adaptive(m: Any, name: str | None) -> Layer:
    size = _pair(m.output_size)
    if None in size:
        raise _UnknownError(f"AdaptiveAvgPool2d to {m.output_size}")
    if size == (1, 1):
        return layers.GlobalAveragePooling2D(keepdims=True, name=name, **FIRST)
    return layers.AdaptiveAveragePooling2D(size, name=name, **FIRST)


def _activation(activation: str, m: Any, name: str | None) -> Layer:
    return layers.Activation(activation, name=name)


def _prelu(m: Any, name: str | None) -> Layer:
    return (
        layers.PReLU(shared_axes=(2, 3), name=name)
        if m.num_parameters > 1
        else layers.PReLU(shared_axes=(1, 2, 3), name=name)
    )


MODULES: dict[str, Callable[[Any, str | None], Layer]] = {
    "Conv2d": _convolution,
    "ConvTranspose2d": _transposed,
    "Linear": lambda m, name: layers.Dense(m.out_features, use_bias=m.bias is not None, name=name),
    "BatchNorm2d": _batch_norm,
    "BatchNorm1d": _batch_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "MaxPool2d": partial(_pooling, layers.MaxPooling2D),
    "AvgPool2d": partial(_pooling, layers.AveragePooling2D),
    "AdaptiveAvgPool2d": _adaptive,
    "Flatten": lambda m, name: layers.Flatten(name=name),
    "Identity": lambda m, name: layers.Identity(name=name),
    "Dropout": lambda m, name: layers.Dropout(m.p, name=name),
    "Dropout2d": lambda m, name: layers.SpatialDropout2D(m.p, name=name, **FIRST),
    "Softmax": lambda m, name: layers.Softmax(axis=m.dim, name=name),
    "LeakyReLU": lambda m, name: layers.LeakyReLU(m.negative_slope, name=name),
    "ELU": lambda m, name: layers.ELU(m.alpha, name=name),
    "PReLU": _prelu,
    **{
        theirs: partial(_activation, ours)
        for theirs, ours in {
            "ReLU": "relu", "ReLU6": "relu6", "Sigmoid": "sigmoid", "Tanh": "tanh", "GELU": "gelu", "SiLU": "silu",
            "Hardswish": "hard_silu", "Hardsigmoid": "hard_sigmoid", "Softplus": "softplus", "SELU": "selu",
            "Mish": "mish", "Softsign": "softsign", "LogSigmoid": "log_sigmoid",
        }.items()
    },
}  # fmt: skip


def _surrounded(module: Any, layer: Layer, x: Any) -> Any:
    """A layer applied, after zeros that it counts, and with as many positions more as PyTorch's ceil_mode adds."""
    if isinstance(layer, layers.MaxPooling2D | layers.AveragePooling2D):
        height, width = _pair(module.padding)
        if isinstance(layer, layers.AveragePooling2D) and module.count_include_pad and (height or width):
            x = layers.ZeroPadding2D((height, width), **FIRST)(x)
            height = width = 0
        if module.ceil_mode:
            sides = zip(x.trial()[1:], layer.pool_size, layer.strides, (height, width), strict=True)
            padding: Any = tuple((p, padding_behind(n, k, s, p, p)) for n, k, s, p in sides)
            if layer._callers and padding != layer.padding:  # one module on images of two sizes
                layer = type(layer)(layer.pool_size, layer.strides, padding, **FIRST)
            layer.padding = padding
    return layer(x)


# Functions ------------------------------------------------------------------------------------------


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
    return _surrounded(module, _layer(module, None), x)


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
    x, scale = (a, b) if isinstance(b, _Parameter) else (b, a)
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
