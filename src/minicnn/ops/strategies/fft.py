"""Convolution by the fast Fourier transform: a sum of products becomes a product a frequency.

(M. Mathieu, M. Henaff, Y. LeCun, Fast training of convolutional networks through FFTs, arXiv:1312.5851.) With X, W and
DY the transforms of the padded image, of the kernel and of the gradient, all of one size P x Q that is at least the
padded image's, so that nothing wraps around:

    Y[p, q] = conj(W[p, q])^T X[p, q],  DX[p, q] = W[p, q] DY[p, q],  DW[p, q] = X[p, q] conj(DY[p, q])^T,

each a matrix product over channels, filters or images. A stride computes all positions and keeps some; a dilated kernel
is one with zeros between its taps.
"""

from __future__ import annotations

import math

from minicnn.ops.arrays import extend, spread
from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.strategies.accounts import framed
from minicnn.ops.strategies.strategy import Direction, Problem, Strategy, library, sizes
from minicnn.ops.windows import Axes, Pair, Window

BATCH_LAST = Axes.of("HWCN")


class Fft(Strategy):
    """Through the `fft` extension of the Array API."""

    name = "fft"
    title = "FFT (a product a frequency)"

    def refusal(self, problem: Problem, xp: Namespace) -> str | None:
        if not hasattr(xp, "fft"):
            return f"the arrays' library has no fft extension of the Array API ({library(xp)})"
        if problem.dtype not in ("float32", "float64"):
            return f"transforms take float32 or float64, not {problem.dtype}"
        return None

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        size = window.output_size("conv2d", *sizes(x, axes))
        lengths = _lengths(window, sizes(x, axes))
        image = _transform(_from_top(_batch_last(x, axes, xp), window, xp), lengths, xp)  # (P, Q', C, N)
        # Conjugated, since a convolution of networks does not flip its filters.
        kernel = xp.conj(_kernel(w, window, lengths, xp))  # (P, Q', C, F)
        product = xp.matmul(xp.permute_dims(kernel, (0, 1, 3, 2)), image)  # (P, Q', F, N)
        # Spectra are as large as images: they are freed as soon as they are multiplied.
        del image, kernel
        y = _inverse(product, lengths, xp)
        del product
        return _batch_first(_every(y, (0, 0), size, window.strides), axes, xp)

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        lengths = _lengths(window, image)
        gradient = _transform(_spread(_batch_last(dy, axes, xp), window.strides, xp), lengths, xp)  # (P, Q', F, N)
        kernel = _kernel(w, window, lengths, xp)  # (P, Q', C, F)
        product = xp.matmul(kernel, gradient)  # (P, Q', C, N)
        del gradient, kernel
        dx = _inverse(product, lengths, xp)
        del product
        return _batch_first(_every(dx, (window.padding[0][0], window.padding[1][0]), image, (1, 1)), axes, xp)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        lengths = _lengths(window, sizes(x, axes))
        image = _transform(_from_top(_batch_last(x, axes, xp), window, xp), lengths, xp)  # (P, Q', C, N)
        gradient = xp.conj(_transform(_spread(_batch_last(dy, axes, xp), window.strides, xp), lengths, xp))
        product = xp.matmul(image, xp.permute_dims(gradient, (0, 1, 3, 2)))  # (P, Q', C, F)
        del image, gradient
        dw = _inverse(product, lengths, xp)
        return _every(dw, (0, 0), window.kernel, window.dilation) * float(math.prod(lengths) ** 2)

    def peak(self, problem: Problem, direction: Direction) -> int:
        """See `Strategy.peak`: both transforms and their product, or that and its way back."""
        lengths, result = _lengths(problem.window, problem.image), problem.result_bytes(direction)
        n, c, f = problem.batch, problem.channels, problem.filters
        spectrum = 2 * (lengths[1] // 2 + 1)  # numbers of a row

        def going(height: int, pairs: int) -> tuple[int, int]:
            """A transform: its bytes, and the most at a time while rows, then columns are transformed."""
            whole = problem.nbytes(lengths[0] * spectrum * pairs)
            return whole, whole + problem.nbytes(height * spectrum * pairs)

        top, left = problem.padding[0][0], problem.padding[1][0]
        frame, making = framed(problem, problem.image, c, ((top, 0), (left, 0)))
        image, image_peak = going(problem.image[0] + top, n * c)
        kernel, kernel_peak = going((problem.kernel[0] - 1) * problem.dilation[0] + 1, c * f)
        height, width = ((o - 1) * s + 1 for o, s in zip(problem.output, problem.strides, strict=True))
        gradient, gradient_peak = going(height, n * f)
        spread = 0 if problem.strides == (1, 1) else problem.nbytes(height * width * n * f)
        if direction == "forward":
            before = max(making, frame + image_peak, image + max(2 * kernel, kernel_peak))
            product, pairs, operands = gradient, n * f, image + kernel
        elif direction == "input gradient":
            before, product, pairs = max(spread + gradient_peak, gradient + kernel_peak), image, n * c
            operands = gradient + kernel
        else:
            before = max(making, frame + image_peak, image + max(spread + gradient_peak, 2 * gradient))
            product, pairs, operands = kernel, c * f, image + gradient
        back = problem.nbytes(math.prod(lengths) * pairs)
        return max(before, operands + product, 2 * product + back, back + result)


def _lengths(window: Window, image: Pair) -> Pair:
    """Lengths of the transforms: those of the padded image, or a little more, so that their factors are small."""
    return _smooth(image[0] + sum(window.padding[0])), _smooth(image[1] + sum(window.padding[1]))


def _smooth(n: int) -> int:
    """The least number from n on whose only prime factors are 2, 3 and 5."""
    while True:
        rest = n
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return n
        n += 1


def _batch_last(x: Array, axes: Axes, xp: Namespace) -> Array:
    return x if axes == BATCH_LAST else xp.permute_dims(x, (axes.h, axes.w, axes.c, axes.n))


def _batch_first(y: Array, axes: Axes, xp: Namespace) -> Array:
    """Part of an (H, W, C, N) array in the order of `axes`, in memory of its own."""
    if axes != BATCH_LAST:
        order = axes.shape(3, 0, 1, 2)
        y = xp.permute_dims(y, order)
    return xp.asarray(y, copy=True)


def _from_top(x: Array, window: Window, xp: Namespace) -> Array:
    """Zeros above and to the left; the transform adds those at the other ends."""
    return extend(extend(x, 0, window.padding[0][0], 0, xp), 1, window.padding[1][0], 0, xp)


def _spread(x: Array, steps: Pair, xp: Namespace) -> Array:
    """The first two axes with zeros between their elements, `steps` from one to the next."""
    return spread(spread(x, 0, steps[0], xp), 1, steps[1], xp)


def _transform(x: Array, lengths: Pair, xp: Namespace) -> Array:
    # Divided by P * Q: where it has no factor NumPy transforms float32 in float64, in twice the time.
    return xp.fft.rfftn(x, s=lengths, axes=(0, 1), norm="forward")


def _kernel(w: Array, window: Window, lengths: Pair, xp: Namespace) -> Array:
    """The kernel's transform, times what the two transforms of a product are divided by."""
    return _transform(_spread(w, window.dilation, xp) * float(math.prod(lengths) ** 2), lengths, xp)


def _inverse(x: Array, lengths: Pair, xp: Namespace) -> Array:
    return xp.fft.irfftn(x, s=lengths, axes=(0, 1), norm="backward")


def _every(y: Array, first: Pair, count: Pair, steps: Pair) -> Array:
    """`count` elements of the first two axes, from `first` on in steps."""
    a, b = (slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(first, count, steps, strict=True))
    return y[a, b, ...]
