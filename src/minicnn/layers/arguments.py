"""Checks and standard forms of layer arguments; every message names the rule, what came and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from minicnn.names import meant
from minicnn.ops.checks import as_integer, one_of
from minicnn.ops.windows import Axes, Padding, Pair

PaddingArgument = Literal["valid", "same"] | str | int | tuple[int, int] | Padding

LAYOUTS = {"channels_last": "NHWC", "channels_first": "NCHW"}


def pair(name: str, value: Any, *, least: int = 1) -> Pair:
    """An integer or two of them, each at least `least`, as a pair."""
    values = [as_integer(v) for v in (value if isinstance(value, tuple | list) else (value, value))]
    checked = [v for v in values if v is not None and v >= least]
    if len(values) != 2 or len(checked) != 2:
        raise ValueError(f"{name} is an integer or a pair of integers of at least {least}. Received: {name}={value!r}.")
    return (checked[0], checked[1])


def number(name: str, value: Any, *, least: float | None = None) -> float:
    """The value as a float, if it is a real number of at least `least`."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise ValueError(f"{name} is a number. Received: {name}={value!r}.")
    if least is not None and not value >= least:
        raise ValueError(f"{name} is a number of at least {least:g}. Received: {name}={value!r}.")
    return float(value)


def axis_of(layer: str, axis: int, ndim: int) -> int:
    """The axis counted from 0, if it is one of a sample's."""
    at = axis + ndim if axis < 0 else axis
    if not 1 <= at < ndim:
        raise ValueError(
            f"{layer} takes an axis from 1 to {ndim - 1} (or from {1 - ndim} to -1) for inputs with {ndim} "
            f"axes; axis 0 is the batch. Received: axis={axis}."
        )
    return at


def layout(data_format: str) -> str:
    """Axis order of a Keras data format: NHWC or NCHW."""
    return LAYOUTS[one_of("data_format", data_format, LAYOUTS)]


def image_axes(layer: str, data_format: str, shape: Sequence[int | None]) -> Axes:
    """Positions of the axes of an image batch, or an error that says what the layer takes."""
    if len(shape) != 4:
        raise ValueError(
            f"{layer} takes images: batch, height, width and channels. Received: input shape "
            f"{(None, *shape[1:])}. Add the missing axis to the data, e.g. x[..., None] for grey images."
        )
    return Axes.of(layout(data_format))


def frame(name: str, value: Any) -> Padding:
    """An integer, (height, width) or ((top, bottom), (left, right)) as the last."""
    try:
        if isinstance(value, tuple | list) and len(value) == 2:
            return (pair(name, value[0], least=0), pair(name, value[1], least=0))
        h, w = pair(name, value, least=0)
    except ValueError:
        raise ValueError(
            f"{name} is an integer of at least 0, a pair (height, width) of them, or ((top, bottom), (left, "
            f"right)). Received: {name}={value!r}."
        ) from None
    return ((h, h), (w, w))


def standard_padding(value: Any) -> str | Padding:
    """Either "valid", "same" or explicit integers as ((top, bottom), (left, right))."""
    if isinstance(value, str):
        if value.lower() not in ("valid", "same"):
            proposal = meant(value, ("valid", "same"))
            raise ValueError(f"padding is 'valid', 'same' or integers. Received: padding={value!r}.{proposal}")
        return value.lower()
    return frame("padding", value)


def resolve_padding(value: str | Padding, image: Pair, kernel: Pair, strides: Pair, dilation: Pair = (1, 1)) -> Padding:
    """Padding in elements: "same" gives ceil(size / stride) positions, an odd element below or right."""
    if not isinstance(value, str):
        return value
    pairs = [(0, 0), (0, 0)]
    if value == "same":
        for axis, (n, k, s, d) in enumerate(zip(image, kernel, strides, dilation, strict=True)):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            pairs[axis] = (total // 2, total - total // 2)
    return (pairs[0], pairs[1])
