"""The exercises: what each asks for, on which cases it is judged, and for how many points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn import ops
from minicnn.exercises import kernels
from minicnn.exercises.checks import Array, Case, Function, Loss, array_checks
from minicnn.exercises.exercise import Check, Exercise

RNG = np.random.default_rng(0)


def _draw(*shape: int) -> Array:
    return RNG.standard_normal(shape)


def _loss(op: ops.Primitive, dy: Array, arguments: Callable[[Array], tuple[Array, ...]], **attrs: Any) -> Loss:
    """Function of one array: the sum of dy times what a primitive makes, so that dy is the gradient of its result."""

    def loss(at: Array) -> float:
        made = op.reference(*arguments(at), xp=xp, **attrs)
        return float(np.sum((made[0] if isinstance(made, tuple) else made) * dy))

    return loss


# Convolution ----------------------------------------------------------------------------------------

WINDOWS: tuple[dict[str, Any], ...] = (
    {"strides": (1, 1), "padding": ((0, 0), (0, 0))},
    {"strides": (2, 1), "padding": ((1, 1), (2, 0))},
    {"strides": (2, 3), "padding": ((0, 1), (1, 2))},
)


def _conv2d(kernel: tuple[int, int], filters: int, window: dict[str, Any], *image: int) -> Case:
    w = _draw(*kernel, image[-1], filters)
    return Case((_draw(*image), w), window, w.size // filters)


def _weight_gradient(kernel: tuple[int, int], filters: int, window: dict[str, Any], *image: int) -> Case:
    x, w = _conv2d(kernel, filters, window, *image).arrays
    dy = _draw(*ops.conv2d.reference(x, w, xp=xp, **window).shape)
    return Case((dy, x), {"kernel": kernel, **window}, dy.size // filters)


def _weight_losses(case: Case) -> list[tuple[Loss, Array]]:
    dy, x = case.arrays
    window = {k: v for k, v in case.attrs.items() if k != "kernel"}
    return [(_loss(ops.conv2d, dy, lambda w: (x, w), **window), _draw(*case.attrs["kernel"], x.shape[3], dy.shape[3]))]


# Pooling --------------------------------------------------------------------------------------------

POOLS: tuple[dict[str, Any], ...] = ({"kernel": (2, 2), "strides": (2, 2)}, {"kernel": (3, 2), "strides": (1, 2)})


def _pool_gradient(x: Array, window: dict[str, Any], *, smooth: bool = True) -> Case:
    dy = _draw(*ops.max_pool2d.reference(x, xp=xp, **window).shape)
    return Case((dy, x), window, window["kernel"][0] * window["kernel"][1], smooth)


def _own_pool_gradient(dy: Any, x: Any, *, xp: Any, **window: Any) -> Any:
    return ops.max_pool2d_gradient.reference(dy, x, None, xp=xp, **window)  # which does not read y


def _pool_losses(case: Case) -> list[tuple[Loss, Array]]:
    dy, x = case.arrays
    return [(_loss(ops.max_pool2d, dy, lambda x: (x,), **case.attrs), x)]


# Loss -----------------------------------------------------------------------------------------------


def _labelled(*shape: int, size: float = 1.0) -> tuple[Array, Array]:
    return size * _draw(*shape), RNG.integers(0, shape[-1], shape[:-1]).astype("int32")


def _entropy_gradient(*shape: int, size: float = 1.0) -> Case:
    return Case((_draw(*shape[:-1]), *_labelled(*shape, size=size)), terms=shape[-1], smooth=size == 1)


def _entropy_losses(case: Case) -> list[tuple[Loss, Array]]:
    dy, logits, labels = case.arrays
    return [(_loss(ops.softmax_cross_entropy, dy, lambda at: (at, labels)), logits)]


# Normalisation --------------------------------------------------------------------------------------


def _normalized(*shape: int) -> Case:
    x, scale, attrs = 3 + 2 * _draw(*shape), _draw(shape[-1]), {"axes": tuple(range(len(shape) - 1)), "epsilon": 1e-3}
    _, mean, variance = ops.normalize.reference(x, scale, scale, xp=xp, **attrs)
    return Case((_draw(*shape), x, scale, mean, variance), attrs, x.size // shape[-1])


def _normalized_losses(case: Case) -> list[tuple[Loss, Array]]:
    dy, x, scale, *_ = case.arrays
    arguments = (
        (x, lambda at: (at, scale, scale)), (scale, lambda at: (x, at, scale)), (scale, lambda at: (x, scale, at)),
    )  # fmt: skip
    return [(_loss(ops.normalize, dy, given, **case.attrs), at) for at, given in arguments]


def _arrays(title: str, *functions: Function, **points: int) -> Exercise:
    return Exercise(title, tuple(f.name for f in functions), array_checks(*functions, **points))


EXERCISES = {
    "convolution": _arrays(
        "a convolution: the reference of conv2d",
        Function(
            "conv2d", ops.conv2d.reference, tuple(_conv2d((3, 2), 4, w, 2, 7, 8, 3) for w in WINDOWS),
            _conv2d((3, 3), 16, WINDOWS[0], 16, 28, 28, 8), bar=3,
        ),
        values=4, inputs=1, parity=3, speed=2,
    ),
    "convolution_gradient": _arrays(
        "the gradient of a convolution with regard to its filters",
        Function(
            "conv2d_weight_gradient", ops.conv2d_weight_gradient.reference,
            tuple(_weight_gradient((3, 2), 4, w, 2, 7, 8, 3) for w in WINDOWS),
            _weight_gradient((3, 3), 16, WINDOWS[0], 16, 28, 28, 8), bar=3, losses=_weight_losses,
        ),
        gradient=4, inputs=1, parity=3, speed=2,
    ),
    "pooling": _arrays(
        "max-pooling and its gradient",
        Function(
            "max_pool2d", ops.max_pool2d.reference, tuple(Case((_draw(2, 7, 6, 3),), w) for w in POOLS),
            Case((_draw(32, 28, 28, 16),), POOLS[0]), bar=3,
        ),
        Function(
            "max_pool2d_gradient", _own_pool_gradient,
            (
                *(_pool_gradient(_draw(2, 7, 6, 3), w) for w in POOLS),
                *(_pool_gradient(np.maximum(np.round(_draw(2, 7, 6, 3)), 0), w, smooth=False) for w in POOLS),  # ties
            ),
            _pool_gradient(_draw(32, 28, 28, 16), POOLS[0]), bar=10, losses=_pool_losses,
        ),
        values=3, gradient=2, inputs=1, parity=2, speed=2,
    ),
    "cross_entropy": _arrays(
        "softmax cross-entropy and its gradient",
        Function(
            "softmax_cross_entropy", ops.softmax_cross_entropy.reference,
            tuple(Case(_labelled(*shape, size=s), terms=shape[-1]) for shape, s in (((5, 7), 1), ((2, 3, 4), 1000))),
            Case(_labelled(8192, 10), terms=10), bar=3,
        ),
        Function(
            "softmax_cross_entropy_gradient", ops.softmax_cross_entropy_gradient.reference,
            (_entropy_gradient(5, 7), _entropy_gradient(2, 3, 4), _entropy_gradient(5, 7, size=1000)),
            _entropy_gradient(8192, 10), bar=3, losses=_entropy_losses,
        ),
        values=3, gradient=2, inputs=1, parity=2, speed=2,
    ),
    "normalization": _arrays(
        "the gradient of batch normalisation",
        Function(
            "normalize_gradient", ops.normalize_gradient.reference, (_normalized(4, 3, 5, 2), _normalized(6, 4)),
            _normalized(32, 28, 28, 16), bar=3, losses=_normalized_losses,
        ),
        gradient=5, inputs=1, parity=2, speed=2,
    ),
    "bias_relu": Exercise(
        "a kernel for the CPU: bias and ReLU in one pass, compiled by Numba",
        ("bias_relu",),
        (
            Check("compiled", 1, kernels.compiled), Check("values", 3, kernels.bias_relu_values),
            Check("parity", 3, kernels.bias_relu_parity), Check("speed", 3, kernels.bias_relu_speed),
        ),
        needs="numba",
    ),
    "matmul_kernel": Exercise(
        "a kernel for the GPU: a matrix product with tiles in shared memory, in Numba's CUDA simulator",
        ("matmul", "SIDE"),
        (
            Check("values", 3, kernels.matmul_values), Check("edges", 3, kernels.matmul_edges),
            Check("reads", 4, kernels.matmul_reads),
        ),
        needs="numba", environment={"NUMBA_ENABLE_CUDASIM": "1"},
    ),
}  # fmt: skip
