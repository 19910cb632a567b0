"""PyTorch's modules as models: traced by torch.fx, layer for layer, channels first.

A node of the trace becomes one or two layers. All nodes are looked at before a layer is made, so that one error names
everything that has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minicnn.backends.base import Backend
from minicnn.extras import install
from minicnn.interop.model_weights import paths_of, weights_of
from minicnn.interop.torch_weights import _host, _layout, _used
from minicnn.layers import (
    ELU,
    Activation,
    AdaptiveAveragePooling2D,
    Add,
    AveragePooling2D,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Conv2DTranspose,
    Dense,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    GroupNormalization,
    Identity,
    Input,
    Layer,
    LayerNormalization,
    LeakyReLU,
    MaxPooling2D,
    Multiply,
    PReLU,
    Softmax,
    SpatialDropout2D,
    Subtract,
    ZeroPadding2D,
)
from minicnn.models import Model

Apply = Callable[..., Any]  # symbolic tensors -> symbolic tensor
FIRST: dict[str, Any] = {"data_format": "channels_first"}


class _UnknownError(Exception):
    """No counterpart of a node: says of what."""


def from_torch(
    module: Any, input_shape: Sequence[int], *, backend: str | Backend | None = None, seed: int = 0
) -> Model:
    """A trainable model of a PyTorch module, with its weights.

    Args:
        module: A `torch.nn.Module` that torch.fx can trace, such as a Sequential or one of torchvision's networks. Its
            training mode does not matter, and it is not changed; functional dropout is left out.
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
    modules = dict(module.named_modules())
    layers: dict[str, Layer] = {}
    applications, unknown = {}, []
    for node in graph.nodes:
        try:
            applications[node] = _application(node, modules, layers)
        except _UnknownError as error:
            unknown.append(f"{node.name} ({error})")
    if unknown:
        raise ValueError(
            "A PyTorch module becomes a model where each of its operations is a layer of minicnn. Received: "
            f"{', '.join(unknown)}. Replace them, or write the model in minicnn and take the weights over with "
            "minicnn.interop.load_torch_weights."
        )
    inputs = Input(tuple(input_shape))
    values: dict[Any, Any] = {}
    outputs: Any = None
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = inputs
        elif node.op == "output":
            outputs = _given(node.args[0], values)
        else:
            values[node] = applications[node](values)
    model = Model(inputs, list(outputs) if isinstance(outputs, tuple | list) else outputs, backend=backend, seed=seed)
    paths, weights = paths_of(model), {}
    for name, layer in layers.items():
        tensors = list(_used(modules[name].state_dict()).values())
        for weight, tensor in zip(weights_of(layer), tensors, strict=True):
            layout = _layout(paths[weight], weight, layer, None)
            weights[layout.path] = _host(tensor).reshape(layout.split).transpose(layout.axes).reshape(layout.ours)
    model.set_weights(weights)
    return model


def _given(argument: Any, values: dict[Any, Any]) -> Any:
    """An argument of a node, its nodes replaced by their values."""
    if isinstance(argument, tuple | list):
        return [_given(each, values) for each in argument]
    return values.get(argument, argument) if hasattr(argument, "op") else argument


def _application(node: Any, modules: dict[str, Any], layers: dict[str, Layer]) -> Callable[[dict[Any, Any]], Any]:
    """Function from the values of earlier nodes to that of this one."""
    if node.op in ("placeholder", "output"):
        return _given_nothing
    if node.op == "call_module":
        module = modules[node.target]
        known = MODULES.get(type(module).__name__) if type(module).__module__.startswith("torch.nn") else None
        if known is None:
            raise _UnknownError(f"module {type(module).__name__}")
        if node.target not in layers:
            _refuse(module)
            layers[node.target] = known(module, node.target)
        layer = layers[node.target]
        return lambda values: _surrounded(module, layer, values[node.args[0]])
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if node.op in ("call_function", "call_method") and name in FUNCTIONS:
        function = FUNCTIONS[name](*node.args[1:], **node.kwargs)  # looks at the options
        return lambda values: function(_given(node.args[0], values), *(_given(a, values) for a in node.args[1:]))
    raise _UnknownError(f"{'tensor' if node.op == 'get_attr' else 'function'} {name}")


def _given_nothing(values: dict[Any, Any]) -> None:
    """Inputs and outputs compute nothing."""


# Modules --------------------------------------------------------------------------------------------


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


def _convolution(m: Any, name: str) -> Layer:
    padding = m.padding if isinstance(m.padding, str) else _pair(m.padding)
    if padding == "same" and _pair(m.stride) == (1, 1):  # PyTorch too adds the odd one below and to the right
        padding = "same"
    options: dict[str, Any] = {"use_bias": m.bias is not None, "name": name, **FIRST}
    if m.groups == m.in_channels and m.groups > 1:
        multiplier = m.out_channels // m.groups
        return DepthwiseConv2D(m.kernel_size, m.stride, padding, multiplier, dilation_rate=m.dilation, **options)
    return Conv2D(
        m.out_channels, m.kernel_size, m.stride, padding, dilation_rate=m.dilation, groups=m.groups, **options
    )


def _transposed(m: Any, name: str) -> Layer:
    if m.groups != 1:
        raise _UnknownError("ConvTranspose2d with groups")
    return Conv2DTranspose(
        m.out_channels, m.kernel_size, m.stride, _pair(m.padding), _pair(m.output_padding), dilation_rate=m.dilation,
        use_bias=m.bias is not None, name=name, **FIRST,
    )  # fmt: skip


def _batch_norm(m: Any, name: str) -> Layer:
    options: dict[str, Any] = {"center": m.affine, "scale": m.affine, "name": name}
    return BatchNormalization(axis=1, momentum=1 - m.momentum, epsilon=m.eps, **options)


def _layer_norm(m: Any, name: str) -> Layer:
    axes = tuple(range(-len(m.normalized_shape), 0))
    scale, center = m.weight is not None, m.bias is not None
    return LayerNormalization(axis=axes, epsilon=m.eps, scale=scale, center=center, name=name)


def _group_norm(m: Any, name: str) -> Layer:
    return GroupNormalization(m.num_groups, axis=1, epsilon=m.eps, scale=m.affine, center=m.affine, name=name)


def _pooling(kind: type[MaxPooling2D] | type[AveragePooling2D], m: Any, name: str | None) -> Layer:
    stride = m.kernel_size if m.stride is None else m.stride
    padding = (0, 0) if "Avg" in type(m).__name__ and m.count_include_pad else _pair(m.padding)
    return kind(_pair(m.kernel_size), _pair(stride), padding, name=name, **FIRST)


def _adaptive(m: Any, name: str) -> Layer:
    size = _pair(m.output_size)
    if None in size:
        raise _UnknownError(f"AdaptiveAvgPool2d to {m.output_size}")
    if size == (1, 1):
        return GlobalAveragePooling2D(keepdims=True, name=name, **FIRST)
    return AdaptiveAveragePooling2D(size, name=name, **FIRST)


def _activation(activation: str, m: Any, name: str) -> Layer:
    return Activation(activation, name=name)


def _prelu(m: Any, name: str) -> Layer:
    return PReLU(shared_axes=(2, 3), name=name) if m.num_parameters > 1 else PReLU(shared_axes=(1, 2, 3), name=name)


MODULES: dict[str, Callable[[Any, str], Layer]] = {
    "Conv2d": _convolution,
    "ConvTranspose2d": _transposed,
    "Linear": lambda m, name: Dense(m.out_features, use_bias=m.bias is not None, name=name),
    "BatchNorm2d": _batch_norm,
    "BatchNorm1d": _batch_norm,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "MaxPool2d": partial(_pooling, MaxPooling2D),
    "AvgPool2d": partial(_pooling, AveragePooling2D),
    "AdaptiveAvgPool2d": _adaptive,
    "Flatten": lambda m, name: Flatten(name=name),
    "Identity": lambda m, name: Identity(name=name),
    "Dropout": lambda m, name: Dropout(m.p, name=name),
    "Dropout2d": lambda m, name: SpatialDropout2D(m.p, name=name, **FIRST),
    "Softmax": lambda m, name: Softmax(axis=m.dim, name=name),
    "LeakyReLU": lambda m, name: LeakyReLU(m.negative_slope, name=name),
    "ELU": lambda m, name: ELU(m.alpha, name=name),
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
    if isinstance(layer, MaxPooling2D | AveragePooling2D):
        height, width = _pair(module.padding)
        if isinstance(layer, AveragePooling2D) and module.count_include_pad and (height or width):
            x = ZeroPadding2D((height, width), **FIRST)(x)
            height = width = 0
        if module.ceil_mode:
            beyond = [
                _beyond(n, k, s, p)
                for n, k, s, p in zip(x.trial()[1:], layer.pool_size, layer.strides, (height, width), strict=True)
            ]
            padding = ((height, height + beyond[0]), (width, width + beyond[1]))
            if layer._callers and padding != layer.padding:  # one module on images of two sizes
                layer = type(layer)(layer.pool_size, layer.strides, padding, **FIRST)
            layer.padding = padding
    return layer(x)


def _beyond(size: int, kernel: int, stride: int, padding: int) -> int:
    """Positions that the last window of ceil_mode reaches over the border; it begins within the image or before it."""
    windows = -(-(size + 2 * padding - kernel) // stride) + 1
    windows -= (windows - 1) * stride >= size + padding
    return max((windows - 1) * stride + kernel - size - 2 * padding, 0)


# Functions ------------------------------------------------------------------------------------------


def _elementwise(kind: type[Layer], other: Any = None, **options: Any) -> Apply:
    if not hasattr(other, "op") or options:
        raise _UnknownError(f"{kind.__name__} of a tensor and {other!r} {options or ''}".strip())
    return lambda x, y: kind()([x, y])


def _flatten(start: int = 0, end: int = -1, start_dim: int | None = None, end_dim: int = -1) -> Apply:
    if (start if start_dim is None else start_dim, end if end_dim == -1 else end_dim) != (1, -1):
        raise _UnknownError("flatten of other axes than all but the first")
    return lambda x, *_: Flatten()(x)


def _cat(dim: int = 0, axis: int | None = None) -> Apply:
    return lambda tensors, *_: Concatenate(axis=dim if axis is None else axis)(tensors)


def _mean(dim: Any = None, keepdim: bool = False) -> Apply:
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        raise _UnknownError(f"mean over {dim}")
    return lambda x, *_: GlobalAveragePooling2D(keepdims=keepdim, **FIRST)(x)


def _adaptive_average(size: Any = None, output_size: Any = None) -> Apply:
    wanted = _pair(size if output_size is None else output_size)
    return lambda x, *_: AdaptiveAveragePooling2D(wanted, **FIRST)(x)


def _pooled(kind: type[MaxPooling2D] | type[AveragePooling2D], name: str, *arguments: Any, **options: Any) -> Apply:
    from torch import nn

    if len(arguments) > 4:  # from there on the order of the module's is another
        raise _UnknownError(f"{name} with options that have no name")
    module = getattr(nn, name)(*arguments, **options)
    _refuse(module)
    return lambda x, *_: _surrounded(module, _pooling(kind, module, None), x)


def _view(*shape: Any) -> Apply:
    if len(shape) != 2 or shape[1] != -1 or not hasattr(shape[0], "op"):
        raise _UnknownError(f"view or reshape to {shape}")
    return lambda x, *_: Flatten()(x)


def _size(dim: Any = None) -> Apply:
    if dim not in (None, 0, "shape"):
        raise _UnknownError(f"size or attribute {dim}")
    return lambda x, *_: None  # the length of a batch, which `view` keeps


def _item(index: Any) -> Apply:
    if index != 0:
        raise _UnknownError(f"element {index}")
    return lambda x, *_: None


def _dropout(*_: Any, training: bool = True, **__: Any) -> Apply:
    return lambda x, *_: x


def _by_name(activation: str, *_: Any, inplace: bool = False) -> Apply:
    return lambda x, *_: Activation(activation)(x)


FUNCTIONS: dict[str, Callable[..., Apply]] = {
    **dict.fromkeys(("add", "iadd", "add_"), partial(_elementwise, Add)),
    **dict.fromkeys(("mul", "imul", "mul_"), partial(_elementwise, Multiply)),
    **dict.fromkeys(("sub", "isub"), partial(_elementwise, Subtract)),
    "flatten": _flatten,
    **dict.fromkeys(("cat", "concat"), _cat),
    "mean": _mean,
    "adaptive_avg_pool2d": _adaptive_average,
    "avg_pool2d": partial(_pooled, AveragePooling2D, "AvgPool2d"),
    "max_pool2d": partial(_pooled, MaxPooling2D, "MaxPool2d"),
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("size", "getattr"), _size),
    "getitem": _item,
    "dropout": _dropout,
    **{
        theirs: partial(_by_name, ours)
        for theirs, ours in {
            "relu": "relu", "relu_": "relu", "relu6": "relu6", "sigmoid": "sigmoid", "tanh": "tanh", "gelu": "gelu",
            "silu": "silu", "hardswish": "hard_silu", "hardsigmoid": "hard_sigmoid",
        }.items()
    },
}  # fmt: skip
