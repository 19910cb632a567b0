"""Programs with a convolution and its gradients, for what computes them in another way than the references."""

from __future__ import annotations

from typing import Any

from minicnn import ops
from minicnn.ops.convolution import conv2d_input_gradient, conv2d_weight_gradient
from minicnn.program import Program


def convolution_program(
    data_format: str, sizes: dict[str, int], kernel: tuple[int, int], groups: int = 1, **attrs: Any
) -> Program:
    """A convolution of 4 filters and its gradients, in float64.

    Args:
        data_format: Order of the axes of images.
        sizes: N, H, W and C.
        kernel: (KH, KW).
        groups: As in conv2d; so are further attributes.
    """
    program = Program()
    x = program.input("x", tuple(sizes[axis] for axis in data_format), "float64")
    w = program.input("w", (*kernel, sizes["C"] // groups, 4), "float64")
    attrs |= {"groups": groups, "data_format": data_format}
    y = ops.conv2d(x, w, **attrs)
    dy = program.input("dy", y.shape, "float64")
    program.outputs["dx"] = conv2d_input_gradient(dy, w, image=(sizes["H"], sizes["W"]), **attrs)
    program.outputs["dw"] = conv2d_weight_gradient(dy, x, kernel=kernel, **attrs)
    return program
