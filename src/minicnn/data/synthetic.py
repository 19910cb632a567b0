"""Digits drawn from stroke skeletons: a data set that needs no download.

Every digit has several skeletons, as people write it in several ways: strokes through control points. To
draw an image, the control points are jittered, joined by Catmull-Rom splines, bent by smooth waves and
mapped by a random affine map; a pen of varying width, brightness and sharpness follows them, and specks
and noise are added.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from minicnn.arguments import plain_arguments
from minicnn.data.dataset import Dataset, Images, Labels
from minicnn.data.order import philox

Floats = npt.NDArray[np.floating[Any]]

# One text a skeleton. Points are "x,y" in hundredths of the digit's height, x to the right, y down, origin
# in the middle; "/" starts the next stroke. Strokes that share a point stay joined there; a stroke that
# ends where it began is closed.
GLYPHS = (
    (  # 0: closed; with its ends crossing at the top
        "0,-50 -24,-33 -30,0 -24,33 0,50 24,33 30,0 24,-33 0,-50",
        "14,-43 -12,-44 -29,-2 -20,38 2,50 24,32 27,-8 10,-45 -10,-52",
    ),
    (  # 1: one stroke; with a flag; with a flag and a base
        "2,-50 0,0 -2,50",
        "-18,-26 4,-50 / 4,-50 2,0 0,50",
        "-18,-28 2,-50 / 2,-50 1,0 0,50 / -20,50 0,50 20,50",
    ),
    (  # 2: with a corner or a loop at the lower left
        "-27,-27 -14,-46 10,-49 25,-30 17,-3 -28,48 / -28,48 0,46 30,48",
        "-26,-30 -8,-49 16,-44 22,-20 6,12 -20,43 -29,34 -16,27 6,42 31,42",
    ),
    (  # 3: round; with a flat top; as one curve
        "-26,-36 -3,-50 21,-36 18,-13 -4,-3 / -4,-3 22,10 26,34 2,50 -27,38",
        "-25,-48 0,-49 22,-48 / 22,-48 -5,-10 / -5,-10 22,2 26,30 3,50 -27,38",
        "-24,-40 2,-50 20,-32 6,-8 -10,-2 0,2 22,12 24,36 0,50 -26,40",
    ),
    (  # 4: open; closed; open and rounded
        "-20,-46 -26,-20 -29,7 / -29,7 0,6 30,4 / 13,-40 12,4 9,50",
        "12,-50 -8,-20 -30,14 / -30,14 0,13 30,13 / 12,-50 12,0 11,50",
        "-22,-47 -27,-14 -12,4 20,-4 / 22,-48 20,-4 15,50",
    ),
    (  # 5: with corners; as one curve
        "26,-48 0,-48 -19,-47 / -19,-47 -23,-7 / -23,-7 6,-14 26,8 20,38 -2,50 -27,40",
        "27,-46 0,-49 -19,-40 -20,-14 6,-10 25,12 16,42 -6,50 -28,40",
    ),
    (  # 6: with a curved or a straight stem
        "20,-48 -10,-28 -26,10 -18,42 6,50 25,30 14,7 -8,6 -25,26",
        "2,-50 -16,-14 -25,20 -12,46 12,46 24,26 12,7 -8,10 -22,30",
    ),
    (  # 7: plain; with a bar; with a serif
        "-28,-46 0,-47 27,-48 / 27,-48 8,0 -8,50",
        "-28,-46 0,-47 27,-48 / 27,-48 8,0 -8,50 / -14,3 6,2 26,0",
        "-27,-28 -28,-46 / -28,-46 0,-45 27,-47 / 27,-47 7,-5 -4,50",
    ),
    (  # 8: one crossing curve; two rings; one curve left open at the top
        "20,-34 0,-50 -20,-34 0,-4 25,26 0,50 -25,26 0,-4 20,-34",
        "0,-50 -19,-28 0,-5 19,-28 0,-50 / 0,-5 -25,22 0,50 25,22 0,-5",
        "22,-42 -2,-50 -22,-34 0,-5 22,24 0,50 -24,30 0,-2 17,-28",
    ),
    (  # 9: a ring with a straight stem; with a curved tail; as one curve
        "21,-30 0,-50 -23,-30 -6,-5 21,-30 / 21,-30 19,10 12,50",
        "21,-30 0,-50 -23,-30 -6,-5 21,-30 / 21,-30 24,12 12,42 -18,48",
        "20,-42 -6,-50 -24,-27 -6,-6 16,-16 20,-42 19,10 16,50",
    ),
)

BLOCK = 1000  # images drawn from one random stream; a multiple of ten, so that the classes stay balanced
MAX_CONTROLS = 16  # control points of the largest skeleton, or more
WAVES = 2
SPECKS = 2
CLASS_NAMES = tuple("0123456789")


@plain_arguments
def synthetic_digits(n: int = 60_000, size: int = 28, seed: int = 0) -> tuple[Images, Labels]:
    """Draw handwriting-like digits.

    Image i depends on `size`, `seed` and i only: a longer data set starts with the shorter one. The classes
    are balanced: every ten images in a row from a multiple of ten hold each digit once.

    Args:
        n: Number of images.
        size: Height and width of an image in pixels, from 8 to 256.
        seed: Seed, from 0 to 2**64 - 1.

    Returns:
        Images, uint8, shape (n, size, size, 1), white (255) on black (0), and labels, int32, shape (n,).

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> x, y = synthetic_digits(100, seed=1)
        >>> x.shape, x.dtype.name, y.shape, y.dtype.name
        ((100, 28, 28, 1), 'uint8', (100,), 'int32')
    """
    return _draw(n, size, seed, stream=0)


@plain_arguments
def synthetic_digits_dataset(n_train: int = 60_000, n_test: int = 10_000, size: int = 28, seed: int = 0) -> Dataset:
    """The training images of `synthetic_digits` and test images from another random stream.

    Args:
        n_train: Number of training images.
        n_test: Number of test images.
        size: Height and width of an image in pixels, from 8 to 256.
        seed: Seed, from 0 to 2**64 - 1.

    Returns:
        The Dataset.

    Raises:
        ValueError: If an argument is out of its range.
    """
    x_train, y_train = _draw(n_train, size, seed, stream=0)
    x_test, y_test = _draw(n_test, size, seed, stream=1)
    return Dataset("synthetic_digits", x_train, y_train, x_test, y_test, CLASS_NAMES)


def _draw(n: int, size: int, seed: int, stream: int) -> tuple[Images, Labels]:
    for name, value, least, most in (("n", n, 1, 2**31 - 1), ("size", size, 8, 256), ("seed", seed, 0, 2**64 - 1)):
        if not least <= value <= most:
            raise ValueError(f"synthetic_digits takes {name} from {least} to {most}. Received: {value}.")
    x = np.empty((n, size, size, 1), np.uint8)
    y = np.empty(n, np.int32)
    for block, start in enumerate(range(0, n, BLOCK)):
        count = min(BLOCK, n - start)
        # A stream for each block, so that the first images are the same however many are drawn.
        rng = philox(seed, (stream << 32) + block)
        x[start : start + count, ..., 0], y[start : start + count] = _draw_block(rng, count, size)
    return x, y


def _draw_block(rng: np.random.Generator, count: int, size: int) -> tuple[Images, Labels]:
    """The first `count` images of a block; random numbers are drawn for the whole block."""

    def uniform(low: float, high: float, *shape: int) -> Floats:
        return low + (high - low) * rng.random((BLOCK, *shape))

    def bell(scale: float, *shape: int) -> Floats:  # triangular on [-scale, scale]: no outliers
        return scale * (rng.random((BLOCK, *shape)) + rng.random((BLOCK, *shape)) - 1)

    # Each ten in a row have all digits: small subsets are balanced, too.
    digits = rng.permuted(np.tile(np.arange(10), (BLOCK // 10, 1)), axis=1).ravel()
    style = rng.random(BLOCK)
    jitter = bell(0.06, MAX_CONTROLS, 2)
    wave_vector = bell(1.2, WAVES, 2)  # periods per digit height
    wave_phase = uniform(0, 1, WAVES)
    wave_height = bell(0.05, WAVES, 2)
    rotation, slant = bell(0.3), bell(0.3) - 0.1  # radians; shift of x per y: most hands lean to the right
    height = uniform(0.6, 0.8)  # of the image
    width = height * uniform(0.7, 1.2)
    shift = bell(0.105, 2)
    speck = np.concatenate([uniform(-0.6, 0.6, SPECKS, 1, 2), bell(0.12, SPECKS, 1, 2)], axis=2)
    speck_count = rng.integers(0, SPECKS + 1, BLOCK)
    pen = uniform(0.033, 0.072)  # radius, of the image's size
    pressure = bell(0.3, 2)  # relative change of the radius from the first to the last point
    ink, soft, noise = uniform(0.7, 1, 1, 1), uniform(0.9, 1.7, 1, 1), uniform(0, 0.1, 1, 1)
    # The largest comes last, so that it need not be drawn for the whole block.
    grain = rng.random((count, size, size), np.float32)

    speck[..., 1, :] += speck[..., 0, :]
    speck[np.arange(SPECKS) >= speck_count[:, None]] = 10  # far outside
    cos, sin = np.cos(rotation), np.sin(rotation)
    affine = size * np.stack(
        [
            np.stack([cos * width, cos * slant * width - sin * height], -1),
            np.stack([sin * width, sin * slant * width + cos * height], -1),
        ],
        -2,
    )  # (BLOCK, 2, 2)
    centre = (shift + 0.5) * size

    coverage = np.empty((count, size, size), np.float32)
    for digit, glyphs in enumerate(GLYPHS):
        for variant, glyph in enumerate(glyphs):
            chosen = (digits[:count] == digit) & (np.floor(style[:count] * len(glyphs)) == variant)
            i = np.flatnonzero(chosen)
            controls, spline, segments = _skeleton(glyph)
            points = spline @ (controls + jitter[i, : len(controls)])  # (B, P, 2)
            turns = np.einsum("bpx,bwx->bpw", points, wave_vector[i]) + wave_phase[i, None]
            points = points + np.sin(2 * np.pi * turns) @ wave_height[i]
            points = np.einsum("bpx,byx->bpy", points, affine[i]) + centre[i, None]
            lines = points[:, segments]  # (B, S, 2, 2)
            lines = np.concatenate([lines, speck[i] * size + size / 2], axis=1)
            along = np.linspace(0, 1, lines.shape[1])
            radius = pen[i, None] * size * (1 + pressure[i, :1] * along + pressure[i, 1:] * (1 - along))
            # Rounded, so that the last bit of sin and cos, which differs between machines, has no effect.
            lines = (np.rint(lines * 1024) / 1024).astype(np.float32)
            distance = _distance(lines, radius.astype(np.float32), size)
            sharpness = (pen[i, None, None] * size / soft[i]).astype(np.float32)
            coverage[i] = np.clip(np.float32(0.5) + (np.float32(1) - distance) * sharpness, 0, 1)
    value = coverage * ink[:count].astype(np.float32)
    value += (grain - np.float32(0.5)) * (2 * noise[:count]).astype(np.float32)
    value = np.clip(value, 0, 1, out=value)
    return np.rint(value * np.float32(255)).astype(np.uint8), digits[:count].astype(np.int32)


def _distance(lines: Floats, radius: Floats, size: int) -> Floats:
    """Distance from every pixel to the nearest line segment, in units of the segment's radius.

    Args:
        lines: Segments, their ends as (x, y) in pixels; shape (B, S, 2, 2).
        radius: Shape (B, S).
        size: Height and width of the image in pixels.

    Returns:
        Shape (B, size, size).
    """
    pixel = np.arange(size, dtype=np.float32) + np.float32(0.5)
    middle = (lines[:, :, 0] + lines[:, :, 1]) / 2
    span = lines[:, :, 1] - lines[:, :, 0]
    length = np.sqrt(span[..., 0] ** 2 + span[..., 1] ** 2)
    # A segment of no length has no direction, but any will do.
    direction = (
        np.where(length[..., None] > 0, span, np.array([1, 0], np.float32)) / np.where(length > 0, length, 1)[..., None]
    )
    # In units of the pen's radius, so that a distance below 1 is ink.
    direction = direction / radius[..., None]
    half = length / (2 * radius)
    # With (x, y) seen from the middle: u runs along the segment and v across it.
    x, y = pixel - middle[..., 0, None], pixel - middle[..., 1, None]  # (B, S, size)
    u_x, u_y = x * direction[..., 0, None], y * direction[..., 1, None]
    v_x, v_y = x * -direction[..., 1, None], y * direction[..., 0, None]
    nearest = np.full((len(lines), size, size), np.inf, np.float32)
    u, v = np.empty_like(nearest), np.empty_like(nearest)
    for s in range(lines.shape[1]):
        np.add(u_x[:, s, None, :], u_y[:, s, :, None], out=u)
        np.add(v_x[:, s, None, :], v_y[:, s, :, None], out=v)
        np.abs(u, out=u)
        np.subtract(u, half[:, s, None, None], out=u)
        np.maximum(u, 0, out=u)  # how far beyond the segment's end
        np.multiply(u, u, out=u)
        np.multiply(v, v, out=v)
        np.add(u, v, out=u)
        np.minimum(nearest, u, out=nearest)
    return np.sqrt(nearest, out=nearest)


@functools.cache
def _skeleton(glyph: str) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Control points (K, 2), the matrix (P, K) from them to points of the spline, the segments (S, 2)."""
    strokes = [[tuple(map(int, point.split(","))) for point in stroke.split()] for stroke in glyph.split("/")]
    index = {point: k for k, point in enumerate(dict.fromkeys(p for stroke in strokes for p in stroke))}
    rows: list[Floats] = []
    segments: list[tuple[int, int]] = []
    for stroke in strokes:
        ids = [index[point] for point in stroke]
        closed = ids[0] == ids[-1]
        before, after = (ids[-2], ids[1]) if closed else (ids[0], ids[-1])
        padded = [before, *ids, after]
        first = len(rows)
        for span in range(len(ids) - 1):
            rows += [_catmull_rom(padded[span : span + 4], t, len(index)) for t in (0, 0.5)]
        rows.append(_catmull_rom(padded[-4:], 1, len(index)))
        segments += [(p, p + 1) for p in range(first, len(rows) - 1)]
    controls = np.array(list(index), np.float64) / 100
    return controls, np.array(rows), np.array(segments)


def _catmull_rom(ids: list[int], t: float, count: int) -> Floats:
    """Weights of `count` control points for the spline at t in [0, 1] between the middle two of four."""
    row = np.zeros(count)
    weights = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2)
    for i, weight in zip(ids, weights, strict=True):
        row[i] += weight / 2
    return row
