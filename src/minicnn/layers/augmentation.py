"""Images changed at random in training, and cut or resized: preprocessing as a part of the model.

What is drawn depends on the seed, the layer's path in the model, the number of the training step and the place of the
sample in the batch, as the masks of `Dropout` do: it is the same on every backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from minicnn import ops
from minicnn.layers.arguments import number
from minicnn.layers.image import ImageLayer
from minicnn.layers.options import LayerOptions
from minicnn.layers.reshaping import resize
from minicnn.ops.checks import one_of, positive
from minicnn.ops.transforms import FILL_MODES, INTERPOLATIONS
from minicnn.program.graph import Value

Factor = float | Sequence[float]
_Map = tuple[float, float, float, float, float, float]  # see `ops.affine_transform`


def _range(name: str, bounds: Any, least: float = -math.inf) -> tuple[float, float]:
    """Bounds of a draw: -f to f for a number f, whatever its sign."""
    if isinstance(bounds, list | tuple) and len(bounds) == 2:
        low, high = (number(name, bound) for bound in bounds)
    else:
        low, high = -abs(number(name, bounds)), abs(number(name, bounds))
    if not least <= low <= high:
        raise ValueError(
            f"{name} is a number, or a pair of them that does not fall"
            f"{f', at least {least:g}' * math.isfinite(least)}. Received: {name}={bounds!r}."
        )
    return low, high


class RandomImages(ImageLayer):
    """Base class of layers that change images in training.

    Args:
        seed: Seed of the draws; the model's if None.
        value_range: Least and largest value.
    """

    def __init__(self, seed: int | None, data_format: str, **options: Unpack[LayerOptions]) -> None:
        super().__init__(data_format, **options)
        self.seed = seed

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        axes = self._axes(inputs.shape)
        if not training and not self._always(*self._size(inputs.shape)):
            return inputs
        x = inputs if axes.c == 3 else ops.permute(inputs, axes=(0, 2, 3, 1))
        y = self._changed(x, training)
        return y if axes.c == 3 else ops.permute(y, axes=(0, 3, 1, 2))

    def _always(self, height: int, width: int) -> bool:
        """True if something changes outside training, too."""
        return False

    def _changed(self, x: Value, training: bool) -> Value:
        raise NotImplementedError

    def _draws(self, x: Value, count: int) -> list[Value]:
        """Uniform numbers (N, 1), `count` for each sample."""
        return [self.random_uniform((x.shape[0], 1), seed=self.seed) for _ in range(count)]


def _between(u: Value, bounds: tuple[float, float]) -> Value:
    return u * (bounds[1] - bounds[0]) + bounds[0]


_Terms = list[tuple[Value, _Map]]
_SAME: _Map = (1, 0, 0, 0, 1, 0)


def _read(x: Value, by: _Terms, base: _Map = _SAME, size: Sequence[int] | None = None,
          interpolation: str = "nearest", fill_mode: str = "nearest", fill_value: float = 0.0) -> Value:  # fmt: skip
    """Images at the places of an affine map: `base`, and a map times a number (N, 1) for each of `by`."""
    matrix = by[0][0] * np.asarray([by[0][1]], by[0][0].dtype) + np.asarray([base], by[0][0].dtype)
    for factor, change in by[1:]:
        matrix = matrix + factor * np.asarray([change], factor.dtype)
    return ops.affine_transform(
        x, matrix, size=tuple(size or x.shape[1:3]), interpolation=interpolation, fill_mode=fill_mode,
        fill_value=fill_value,
    )  # fmt: skip


class RandomFlip(RandomImages):
    """Each image mirrored with probability 1/2 in training.

    Args:
        mode: "horizontal", "vertical" or "horizontal_and_vertical".

    Raises:
        ValueError: If the mode is unknown.
    """

    def __init__(
        self, mode: str = "horizontal_and_vertical", seed: int | None = None, *, data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, **options)
        self.mode = one_of("mode", mode, ("horizontal", "vertical", "horizontal_and_vertical"))

    def _changed(self, x: Value, training: bool) -> Value:
        h, w = x.shape[1:3]
        maps: list[_Map] = [(0, 0, 0, 0, -2, h - 1), (-2, 0, w - 1, 0, 0, 0)]
        turned = zip(self._draws(x, 2), maps, ("vertical", "horizontal"), strict=True)
        return _read(x, [(ops.cast(ops.less(u, 0.5), dtype=u.dtype), m) for u, m, word in turned if word in self.mode])


class RandomCrop(RandomImages):
    """A part of each image, at random in training and from the middle else.

    Args:
        height: Rows of the part, at most those of the images.
        width: Columns of the part.

    Output shape:
        (N, height, width, C), or (N, C, height, width).

    Raises:
        ValueError: If the images are smaller.
    """

    def __init__(
        self, height: int, width: int, seed: int | None = None, *, data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, **options)
        self.height, self.width = positive("height", height), positive("width", width)

    def _always(self, height: int, width: int) -> bool:
        return (height, width) != (self.height, self.width)

    def _changed(self, x: Value, training: bool) -> Value:
        _, h, w, _ = x.shape
        spare = h - self.height, w - self.width
        if min(spare) < 0:
            raise ValueError(
                f"{type(self).__name__} cuts a part of {self.height} x {self.width} out of larger images. Received: "
                f"{h} x {w}. Enlarge them first, with ZeroPadding2D or Resizing."
            )
        if not training:
            top, left = spare[0] // 2, spare[1] // 2
            return x[:, top : top + self.height, left : left + self.width, :]
        down, right = (_whole(u * float(n + 1)) for u, n in zip(self._draws(x, 2), spare, strict=True))
        return _read(x, [(down, (0, 0, 0, 0, 0, 1)), (right, (0, 0, 1, 0, 0, 0))], size=(self.height, self.width))


def _whole(x: Value) -> Value:
    return ops.cast(ops.cast(x, dtype="int32"), dtype=x.dtype)


class CenterCrop(RandomCrop):
    """The middle of each image, in training, too.

    Raises:
        ValueError: If the images are smaller.
    """

    def __init__(
        self, height: int, width: int, data_format: str = "channels_last", **options: Unpack[LayerOptions]
    ) -> None:  # fmt: skip
        super().__init__(height, width, data_format=data_format, **options)

    def _changed(self, x: Value, training: bool) -> Value:
        return super()._changed(x, False)


class Resizing(ImageLayer):
    """Images in another size, pixels being squares; without smoothing before they shrink.

    Args:
        height: Rows.
        width: Columns.
        interpolation: "bilinear" or "nearest".

    Output shape:
        (N, height, width, C), or (N, C, height, width).
    """

    def __init__(
        self, height: int, width: int, interpolation: str = "bilinear", *, data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(data_format, **options)
        self.height, self.width = positive("height", height), positive("width", width)
        self.interpolation, self.data_format = one_of("interpolation", interpolation, INTERPOLATIONS), data_format

    def call(self, inputs: Any) -> Any:
        axes = self._axes(inputs.shape)
        if (inputs.shape[axes.h], inputs.shape[axes.w]) == (self.height, self.width):
            return inputs
        x = inputs if axes.c == 1 else ops.permute(inputs, axes=(0, 3, 1, 2))
        y = resize(x, self.height, self.width, self.interpolation)
        return y if axes.c == 1 else ops.permute(y, axes=(0, 2, 3, 1))


class MovedImages(RandomImages):
    """Base class of layers that read images at places that a random affine map gives.

    Args:
        fill_mode: See `RandomTranslation`.
        interpolation: "bilinear" or "nearest".
        fill_value: For fill_mode "constant".
    """

    def __init__(
        self, fill_mode: str, interpolation: str, seed: int | None, fill_value: float, data_format: str,
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, **options)
        self.fill_mode = one_of("fill_mode", fill_mode, FILL_MODES)
        self.interpolation = one_of("interpolation", interpolation, INTERPOLATIONS)
        self.fill_value = number("fill_value", fill_value)

    def _changed(self, x: Value, training: bool) -> Value:
        by, base = self._map(x)
        return _read(x, by, base, None, self.interpolation, self.fill_mode, self.fill_value)

    def _map(self, x: Value) -> tuple[_Terms, _Map]:
        """Sources of the results: see `_read`."""
        raise NotImplementedError


class RandomTranslation(MovedImages):
    """Each image shifted at random in training.

    Args:
        height_factor: Shift down as a share of the height: from -f to f for a number, or a pair of bounds.
        width_factor: Shift to the right as a share of the width, likewise.
        fill_mode: What comes in: "reflect" (d c b a | a b c d | d c b a), "wrap", "nearest" or "constant".
    """

    def __init__(
        self, height_factor: Factor, width_factor: Factor, fill_mode: str = "reflect", interpolation: str = "bilinear",
        seed: int | None = None, fill_value: float = 0.0, data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **options)
        self.height_factor = _range("height_factor", height_factor)
        self.width_factor = _range("width_factor", width_factor)

    def _map(self, x: Value) -> tuple[_Terms, _Map]:
        (u, v), (_, h, w, _) = self._draws(x, 2), x.shape
        down, right = _between(u, self.height_factor), _between(v, self.width_factor)
        return [(down, (0, 0, 0, 0, 0, -h)), (right, (0, 0, -w, 0, 0, 0))], _SAME


class RandomZoom(MovedImages):
    """Each image enlarged or made smaller about its middle at random in training.

    Args:
        height_factor: From -f to f for a number, or a pair of bounds: 0.2 shows 20 % more rows, -0.2 20 % fewer.
        width_factor: Likewise; as the height in each image if None.
    """

    def __init__(
        self, height_factor: Factor, width_factor: Factor | None = None, fill_mode: str = "reflect",
        interpolation: str = "bilinear", seed: int | None = None, fill_value: float = 0.0,
        data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **options)
        self.height_factor = _range("height_factor", height_factor, -1)
        self.width_factor = None if width_factor is None else _range("width_factor", width_factor, -1)

    def _map(self, x: Value) -> tuple[_Terms, _Map]:
        (u, v), (row, column) = self._draws(x, 2), _middle(x)
        down = _between(u, self.height_factor)
        beside = down if self.width_factor is None else _between(v, self.width_factor)
        return [(down, (0, 0, 0, 0, 1, -row)), (beside, (1, 0, -column, 0, 0, 0))], _SAME


def _middle(x: Value) -> tuple[float, float]:
    return (x.shape[1] - 1) / 2, (x.shape[2] - 1) / 2


class RandomRotation(MovedImages):
    """Each image turned about its middle at random in training.

    Args:
        factor: Angle counter-clockwise as a share of a full turn: from -f to f for a number, or a pair of bounds.
    """

    def __init__(
        self, factor: Factor, fill_mode: str = "reflect", interpolation: str = "bilinear", seed: int | None = None,
        fill_value: float = 0.0, data_format: str = "channels_last",
        **options: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, **options)
        self.factor = _range("factor", factor)
        if max(map(abs, self.factor)) > 1:
            raise ValueError(f"factor is a share of a full turn, from -1 to 1. Received: factor={factor!r}.")

    def _map(self, x: Value) -> tuple[_Terms, _Map]:
        (u,), (row, column) = self._draws(x, 1), _middle(x)
        sine, cosine = _sine_and_cosine(_between(u, self.factor))
        turned: _Terms = [(cosine, (1, 0, -column, 0, 1, -row)), (sine, (0, -1, row, 1, 0, -column))]
        return turned, (0, 0, column, 0, 0, row)


def _sine_and_cosine(turns: Value) -> tuple[Value, Value]:
    """Of angles from -1 to 1 full turns: Taylor series of a quarter of the angle, doubled twice."""
    a = turns * (math.pi / 2)
    square, sine, cosine = ops.square(a), a * 0.0, a * 0.0
    for k in range(6, -1, -1):  # Horner's scheme
        sine = sine * square + (-1) ** k / math.factorial(2 * k + 1)
        cosine = cosine * square + (-1) ** k / math.factorial(2 * k)
    sine = sine * a
    for _ in range(2):
        sine, cosine = sine * cosine * 2.0, 1.0 - ops.square(sine) * 2.0
    return sine, cosine


class RandomBrightness(RandomImages):
    """A number added to each image at random in training, and the result kept in the range of values.

    Args:
        factor: What is added, as a share of the range: from -f to f for a number, or a pair of bounds.
    """

    def __init__(
        self, factor: Factor, value_range: Sequence[float] = (0, 255), seed: int | None = None, *,
        data_format: str = "channels_last", **options: Unpack[LayerOptions]
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, **options)
        self.factor = _range("factor", factor)
        self.value_range = _range("value_range", tuple(value_range))

    def _changed(self, x: Value, training: bool) -> Value:
        (u,) = self._draws(x, 1)
        low, high = self.value_range
        added = _between(u, self.factor) * (high - low)
        return ops.maximum(ops.minimum(x + ops.reshape(added, shape=(x.shape[0], 1, 1, 1)), high), low)


class RandomContrast(RandomImages):
    """Each channel's differences from its mean scaled at random in training, the result kept in the range of values.

    Args:
        factor: The scale is from 1 - f to 1 + f for a number, from 1 - factor[0] to 1 + factor[1] for a pair.
    """

    def __init__(
        self, factor: Factor, value_range: Sequence[float] = (0, 255), seed: int | None = None, *,
        data_format: str = "channels_last", **options: Unpack[LayerOptions]
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, **options)
        lower, upper = factor if isinstance(factor, list | tuple) and len(factor) == 2 else (factor, factor)
        self.factor = (number("factor", lower, least=0), number("factor", upper, least=0))
        self.value_range = _range("value_range", tuple(value_range))

    def _changed(self, x: Value, training: bool) -> Value:
        (u,) = self._draws(x, 1)
        scale = ops.reshape(_between(u, (1 - self.factor[0], 1 + self.factor[1])), shape=(x.shape[0], 1, 1, 1))
        mean = ops.mean(x, axes=(1, 2), keepdims=True)
        low, high = self.value_range
        return ops.maximum(ops.minimum((x - mean) * scale + mean, high), low)
