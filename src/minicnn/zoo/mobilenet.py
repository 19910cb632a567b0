"""MobileNetV2 (M. Sandler et al., arXiv:1801.04381)."""

from __future__ import annotations

from minicnn.initializers import VarianceScaling
from minicnn.layers import Add, DepthwiseConv2D, Dropout, GlobalAveragePooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_norm, norm

# Expansion, filters, repetitions and stride of the first (the paper's table 2).
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

# An output of a depthwise convolution sums KH * KW products, not KH * KW * C: that is the fan-out of its kernel.
HE_DEPTHWISE = VarianceScaling(2.0, "fan_out")


def mobilenet_v2(x: SymbolicTensor, num_classes: int, *, dropout: float = 0.2) -> SymbolicTensor:
    """MobileNetV2 of width 1: 3,504,872 parameters.

    Args:
        x: Images.
        num_classes: Number of classes.
        dropout: Rate before the last layer.
    """
    x = conv_norm(x, 32, 3, strides=2, activation="relu6", name="stem")
    for stage, (expansion, filters, depth, strides) in enumerate(STAGES, start=1):
        for i in range(1, depth + 1):
            name = f"stage{stage}_block{i}"
            x = inverted_residual(x, filters, strides if i == 1 else 1, expansion, name)
    x = conv_norm(x, 1280, 1, activation="relu6", name="head")
    x = GlobalAveragePooling2D(name="average")(x)
    x = Dropout(dropout, name="dropout")(x)
    return classifier(x, num_classes)


def inverted_residual(x: SymbolicTensor, filters: int, strides: int, expansion: int, name: str) -> SymbolicTensor:
    """1x1 expansion, depthwise 3x3, 1x1 projection without activation; plus x where the shape is the same."""
    y = x
    if expansion != 1:
        hidden = x.trial()[-1] * expansion
        y = conv_norm(x, hidden, 1, activation="relu6", name=f"{name}_expand")
    depthwise = DepthwiseConv2D(
        3, strides, 1, use_bias=False, depthwise_initializer=HE_DEPTHWISE, name=f"{name}_depthwise"
    )
    y = norm(depthwise(y), activation="relu6", name=f"{name}_depthwise")
    y = conv_norm(y, filters, 1, activation=None, name=f"{name}_project")
    return y if y.shape != x.shape else Add(name=f"{name}_add")([y, x])
