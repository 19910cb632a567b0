"""What one element of an image is that is read at the places of an affine map."""

from __future__ import annotations

import functools

from minicnn.backends._gpu.trees import Call, Cast, Element, Expr, I, Number, Select, both
from minicnn.program.graph import Node


def affine_transform(node: Node, result: int) -> Expr:
    """Element i: see the primitive."""
    (_, h, w, c), (_, oh, ow, _) = node.inputs[0].shape, node.outputs[0].shape
    dtype, mode = node.inputs[1].dtype, node.attrs["fill_mode"]
    sample, i, j = I // (oh * ow * c), *(Cast(k, dtype, "place") for k in (I // (ow * c) % oh, I // c % ow))
    one, half = Number(1, dtype), Number(0.5, dtype)
    axes = []  # of each axis the corners' places: as they are, within the image, and their weights
    for k, n in ((3, h), (0, w)):
        a, b, to = (Element(1, sample * 6 + m) for m in range(k, k + 3))
        at, fold = a * j + (b * i + to), {"wrap": "wrapped", "reflect": "reflected"}.get(mode)
        low: Expr = Call("floor", (at + half if node.attrs["interpolation"] == "nearest" else at,), dtype)
        part = at - low
        corners = [(low, one - part), (low + one, part)][: 1 if node.attrs["interpolation"] == "nearest" else 2]
        folded = [Call(fold, (p, Number(n, dtype)), dtype) if fold else p for p, _ in corners]
        within = [Call("clipped", (p, Number(n - 1, dtype)), dtype) for p in folded]
        axes.append([(p, q, weight) for (p, weight), q in zip(corners, within, strict=True)])
    parts = []
    for row, y, vertical in axes[0]:
        for column, x, horizontal in axes[1]:
            pixel = (sample * h + Cast(y, "int32", dtype)) * w + Cast(x, "int32", dtype)
            found: Expr = Element(0, pixel * c + I % c)
            if mode == "constant":
                inside = both(row.equals(y), column.equals(x))
                found = Select(inside, found, Number(node.attrs["fill_value"], node.outputs[0].dtype))
            parts.append(found if len(axes[0]) == 1 else found * (vertical * horizontal))
    return functools.reduce(Expr.__add__, parts)
