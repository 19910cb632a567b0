"""Keras's names: `from minicnn import keras` in place of `import keras`.

Each is minicnn's own, or a short function of these that takes Keras's arguments; what Keras has besides is listed in
docs/keras.md. Modules are imported when first used.
"""

from importlib import import_module as _import_module
from typing import Any as _Any

_MODULES = (
    "activations", "backend", "callbacks", "constraints", "datasets", "initializers", "layers", "losses", "metrics",
    "models", "ops", "optimizers", "preprocessing", "random", "regularizers", "saving", "utils",
)  # fmt: skip
_HOME = {
    "GradientTape": "models", "Initializer": "initializers", "Input": "layers", "InputLayer": "layers",
    "Layer": "layers", "Loss": "losses", "Metric": "metrics", "Model": "models", "Optimizer": "optimizers",
    "Regularizer": "regularizers", "Sequential": "models",
}  # fmt: skip

__all__ = sorted([*_MODULES, *_HOME])


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _import_module(f"minicnn.keras.{name}")
    if name not in _HOME:
        raise AttributeError(
            f"minicnn.keras has the names of Keras that mean the same here. Received: {name!r}. See docs/keras.md for "
            "what to write instead."
        )
    return getattr(_import_module(f"minicnn.keras.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
