"""PyTorch's models as minicnn's: traced by torch.fx, layer for layer, channels first.

Nodes of the trace are read one after the other, on symbolic tensors. What depends on one without a counterpart is
looked up, but not applied, so that one error names everything that has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minicnn.backends.base import Backend
from minicnn.extras import install
from minicnn.interop.counterparts import NoCounterpartError
from minicnn.interop.model_weights import paths_of, weights_of
from minicnn.interop.torch_functions import FUNCTIONS, UNKNOWN, WEIGHTED, Parameter
from minicnn.interop.torch_modules import applied, layer_of
from minicnn.interop.torch_weights import _host, _layout, _used
from minicnn.layers import Input, Layer
from minicnn.models import Model


def from_torch(
    module: Any, input_shape: Sequence[int], *, backend: str | Backend | None = None, seed: int = 0
) -> Model:
    """A trainable model of a PyTorch module, with its weights.

    Args:
        module: A `torch.nn.Module` that torch.fx can trace, such as a Sequential or one of torchvision's convolutional
            networks. Its training mode does not matter, and it is not changed; functional dropout and stochastic depth
            are left out.
        input_shape: Shape of one sample, such as (3, 224, 224); channels are the first axis, as in PyTorch.
        backend: See `Model`.
        seed: See `Model`.

    Returns:
        A model whose layers have the names of the modules; its samples have the shape given.

    Raises:
        ValueError: If it has operations without counterpart; all are named.
        ImportError: If PyTorch is missing.

    Example:
        >>> import torch
        >>> from_torch(torch.nn.Sequential(torch.nn.Linear(4, 2)), (4,)).count_params()
        10
    """
    try:
        from torch import fx
    except ImportError as error:
        raise ImportError(f"from_torch reads PyTorch's modules with it: {install('torch')}.", name="torch") from error
    modes = [(part, part.training) for part in module.modules()]
    try:  # auxiliary outputs of a training have no use here
        graph = fx.symbolic_trace(module.eval()).graph
    finally:
        for part, training in modes:
            part.training = training
    inputs, reading = Input(tuple(input_shape)), _Reading(module)
    values: dict[Any, Any] = {}
    unknown = []
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        try:
            values[node] = inputs if node.op == "placeholder" else reading.value(node, args, kwargs)
        except NoCounterpartError as error:
            unknown.append(f"{node.name} ({error})")
            values[node] = UNKNOWN
    if unknown:
        raise ValueError(
            "A PyTorch module becomes a model where each of its operations is a layer of minicnn. Received: "
            f"{', '.join(unknown)}. Replace them, or write the model in minicnn and take the weights over with "
            "minicnn.interop.load_torch_weights."
        )
    outputs = values[node]
    model = Model(inputs, list(outputs) if isinstance(outputs, tuple | list) else outputs, backend=backend, seed=seed)
    paths, weights = paths_of(model), {}
    for layer, tensors in reading.tensors.items():
        for weight, tensor in zip(weights_of(layer), tensors, strict=True):
            layout = _layout(paths[weight], weight, layer, None)
            weights[layout.path] = _host(tensor).reshape(layout.split).transpose(layout.axes).reshape(layout.ours)
    model.set_weights(weights)
    return model


class _Reading:
    """Values of the nodes of a trace.

    Attributes:
        tensors: The weights of each layer in PyTorch, in the layer's order.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._modules = module, dict(module.named_modules())
        self._layers: dict[str, Layer] = {}
        self.tensors: dict[Layer, list[Any]] = {}

    def value(self, node: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value of a node, of those of the nodes that it reads: a symbolic tensor, a size, or several of them."""
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(self._module)
            return Parameter(node.target, tensor) if tensor.requires_grad else _host(tensor)
        if node.op == "call_module":
            name = str(node.target)
            module = self._modules[name]
            layer = self._layer(name, lambda: layer_of(module, name), _used(module.state_dict()).values())
            return UNKNOWN if _depends(args) else applied(module, layer, *args)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        parameters = [a.name for a in (*args, *kwargs.values()) if isinstance(a, Parameter)]
        function = (WEIGHTED if parameters else FUNCTIONS).get(name)
        if function is None:
            raise NoCounterpartError(f"function {name}{' of ' if parameters else ''}{', '.join(parameters)}")
        if _depends([args, list(kwargs.values())]):
            return UNKNOWN
        try:
            if not parameters:
                return function(*args, **kwargs)
            layer, x, tensors = function(*args, **kwargs)
        except NoCounterpartError:
            raise
        except (TypeError, ValueError) as error:  # options, or axes, that are not those of the function here
            raise NoCounterpartError(f"{name}: {error}") from error
        return self._layer(parameters[0], lambda: layer, tensors)(x)

    def _layer(self, name: str, make: Callable[[], Layer], tensors: Iterable[Any]) -> Layer:
        """The layer of a name, which is made where it comes first."""
        if name not in self._layers:
            self._layers[name] = make()
            self.tensors[self._layers[name]] = list(tensors)
        return self._layers[name]


def _depends(value: Any) -> bool:
    """True if something among arguments has no counterpart."""
    return any(map(_depends, value)) if isinstance(value, list | tuple) else value is UNKNOWN
