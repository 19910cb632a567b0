"""The primitives: every operation of a Program, each with reference, gradient, shape and cost."""

from minicnn.ops.activations import (
    elu,
    erf,
    erfc,
    gelu,
    leaky_relu,
    log_softmax,
    relu,
    relu6,
    relu_gradient,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)  # fmt: skip
from minicnn.ops.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    receive,
    reduce_scatter,
    send,
)  # fmt: skip
from minicnn.ops.convolution import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from minicnn.ops.depthwise import depthwise_conv2d, depthwise_conv2d_input_gradient, depthwise_conv2d_weight_gradient
from minicnn.ops.draws import random_bernoulli, random_normal
from minicnn.ops.elementwise import (
    abs,
    add,
    as_float,
    cast,
    divide,
    equal,
    exp,
    expm1,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    sign,
    sqrt,
    square,
    subtract,
    where,
)  # fmt: skip
from minicnn.ops.fused import Body, Step, fused
from minicnn.ops.groups import Group
from minicnn.ops.linalg import matmul
from minicnn.ops.losses import softmax_cross_entropy, softmax_cross_entropy_gradient
from minicnn.ops.manipulation import concat, getitem, one_hot, pad, permute, repeat, slice_, take, take_gradient
from minicnn.ops.normalization import normalize, normalize_gradient
from minicnn.ops.pooling import average_pool2d, average_pool2d_gradient, max_pool2d, max_pool2d_gradient
from minicnn.ops.primitive import REGISTRY, Cost, Primitive, primitive
from minicnn.ops.random import random_uniform
from minicnn.ops.reduction import argmax, broadcast_to, max, max_gradient, mean, sum, sum_to_shape
from minicnn.ops.shapes import reshape
from minicnn.ops.strategies import unrolled as unrolled  # it states what convolutions cost
from minicnn.ops.transforms import affine_transform, affine_transform_gradient
from minicnn.ops.updates import adam_update, momentum_update, rmsprop_update, sgd_update
from minicnn.program.operators import OPERATORS as _OPERATORS

__all__ = [
    "REGISTRY", "Body", "Cost", "Group", "Primitive", "Step", "abs", "adam_update", "add", "affine_transform",
    "affine_transform_gradient", "all_gather", "all_reduce", "all_to_all", "argmax", "as_float", "average_pool2d",
    "average_pool2d_gradient", "broadcast", "broadcast_to", "cast", "concat", "conv2d", "conv2d_input_gradient",
    "conv2d_weight_gradient", "depthwise_conv2d", "depthwise_conv2d_input_gradient",
    "depthwise_conv2d_weight_gradient", "divide", "elu", "equal", "erf", "erfc", "exp", "expm1", "fused", "gelu",
    "getitem", "greater", "greater_equal", "leaky_relu", "less", "less_equal", "log", "log1p", "log_softmax", "matmul",
    "max", "max_gradient", "max_pool2d", "max_pool2d_gradient", "maximum", "mean", "minimum", "momentum_update",
    "multiply", "negative", "normalize", "normalize_gradient", "one_hot", "pad", "permute", "power", "primitive",
    "random_bernoulli", "random_normal", "random_uniform", "receive", "reduce_scatter", "relu", "relu6",
    "relu_gradient", "repeat", "reshape", "rmsprop_update", "send", "sgd_update", "sigmoid", "sign", "silu", "slice_",
    "softmax", "softmax_cross_entropy", "softmax_cross_entropy_gradient", "softplus", "sqrt", "square", "subtract",
    "sum", "sum_to_shape", "take", "take_gradient", "tanh", "where",
]  # fmt: skip

_OPERATORS |= {
    "add": add, "subtract": subtract, "multiply": multiply, "divide": divide, "power": power, "negative": negative,
    "matmul": matmul, "getitem": getitem, "greater": greater, "greater_equal": greater_equal, "less": less,
    "less_equal": less_equal,
}  # fmt: skip
