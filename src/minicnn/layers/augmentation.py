"""Images changed at random in training, and cut or resized: preprocessing as a part of the model.

What is drawn depends on the seed, the layer's path in the model, the number of the training step and the place of the
sample in the batch, as the masks of `Dropout` do: it is the same on every backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.layers.arguments import image_axes, layout, number, positive
from minicnn.layers.layer import Layer
from minicnn.layers.resampling import FILL_MODES, INTERPOLATIONS, floor, pixels, resize, sample
from minicnn.program.graph import Value

Factor = float | Sequence[float]


def _range(name: str, given: Any, least: float = -math.inf) -> tuple[float, float]:
    """Bounds of a draw: -f to f for a number f."""
    low, high = given if isinstance(given, list | tuple) and len(given) == 2 else (-abs(number(name, given)), given)
    low, high = number(name, low), number(name, high)
    if not least <= low <= high:
        message = (
            f"{name} is a number, or a pair of them that does not fall"
            f"{f', at least {least:g}' * math.isfinite(least)}. Received: {name}={given!r}."
        )
        raise ValueError(message)
    return low, high


class _Images(Layer):
    """Images, the channels brought last, changed in training."""

    def __init__(self, seed: int | None, data_format: str, name: str | None, trainable: bool) -> None:
        super().__init__(name=name, trainable=trainable)
        self.seed = seed
        self.data_format = data_format
        layout(data_format)

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        """Change the images in training."""
        axes = image_axes(type(self).__name__, self.data_format, inputs.shape)
        if not training and not self._always(inputs.shape[axes.h], inputs.shape[axes.w]):
            return inputs
        x = inputs if axes.c == 3 else ops.permute(inputs, axes=(0, 2, 3, 1))
        y = self._changed(x, training)
        return y if axes.c == 3 else ops.permute(y, axes=(0, 3, 1, 2))

    def _always(self, height: int, width: int) -> bool:
        """Whether something changes outside training, too."""
        return False

    def _changed(self, x: Value, training: bool) -> Value:
        raise NotImplementedError

    def _draws(self, x: Value, count: int) -> list[Value]:
        """Uniform numbers (N, 1, 1), `count` for each sample."""
        drawn = self.random_uniform((x.shape[0], count), seed=self.seed)
        return [ops.reshape(drawn[:, i], shape=(x.shape[0], 1, 1)) for i in range(count)]


def _between(u: Value, bounds: tuple[float, float]) -> Value:
    return u * (bounds[1] - bounds[0]) + bounds[0]


def _grid(x: Value) -> tuple[Value, Value]:
    """Row numbers (1, H, 1) and column numbers (1, 1, W)."""
    _, h, w, _ = x.shape
    rows, columns = np.arange(h).reshape(1, h, 1), np.arange(w).reshape(1, 1, w)
    return x.program.constant(rows, x.dtype), x.program.constant(columns, x.dtype)


class RandomFlip(_Images):
    """Each image mirrored with probability 1/2 in training.

    Args:
        mode: "horizontal", "vertical" or "horizontal_and_vertical".
        seed: Seed of the draws; the model's if None.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If the mode is unknown.
    """

    def __init__(
        self, mode: str = "horizontal_and_vertical", seed: int | None = None, *, data_format: str = "channels_last",
        name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, name, trainable)
        if mode not in ("horizontal", "vertical", "horizontal_and_vertical"):
            message = f"mode is 'horizontal', 'vertical' or 'horizontal_and_vertical'. Received: mode={mode!r}."
            raise ValueError(message)
        self.mode = mode

    def _changed(self, x: Value, training: bool) -> Value:
        places = list(_grid(x))
        for axis, (word, u) in enumerate(zip(("vertical", "horizontal"), self._draws(x, 2), strict=True)):
            if word in self.mode:
                back = float(x.shape[axis + 1] - 1) - places[axis]
                places[axis] = ops.where(ops.less(u, 0.5), back, places[axis])
        return pixels(x, *places)


class RandomCrop(_Images):
    """A part of each image, at random in training and from the middle else.

    Args:
        height: Rows of the part, at most those of the images.
        width: Columns of the part.
        seed: Seed of the draws; the model's if None.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, height, width, C), or (N, C, height, width).

    Raises:
        ValueError: If the images are smaller.
    """

    def __init__(
        self, height: int, width: int, seed: int | None = None, *, data_format: str = "channels_last",
        name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, name, trainable)
        self.height, self.width = positive("height", height), positive("width", width)

    def _always(self, height: int, width: int) -> bool:
        return (height, width) != (self.height, self.width)

    def _changed(self, x: Value, training: bool) -> Value:
        _, h, w, _ = x.shape
        spare = h - self.height, w - self.width
        if min(spare) < 0:
            message = (
                f"{type(self).__name__} cuts a part of {self.height} x {self.width} out of larger images. Received: "
                f"{h} x {w}. Enlarge them first, with ZeroPadding2D or Resizing."
            )
            raise ValueError(message)
        if not training:
            top, left = spare[0] // 2, spare[1] // 2
            return x[:, top : top + self.height, left : left + self.width, :]
        places = [
            floor(u * float(n + 1)) + at[:, : shape[0], : shape[1]]
            for u, n, at, shape in zip(
                self._draws(x, 2), spare, _grid(x), ((self.height, 1), (1, self.width)), strict=True
            )
        ]
        return pixels(x, *places)


class CenterCrop(RandomCrop):
    """The middle of each image, in training, too.

    Args:
        height: Rows of the part, at most those of the images.
        width: Columns of the part.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, height, width, C), or (N, C, height, width).

    Raises:
        ValueError: If the images are smaller.
    """

    def __init__(
        self, height: int, width: int, data_format: str = "channels_last", *, name: str | None = None,
        trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(height, width, data_format=data_format, name=name, trainable=trainable)

    def _changed(self, x: Value, training: bool) -> Value:
        return super()._changed(x, False)


class Resizing(Layer):
    """Images in another size, pixels being squares; without smoothing before they shrink.

    Args:
        height: Rows.
        width: Columns.
        interpolation: "bilinear" or "nearest".
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        (N, height, width, C), or (N, C, height, width).

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, height: int, width: int, interpolation: str = "bilinear", *, data_format: str = "channels_last",
        name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name=name, trainable=trainable)
        self.height, self.width = positive("height", height), positive("width", width)
        self.interpolation, self.data_format = _one_of("interpolation", interpolation, INTERPOLATIONS), data_format
        layout(data_format)

    def call(self, inputs: Any) -> Any:
        """Resize."""
        axes = image_axes("Resizing", self.data_format, inputs.shape)
        if (inputs.shape[axes.h], inputs.shape[axes.w]) == (self.height, self.width):
            return inputs
        x = inputs if axes.c == 1 else ops.permute(inputs, axes=(0, 3, 1, 2))
        y = resize(x, self.height, self.width, self.interpolation)
        return y if axes.c == 1 else ops.permute(y, axes=(0, 2, 3, 1))


class _Moved(_Images):
    """Images read at places that a random affine map gives."""

    def __init__(
        self, fill_mode: str, interpolation: str, seed: int | None, fill_value: float, data_format: str,
        name: str | None, trainable: bool,
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, name, trainable)
        self.fill_mode = _one_of("fill_mode", fill_mode, FILL_MODES)
        self.interpolation = _one_of("interpolation", interpolation, INTERPOLATIONS)
        self.fill_value = number("fill_value", fill_value)

    def _changed(self, x: Value, training: bool) -> Value:
        return sample(x, *self._places(x), self.interpolation, self.fill_mode, self.fill_value)

    def _places(self, x: Value) -> tuple[Value, Value]:
        """Where the rows and columns of each result come from; they broadcast to (N, H, W)."""
        raise NotImplementedError


class RandomTranslation(_Moved):
    """Each image shifted at random in training.

    Args:
        height_factor: Shift down as a share of the height: from -f to f for a number, or a pair of bounds.
        width_factor: Shift to the right as a share of the width, likewise.
        fill_mode: What comes in: "reflect" (d c b a | a b c d | d c b a), "wrap", "nearest" or "constant".
        interpolation: "bilinear" or "nearest".
        seed: Seed of the draws; the model's if None.
        fill_value: For fill_mode "constant".
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, height_factor: Factor, width_factor: Factor, fill_mode: str = "reflect", interpolation: str = "bilinear",
        seed: int | None = None, fill_value: float = 0.0, data_format: str = "channels_last", *,
        name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, name, trainable)
        self.height_factor = _range("height_factor", height_factor)
        self.width_factor = _range("width_factor", width_factor)

    def _places(self, x: Value) -> tuple[Value, Value]:
        (rows, columns), (u, v) = _grid(x), self._draws(x, 2)
        down, right = _between(u, self.height_factor), _between(v, self.width_factor)
        return rows - down * float(x.shape[1]), columns - right * float(x.shape[2])


class RandomZoom(_Moved):
    """Each image enlarged or made smaller about its middle at random in training.

    Args:
        height_factor: From -f to f for a number, or a pair of bounds: 0.2 shows 20 % more rows, -0.2 20 % fewer.
        width_factor: Likewise; as the height in each image if None.
        fill_mode: See `RandomTranslation`.
        interpolation: "bilinear" or "nearest".
        seed: Seed of the draws; the model's if None.
        fill_value: For fill_mode "constant".
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, height_factor: Factor, width_factor: Factor | None = None, fill_mode: str = "reflect",
        interpolation: str = "bilinear", seed: int | None = None, fill_value: float = 0.0,
        data_format: str = "channels_last", *, name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, name, trainable)
        self.height_factor = _range("height_factor", height_factor, -1)
        self.width_factor = None if width_factor is None else _range("width_factor", width_factor, -1)

    def _places(self, x: Value) -> tuple[Value, Value]:
        u, v = self._draws(x, 2)
        factors = [_between(u, self.height_factor)]
        factors.append(factors[0] if self.width_factor is None else _between(v, self.width_factor))
        middles = [(n - 1) / 2 for n in x.shape[1:3]]
        rows, columns = ((at - m) * (f + 1.0) + m for at, m, f in zip(_grid(x), middles, factors, strict=True))
        return rows, columns


class RandomRotation(_Moved):
    """Each image turned about its middle at random in training.

    Args:
        factor: Angle counter-clockwise as a share of a full turn: from -f to f for a number, or a pair of bounds.
        fill_mode: See `RandomTranslation`.
        interpolation: "bilinear" or "nearest".
        seed: Seed of the draws; the model's if None.
        fill_value: For fill_mode "constant".
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, factor: Factor, fill_mode: str = "reflect", interpolation: str = "bilinear", seed: int | None = None,
        fill_value: float = 0.0, data_format: str = "channels_last", *, name: str | None = None,
        trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(fill_mode, interpolation, seed, fill_value, data_format, name, trainable)
        self.factor = _range("factor", factor)
        if max(map(abs, self.factor)) > 1:
            message = f"factor is a share of a full turn, from -1 to 1. Received: factor={factor!r}."
            raise ValueError(message)

    def _places(self, x: Value) -> tuple[Value, Value]:
        (u,) = self._draws(x, 1)
        sine, cosine = _sine_and_cosine(_between(u, self.factor))
        middle_row, middle_column = ((n - 1) / 2 for n in x.shape[1:3])
        rows, columns = _grid(x)
        down, right = rows - middle_row, columns - middle_column
        return sine * right + cosine * down + middle_row, cosine * right - sine * down + middle_column


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


class RandomBrightness(_Images):
    """A number added to each image at random in training, and the result kept in the range of values.

    Args:
        factor: What is added, as a share of the range: from -f to f for a number, or a pair of bounds.
        value_range: Least and largest value.
        seed: Seed of the draws; the model's if None.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, factor: Factor, value_range: Sequence[float] = (0, 255), seed: int | None = None, *,
        data_format: str = "channels_last", name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, name, trainable)
        self.factor = _range("factor", factor)
        self.value_range = _range("value_range", tuple(value_range))

    def _changed(self, x: Value, training: bool) -> Value:
        (u,) = self._draws(x, 1)
        low, high = self.value_range
        added = _between(u, self.factor) * (high - low)
        y: Value = ops.maximum(ops.minimum(x + ops.reshape(added, shape=(x.shape[0], 1, 1, 1)), high), low)
        return y


class RandomContrast(_Images):
    """Each channel's differences from its mean scaled at random in training, the result kept in the range of values.

    Args:
        factor: The scale is from 1 - f to 1 + f for a number, from 1 - factor[0] to 1 + factor[1] for a pair.
        value_range: Least and largest value.
        seed: Seed of the draws; the model's if None.
        data_format: "channels_last" or "channels_first".
        name: Name in the model.
        trainable: See `Layer`.

    Input shape:
        (N, H, W, C), or (N, C, H, W) for "channels_first".

    Output shape:
        That of the input.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, factor: Factor, value_range: Sequence[float] = (0, 255), seed: int | None = None, *,
        data_format: str = "channels_last", name: str | None = None, trainable: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, data_format, name, trainable)
        lower, upper = factor if isinstance(factor, list | tuple) and len(factor) == 2 else (factor, factor)
        self.factor = (number("factor", lower, least=0), number("factor", upper, least=0))
        self.value_range = _range("value_range", tuple(value_range))

    def _changed(self, x: Value, training: bool) -> Value:
        (u,) = self._draws(x, 1)
        scale = ops.reshape(_between(u, (1 - self.factor[0], 1 + self.factor[1])), shape=(x.shape[0], 1, 1, 1))
        mean = ops.mean(x, axes=(1, 2), keepdims=True)
        low, high = self.value_range
        y: Value = ops.maximum(ops.minimum((x - mean) * scale + mean, high), low)
        return y


def _one_of(name: str, given: str, known: Sequence[str]) -> str:
    if given not in known:
        message = f"{name} is one of {', '.join(known)}. Received: {name}={given!r}."
        raise ValueError(message)
    return given
