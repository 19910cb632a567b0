"""Bytes of what several strategies make on their way."""

from __future__ import annotations

import math

from minicnn.ops.strategies.strategy import Problem
from minicnn.ops.windows import Padding, Pair


def framed(problem: Problem, image: Pair, channels: int, frame: Padding) -> tuple[int, int]:
    """An image with a frame of zeros: its bytes, and the most at a time while it is made axis by axis; 0 without."""
    (height, width), (rows, columns) = image, (max(sum(frame[0]), 0), max(sum(frame[1]), 0))
    pixel = problem.nbytes(problem.batch * channels)
    first = (height + rows) * width * pixel if rows else 0
    both = (height + rows) * (width + columns) * pixel if columns else 0
    peak = max(first + rows * width * pixel, first + both + columns * (height + rows) * pixel * bool(columns))
    return both or first, peak


def padded(problem: Problem) -> tuple[int, int]:
    """`framed` for the padding of the problem itself."""
    return framed(problem, problem.image, problem.channels, problem.padding)


def tap_copy(problem: Problem) -> int:
    """A tap of the image moved together for a matrix product; none where it is the whole image."""
    if problem.kernel == (1, 1) and problem.strides == (1, 1):
        return 0
    return problem.nbytes(problem.batch * math.prod(problem.output) * problem.channels)


def outer_scratch(problem: Problem, rows: int, batch: int, positions: int) -> int:
    """Scratch of `outer` on columns (.., rows) and dy: unless channels are last, a product an outer index."""
    if problem.data_format == "NHWC":
        return 0
    count, length = (batch, positions) if problem.data_format == "NCHW" else (positions, batch)
    if problem.filters <= length:
        return problem.nbytes(count * rows * problem.filters)
    return problem.nbytes(count * length * (rows + problem.filters)) if length > 1 else 0
