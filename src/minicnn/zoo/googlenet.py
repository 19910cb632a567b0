"""GoogLeNet (C. Szegedy et al., arXiv:1409.4842) as torchvision has it."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.layers import Concatenate, Dropout, GlobalAveragePooling2D, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_norm, max_pool_ceil

# Filters of each inception module: 1x1; 3x3 reduced, 3x3; "5x5" reduced, "5x5"; after pooling.
STAGE3 = ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64))
STAGE4 = (
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
)
STAGE5 = ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))

EPSILON = 1e-3


def googlenet(x: SymbolicTensor, num_classes: int, *, dropout: float = 0.2) -> SymbolicTensor:
    """GoogLeNet with batch normalisation and without the auxiliary classifiers: 6,624,904 parameters.

    torchvision's definition, which this follows, has 3x3 kernels where the paper has 5x5.

    Args:
        x: Images.
        num_classes: Number of classes.
        dropout: Rate before the last layer.
    """
    x = conv_norm(x, 64, 7, strides=2, epsilon=EPSILON, name="conv1")
    x = max_pool_ceil(x, 3, name="pool1")
    x = conv_norm(x, 64, 1, epsilon=EPSILON, name="conv2_reduce")
    x = conv_norm(x, 192, 3, epsilon=EPSILON, name="conv2")
    x = max_pool_ceil(x, 3, name="pool2")
    x = _stage(x, STAGE3, "inception3")
    x = max_pool_ceil(x, 3, name="pool3")
    x = _stage(x, STAGE4, "inception4")
    x = max_pool_ceil(x, 2, name="pool4")
    x = _stage(x, STAGE5, "inception5")
    x = GlobalAveragePooling2D(name="average")(x)
    x = Dropout(dropout, name="dropout")(x)
    return classifier(x, num_classes)


def _stage(x: SymbolicTensor, widths: Sequence[Sequence[int]], name: str) -> SymbolicTensor:
    for filters, letter in zip(widths, "abcde", strict=False):
        x = inception(x, filters, f"{name}{letter}")
    return x


def inception(x: SymbolicTensor, filters: Sequence[int], name: str) -> SymbolicTensor:
    """Four branches side by side: 1x1, 3x3, 3x3 (the paper's 5x5), and pooling, joined along the channels."""

    def conv(x: SymbolicTensor, filters: int, kernel_size: int, part: str) -> SymbolicTensor:
        return conv_norm(x, filters, kernel_size, epsilon=EPSILON, name=f"{name}_{part}")

    one, reduce3, three, reduce5, five, pooled = filters
    branches = [
        conv(x, one, 1, "1x1"),
        conv(conv(x, reduce3, 1, "3x3_reduce"), three, 3, "3x3"),
        conv(conv(x, reduce5, 1, "5x5_reduce"), five, 3, "5x5"),
        conv(MaxPooling2D(3, 1, 1, name=f"{name}_pool")(x), pooled, 1, "pool_1x1"),
    ]
    return Concatenate(name=f"{name}_concat")(branches)
