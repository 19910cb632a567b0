"""Blocks that several networks are built from."""

from __future__ import annotations

from minicnn.initializers import Initializer
from minicnn.layers import Activation, BatchNormalization, Conv2D, Dense, MaxPooling2D
from minicnn.layers.activations import ActivationArgument
from minicnn.layers.symbolic import SymbolicTensor


def conv_relu(
    x: SymbolicTensor, filters: int, kernel_size: int, *, strides: int = 1, padding: int = 0, name: str
) -> SymbolicTensor:
    """Convolution with bias and ReLU."""
    conv = Conv2D(filters, kernel_size, strides, padding, activation="relu", kernel_initializer="he_normal", name=name)
    return conv(x)


def conv_norm(
    x: SymbolicTensor,
    filters: int,
    kernel_size: int,
    *,
    strides: int = 1,
    activation: ActivationArgument = "relu",
    epsilon: float = 1e-5,
    use_bias: bool = False,
    name: str,
) -> SymbolicTensor:
    """Convolution that keeps the size (at stride 1), batch normalisation, and an activation if named.

    The convolution has no bias unless told otherwise, because beta of the normalisation takes its place.
    """
    x = Conv2D(
        filters, kernel_size, strides, kernel_size // 2, use_bias=use_bias, kernel_initializer="he_normal", name=name
    )(x)
    return norm(x, activation=activation, epsilon=epsilon, name=name)


def norm(
    x: SymbolicTensor, *, activation: ActivationArgument = "relu", epsilon: float = 1e-5, name: str
) -> SymbolicTensor:
    """Batch normalisation with torchvision's numbers, and an activation if named."""
    # PyTorch's momentum of 0.1 is the share of the batch, Keras's 0.9 that of the past.
    x = BatchNormalization(momentum=0.9, epsilon=epsilon, name=f"{name}_norm")(x)
    return x if activation is None else Activation(activation, name=f"{name}_{activation}")(x)


def max_pool_ceil(x: SymbolicTensor, pool_size: int, *, name: str) -> SymbolicTensor:
    """Maximum of windows in steps of 2, the last one reaching over the border (PyTorch's ceil_mode)."""
    if None in x.sample_shape:
        raise ValueError(
            f"What pooling adds at the border depends on the size of the image. Received: shape {x.shape}. Give it."
        )
    beyond = [(-(-(n - pool_size) // 2)) * 2 + pool_size - n for n in x.trial()[:2]]
    padding = ((0, beyond[0]), (0, beyond[1]))
    return MaxPooling2D(pool_size, 2, padding, name=name)(x)


def classifier(
    x: SymbolicTensor, num_classes: int, kernel_initializer: str | Initializer = "glorot_uniform"
) -> SymbolicTensor:
    """The last layer: one logit a class."""
    return Dense(num_classes, kernel_initializer=kernel_initializer, name="logits")(x)
