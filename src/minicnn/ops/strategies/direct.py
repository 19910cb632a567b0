"""Direct convolution: the sum of the definition tap by tap, nothing gathered first."""

from __future__ import annotations

import math

from minicnn.ops.arrays import add_at
from minicnn.ops.convolution import contract, outer
from minicnn.ops.primitive import Array, Namespace
from minicnn.ops.strategies.accounts import outer_scratch, padded, tap_copy
from minicnn.ops.strategies.strategy import Direction, Problem, Strategy, sizes
from minicnn.ops.windows import Axes, Pair, Window, fold, pad_image

EVERYWHERE = (slice(None),) * 4


class Direct(Strategy):
    """For each tap (i, j): y += x[.., oh * SH + i * DH, ow * SW + j * DW, :] w[i, j]."""

    name = "direct"
    title = "direct (one product a tap)"

    def forward(self, x: Array, w: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        size = window.output_size("conv2d", *sizes(x, axes))
        y: Array = None
        for tap, part in enumerate(window.taps(pad_image(x, window.padding, axes, xp), axes, size)):
            weights = w[(*divmod(tap, w.shape[1]), ...)]  # (C, F)
            if y is None:
                y = contract(part, weights, axes, xp)
            else:
                y = add_at(y, EVERYWHERE, contract(part, weights, axes, xp), xp)
        return y

    def input_gradient(self, dy: Array, w: Array, window: Window, image: Pair, axes: Axes, xp: Namespace) -> Array:
        parts = (
            contract(dy, xp.permute_dims(w[(*divmod(tap, w.shape[1]), ...)], (1, 0)), axes, xp)
            for tap in range(w.shape[0] * w.shape[1])
        )
        return fold(parts, window, axes, image, xp)

    def weight_gradient(self, dy: Array, x: Array, window: Window, axes: Axes, xp: Namespace) -> Array:
        taps = window.taps(pad_image(x, window.padding, axes, xp), axes, sizes(dy, axes))
        parts = xp.stack([outer(tap, dy, axes, xp) for tap in taps])  # (KH * KW, C, F)
        return xp.reshape(parts, (*window.kernel, *parts.shape[1:]))

    def peak(self, problem: Problem, direction: Direction) -> int:
        """See `Strategy.peak`: the padded image, a tap of it, and its product beside the sum so far."""
        positions, result = problem.batch * math.prod(problem.output), problem.result_bytes(direction)
        if direction == "input gradient":
            return result + problem.nbytes(positions * problem.channels)
        image, making = padded(problem)
        if direction == "forward":
            several = math.prod(problem.kernel) > 1
            return max(making, image + tap_copy(problem) + (1 + several) * result)
        products = outer_scratch(problem, problem.channels, problem.batch, math.prod(problem.output))
        return max(making, image + tap_copy(problem) + products + result, image + 2 * result)
