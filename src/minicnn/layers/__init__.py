"""The layers that users compose into models."""

from minicnn.layers.activation import Activation
from minicnn.layers.convolutional import Conv2D
from minicnn.layers.core import Dense, Flatten, Permute, Rescaling, Reshape
from minicnn.layers.graph import Input
from minicnn.layers.layer import Layer
from minicnn.layers.pooling import MaxPooling2D

__all__ = [
    "Activation",
    "Conv2D",
    "Dense",
    "Flatten",
    "Input",
    "Layer",
    "MaxPooling2D",
    "Permute",
    "Rescaling",
    "Reshape",
]
