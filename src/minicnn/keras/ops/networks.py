"""Functions of networks: products, convolution, pooling, losses of each sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicnn import ops as p
from minicnn.keras.dispatch import function
from minicnn.keras.ops.conversion import alike, as_dtype, named
from minicnn.layers.arguments import pair, resolve_padding
from minicnn.losses import BinaryCrossentropy, CategoricalCrossentropy, SparseCategoricalCrossentropy
from minicnn.program.graph import Value


@function
def matmul(x1: Any, x2: Any) -> Any:
    """Products of matrices: the last two axes, for each of the first."""
    a, b = alike(x1, x2)
    if len(b.shape) > 2:  # rows times columns, and their sum
        return p.sum(p.reshape(a, shape=(*a.shape, 1)) * p.reshape(b, shape=(*b.shape[:-2], 1, *b.shape[-2:])), axes=-2)
    y = p.matmul(a if len(a.shape) == 2 else p.reshape(a, shape=(math.prod(a.shape[:-1]), a.shape[-1])), b)
    return y if len(a.shape) == 2 else p.reshape(y, shape=(*a.shape[:-1], b.shape[-1]))


@function
def one_hot(x: Any, num_classes: int, axis: int = -1, dtype: str = "float32") -> Any:
    """1 at each class number along a new axis, 0 elsewhere."""
    y = p.one_hot(as_dtype(x, "int32"), classes=num_classes, dtype=dtype)
    return y if axis == -1 else p.permute(y, axes=tuple(np.insert(np.arange(x.ndim), axis, x.ndim).tolist()))


@function
def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-t log(p) - (1 - t) log(1 - p) of each element."""
    t, o = (p.reshape(v, shape=(*output.shape, 1)) for v in alike(target, output))
    return p.reshape(BinaryCrossentropy(from_logits).call(t, o), shape=output.shape)


@function
def categorical_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-sum(t log(p)) along the last axis."""
    return CategoricalCrossentropy(from_logits).call(*alike(target, output))


@function
def sparse_categorical_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Any:
    """-log(p) of the class number that each label is."""
    return SparseCategoricalCrossentropy(from_logits).call(as_dtype(target, "int32"), output)


@function
def conv(inputs: Any, kernel: Any, strides: Any = 1, padding: str = "valid", dilation_rate: Any = 1) -> Any:
    """Convolution of images, channels last, with a kernel (KH, KW, C, F)."""
    steps, apart = pair("strides", strides), pair("dilation_rate", dilation_rate)
    edges = resolve_padding(padding, inputs.shape[1:3], (kernel.shape[0], kernel.shape[1]), steps, apart)
    return p.conv2d(inputs, kernel, strides=steps, padding=edges, dilation=apart)


def _pooled(primitive: Any, x: Value, pool_size: Any, strides: Any, padding: str) -> Any:
    size, steps = pair("pool_size", pool_size), pair("strides", pool_size if strides is None else strides)
    return primitive(
        x, kernel=size, strides=steps, padding=resolve_padding(padding, (x.shape[1], x.shape[2]), size, steps)
    )


for _name, _primitive in (("max_pool", p.max_pool2d), ("average_pool", p.average_pool2d)):
    named(
        _name,
        lambda inputs, pool_size, strides=None, padding="valid", f=_primitive: _pooled(
            f, inputs, pool_size, strides, padding
        ),
        "Pooling of images, channels last.",
    )
