"""Weights of PyTorch's networks, by the order in which both libraries name them.

PyTorch's state dictionary names parameters and running statistics in the order in which modules are registered, which
for torchvision's networks is that of minicnn's zoo. What differs is the order of axes:

    kernel of               minicnn           PyTorch
    a convolution           (KH, KW, C, F)    (F, C, KH, KW)
    a transposed one        (KH, KW, F, C)    (C, F, KH, KW)
    a depthwise one         (KH, KW, C, M)    (C M, 1, KH, KW)
    a dense layer           (C, F)            (F, C)

The rows of a dense kernel behind a flattened image go by (H, W, C) in minicnn and by (C, H, W) in PyTorch.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.extras import install
from minicnn.files import SavedModelError, read_arrays
from minicnn.interop.model_weights import paths_of, weights_of
from minicnn.layers import Conv1D, Conv2D, Conv2DTranspose, Dense, DepthwiseConv2D, Flatten, Layer, SeparableConv2D
from minicnn.layers.graph import Graph
from minicnn.layers.symbolic import SymbolicTensor
from minicnn.layers.weight import Weight
from minicnn.models import Model

Array = np.ndarray[Any, Any]
Path = str | os.PathLike[str]

# Words of torchvision's names in the order in which its networks register modules. Modules of one rank go by their
# numbers: conv1, bn1, conv2, bn2.
_RANKS = {
    word: (rank, place)
    for rank, words in enumerate(
        ("features", "conv bn", "layer", "inception", "branch", "squeeze", "expand", "downsample", "classifier fc",
         "weight", "bias", "running_mean", "running_var")
    )
    for place, word in enumerate(words.split())
}  # fmt: skip
_NAME = re.compile(r"([a-z_]*)(?:(\d+)([a-z]?)(?:x\d+)?)?")


def load_torch_weights(model: Model, weights: Mapping[str, Any] | Path, *, skip_mismatch: bool = False) -> None:
    """Give a model the weights of a PyTorch network of the same architecture.

    Args:
        model: The model, built; it is not changed if there is an error.
        weights: A state dictionary, `module.state_dict()`, of tensors or arrays, in the order in which its modules are
            registered and run; or a file: .safetensors of one of torchvision's networks, or what `torch.save` wrote
            of a state dictionary (.pth, .pt), which PyTorch reads. Counters of batches (`num_batches_tracked`) and
            auxiliary classifiers (`aux...`) are passed over.
        skip_mismatch: Whether weights of another shape stay as they are, with a warning, as those of a new last layer.

    Raises:
        ValueError: If the numbers of weights or the shapes of one differ, or the order of a file's is not known.
        SavedModelError: If a file is damaged, or holds something else; a ValueError.
        OSError: If the file cannot be read.
        ImportError: If PyTorch or safetensors is needed and missing.
    """
    tensors = _used(weights if isinstance(weights, Mapping) else _read(weights))
    layouts = _layouts(model)
    _check_number(len(tensors), layouts)
    arrays: dict[str, Array] = {}
    skipped = []
    for (name, tensor), layout in zip(tensors.items(), layouts, strict=True):
        array = _host(tensor)
        if array.shape == layout.shape:
            arrays[layout.path] = array.reshape(layout.split).transpose(layout.axes).reshape(layout.ours)
        elif skip_mismatch:
            skipped.append(f"{layout.path} {layout.ours} where {name} has {array.shape}")
        else:
            raise ValueError(
                "A weight has the same shape in both networks, but for the order of its axes. Received: "
                f"{name} {array.shape} for {layout.path} {layout.ours}, which is {layout.shape} in PyTorch. Build the "
                "model like the network, or load with skip_mismatch=True."
            )
    model.set_weights(arrays)
    if skipped:
        warnings.warn(f"Weights stay as they are where shapes differ: {'; '.join(skipped)}.", stacklevel=2)


def to_torch_weights(model: Model, names: Iterable[str]) -> dict[str, Array]:
    """The weights of a model by a PyTorch network's names and in its order of axes.

    Args:
        model: The model, built.
        names: Names of the network's parameters and statistics in order, such as `module.state_dict()`. Counters of
            batches and auxiliary classifiers are passed over, so `load_state_dict(..., strict=False)` takes the result
            once its arrays are tensors (`torch.from_numpy`).

    Raises:
        ValueError: If the numbers of weights differ.
    """
    used = list(_used(dict.fromkeys(names)))
    layouts = _layouts(model)
    _check_number(len(used), layouts)
    weights = model.get_weights()
    arrays = {}
    for name, layout in zip(used, layouts, strict=True):
        apart = [layout.split[axis] for axis in layout.axes]
        array = weights[layout.path].reshape(apart).transpose(np.argsort(layout.axes)).reshape(layout.shape)
        arrays[name] = np.ascontiguousarray(array)
    return arrays


@dataclass(frozen=True)
class _Layout:
    """Axes of one weight in both libraries.

    Attributes:
        path: Path of the weight in the model.
        ours: Shape in the model.
        shape: Shape in PyTorch.
        split: The same with axes apart that PyTorch joins.
        axes: Axes of `split` in minicnn's order.
    """

    path: str
    ours: tuple[int, ...]
    shape: tuple[int, ...]
    split: tuple[int, ...]
    axes: tuple[int, ...]


def _layouts(model: Model) -> list[_Layout]:
    """Layouts of all weights in the model's order."""
    model.input_shape  # noqa: B018  # a model that is not built has none, and says so
    layers = model._with_sublayers()
    owners = {weight: layer for layer in layers for weight in weights_of(layer)}
    images: dict[Layer | None, tuple[int, ...]] = {
        layer: image for held in layers if held._wired is not None for layer, image in _flattened(held._wired)
    }
    return [_layout(p, w, owners.get(w), images.get(owners.get(w))) for w, p in paths_of(model).items()]


def _layout(path: str, weight: Weight, layer: Layer | None, image: tuple[int, ...] | None) -> _Layout:
    ours = weight.shape
    kernel = weight.name.endswith("kernel")
    if kernel and (isinstance(layer, DepthwiseConv2D) or weight.name == "depthwise_kernel"):
        kh, kw, c, m = ours
        return _Layout(path, ours, (c * m, 1, kh, kw), (c, m, kh, kw), (2, 3, 0, 1))
    if kernel and isinstance(layer, Conv2D | SeparableConv2D | Conv2DTranspose):
        kh, kw, c, f = ours
        return _Layout(path, ours, (f, c, kh, kw), (f, c, kh, kw), (2, 3, 1, 0))
    if kernel and isinstance(layer, Conv1D):
        k, c, f = ours
        return _Layout(path, ours, (f, c, k), (f, c, k), (2, 1, 0))
    if kernel and isinstance(layer, Dense):
        rows, f = ours
        if image is not None:
            h, w, c = image
            return _Layout(path, ours, (f, rows), (f, c, h, w), (2, 3, 1, 0))
        return _Layout(path, ours, (f, rows), (f, rows), (1, 0))
    return _Layout(path, ours, ours, ours, tuple(range(len(ours))))


def _flattened(graph: Graph) -> Iterable[tuple[Layer, tuple[int, ...]]]:
    """Dense layers that are given a flattened image with channels last, each with the image's shape (H, W, C)."""
    for call in graph.calls:
        if isinstance(call.layer, Dense):
            source = call.inputs[0].source
            while source is not None and not isinstance(source.layer, Flatten) and not _has_weights(source.layer):
                source = source.inputs[0].source  # dropout, activations
            if source is not None and isinstance(source.layer, Flatten):
                image = source.inputs[0]
                if len(image.trial()) == 3 and _channels_last(image):
                    yield call.layer, image.trial()


def _has_weights(layer: Layer) -> bool:
    return any(weights_of(each) for each in layer._with_sublayers())


def _channels_last(image: SymbolicTensor) -> bool:
    """True if channels are the last axis of an image, as the layer before says that knows of channels."""
    source = image.source
    while source is not None and not hasattr(source.layer, "data_format"):
        source = source.inputs[0].source
    return source is None or getattr(source.layer, "data_format", None) == "channels_last"


def _check_number(tensors: int, layouts: Sequence[_Layout]) -> None:
    if tensors != len(layouts):
        raise ValueError(
            f"A PyTorch network has the weights of the model, in its order. Received: {tensors} for the model's "
            f"{len(layouts)}, from {layouts[0].path} to {layouts[-1].path}."
        )


def _used(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and running statistics, without counters and auxiliary classifiers."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.endswith("num_batches_tracked") and not any(p.lower().startswith("aux") for p in name.split("."))
    }


def _host(tensor: Any) -> Array:
    """A tensor of PyTorch, on whatever device, or an array as one of NumPy."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor  # bfloat16
        return np.asarray(tensor.numpy())
    return np.asarray(tensor)


def _read(path: Path) -> Mapping[str, Any]:
    """Tensors of a file, in the order of their modules."""
    name = os.fspath(path)
    if name.endswith(".safetensors"):
        tensors = read_arrays(name)
        return {key: tensors[key] for key in sorted(_used(tensors), key=_registered)}  # a file has them by the alphabet
    if name.endswith((".pth", ".pt")):
        try:
            import torch
        except ImportError as error:
            message = f"A file of torch.save is read by PyTorch: {install('torch')}. Files .safetensors need none."
            raise ImportError(message, name="torch") from error
        with open(name, "rb") as file:
            try:
                state = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # of pickle, of archives, of tensors
                wrong = f"it is damaged, or more than tensors by name ({type(error).__name__})"
                raise SavedModelError(name, wrong, "Save the state dictionary again, with torch.save") from error
        if not isinstance(state, Mapping) or not all(
            isinstance(n, str) and hasattr(t, "shape") for n, t in state.items()
        ):
            raise SavedModelError(name, "it holds no tensors by name", "Save a state dictionary")
        return state
    raise ValueError(f"Weights are in a file .safetensors, .pth or .pt. Received: {name!r}.")


def _registered(name: str) -> list[tuple[int, int, str, int]]:
    """Sort key: the order in which torchvision's networks register their modules."""
    key = []
    for part in name.split("."):
        match = _NAME.fullmatch(part)
        word, number, letter = match.groups("") if match else (part, "", "")
        if word and word not in _RANKS:
            raise ValueError(
                "A safetensors file has tensors by the alphabet, and the order of modules is known for torchvision's "
                f"names alone. Received: {name!r}. Pass the state dictionary itself, or a file of torch.save."
            )
        rank, place = _RANKS.get(word, (-1, 0))  # of a number alone
        key.append((rank, int(number or 0), letter, place))
    return key
