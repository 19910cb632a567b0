"""The deep networks of minicnn.zoo in plain JAX: the same modules as in PyTorch, each as a function of arrays.

Images are (N, H, W, C), kernels (KH, KW, C, F). Convolutions and products are computed in a dtype that is chosen, as
`torch.autocast` does; statistics of batch normalisation, weights and loss are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn.jobs.settings import Settings
from minicnn.measure.jax_peer import JaxTrainer
from minicnn.measure.trainer import Work

Weights = dict[str, Any]
Layer = Callable[[Weights, Any], Any]


class DeepJaxTrainer(JaxTrainer):
    """A network of the zoo in plain JAX, made from PyTorch's modules.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        work: See `Trainer`; images are from 0 to 1.
        short: Type in which images are kept, and products computed.
        options: See `JaxTrainer`.
    """

    def __init__(self, name: str, settings: Settings, work: Work, *, short: str, **options: Any) -> None:
        self._short = short
        super().__init__(name, settings, work, **options)

    def _first_weights(self) -> Weights:
        from minicnn.measure import torch_networks

        image, classes = self.samples.input_shape, self.samples.num_classes
        module = torch_networks.build(self.settings.network, image, classes, dict(super()._first_weights())).train()
        first, self._run = network(module, self._short)
        return first

    def _arranged(self, arrays: list[Any]) -> Any:
        return dict(zip(self._first, arrays, strict=True))

    def network(self, weights: Any, x: Any) -> Any:
        """See `JaxTrainer.network`."""
        return self._run(weights, x)


def network(root: Any, dtype: str) -> tuple[Weights, Layer]:
    """First weights, and the function of weights and images (N, H, W, C) that gives logits, in training mode.

    Args:
        root: The module of PyTorch, whose weights are taken.
        dtype: In which images are kept, and convolutions and products computed.
    """
    from torch import nn

    weights: Weights = {}

    def put(name: str, tensor: Any) -> str:
        weights[name] = tensor.detach().numpy().copy()
        return name

    def function(module: Any, name: str) -> Layer:
        children = [function(child, f"{name}.{k}") for k, child in module.named_children()]
        kind = type(module).__name__
        if isinstance(module, nn.Sequential):
            return lambda w, x: _through(children, w, x)
        if kind == "ModuleList":
            return lambda w, x: [child(w, x) for child in children]
        if kind == "Branches":
            return lambda w, x: _concatenated(children[0](w, x))
        if kind == "Residual":
            main, shortcut, after = children
            return lambda w, x: after(w, main(w, x) + shortcut(w, x))
        if isinstance(module, nn.Conv2d):
            kernel = put(f"{name}.kernel", module.weight.permute(2, 3, 1, 0))
            bias = None if module.bias is None else put(f"{name}.bias", module.bias)
            return lambda w, x: _convolution(module, w[kernel], None if bias is None else w[bias], x)
        if isinstance(module, nn.Linear):
            kernel, bias = put(f"{name}.kernel", module.weight.T), put(f"{name}.bias", module.bias)
            return lambda w, x: x @ w[kernel].astype(x.dtype) + w[bias].astype(x.dtype)
        if isinstance(module, nn.BatchNorm2d):
            scale, offset = put(f"{name}.scale", module.weight), put(f"{name}.offset", module.bias)
            return lambda w, x: _normalized(w[scale], w[offset], module.eps, x)
        return lambda w, x: _plain(module, kind, x)

    run = function(root, "network")
    return weights, lambda w, x: run(w, x.astype(dtype)).astype("float32")


def _through(children: list[Layer], w: Weights, x: Any) -> Any:
    for child in children:
        x = child(w, x)
    return x


def _concatenated(parts: list[Any]) -> Any:
    from jax import numpy as jnp

    return jnp.concatenate(parts, -1)


def _convolution(module: Any, kernel: Any, bias: Any, x: Any) -> Any:
    from jax import lax

    padding = [(p, p) for p in module.padding]
    made = lax.conv_general_dilated(
        x, kernel.astype(x.dtype), module.stride, padding, rhs_dilation=module.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=module.groups,
    )  # fmt: skip
    return made if bias is None else made + bias.astype(x.dtype)


def _normalized(scale: Any, offset: Any, epsilon: float, x: Any) -> Any:
    from jax import lax
    from jax import numpy as jnp

    wide = x.astype("float32")
    mean, variance = jnp.mean(wide, (0, 1, 2)), jnp.var(wide, (0, 1, 2))
    return ((wide - mean) * (scale * lax.rsqrt(variance + epsilon)) + offset).astype(x.dtype)


def _plain(module: Any, kind: str, x: Any) -> Any:
    """A module without weights."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    if kind == "MaxPool2d":
        (k, s, p), h = (module.kernel_size, module.stride, module.padding), x.shape[1]
        rest = -(h + 2 * p - k) % s if module.ceil_mode else 0
        sides = (0, 0), (p, p + rest), (p, p + rest), (0, 0)
        return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, (1, k, k, 1), (1, s, s, 1), sides)
    if kind == "AdaptiveAvgPool2d":
        rows, columns = (jnp.asarray(_shares(n, module.output_size), "float32") for n in x.shape[1:3])
        return jnp.einsum("ph,qw,nhwc->npqc", rows, columns, x.astype("float32")).astype(x.dtype)
    if kind == "Flatten":  # as PyTorch orders it
        return jnp.transpose(x, (0, 3, 1, 2)).reshape(len(x), -1)
    return {"ReLU": jax.nn.relu, "ReLU6": jax.nn.relu6, "Identity": lambda x: x}[kind](x)


def _shares(n: int, bins: int) -> np.ndarray[Any, Any]:
    """The share of each of n elements in each of so many means."""
    made = np.zeros((bins, n))
    for i in range(bins):
        first, last = i * n // bins, -(-(i + 1) * n // bins)
        made[i, first:last] = 1 / (last - first)
    return made
