"""The first convolutional networks: LeNet-5, AlexNet and OverFeat."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.layers import AdaptiveAveragePooling2D, AveragePooling2D, Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_relu


def lenet5(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """LeNet-5 (Y. LeCun et al., Gradient-based learning applied to document recognition, 1998): 61,706 parameters.

    The tanh layers and the padding of 28x28 to 32x32 are the original's. As in most versions of today, the
    second convolution sees all maps, pooling is a plain average, and the output is one logit a class.
    """
    x = Conv2D(6, 5, padding=2, activation="tanh", name="conv1")(x)
    x = AveragePooling2D(2, name="pool1")(x)
    x = Conv2D(16, 5, activation="tanh", name="conv2")(x)
    x = AveragePooling2D(2, name="pool2")(x)
    x = Flatten(name="flatten")(x)
    x = Dense(120, "tanh", name="hidden1")(x)
    x = Dense(84, "tanh", name="hidden2")(x)
    return classifier(x, num_classes)


def alexnet(
    x: SymbolicTensor, num_classes: int, *, dropout: float = 0.5, hidden_units: Sequence[int] = (4096, 4096)
) -> SymbolicTensor:
    """AlexNet for one GPU (A. Krizhevsky, arXiv:1404.5997), as torchvision has it: 61,100,840 parameters.

    Args:
        x: Images of at least 63x63.
        num_classes: Number of classes.
        dropout: Rate before each hidden layer.
        hidden_units: Widths of the hidden dense layers.
    """
    x = conv_relu(x, 64, 11, strides=4, padding=2, name="conv1")
    x = MaxPooling2D(3, 2, name="pool1")(x)
    x = conv_relu(x, 192, 5, padding=2, name="conv2")
    x = MaxPooling2D(3, 2, name="pool2")(x)
    for i, filters in enumerate((384, 256, 256), start=3):
        x = conv_relu(x, filters, 3, padding=1, name=f"conv{i}")
    x = MaxPooling2D(3, 2, name="pool5")(x)
    x = AdaptiveAveragePooling2D(6, name="average")(x)
    x = Flatten(name="flatten")(x)
    for i, units in enumerate(hidden_units, start=1):
        x = Dropout(dropout, name=f"dropout{i}")(x)
        x = Dense(units, "relu", kernel_initializer="he_normal", name=f"hidden{i}")(x)
    return classifier(x, num_classes)


def overfeat(
    x: SymbolicTensor, num_classes: int, *, dropout: float = 0.5, hidden_units: Sequence[int] = (3072, 4096)
) -> SymbolicTensor:
    """The fast model of OverFeat (P. Sermanet et al., arXiv:1312.6229, table 1): 145,920,872 parameters.

    Args:
        x: Images of at least 71x71; the paper's are 231x231.
        num_classes: Number of classes.
        dropout: Rate after each hidden layer.
        hidden_units: Widths of the hidden dense layers.
    """
    x = conv_relu(x, 96, 11, strides=4, name="conv1")
    x = MaxPooling2D(2, name="pool1")(x)
    x = conv_relu(x, 256, 5, name="conv2")
    x = MaxPooling2D(2, name="pool2")(x)
    for i, filters in enumerate((512, 1024, 1024), start=3):
        x = conv_relu(x, filters, 3, padding=1, name=f"conv{i}")
    x = MaxPooling2D(2, name="pool5")(x)
    x = Flatten(name="flatten")(x)
    for i, units in enumerate(hidden_units, start=1):
        x = Dense(units, "relu", kernel_initializer="he_normal", name=f"hidden{i}")(x)
        x = Dropout(dropout, name=f"dropout{i}")(x)
    return classifier(x, num_classes)
