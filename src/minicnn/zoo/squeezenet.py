"""SqueezeNet (F. N. Iandola et al., arXiv:1602.07360)."""

from __future__ import annotations

from minicnn.initializers import RandomNormal
from minicnn.layers import Concatenate, Conv2D, Dropout, GlobalAveragePooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import conv_relu, max_pool_ceil

# Squeeze and expand filters of the fire modules between one pooling and the next.
STAGES = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))


def squeezenet1_1(x: SymbolicTensor, num_classes: int, *, dropout: float = 0.5) -> SymbolicTensor:
    """SqueezeNet 1.1: 1,235,496 parameters.

    The logits are averages after a ReLU, so they are never negative. Their convolution starts from small
    normal values, as its authors have it, lest large first logits decide which classes can be learnt.

    Args:
        x: Images of at least 17x17.
        num_classes: Number of classes.
        dropout: Rate before the last convolution.
    """
    x = conv_relu(x, 64, 3, strides=2, name="conv1")
    number = 2  # modules are counted with the convolutions, as in the paper
    for stage in STAGES:
        x = max_pool_ceil(x, 3, name=f"pool{number - 1}")
        for squeeze, expand in stage:
            x = fire(x, squeeze, expand, f"fire{number}")
            number += 1
    x = Dropout(dropout, name="dropout")(x)
    x = Conv2D(num_classes, 1, activation="relu", kernel_initializer=RandomNormal(0.0, 0.01), name="conv10")(x)
    return GlobalAveragePooling2D(name="logits")(x)


def fire(x: SymbolicTensor, squeeze: int, expand: int, name: str) -> SymbolicTensor:
    """1x1 convolution to few channels, then 1x1 and 3x3 convolutions side by side."""
    x = conv_relu(x, squeeze, 1, name=f"{name}_squeeze")
    branches = [
        conv_relu(x, expand, 1, name=f"{name}_expand1x1"),
        conv_relu(x, expand, 3, padding=1, name=f"{name}_expand3x3"),
    ]
    return Concatenate(name=f"{name}_concat")(branches)
