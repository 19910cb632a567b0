"""The layers that users compose into models."""

from minicnn.configured import CLASSES as _CLASSES
from minicnn.configured import register as _register
from minicnn.layers.activation import ELU, Activation, LeakyReLU, PReLU, ReLU, Softmax
from minicnn.layers.augmentation import (
    CenterCrop,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomRotation,
    RandomTranslation,
    RandomZoom,
    Resizing,
)
from minicnn.layers.convolutional import Conv2D, Conv2DTranspose, DepthwiseConv2D, SeparableConv2D
from minicnn.layers.core import Dense, Identity, Lambda, Rescaling
from minicnn.layers.features import CategoryEncoding, Embedding, Normalization
from minicnn.layers.functional import Functional as _Functional
from minicnn.layers.layer import Layer
from minicnn.layers.merging import (
    Add,
    Average,
    Concatenate,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    add,
    average,
    concatenate,
    maximum,
    minimum,
    multiply,
    subtract,
)
from minicnn.layers.normalization import (
    BatchNormalization,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
)
from minicnn.layers.one_dimensional import (
    AveragePooling1D,
    Conv1D,
    GlobalAveragePooling1D,
    GlobalMaxPooling1D,
    MaxPooling1D,
)
from minicnn.layers.operation import Operation as _Operation
from minicnn.layers.options import document as _document
from minicnn.layers.pooling import (
    AdaptiveAveragePooling2D,
    AveragePooling2D,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    MaxPooling2D,
)
from minicnn.layers.regularization import Dropout, GaussianNoise, SpatialDropout2D
from minicnn.layers.reshaping import Cropping2D, Flatten, Permute, Reshape, UpSampling2D, ZeroPadding2D
from minicnn.layers.symbolic import Input

# Keras's short names.
AvgPool1D, MaxPool1D, GlobalAvgPool1D, GlobalMaxPool1D = (
    AveragePooling1D, MaxPooling1D, GlobalAveragePooling1D, GlobalMaxPooling1D
)  # fmt: skip
AvgPool2D, MaxPool2D, GlobalAvgPool2D, GlobalMaxPool2D = (
    AveragePooling2D, MaxPooling2D, GlobalAveragePooling2D, GlobalMaxPooling2D
)  # fmt: skip
Convolution1D, Convolution2D, Convolution2DTranspose = Conv1D, Conv2D, Conv2DTranspose
SeparableConvolution2D = SeparableConv2D

__all__ = [
    "ELU", "Activation", "AdaptiveAveragePooling2D", "Add", "Average", "AveragePooling1D", "AveragePooling2D",
    "AvgPool1D", "AvgPool2D", "BatchNormalization", "CategoryEncoding", "CenterCrop", "Concatenate", "Conv1D",
    "Conv2D", "Conv2DTranspose", "Convolution1D", "Convolution2D", "Convolution2DTranspose", "Cropping2D", "Dense",
    "DepthwiseConv2D", "Dropout", "Embedding", "Flatten", "GaussianNoise", "GlobalAveragePooling1D",
    "GlobalAveragePooling2D", "GlobalAvgPool1D", "GlobalAvgPool2D", "GlobalMaxPool1D", "GlobalMaxPool2D",
    "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GroupNormalization", "Identity", "Input", "Lambda", "Layer",
    "LayerNormalization", "LeakyReLU", "LocalResponseNormalization", "MaxPool1D", "MaxPool2D", "MaxPooling1D",
    "MaxPooling2D", "Maximum", "Minimum", "Multiply", "Normalization", "PReLU", "Permute", "RandomBrightness",
    "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "ReLU",
    "Rescaling", "Reshape", "Resizing", "SeparableConv2D", "SeparableConvolution2D", "Softmax", "SpatialDropout2D",
    "Subtract", "UpSampling2D", "ZeroPadding2D", "add", "average", "concatenate", "maximum", "minimum", "multiply",
    "subtract",
]  # fmt: skip

_LAYERS = [c for c in map(globals().get, __all__) if isinstance(c, type) and issubclass(c, Layer) and c is not Layer]
_register(_Operation, *_LAYERS)
_CLASSES["Graph"] = _Functional
for _layer in dict.fromkeys(_LAYERS):  # aliases once
    _document(_layer)
