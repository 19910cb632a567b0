"""VGG (K. Simonyan, A. Zisserman, arXiv:1409.1556): 3x3 convolutions in five stages, three dense layers."""

from __future__ import annotations

from collections.abc import Sequence

from minicnn.layers import AdaptiveAveragePooling2D, Dense, Dropout, Flatten, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_relu

FILTERS = (64, 128, 256, 512, 512)


def vgg11(
    x: SymbolicTensor, num_classes: int, *, dropout: float = 0.5, hidden_units: Sequence[int] = (4096, 4096)
) -> SymbolicTensor:
    """VGG-11 (the paper's A) without normalisation: 132,863,336 parameters; arguments as `vgg16`."""
    return _vgg(x, num_classes, (1, 1, 2, 2, 2), dropout, hidden_units)


def vgg16(
    x: SymbolicTensor, num_classes: int, *, dropout: float = 0.5, hidden_units: Sequence[int] = (4096, 4096)
) -> SymbolicTensor:
    """VGG-16 (the paper's D) without normalisation: 138,357,544 parameters.

    Args:
        x: Images of at least 32x32; other sizes than 224x224 are averaged to 7x7 before the dense layers.
        num_classes: Number of classes.
        dropout: Rate after each hidden layer.
        hidden_units: Widths of the hidden dense layers.
    """
    return _vgg(x, num_classes, (2, 2, 3, 3, 3), dropout, hidden_units)


def _vgg(
    x: SymbolicTensor, num_classes: int, depths: Sequence[int], dropout: float, hidden_units: Sequence[int]
) -> SymbolicTensor:
    for stage, (filters, depth) in enumerate(zip(FILTERS, depths, strict=True), start=1):
        for i in range(1, depth + 1):
            x = conv_relu(x, filters, 3, padding=1, name=f"stage{stage}_conv{i}")
        x = MaxPooling2D(2, name=f"stage{stage}_pool")(x)
    x = AdaptiveAveragePooling2D(7, name="average")(x)
    x = Flatten(name="flatten")(x)
    for i, units in enumerate(hidden_units, start=1):
        x = Dense(units, "relu", kernel_initializer="he_normal", name=f"hidden{i}")(x)
        x = Dropout(dropout, name=f"dropout{i}")(x)
    return classifier(x, num_classes)
