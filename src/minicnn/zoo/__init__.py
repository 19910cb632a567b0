"""Networks by name.

A network is a function from a symbolic tensor and a number of classes to logits, listed in `NETWORKS`. Where
torchvision has a definition the layers, and so the parameter counts, are its own.

First values: layers before a ReLU are drawn as K. He et al. do (arXiv:1502.01852), which keeps the size of
activations through any depth; layers before tanh, and the last one, which nothing follows, as X. Glorot and
Y. Bengio do; biases are 0. Where a network differs its docstring says so.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.arguments import plain_arguments
from minicnn.backends.base import Backend
from minicnn.interop import load_torch_weights
from minicnn.layers import Input, Layer
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.models import Model
from minicnn.names import known_name, meant
from minicnn.zoo.classic import alexnet, lenet5, overfeat
from minicnn.zoo.googlenet import googlenet
from minicnn.zoo.mobilenet import mobilenet_v2
from minicnn.zoo.resnet import resnet9, resnet18, resnet34, resnet50
from minicnn.zoo.squeezenet import squeezenet1_1
from minicnn.zoo.studies import lenet_3x3, mlp, two_convs
from minicnn.zoo.vgg import vgg11, vgg16

__all__ = ["ALIASES", "NETWORKS", "Network", "get_model", "get_network", "names"]


@dataclass(frozen=True)
class Network:
    """A network that can be had by name.

    Attributes:
        build: Function (x, num_classes, **options) -> logits of symbolic tensors.
        input_shape: Shape of one sample (H, W, C), unless told otherwise.
        num_classes: Number of classes, unless told otherwise.
    """

    build: Callable[..., SymbolicTensor]
    input_shape: tuple[int, ...] = (224, 224, 3)
    num_classes: int = 1000


DIGITS, SMALL = (28, 28, 1), (32, 32, 3)

NETWORKS = {
    "mlp": Network(mlp, DIGITS, 10),
    "lenet_3x3": Network(lenet_3x3, DIGITS, 10),
    "two_convs": Network(two_convs, DIGITS, 10),
    "lenet5": Network(lenet5, DIGITS, 10),
    "alexnet": Network(alexnet),
    "overfeat": Network(overfeat, (231, 231, 3)),
    "vgg11": Network(vgg11),
    "vgg16": Network(vgg16),
    "googlenet": Network(googlenet),
    "resnet9": Network(resnet9, SMALL, 10),
    "resnet18": Network(resnet18),
    "resnet34": Network(resnet34),
    "resnet50": Network(resnet50),
    "mobilenet_v2": Network(mobilenet_v2),
    "squeezenet1_1": Network(squeezenet1_1),
}


# Further names: those of the studies that the networks are from.
ALIASES = {"platforms": "lenet_3x3", "kernels": "two_convs"}
STUDIES = {name: alias for alias, name in ALIASES.items()}


def names(*, aliases: bool = False) -> list[str]:
    """Names of the networks that `get_model` knows; with aliases also their further names."""
    return [*NETWORKS, *(ALIASES if aliases else ())]


def get_network(name: str) -> Network:
    """A network by its name or a further name; a ValueError if there is none."""
    return NETWORKS[ALIASES.get(name) or known_name("A network", name, NETWORKS)]


@plain_arguments
def get_model(
    name: str,
    *,
    num_classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    backend: str | Backend | None = None,
    seed: int = 0,
    preprocessing: Sequence[Layer] = (),
    input_dtype: str = "float32",
    weights: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Model:
    """A network by its name, with first weights, that returns logits.

    Args:
        name: One of `names()`, or an alias.
        num_classes: Number of classes; 10 for the networks of digits and resnet9, 1000 for the others if None.
        input_shape: Shape of one sample (H, W, C); (28, 28, 1), (224, 224, 3), for resnet9 (32, 32, 3), or for overfeat
            (231, 231, 3) if None.
        backend: See `Model`.
        seed: See `Model`.
        preprocessing: Layers to put in front, such as [Rescaling(1 / 255)].
        input_dtype: Element type of the samples; "uint8" keeps images small until the network scales them.
        weights: File of a PyTorch network's weights: see `minicnn.interop.load_torch_weights`. With `num_classes` a
            last layer for another number keeps its first weights, with a warning.
        options: Further arguments of the network's own function, such as `dropout` or `hidden_units`.

    Returns:
        The model; its output has shape (N, num_classes).

    Raises:
        ValueError: If the name is unknown, or the images are too small for the network.
        TypeError: If the network has no such option.

    Example:
        >>> from minicnn.layers import Rescaling
        >>> model = get_model("two_convs", preprocessing=[Rescaling(1 / 255)], input_dtype="uint8")
        >>> model.count_params()
        50890
    """
    network = get_network(name)
    known = [p.name for p in inspect.signature(network.build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(
            f"{name} has the options: {', '.join(known) or 'none'}. Received: {', '.join(unknown)}."
            f"{meant(unknown[0], known) or ' Leave it out.'}"
        )
    inputs = Input(network.input_shape if input_shape is None else input_shape, dtype=input_dtype)
    x = inputs
    for layer in preprocessing:
        x = layer(x)
    logits = network.build(x, network.num_classes if num_classes is None else num_classes, **options)
    model = Model(inputs, logits, backend=backend, seed=seed, name=name)
    if weights is not None:
        load_torch_weights(model, weights, skip_mismatch=num_classes is not None)
    return model
