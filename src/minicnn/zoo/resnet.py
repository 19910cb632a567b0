"""Residual networks (K. He et al., arXiv:1512.03385), and the small one of the course DLSys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicnn.layers import Activation, Add, Dense, Flatten, GlobalAveragePooling2D, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_norm

Block = Callable[[SymbolicTensor, int, int, str], SymbolicTensor]

FILTERS = (64, 128, 256, 512)


def resnet9(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """ResNet9 for CIFAR-10 of the course Deep Learning Systems (dlsyscourse.org, homework 4): 431,946 parameters.

    Convolutions have a bias although batch normalisation follows, and no ReLU follows the sum of a residual block.
    """

    def conv(x: SymbolicTensor, filters: int, kernel_size: int, strides: int, name: str) -> SymbolicTensor:
        return conv_norm(x, filters, kernel_size, strides=strides, use_bias=True, name=name)

    def residual(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
        y = conv(conv(x, filters, 3, 1, f"{name}_conv1"), filters, 3, 1, f"{name}_conv2")
        return Add(name=f"{name}_add")([y, x])

    x = residual(conv(conv(x, 16, 7, 4, "conv1"), 32, 3, 2, "conv2"), 32, "block1")
    x = residual(conv(conv(x, 64, 3, 2, "conv3"), 128, 3, 2, "conv4"), 128, "block2")
    x = Dense(128, activation="relu", kernel_initializer="he_normal", name="hidden")(Flatten(name="flatten")(x))
    return classifier(x, num_classes)


def resnet18(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """ResNet-18: 11,689,512 parameters."""
    return _resnet(x, num_classes, basic_block, (2, 2, 2, 2))


def resnet34(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """ResNet-34: 21,797,672 parameters."""
    return _resnet(x, num_classes, basic_block, (3, 4, 6, 3))


def resnet50(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """ResNet-50 with the stride in the 3x3 convolutions, as torchvision has it: 25,557,032 parameters."""
    return _resnet(x, num_classes, bottleneck, (3, 4, 6, 3))


def basic_block(x: SymbolicTensor, filters: int, strides: int, name: str) -> SymbolicTensor:
    """Two 3x3 convolutions beside the shortcut."""
    y = conv_norm(x, filters, 3, strides=strides, name=f"{name}_conv1")
    y = conv_norm(y, filters, 3, activation=None, name=f"{name}_conv2")
    return _join(y, x, strides, name)


def bottleneck(x: SymbolicTensor, filters: int, strides: int, name: str) -> SymbolicTensor:
    """1x1, 3x3 and 1x1 convolutions beside the shortcut, the last to four times the filters."""
    y = conv_norm(x, filters, 1, name=f"{name}_conv1")
    y = conv_norm(y, filters, 3, strides=strides, name=f"{name}_conv2")
    y = conv_norm(y, 4 * filters, 1, activation=None, name=f"{name}_conv3")
    return _join(y, x, strides, name)


def _join(y: SymbolicTensor, x: SymbolicTensor, strides: int, name: str) -> SymbolicTensor:
    """ReLU of the sum; a 1x1 convolution brings x to the shape of y where it must."""
    if x.shape != y.shape:
        x = conv_norm(x, y.trial()[-1], 1, strides=strides, activation=None, name=f"{name}_shortcut")
    y = Add(name=f"{name}_add")([y, x])
    return Activation("relu", name=f"{name}_relu")(y)


def _resnet(x: SymbolicTensor, num_classes: int, block: Block, depths: Sequence[int]) -> SymbolicTensor:
    x = conv_norm(x, 64, 7, strides=2, name="stem_conv")
    x = MaxPooling2D(3, 2, 1, name="stem_pool")(x)
    for stage, (filters, depth) in enumerate(zip(FILTERS, depths, strict=True), start=1):
        for i in range(1, depth + 1):
            strides = 2 if stage > 1 and i == 1 else 1
            x = block(x, filters, strides, f"stage{stage}_block{i}")
    x = GlobalAveragePooling2D(name="average")(x)
    return classifier(x, num_classes)
