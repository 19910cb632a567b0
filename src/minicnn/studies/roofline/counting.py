"""Counts of a training step's operations and bytes: from its Program, checked against PyTorch's counter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from minicnn import zoo
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import Model
from minicnn.optimizers import SGD
from minicnn.program.graph import Node

IMAGE = (64, 64, 3)
CLASSES = 200
NETWORKS = ("resnet18", "mobilenet_v2", "resnet50", "squeezenet1_1")
LEARNING_RATE, MOMENTUM = 0.01, 0.9
# Operations that PyTorch's counter counts.
PRODUCTS = ("conv2d", "depthwise_conv2d", "matmul")


def network(name: str, backend: str | None, image: Sequence[int] = IMAGE) -> Model:
    """A network on bytes, compiled for training as in the study, without dropout."""
    model = zoo.get_model(
        name, input_shape=image, num_classes=CLASSES, backend=backend, preprocessing=[Rescaling(1 / 255)],
        input_dtype="uint8", **options(name),
    )  # fmt: skip
    model.compile(SGD(LEARNING_RATE, momentum=MOMENTUM), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def options(name: str) -> dict[str, Any]:
    """Options of a network in the study: without dropout."""
    return {} if name.startswith("resnet") else {"dropout": 0.0}


def is_product(node: Node) -> bool:
    """True if a node is a convolution, a matrix product, or a gradient of one."""
    return node.op.name.startswith(PRODUCTS)


def count(name: str, batches: tuple[int, int], image: Sequence[int] = IMAGE) -> dict[str, Any]:
    """FLOPs and bytes of each node of a training step, of each layer and of the whole.

    Args:
        name: Name of the network.
        batches: Two batch sizes, for the larger of which layers are listed. Every cost is a constant plus a multiple
            of the batch, so two tell it for all.
        image: Shape (H, W, C) of an image.

    Returns:
        "parameters", "nodes" ([FLOPs, bytes] in each batch), "layers" and "products" by phase for one image.
    """
    model = network(name, "numpy", image)
    programs = [model.program("train", batch_size=n) for n in batches]
    pairs = zip(*(p.nodes for p in programs), strict=True)
    nodes = [[a.cost.flops, a.cost.bytes, b.cost.flops, b.cost.bytes] for a, b in pairs]
    layers: dict[str, dict[str, Any]] = {}
    for node in programs[1].nodes:
        layer = layers.setdefault(node.scope.split("/")[0] or "step", {})
        for key, value in (("flops", node.cost.flops), ("bytes", node.cost.bytes)):
            layer[f"{node.phase}_{key}"] = layer.get(f"{node.phase}_{key}", 0) + value
    for weight in programs[1].inputs:
        if weight.kind == "parameter":
            layer = layers.setdefault(weight.name.split("/")[0], {})
            layer["parameters"] = layer.get("parameters", 0) + weight.size
    kinds = {model.layer_name(layer): type(layer).__name__ for layer in model.layers}
    for layer_name, layer in layers.items():
        layer["kind"] = kinds.get(layer_name, "")
    products = {
        phase: sum(n.cost.flops for n in programs[1].nodes if is_product(n) and n.phase == phase) / batches[1]
        for phase in ("forward", "backward")
    }
    return {
        "parameters": model.count_params(trainable=True), "batches": list(batches), "nodes": nodes, "layers": layers,
        "products": products,
    }  # fmt: skip


def at_batch(counted: Mapping[str, Any], batch: int) -> list[tuple[float, float]]:
    """FLOPs and bytes of each node at any batch size."""
    n, m = counted["batches"]
    t = (batch - n) / (m - n)
    return [(f0 + t * (f1 - f0), b0 + t * (b1 - b0)) for f0, b0, f1, b1 in counted["nodes"]]


def torch_count(name: str, image: Sequence[int] = IMAGE) -> dict[str, float]:
    """FLOPs of one image's forward and backward pass by PyTorch's counter, of the same network in torch.nn.

    Returns:
        "forward", "backward" as it counts, and "backward_grouped" with the groups of convolutions, which it ignores.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from minicnn.measure import torch_networks

    with torch.device("meta"):  # shapes alone: nothing is computed
        module = getattr(torch_networks, name)(image[2], CLASSES).train()
        x = torch.zeros(2, image[2], image[0], image[1])

    def grouped(dy: Any, x: Any, w: Any, *rest: Any, **_: Any) -> int:
        """Two products, of the input's and of the kernel's gradient, or one where the mask says so."""
        mask = rest[7]
        return sum(mask[:2]) * 2 * math.prod(dy) * math.prod(w[1:])

    counts = {}
    for key, mapping in (("backward", {}), ("backward_grouped", {torch.ops.aten.convolution_backward: grouped})):
        with FlopCounterMode(display=False) as counter:
            loss = module(x).sum()
        counts["forward"] = counter.get_total_flops() / 2
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            loss.backward()
        counts[key] = counter.get_total_flops() / 2
    return counts
