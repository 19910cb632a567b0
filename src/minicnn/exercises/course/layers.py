"""Layers: each forward and backward, on the arrays of every library."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from minicnn import ops
from minicnn.exercises.exercise import Array, Example, Exercise, Item, Rng, Speed, call

CHAPTER = "Layers"

NONE = ((0, 0), (0, 0))
HINT_TAPS = (
    "For one tap (i, j) of the window, the elements that it meets in all positions are one slice of x with steps: "
    "x[:, i : i + (OH - 1) * SH + 1 : SH, j : j + (OW - 1) * SW + 1 : SW, :]."
)


def normal(rng: Rng, *shape: int) -> Array:
    """An array of normally distributed numbers."""
    return rng.standard_normal(shape)


# Windows as views -------------------------------------------------------------------------------------


def _view(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], tuple[int, int]]:
    n, h, w, c, kh, kw, sh, sw = (int(i) for i in rng.integers((1, 5, 5, 1, 1, 1, 1, 1), (3, 9, 9, 4, 4, 4, 3, 3)))
    shape = (n, h, w, c)
    return shape, _contiguous(shape, int(rng.choice([4, 8]))), (kh, kw), (sh, sw)


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _window_view(shape: Any, strides: Any, kernel: Any, step: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    oh, ow = ((shape[1 + axis] - kernel[axis]) // step[axis] + 1 for axis in (0, 1))
    n, h, w, c = strides
    return (shape[0], oh, ow, *kernel, shape[3]), (n, h * step[0], w * step[1], h, w, c)


def _im2col(x: Array, kernel: Any, step: Any, *, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Array:
    """The answer; or with the axes of the windows in another order."""
    view = np.lib.stride_tricks.as_strided(x, *_window_view(x.shape, x.strides, kernel, step))
    return view.transpose(order).reshape(math.prod(view.shape[:3]), -1).copy()


def _windows(rng: Rng) -> Example:
    shape, _, kernel, step = _view(rng)
    return call(normal(rng, *shape), kernel, step)


# Dense ------------------------------------------------------------------------------------------------


def _dense(rng: Rng) -> Example:
    n, d, f = (int(i) for i in rng.integers(2, 8, 3))
    return call(normal(rng, n, d), normal(rng, d, f), normal(rng, f))


def _dense_gradient(rng: Rng) -> Example:
    x, w, b = _dense(rng).arguments
    return call(normal(rng, len(x), len(b)), x, w)


# Convolution ----------------------------------------------------------------------------------------


def window(rng: Rng, strides: bool, padding: bool) -> dict[str, Any]:
    """Strides and padding of a convolution, drawn or none; both differ between the axes."""
    steps = [(2, 1), (1, 2), (2, 3)][rng.integers(3)] if strides else (1, 1)
    edges = [((1, 1), (2, 0)), ((0, 1), (1, 2)), ((2, 0), (0, 1))][rng.integers(3)] if padding else NONE
    return {"strides": steps, "padding": edges}


def _images(rng: Rng) -> tuple[Array, Array]:
    """Images and filters of drawn sizes."""
    c, f, kh, kw = (int(n) for n in rng.integers((2, 2, 2, 1), (4, 6, 4, 4)))
    return normal(rng, 2, int(rng.integers(6, 9)), int(rng.integers(6, 9)), c), normal(rng, kh, kw, c, f)


def _convolution(strides: bool, padding: bool) -> Any:
    return lambda rng: call(*_images(rng), **window(rng, strides, padding))


def _output_gradient(rng: Rng, strides: bool, padding: bool) -> tuple[Array, Array, Array, dict[str, Any]]:
    (x, w), options = _images(rng), window(rng, strides, padding)
    return normal(rng, *ops.conv2d.reference(x, w, xp=xp, **options).shape), x, w, options


def _weight_gradient(rng: Rng) -> Example:
    dy, x, w, options = _output_gradient(rng, True, True)
    return call(dy, x, kernel=w.shape[:2], **options)


def _input_gradient(strides: bool) -> Any:
    def draw(rng: Rng) -> Example:
        dy, x, w, options = _output_gradient(rng, strides, strides)
        return call(dy, w, image=x.shape[1:3], **options)

    return draw


def _flipped(x: Array, w: Array, **options: Any) -> Array:
    return ops.conv2d.reference(x, w[::-1, ::-1], **options)


def _unpadded(x: Array, w: Array, *, padding: Any, **options: Any) -> Array:
    return ops.conv2d.reference(x, w, padding=NONE, **options)


def _padding_reversed(x: Array, w: Array, *, padding: Any, **options: Any) -> Array:
    return ops.conv2d.reference(x, w, padding=tuple(pair[::-1] for pair in padding), **options)


def _strides_swapped(x: Array, w: Array, *, strides: Any, **options: Any) -> Array:
    return ops.conv2d.reference(x, w, strides=strides[::-1], **options)


NAIVE_CONVOLUTION = """
def conv2d(x, w, *, strides, padding, xp):
    oh, ow = x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1
    y = xp.zeros((x.shape[0], oh, ow, w.shape[3]), dtype=x.dtype)
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            y = y + xp.matmul(x[:, i : i + oh, j : j + ow, :], w[i, j])
    return y
"""


def _large(rng: Rng) -> Example:
    return call(normal(rng, 8, 28, 28, 8), normal(rng, 3, 3, 8, 16), strides=(1, 1), padding=NONE)


# Pooling --------------------------------------------------------------------------------------------


def _pool(rng: Rng) -> tuple[Array, dict[str, Any]]:
    kernel, strides = [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((3, 3), (2, 1))][rng.integers(3)]
    return normal(rng, 2, 7, 6, 3), {"kernel": kernel, "strides": strides}


def _pool_gradient(ties: bool) -> Any:
    def draw(rng: Rng) -> Example:
        x, options = _pool(rng)
        x = np.maximum(np.round(x), 0) if ties else x
        return call(normal(rng, *ops.max_pool2d.reference(x, xp=xp, **options).shape), x, **options)

    return draw


def _max_pool2d_gradient(dy: Any, x: Any, **options: Any) -> Any:
    return ops.max_pool2d_gradient.reference(dy, x, None, **options)  # which does not read y


def _to_all_equal(dy: Array, x: Array, *, kernel: Any, strides: Any, xp: Any) -> Array:
    """The gradient, if each of equal elements got all of it."""
    dx, (sh, sw) = np.zeros_like(x), strides
    y = ops.max_pool2d.reference(x, kernel=kernel, strides=strides, xp=xp)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            at = np.s_[:, i : i + (y.shape[1] - 1) * sh + 1 : sh, j : j + (y.shape[2] - 1) * sw + 1 : sw]
            dx[at] += dy * (x[at] == y)
    return dx


# Loss -----------------------------------------------------------------------------------------------


def _labelled(rng: Rng, size: float = 1.0) -> tuple[Array, Array]:
    shape = [(5, 7), (2, 3, 4), (6, 10)][rng.integers(3)]
    return size * normal(rng, *shape), rng.integers(0, shape[-1], shape[:-1]).astype("int32")


def _entropy_gradient(rng: Rng) -> Example:
    logits, labels = _labelled(rng)
    return call(normal(rng, *labels.shape), logits, labels)


def _without_labels(dy: Array, logits: Array, labels: Array, *, xp: Any) -> Array:
    return ops.softmax.reference(logits, axis=-1, xp=xp) * dy[..., None]


# Normalisation --------------------------------------------------------------------------------------


def _norm(rng: Rng) -> tuple[Array, Array, Array, dict[str, Any]]:
    shape = [(4, 3, 5, 2), (6, 4), (3, 4, 4, 3)][rng.integers(3)]
    options = {"axes": tuple(range(len(shape) - 1)), "epsilon": 1e-3}
    return 3 + 2 * normal(rng, *shape), normal(rng, shape[-1]), normal(rng, shape[-1]), options


def _normalize(rng: Rng) -> Example:
    x, scale, offset, options = _norm(rng)
    return call(x, scale, offset, **options)


def _normalize_gradient(rng: Rng) -> Example:
    x, scale, offset, options = _norm(rng)
    _, mean, variance = ops.normalize.reference(x, scale, offset, xp=xp, **options)
    return call(normal(rng, *x.shape), x, scale, mean, variance, **options)


def _constant_statistics(
    dy: Array, x: Array, scale: Array, mean: Array, variance: Array, *, axes: Any, epsilon: float, xp: Any
) -> Any:
    u = (x - mean) / np.sqrt(variance + epsilon)
    return dy * scale / np.sqrt(variance + epsilon), np.sum(dy * u, axis=axes), np.sum(dy, axis=axes)


def _unbiased(x: Array, scale: Array, offset: Array, *, axes: Any, epsilon: float, xp: Any) -> Any:
    mean, variance = np.mean(x, axes, keepdims=True), np.var(x, axes, keepdims=True, ddof=1)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + offset, mean, variance


EXERCISES = {
    "im2col": Exercise(
        "strides, and im2col as a view", CHAPTER,
        (
            Item("strides", 2, "contiguous_strides", lambda rng: call(_view(rng)[0], int(rng.choice([1, 2, 4, 8])))),
            Item("view", 4, "window_view", lambda rng: call(*_view(rng)), rounds=8),
            Item("im2col", 4, "im2col", _windows, rounds=8),
        ),
        {"contiguous_strides": _contiguous, "window_view": _window_view, "im2col": _im2col},
        hints=(
            "The last axis has the stride itemsize; each axis before has the next one's stride times its length.",
            "Moving a window by one position moves step[0] rows; moving within it moves one row.",
            "np.lib.stride_tricks.as_strided(x, shape, strides).reshape(...) copies the view into a matrix.",
        ),
        mistakes={
            "im2col": (
                ("the columns are in the order of c, i, j instead of i, j, c",
                 lambda *a: _im2col(*a, order=(0, 1, 2, 5, 3, 4))),
            )
        },
    ),
    "dense": Exercise(
        "a dense layer, ReLU and their gradients", CHAPTER,
        (
            Item("dense", 2, "dense", _dense),
            Item("dense gradient", 3, "dense_gradient", _dense_gradient, after="dense"),
            Item("ReLU", 1, "relu", lambda rng: call(np.round(normal(rng, 4, 5)))),
            Item("ReLU gradient", 2, "relu_gradient", lambda rng: call(normal(rng, 4, 5), np.round(normal(rng, 4, 5)))),
        ),
        {
            "dense": lambda x, w, b, xp: x @ w + b,
            "dense_gradient": lambda dy, x, w, xp: (dy @ w.T, x.T @ dy, dy.sum(axis=0)),
            "relu": lambda x, xp: np.maximum(x, 0.0), "relu_gradient": lambda dy, x, xp: np.where(x > 0, dy, 0.0),
        },
        hints=(
            "Shapes tell how to multiply: dx (N, D) is made of dy (N, F) and w (D, F).",
            "dx = dy @ w^T, dw = x^T @ dy, db = the sum of dy over the batch; xp.permute_dims(w, (1, 0)) transposes.",
            "xp.where(x > 0, dy, xp.zeros_like(dy))",
        ),
        mistakes={
            "dense": (("the bias is missing", lambda x, w, b, xp: x @ w),),
            "dense_gradient": (
                ("db is a mean over the batch, and should be a sum",
                 lambda dy, x, w, xp: (dy @ w.T, x.T @ dy, dy.mean(axis=0))),
            ),
            "relu_gradient": (("at 0 the gradient is 0", lambda dy, x, xp: np.where(x >= 0, dy, 0.0)),),
        },
        libraries=2,
    ),
    "cross_entropy": Exercise(
        "softmax cross-entropy and its gradient", CHAPTER,
        (
            Item("loss", 3, "softmax_cross_entropy", lambda rng: call(*_labelled(rng))),
            Item("large logits", 2, "softmax_cross_entropy", lambda rng: call(*_labelled(rng, 1000.0))),
            Item("gradient", 3, "softmax_cross_entropy_gradient", _entropy_gradient, after="loss"),
        ),
        {
            "softmax_cross_entropy": ops.softmax_cross_entropy.reference,
            "softmax_cross_entropy_gradient": ops.softmax_cross_entropy_gradient.reference,
        },
        hints=(
            "Write the logarithm of the quotient as a difference: loss = log(sum of exp(logits)) - logits[label].",
            "Subtract xp.max(logits, axis=-1, keepdims=True) first: the loss stays the same, and nothing overflows.",
            "The gradient is (softmax(logits) - one_hot(labels)) * dy; for one_hot compare labels with xp.arange(K).",
        ),
        mistakes={"softmax_cross_entropy_gradient": (("the 1 at each label is not subtracted", _without_labels),)},
        libraries=2,
    ),
    "convolution": Exercise(
        "a convolution", CHAPTER,
        (
            Item("plain", 2, "conv2d", _convolution(False, False)),
            Item("strides", 2, "conv2d", _convolution(True, False)),
            Item("padding", 2, "conv2d", _convolution(True, True)),
        ),
        {"conv2d": ops.conv2d.reference},
        hints=(
            "Pad x first (xp.concat with zeros), then forget about padding.", HINT_TAPS,
            "y is the sum over the taps of xp.matmul(slice, w[i, j]): a product along the channels.",
        ),
        mistakes={
            "conv2d": (
                ("the filters are flipped; a convolution of deep learning is a correlation", _flipped),
                ("the padding is ignored", _unpadded),
                ("before and after are exchanged in the padding", _padding_reversed),
                ("the strides of the axes are exchanged", _strides_swapped),
            )
        },
        libraries=2,
        speed=Speed(
            2, "conv2d", _large, NAIVE_CONVOLUTION, "a product for each tap", bar=4,
            flops=2 * 8 * 26 * 26 * 72 * 16, bytes=4 * 8 * (28 * 28 * 8 + 26 * 26 * 16),
        ),
    ),
    "convolution_gradient": Exercise(
        "the two gradients of a convolution", CHAPTER,
        (
            Item("filters", 3, "conv2d_weight_gradient", _weight_gradient),
            Item("images", 3, "conv2d_input_gradient", _input_gradient(False)),
            Item("images, strides", 2, "conv2d_input_gradient", _input_gradient(True)),
        ),
        {
            "conv2d_weight_gradient": ops.conv2d_weight_gradient.reference,
            "conv2d_input_gradient": ops.conv2d_input_gradient.reference,
        },
        hints=(
            "Each w[i, j, c, f] is multiplied by one slice of the padded x and added to y[..., f]; so its gradient "
            "is the sum of that slice times dy[..., f].", HINT_TAPS,
            "For the images go the other way: dy times w[i, j] transposed is added to the slice of the tap. Arrays "
            "that cannot be written to: put zeros between, before and after (xp.concat), and add up whole images.",
        ),
        libraries=2,
    ),
    "pooling": Exercise(
        "max-pooling and its gradient", CHAPTER,
        (
            Item("values", 3, "max_pool2d", lambda rng: (lambda p: call(p[0], **p[1]))(_pool(rng))),
            Item("gradient", 3, "max_pool2d_gradient", _pool_gradient(False), after="values"),
            Item("ties", 2, "max_pool2d_gradient", _pool_gradient(True), after="values"),
        ),
        {"max_pool2d": ops.max_pool2d.reference, "max_pool2d_gradient": _max_pool2d_gradient},
        hints=(
            HINT_TAPS, "The largest of all taps: xp.maximum of the slices, one after the other.",
            "Compute y again, go through the taps in order, and remember in an array of booleans which windows have "
            "already found their largest element.",
        ),
        mistakes={
            "max_pool2d_gradient": (("of equal elements all get the gradient, not the first alone", _to_all_equal),)
        },
        libraries=2,
    ),
    "normalization": Exercise(
        "batch normalisation and its gradient", CHAPTER,
        (
            Item("forward", 3, "normalize", _normalize),
            Item("gradient", 5, "normalize_gradient", _normalize_gradient, after="forward"),
        ),
        {"normalize": ops.normalize.reference, "normalize_gradient": ops.normalize_gradient.reference},
        hints=(
            "The variance is the mean of squares, divided by N and not by N - 1.",
            "With u = (x - mean) / sqrt(variance + epsilon): doffset = sum of dy, dscale = sum of dy * u.",
            "dx = (g - mean(g) - u * mean(g * u)) / sqrt(variance + epsilon) with g = dy * scale.",
        ),
        mistakes={
            "normalize": (("the variance is divided by N - 1", _unbiased),),
            "normalize_gradient": (("mean and variance are no constants: they depend on x", _constant_statistics),),
        },
        libraries=2,
    ),
}  # fmt: skip
