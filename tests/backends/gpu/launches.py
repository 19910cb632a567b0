"""Networks and convolutions whose launches are to fit a GPU."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from minicnn import Model, ops, zoo
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program

EVERYTHING = bool(os.environ.get("MINICNN_EVERY_GPU"))


GREY = ("mlp", "lenet_3x3", "two_convs", "lenet5")


SIZES = {"mlp": 28, "lenet_3x3": 28, "two_convs": 28, "lenet5": 28, "alexnet": 63, "overfeat": 71}


KINDS = ("train", "evaluate", "predict")


BATCHES = (1, 96, 128)


@cache
def model_of(network: str, precision: str) -> Model:
    """A network of the zoo, as the studies train it, on small images where it takes such."""
    size = SIZES.get(network, 64)
    model = zoo.get_model(
        network, num_classes=10, input_shape=(size, size, 1 if network in GREY else 3),
        preprocessing=[Rescaling(1 / 255)], input_dtype="uint8",
    )  # fmt: skip
    model.compile(
        SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], precision=precision
    )
    return model


def convolution_steps(n: int, image: int, c: int, f: int, kernel: int, stride: int, dilation: int) -> Program:
    """A convolution and both its gradients."""
    program, pad = Program("convolution"), dilation * (kernel - 1) // 2
    out = (image + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    attrs: dict[str, Any] = {
        "strides": (stride, stride), "padding": ((pad, pad), (pad, pad)), "dilation": (dilation, dilation), "groups": 1,
        "data_format": "NHWC",
    }  # fmt: skip
    x, w = program.input("x", (n, image, image, c)), program.input("w", (kernel, kernel, c, f), kind="parameter")
    dy = program.input("dy", (n, out, out, f))
    program.outputs["y"] = ops.relu(ops.conv2d(x, w, **attrs))
    program.outputs["dx"] = ops.conv2d_input_gradient(dy, w, **attrs, image=(image, image))
    program.outputs["dw"] = ops.conv2d_weight_gradient(dy, x, **attrs, kernel=(kernel, kernel))
    return program
