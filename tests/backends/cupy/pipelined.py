"""A convolution in 16 bits with its gradients, and the tiles that bring its operands ahead."""

from __future__ import annotations

from typing import Any

import pytest

from minicnn import ops
from minicnn.backends._gpu import tensor_tiling
from minicnn.backends._gpu.tensor_families import TensorConvolutionTile, TensorWeightGradientTile
from minicnn.program import Program, gradients
from minicnn.program.passes import lower_precision, shorten_images

NAMES = ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient")


def convolution(
    dtype: str, n: int, c: int, f: int, kernel: int, strides: int, dilation: int, groups: int, size: int
) -> Program:
    """A convolution of an image in 16 bits, and its gradients."""
    program = Program("convolution")
    x = program.input("x", (n, size, size, c * groups))
    weight = program.input("weight", (kernel, kernel, c, f * groups), kind="parameter")
    side = dilation * (kernel - 1) // 2
    attrs: dict[str, Any] = {
        "strides": (strides, strides), "padding": ((side, side), (side, side)), "dilation": (dilation, dilation),
        "groups": groups, "data_format": "NHWC",
    }  # fmt: skip
    y = ops.conv2d(ops.relu(x), weight, **attrs)
    program.outputs["loss"] = loss = ops.sum(ops.square(y) * ops.cast(y, dtype="float32"))
    for name, value in zip(("dx", "dweight"), gradients(program, loss, [x, weight]), strict=True):
        program.outputs[name] = value * 1.0
    assert shorten_images(program, dtype)
    assert lower_precision(program, dtype)
    return program


def tiled_ahead(plan: Any) -> set[str]:
    """The operations whose operands are brought ahead, sums that are split by their own names."""
    made = {u.anchor.op.name for u in plan.groups if u.tile is not None and u.tile.stages}
    return {name.removesuffix("_partial_sums") for name in made}


def take_only_these(patch: pytest.MonkeyPatch) -> None:
    """See `ahead_only`."""
    patch.setattr(tensor_tiling, "_chosen", {})
    for other in (TensorConvolutionTile, TensorWeightGradientTile):
        patch.setattr(other, "best", lambda *_, **__: None)
