"""Element of an image that is resampled at the places of an affine map."""

from __future__ import annotations

import functools

from minicnn.kernels.expressions import Call, Cast, Element, Expr, I, Number, Select, both
from minicnn.program.graph import Node

_FOLDS = {"wrap": "wrapped", "reflect": "reflected"}


def affine_transform(node: Node, result: int) -> Expr:
    """Element i: see the primitive."""
    (_, h, w, c), (_, oh, ow, _) = node.inputs[0].shape, node.outputs[0].shape
    dtype, mode = node.inputs[1].dtype, node.attrs["fill_mode"]
    sample, i, j = I // (oh * ow * c), *(Cast(k, dtype, "place") for k in (I // (ow * c) % oh, I // c % ow))
    nearest = node.attrs["interpolation"] == "nearest"
    one, half = Number(1, dtype), Number(0.5, dtype)
    axes = []  # of each axis the corners' places: as they are, within the image, and their weights
    for k, n in ((3, h), (0, w)):
        a, b, to = (Element(1, sample * 6 + m) for m in range(k, k + 3))
        at: Expr = a * j + (b * i + to)
        if mode in _FOLDS:
            at = Call(_FOLDS[mode], (at, Number(n, dtype)), dtype)
        low: Expr = Call("floor", (at + half if nearest else at,), dtype)
        corners = [(low, one - (at - low)), (low + one, at - low)][: 1 if nearest else 2]
        if mode == "wrap":
            corners = [(Call("wrapped_once", (p, Number(n, dtype)), dtype), weight) for p, weight in corners]
        within = [Call("clipped", (p, Number(n - 1, dtype)), dtype) for p, _ in corners]
        axes.append([(p, q, weight) for (p, weight), q in zip(corners, within, strict=True)])
    parts = []
    for row, y, vertical in axes[0]:
        for column, x, horizontal in axes[1]:
            pixel = (sample * h + Cast(y, "int32", dtype)) * w + Cast(x, "int32", dtype)
            pixel_value: Expr = Element(0, pixel * c + I % c)
            if mode == "constant":
                inside = both(row.equals(y), column.equals(x))
                pixel_value = Select(inside, pixel_value, Number(node.attrs["fill_value"], node.outputs[0].dtype))
            parts.append(pixel_value if nearest else pixel_value * (vertical * horizontal))
    return functools.reduce(Expr.__add__, parts)
