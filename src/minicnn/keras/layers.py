"""Layers, their functions, and their arguments of Keras 2 that mean the same."""

from __future__ import annotations

from typing import Any

from minicnn import layers as _layers
from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.keras import models as _models  # noqa: F401  with which layers are applied to arrays
from minicnn.keras.dispatch import Made
from minicnn.layers import *  # noqa: F403
from minicnn.layers import Layer as Layer


def Input(  # type: ignore[no-redef]  # noqa: N802
    shape: Any = None, batch_size: int | None = None, dtype: str | None = None, name: str | None = None, *,
    batch_shape: Any = None,
) -> Any:  # fmt: skip
    """Start of a model: see `minicnn.Input`; the size of batches is never fixed."""
    shape = shape if batch_shape is None else batch_shape[1:]
    return _layers.Input((shape,) if isinstance(shape, int) else shape, dtype=dtype or "float32", name=name)


def InputLayer(input_shape: Any = None, **options: Any) -> Any:  # noqa: N802
    """`Input` by the name of Keras's layer, for the first place of a Sequential."""
    return Input(input_shape if input_shape is not None else options.pop("shape", None), **options)


LeakyReLU = Made(  # type: ignore[misc,assignment]  # whose slope Keras 2 called alpha
    _layers.LeakyReLU,
    lambda negative_slope=0.3, **options: _layers.LeakyReLU(options.pop("alpha", negative_slope), **options),
)
