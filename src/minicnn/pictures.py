"""Feature maps as pictures: PNG files by the standard library alone."""

from __future__ import annotations

import math
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn.files import write_named

Array = np.ndarray[Any, Any]

ABOVE, BELOW, GAP, NOT_A_NUMBER = (213, 94, 0), (0, 114, 178), (128, 128, 128), (230, 0, 230)
MOST_MAPS = 256
WIDTH = 480  # pixels that small maps are enlarged to, about
LARGEST = 8  # pixels of an element's side, at most


@dataclass(frozen=True, eq=False)
class Picture:
    """Maps beside each other: orange above zero, white at zero, blue below, one scale for all; magenta is NaN.

    Attributes:
        pixels: Colours, uint8 (H, W, 3).
        caption: What it shows.
    """

    pixels: Array
    caption: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a PNG file.

        Raises:
            ValueError: If the path has another ending.
            OSError: If it cannot be written.
        """
        write_named(path, "A picture", "png", self._repr_png_())

    def _repr_png_(self) -> bytes:
        height, width, _ = self.pixels.shape
        lines = np.concatenate([np.zeros((height, 1), np.uint8), self.pixels.reshape(height, -1)], axis=1)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
        parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in parts
        )

    def __repr__(self) -> str:
        height, width, _ = self.pixels.shape
        return f"<Picture {width} x {height}: {self.caption}; save('maps.png') writes it>"


def picture(maps: Array, what: str) -> Picture:
    """Maps (K, H, W) as a picture of about square shape."""
    count, height, width = maps.shape
    shown = maps[:MOST_MAPS].astype(np.float64)
    finite = np.isfinite(shown)
    largest = float(np.abs(shown[finite]).max(initial=0.0))
    share = np.clip(np.nan_to_num(shown / (largest or 1.0), nan=0.0), -1, 1)[..., None]
    ends = np.where(share > 0, np.asarray(ABOVE), np.asarray(BELOW))
    colours = np.where(np.isnan(shown)[..., None], np.asarray(NOT_A_NUMBER), 255 + (ends - 255) * np.abs(share))
    columns = min(len(shown), max(1, round(math.sqrt(len(shown) * (height + 1) / (width + 1)))))
    rows = -(-len(shown) // columns)
    sheet = np.full((rows * columns, height + 1, width + 1, 3), GAP, np.uint8)
    sheet[: len(shown), :-1, :-1] = np.round(colours)
    sheet = sheet.reshape(rows, columns, height + 1, width + 1, 3).transpose(0, 2, 1, 3, 4)
    sheet = sheet.reshape(rows * (height + 1), columns * (width + 1), 3)[:-1, :-1]
    factor = min(LARGEST, max(1, WIDTH // sheet.shape[1]))
    kept = f"the first {MOST_MAPS} of {count}" if count > MOST_MAPS else str(count)
    caption = (
        f"{what}: {kept} map{'s' * (count > 1)} of {height} x {width}, blue -{largest:.3g} to orange {largest:.3g}"
    )
    return Picture(sheet.repeat(factor, axis=0).repeat(factor, axis=1), caption)
