"""Convolution of the arrays' own library: PyTorch's (oneDNN, cuDNN) and JAX's (XLA)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import array_api_compat

from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.strategies.strategy import Direction, Problem, Strategy, library
from minicnn.ops.windows import Axes, Padding, Pair, Window, pad_image


class Vendor(Strategy):
    """torch.nn.functional.conv2d and its gradients, or jax.lax.conv_general_dilated and its transposes."""

    name = "vendor"
    title = "the library's own"
    keeps_order = True  # libraries have orders that they are made for: batch last is none of them

    def refusal(self, problem: Problem, xp: Namespace) -> str | None:
        if _is_torch(xp) or _is_jax(xp):
            return None
        return f"the arrays' library has no convolution of its own ({library(xp)})"

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        if _is_jax(xp):
            return _jax_convolution(x, w, window, axes)
        import torch

        x, padding = _evenly_padded(x, window.padding, axes, xp)
        with _full_precision():
            y = torch.nn.functional.conv2d(
                _to_torch(x, axes), w.permute(3, 2, 0, 1), None, window.strides, padding, window.dilation
            )
        return _from_torch(y, axes)

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        if _is_jax(xp):
            import jax

            spec = jax.ShapeDtypeStruct(axes.shape(dy.shape[axes.n], *image, w.shape[2]), dy.dtype)
            return jax.linear_transpose(lambda x: _jax_convolution(x, w, window, axes), spec)(dy)[0]
        import torch

        (top, bottom), (left, right) = window.padding
        even = top == bottom and left == right
        padding = (top, left) if even else (0, 0)
        height, width = image if even else (image[0] + top + bottom, image[1] + left + right)
        shape = (dy.shape[axes.n], w.shape[2], height, width)
        with _full_precision():
            dx = torch.nn.grad.conv2d_input(
                shape, w.permute(3, 2, 0, 1), _to_torch(dy, axes), window.strides, padding, window.dilation
            )
        if not even:
            dx = dx[:, :, top : top + image[0], left : left + image[1]]
        return _from_torch(dx, axes)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        kh, kw = window.kernel
        c, f = x.shape[axes.c], dy.shape[axes.c]
        if _is_jax(xp):
            import jax

            spec = jax.ShapeDtypeStruct((kh, kw, c, f), dy.dtype)
            return jax.linear_transpose(lambda w: _jax_convolution(x, w, window, axes), spec)(dy)[0]
        import torch

        x, padding = _evenly_padded(x, window.padding, axes, xp)
        with _full_precision():
            dw = torch.nn.grad.conv2d_weight(
                _to_torch(x, axes), (f, c, kh, kw), _to_torch(dy, axes), window.strides, padding, window.dilation
            )
        return dw.permute(2, 3, 1, 0).contiguous()

    def peak(self, problem: Problem, direction: Direction) -> int | None:
        """See `Strategy.peak`: the library does not say."""
        return None


def _full_precision() -> AbstractContextManager[object]:
    """Context in which cuDNN computes float32 in float32: by default PyTorch lets it take TF32."""
    import torch

    if not torch.backends.cudnn.allow_tf32:
        return nullcontext()
    cudnn = torch.backends.cudnn
    flags: AbstractContextManager[object] = cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )
    return flags


def _is_torch(xp: Namespace) -> bool:
    return bool(array_api_compat.is_torch_namespace(xp))


def _is_jax(xp: Namespace) -> bool:
    return bool(array_api_compat.is_jax_namespace(xp))


def _evenly_padded(x: Array, padding: Padding, axes: Axes, xp: Namespace) -> tuple[Array, Pair]:
    """The image and the padding that is left to do: PyTorch pads both ends alike."""
    (top, bottom), (left, right) = padding
    if top == bottom and left == right:
        return x, (top, left)
    return pad_image(x, padding, axes, xp), (0, 0)


def _to_torch(x: Array, axes: Axes) -> Array:
    """Images as a view (N, C, H, W); one in NHWC is what PyTorch calls channels last."""
    return x.permute(axes.n, axes.c, axes.h, axes.w)


def _from_torch(y: Array, axes: Axes) -> Array:
    return y.permute(axes.shape(0, 2, 3, 1)).contiguous()


def _jax_convolution(x: Array, w: Array, window: Window, axes: Axes) -> Any:
    import jax

    letters = "".join(sorted("NHWC", key=lambda a: getattr(axes, a.lower())))
    return jax.lax.conv_general_dilated(
        x, w, window.strides, window.padding, rhs_dilation=window.dilation,
        dimension_numbers=(letters, "HWIO", letters), precision="highest",
    )  # fmt: skip
