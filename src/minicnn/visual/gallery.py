"""Images with captions side by side, as one drawing."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicnn.html import Drawing, escape
from minicnn.pictures import Picture

Array = np.ndarray[Any, Any]

SIDE, GAP, LINE = 112, 12, 15  # pixels of an image, between two, and of a line of text
COLUMNS = 5
LETTERS = 18  # that fit below an image


def gallery(title: str, images: Sequence[Array], captions: Sequence[Sequence[str]], columns: int = COLUMNS) -> Drawing:
    """Images in rows, each above its lines of text.

    Args:
        title: What they are.
        images: Pixels, uint8 (H, W, 3).
        captions: Lines for each.
        columns: Images in a row.
    """
    lines = max(map(len, captions), default=0)
    wide, high = SIDE + GAP, SIDE + GAP + LINE * lines
    parts = []
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = number % columns * wide, number // columns * high
        png = base64.b64encode(Picture(image, title)._repr_png_()).decode()
        parts.append(
            f'<image x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{png}"/>'
        )
        for line, text in enumerate(caption):
            short = text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
            parts.append(
                f'<text x="{x}" y="{y + SIDE + LINE * (line + 1) - 3}"><title>{escape(text)}</title>'
                f"{escape(short)}</text>"
            )
    rows = -(-len(images) // columns)
    return Drawing(title, max(min(columns, len(images)) * wide - GAP, 1), max(rows * high, 1), "".join(parts))


def pixels(images: Array, channels_first: bool = False) -> Array:
    """Images as a network takes them, (N, H, W, C) or (N, C, H, W), as uint8 (N, H, W, 3).

    Bytes stay what they are; other numbers are put between the least and the largest, as their scale is not known.
    """
    shown = images.transpose(0, 2, 3, 1) if channels_first else images
    if shown.dtype != np.uint8:
        low, high = float(shown.min(initial=np.inf)), float(shown.max(initial=-np.inf))
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        shown = np.round((shown.astype(np.float64) - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    if shown.shape[-1] != 3:
        shown = np.round(shown.mean(-1, keepdims=True)).astype(np.uint8).repeat(3, -1)
    return shown


def heated(images: Array, maps: Array) -> Array:
    """Images, uint8 (N, H, W, 3), in grey, with maps (N, H, W) from 0 to 1 laid over them: dark red to yellow."""
    grey = images.mean(-1, keepdims=True)
    m = maps[..., None]
    colour = np.concatenate([np.minimum(1, 0.35 + 1.3 * m), np.clip(1.7 * m - 0.5, 0, 1), 0.15 * np.ones_like(m)], -1)
    mixed = grey * (1 - 0.75 * m) + colour * 255 * 0.75 * m
    return np.clip(np.round(mixed), 0, 255).astype(np.uint8)


def enlarged(maps: Array, size: tuple[int, int]) -> Array:
    """Maps (N, h, w) at another size (H, W), linear between the middles of elements."""

    def along(a: Array, axis: int, length: int) -> Array:
        old = a.shape[axis]
        at = np.clip((np.arange(length) + 0.5) * old / length - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, old - 1)
        shape = [1, 1, 1]
        shape[axis] = length
        share = (at - low).reshape(shape)
        result: Array = a.take(low, axis) * (1 - share) + a.take(high, axis) * share
        return result

    return along(along(maps.astype(np.float64), 1, size[0]), 2, size[1])
