"""Convolution by Winograd's F(2x2, 3x3): fewer multiplications for 3 x 3 kernels with stride 1 and many channels.

Tiles of 2 x 2 outputs of all blocks of samples are numbered through. For a group of tiles the inputs are transformed to
16 images of one pixel a tile; for each of the 16 a matrix product over the channels follows, as in the direct kernel;
the results are transformed back to outputs, which end with bias and activation.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.correlate import Line, filters_of_tile
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.machine import second_level_cache


@dataclass(frozen=True)
class WinogradShape:
    """Sizes of a convolution.

    Attributes:
        row: Geometry along the rows.
        column: The same along the columns.
        channels: C.
        filters: F.
        blocks: B.
        flipped: Whether taps come in reverse, as for the input gradient.
    """

    row: Line
    column: Line
    channels: int
    filters: int
    blocks: int
    flipped: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of all blocks."""
        return self.blocks * -(-self.row.count // 2) * -(-self.column.count // 2)

    @property
    def together(self) -> int:
        """Tiles of a group."""
        # As many as fit into half of the cache, since products read their transformed inputs once for each group of
        # filters.
        tiles = cpus.host().pixels
        most = max(tiles, second_level_cache() // 2 // (16 * self.channels * BYTES) // tiles * tiles)
        return min(most, -(-self.tiles // tiles) * tiles)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights (16, C, F)."""
        return 16 * self.channels * self.filters * 4

    @property
    def part_bytes(self) -> int:
        """Bytes that a thread needs: zeros, transformed inputs."""
        return (self.channels + 16 * self.together * self.channels) * BYTES


def possible(row: Line, column: Line, filters: int, groups: int) -> bool:
    """True if there is a transform for a geometry, and enough filters to fill a vector."""
    return filters >= LANES and groups == 1 and all(
        line.taps == 3 and line.in_step == line.out_step == line.offset_step == 1
        and abs(line.weight_step) == 1 and line.count >= 2
        for line in (row, column)
    )  # fmt: skip


def cost(shape: WinogradShape, threads: int) -> float:
    """Time of a convolution by these tiles, in multiply-adds of the direct kernel."""
    tiles, c, f = shape.tiles, shape.channels, shape.filters
    # Constants of the estimate were measured: a product costs 1.15 of a direct one, as its sums are shorter, and a
    # transform of a pixel some 70 multiply-adds.
    together = cpus.host().pixels
    wasted = -(-tiles // threads // together) * together * threads / tiles  # tiles that fill up the last group
    products = 16 * tiles * wasted * c * f * 1.15
    return products + tiles * (c + f) * 70 + 200 * c * f


def worth_it(shape: WinogradShape, threads: int) -> bool:
    """True if this is faster than the direct kernel."""
    direct = 9 * shape.row.count * shape.column.count * shape.blocks * shape.channels * shape.filters
    return cost(shape, threads) < direct


def chosen(pinned: str | None, row: Line, column: Line, channels: int, filters: int, groups: int, blocks: int,
           threads: int) -> bool:  # fmt: skip
    """True if a convolution takes Winograd's way: where it can and is faster, unless the user has pinned one."""
    if not possible(row, column, filters, groups) or pinned == "direct":
        return False
    return pinned == "winograd" or worth_it(WinogradShape(row, column, channels, filters, blocks), threads)


def transformed_weights(shape: WinogradShape) -> KernelCode:
    """w (3, 3, C, F) as (16, C, F); one item 16 filters of all channels."""
    out = Lines()
    c, f = out.all_numbers(channels=shape.channels, filters=shape.filters)
    with out.block("for item in range(start, stop):"):
        # The last vector overlaps the one before, which writes the same numbers: no masked stores.
        out(f"f = min(item * {LANES}, {f} - {LANES})")
        with out.block(f"for k in range({c}):"):
            at = f"(k * {f} + f) * 4"
            out(f"spread_filters(y + {at}, w + {at}, {c} * {f} * 4, {c} * {f} * 4, {int(shape.flipped)})")
    return out.source("winograd weights", "w", "y")


def winograd(name: str, shape: WinogradShape, parts: int, *, bias: bool, finish: str) -> KernelCode:
    """y (B, OH, OW, F, 16) from x (B, H, W, C, 16) and transformed weights; one item a part of the tiles.

    Args:
        name: For `explain`.
        shape: Sizes.
        parts: Number of parts.
        bias: Whether there is a bias (F,).
        finish: See `correlate.Operands`.
    """
    out = Lines()
    row, column = shape.row, shape.column
    pixels, filters = cpus.host().pixels, filters_of_tile()
    width = even_tile(shape.filters, filters)
    tile = out.tile(pixels, width)
    out.all_numbers(
        h=row.size, w_=column.size, oh=row.count, ow=column.count, top=row.offset, left=column.offset,
        channels=shape.channels, filters=shape.filters, tiles_=shape.tiles, rows_=-(-row.count // 2),
        columns_=-(-column.count // 2), together=shape.together, part_bytes=shape.part_bytes, parts_=parts,
    )  # fmt: skip
    out("panel = stack()", f"table = panel + {16 * pixels * filters * BYTES}")
    with out.block("for part in range(start, stop):"):
        out("zeros = parts + part * part_bytes", f"v = zeros + channels * {BYTES}")
        with out.block("for c in range(channels):"):
            out(f"vstore(zeros + c * {BYTES}, splat(float32(0)))")
        out("first = tiles_ * part // parts_", "last = tiles_ * (part + 1) // parts_")
        with out.block("for t0 in range(first, last, together):"):
            out("t1 = min(t0 + together, last)")
            with out.block("for t in range(t0, t1):"):
                _origin(out)
                with out.block("for k in range(16):"):
                    # A table of addresses, in which pixels beyond the border point to zeros: the transform knows no
                    # borders.
                    out("i = i0 + k // 4 + top", "j = j0 + k % 4 + left", "at = zeros")
                    with out.block("if 0 <= i < h and 0 <= j < w_:"):
                        out(f"at = x + ((block * h + i) * w_ + j) * channels * {BYTES}")
                    out("astore(table + k * 8, at)")
                out(f"patch(v + (t - t0) * channels * {BYTES}, table, channels, together * channels * {BYTES})")
            with (
                out.block(f"for fq in range(0, filters, {width}):"),
                out.block(f"for p in range(0, t1 - t0, {pixels}):"),
            ):
                out(f"f = min(fq, filters - {width})")
                with out.block("for k in range(16):"):
                    out(
                        f"vk = v + (k * together + p) * channels * {BYTES}",
                        "wk = w + (k * channels * filters + f) * 4",
                        f"a = correlate_{tile}(clear_{tile}(), vk, wk, channels, channels * {BYTES}, filters * 4)",
                        f"put_{tile}(panel + k * {pixels * width * BYTES}, a, {width * BYTES})",
                    )
                with out.block(f"for t in range(t0 + p, min(t0 + p + {pixels}, t1)):"):
                    _origin(out)
                    out(
                        f"at = y + (((block * oh + i0) * ow + j0) * filters + f) * {BYTES}",
                        f"m = panel + (t - t0 - p) * {width * BYTES}",
                        f"unpatch{'_' if finish else ''}{finish}(m, {pixels * width * BYTES}, at,"
                        f" ow * filters * {BYTES}, filters * {BYTES}, {width}, {'bias + f * 4' if bias else 'zeros'},"
                        f" {'mask - y' if finish == 'mask' else '0'})",
                    )
    extra = [*(["bias"] if bias else []), *(["mask"] if finish == "mask" else [])]
    return out.source(f"{name} by winograd", "x", "w", *extra, "parts", "y")


def _origin(out: Lines) -> None:
    """Block and first output of tile t; where a side is odd the last tile overlaps the one before."""
    out("block = t // (rows_ * columns_)", "rest = t % (rows_ * columns_)")
    out("i0 = min(rest // columns_ * 2, oh - 2)", "j0 = min(rest % columns_ * 2, ow - 2)")
