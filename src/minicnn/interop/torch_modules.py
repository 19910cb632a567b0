"""PyTorch's modules as layers, channels first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minicnn import layers
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.layers import Layer
from minicnn.ops.windows import padding_behind

FIRST: dict[str, Any] = {"data_format": "channels_first"}


def layer_of(module: Any, name: str | None) -> Layer:
    """The layer that computes as a module does; an NoCounterpartError if there is none."""
    make = MODULES.get(type(module).__name__) if type(module).__module__.startswith("torch.nn") else None
    if make is None:
        raise NoCounterpartError(f"module {type(module).__name__}")
    _refuse(module)
    return make(module, name)


def _refuse(module: Any) -> None:
    """Raise for options that the layers do not have."""
    if getattr(module, "padding_mode", "zeros") != "zeros":
        raise NoCounterpartError(f"{type(module).__name__} with padding_mode={module.padding_mode!r}")
    pools = "Pool" in type(module).__name__
    if pools and (_pair(getattr(module, "dilation", 1)) != (1, 1) or getattr(module, "return_indices", False)):
        raise NoCounterpartError(f"{type(module).__name__} with dilation or indices")
    if pools and getattr(module, "divisor_override", None):
        raise NoCounterpartError(f"{type(module).__name__} with divisor_override")
    if getattr(module, "track_running_stats", True) is False or getattr(module, "momentum", 0.1) is None:
        raise NoCounterpartError(f"{type(module).__name__} without running statistics of a fixed momentum")
    if type(module).__name__ == "Flatten" and (module.start_dim, module.end_dim) != (1, -1):
        raise NoCounterpartError(f"Flatten from axis {module.start_dim} to {module.end_dim}")
    if type(module).__name__ == "GELU" and module.approximate != "none":
        raise NoCounterpartError(f"GELU with approximate={module.approximate!r}")


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
        raise NoCounterpartError("ConvTranspose2d with groups")
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
        raise NoCounterpartError(f"AdaptiveAvgPool2d to {m.output_size}")
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


def applied(module: Any, layer: Layer, x: Any) -> Any:
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
