"""The networks of the studies `mlp`, `platforms` and `kernels`."""

from __future__ import annotations

from minicnn.layers import Dense, Flatten, MaxPooling2D
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.zoo.blocks import classifier, conv_relu


def mlp(x: SymbolicTensor, num_classes: int, *, hidden_units: int = 10) -> SymbolicTensor:
    """The multilayer perceptron 784-10-10 of the study `mlp`, which calls it a CNN: 7,960 parameters.

    A. Sapra, Performance Benchmarking of CNN Implementation: CPU vs. CUDA, Thapar Institute, 2025.
    """
    x = Flatten(name="flatten")(x) if len(x.shape) > 2 else x
    x = Dense(hidden_units, "relu", kernel_initializer="he_normal", name="hidden")(x)
    return classifier(x, num_classes)


def lenet_3x3(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """LeNet with kernels of 3 x 3, the network of the study `platforms`: 53,866 parameters for MNIST.

    G. Khanna, A. Harsh, CNN Performance Analysis: CPU-optimized vs GPU-optimized, University of Maryland, 2025.
    """
    for i, filters in enumerate((8, 16), start=1):
        x = conv_relu(x, filters, 3, name=f"conv{i}")
        x = MaxPooling2D(2, name=f"pool{i}")(x)
    x = Flatten(name="flatten")(x)
    x = Dense(128, "relu", kernel_initializer="he_normal", name="hidden")(x)
    return classifier(x, num_classes)


def two_convs(x: SymbolicTensor, num_classes: int) -> SymbolicTensor:
    """Two convolutions, a pooling and a dense layer, the network of the study `kernels`: 50,890 parameters for MNIST.

    The study initialises all of it, the last layer too, as K. He et al. do (arXiv:1502.01852).
    C. Camolese, Convolutional Neural Network Implementation on GPU, Ensimag.
    """
    x = conv_relu(x, 16, 3, name="conv1")
    x = conv_relu(x, 32, 3, name="conv2")
    x = MaxPooling2D(2, name="pool")(x)
    x = Flatten(name="flatten")(x)
    return classifier(x, num_classes, "he_normal")
