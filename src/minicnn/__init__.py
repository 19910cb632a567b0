"""minicnn: convolutional networks on whatever arrays you have.

The public names are imported when first used, so that `import minicnn` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minicnn import (
        callbacks,
        constraints,
        data,
        initializers,
        interop,
        keras,
        layers,
        losses,
        metrics,
        models,
        ops,
        optimizers,
        regularizers,
        saving,
        schedules,
        utils,
        zoo,
    )
    from minicnn.backends import get_backend
    from minicnn.interop import from_onnx, from_torch, load_keras
    from minicnn.layers import Input, Layer
    from minicnn.loop.step_methods import gradients
    from minicnn.models import Model, Sequential

__version__ = "0.1.0"

__all__ = [
    "Input", "Layer", "Model", "Sequential", "callbacks", "constraints", "data", "from_onnx", "from_torch",
    "get_backend", "gradients", "initializers", "interop", "keras", "layers", "load_keras", "losses", "metrics",
    "models", "ops", "optimizers", "regularizers", "saving", "schedules", "utils", "zoo",
]  # fmt: skip

_HOME = {
    "Model": "models", "Sequential": "models", "Input": "layers", "Layer": "layers", "from_onnx": "interop",
    "from_torch": "interop", "get_backend": "backends", "gradients": "loop.step_methods",
    "load_keras": "interop",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'minicnn' has no attribute {name!r}")
    if name in _HOME:
        return getattr(import_module(f"minicnn.{_HOME[name]}"), name)
    return import_module(f"minicnn.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
