"""Weight gradients with the filters in the lanes: for layers with many weights.

    dw[k, c, f] = sum over samples n and positions p of x[n, p + k, c] * dy[n, p, f]

Lanes elsewhere are samples. Here a panel of dy, some positions x 16 samples x 16 or 32 filters, is transposed once and
stays in the first-level cache, while x is read one float after the other and spread over all lanes. So the sums need
no adding up of lanes, and each vector that is loaded serves a whole tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.panels import SCRATCH
from minicnn.backends.numba.short import SHORT, bytes_of, product_name
from minicnn.backends.numba.weights import Gradient, lanes_apart

_PLACE = "(((block - block0) * strip_rows + {r} - r0) * strip_columns + {t} - t0)"  # of a position in the panel


@dataclass(frozen=True)
class LaneShape(Gradient):
    """Sizes of a weight gradient, and of its panels."""

    @property
    def paired(self) -> bool:
        """True if pairs of samples are multiplied at a time."""
        return self.dtype == SHORT

    @property
    def row_vectors(self) -> int:
        """Vectors that a panel has for each position and 16 filters."""
        return LANES // 2 if self.paired else LANES

    @property
    def vectors(self) -> int:
        """Vectors of a panel: 32 filters, or 16 where that wastes less."""
        # Two vectors share each broadcast of x, where there are registers for them.
        return self.filled_vectors if cpus.host().pixels > 1 else 1

    @property
    def filled_vectors(self) -> int:
        """Two, unless the second would be empty."""
        return 2 if -(-self.filters // LANES) % 2 == 0 else 1

    @property
    def panels(self) -> int:
        """Panels of all groups."""
        return -(-self.filters // (LANES * self.vectors)) * self.groups


def worth_it(shape: LaneShape) -> bool:
    """True if this is faster than sums with their lanes apart: many weights a filter, and filters to fill lanes."""
    each = shape.row.taps * shape.column.taps * shape.channels
    return not lanes_apart(shape.size) or (each >= 32 and shape.filters > LANES // 2)


def divided(shape: LaneShape, threads: int) -> bool:
    """True if threads share the filters; otherwise they share the samples, and their parts are added afterwards."""
    # Sharing filters has each thread read all images, sharing samples has it keep all weights: the smaller one wins.
    image = shape.row.size * shape.column.size * shape.channels * shape.groups * shape.blocks * LANES
    panels = shape.panels * shape.vectors // shape.filled_vectors
    balanced = panels % threads == 0 or panels >= 4 * threads
    return threads == 1 or (balanced and (threads - 1) * image < 2 * threads * shape.size)


def parts_of(shape: LaneShape, threads: int) -> tuple[int, int]:
    """Number of parts of the samples; and into how many, each some rows, a block is cut if there are too few blocks."""
    # Fewer blocks than threads: their rows are divided, too.
    pieces = min(threads // shape.blocks, shape.row.count) or 1
    return min(threads, shape.blocks * pieces), pieces


def weight_gradient(shape: LaneShape, parts: int, pieces: int = 1) -> KernelCode:
    """dw (KH, KW, C, groups * F) from dy (B, OH, OW, groups * F, 16) and x (B, H, W, groups * C, 16).

    Args:
        shape: Sizes.
        parts: 0 to share the filters: one item a panel. Else number of parts of the samples, each with sums of its
            own: one item a part.
        pieces: Parts of a block, each some rows.
    """
    row, column = shape.row, shape.column
    out = Lines()
    padded = column.inside != (0, column.count)
    joined = column.joined and not padded and shape.groups == 1
    length = column.taps * shape.channels if joined else shape.channels
    # The panel stays in the first-level cache, where each tap reads it.
    # Its positions do not depend on the CPU, so that sums are in one order everywhere.
    most = SCRATCH // (shape.filled_vectors * shape.row_vectors * BYTES)
    strip_columns = even_tile(column.count, most)
    strip_rows = even_tile(row.count, max(1, most // column.count))
    together = max(1, most // (row.count * column.count))
    width = bytes_of(shape.dtype)
    numbers = {
        "samples": shape.samples, "blocks": shape.blocks, "kh_": row.taps, "kw_": column.taps,
        "lines": 1 if joined else column.taps, "oh": row.count, "ow": column.count, "h": row.size, "w": column.size,
        "channels": shape.channels, "filters": shape.filters, "all_filters": shape.filters * shape.groups,
        "length": length, "x_pixel": shape.channels * shape.groups * width,
        "y_pixel": shape.filters * shape.groups * width, "strip_rows": strip_rows, "strip_columns": strip_columns,
        "together": together, "panels": shape.panels // shape.groups,
        "r_step": row.in_step, "r_offset": row.offset, "r_taps": row.offset_step,
        "c_step": column.in_step, "c_offset": column.offset, "c_taps": column.offset_step,
    }  # fmt: skip
    for name, value in numbers.items():
        out.number(name, value)
    filters = shape.vectors * LANES
    out("panel = stack()")
    if shape.paired:
        out("mode = flush_denormals()")
    if parts:
        every = out.number("panels_", shape.panels)
        out.all_numbers(parts_=parts // pieces, pieces_=pieces, size=shape.size)
        with out.block("for part in range(start, stop):"):
            out("sums = dw + part * size * 4")
            out("whole = part // pieces_", "piece = part % pieces_")
            out("first = blocks * whole // parts_", "last = blocks * (whole + 1) // parts_")
            out("ya = oh * piece // pieces_", "yz = oh * (piece + 1) // pieces_")
            _strips(out, shape, f"0, {every}", filters, length, padded=padded)
    else:
        out("sums = dw", "first = 0", "last = blocks", "ya = 0", "yz = oh")
        _strips(out, shape, "start, stop", filters, length, padded=padded)
    if shape.paired:
        out("restore_mode(mode)")
    return out.source(product_name("conv2d_weight_gradient", paired=shape.paired), "dy", "x", "dw")


def _strips(out: Lines, shape: LaneShape, panels: str, width: int, length: int, *, padded: bool) -> None:
    """All positions of the blocks from first to last, strip by strip, for a range of panels."""
    vectors = shape.vectors
    with (
        out.block("for block0 in range(first, last, together):"),
        out.block("for r0 in range(ya, yz, strip_rows):"),
        out.block("for t0 in range(0, ow, strip_columns):"),
    ):
        out(
            "block1 = min(block0 + together, last)", "r1 = min(r0 + strip_rows, yz)", "t1 = min(t0 + strip_columns, ow)"
        )
        # The first strip writes the sums instead of adding, so that nobody has to clear them.
        out("fresh = int64(block0 == first and r0 == ya and t0 == 0)")
        with out.block(f"for item in range({panels}):"):
            out("g = item // panels", f"f = item % panels * {width}", "fg = g * filters + f", "lanes = filters - f")
            _transposed(out, shape)
            with out.block("for kh in range(kh_):"), out.block("for kw in range(lines):"):
                # Positions of the strip whose input is inside the image, for this tap.
                out("i0 = r_offset + kh * r_taps", "j0 = c_offset + kw * c_taps")
                out("ra = max(r0, -(i0 // r_step))", "rz = min(r1, (h - 1 - i0) // r_step + 1)")
                if padded:
                    out("ca = max(t0, -(j0 // c_step))", "cz = min(t1, (w - 1 - j0) // c_step + 1)")
                else:
                    out("ca = t0", "cz = t1")
                size = even_tile(length, cpus.host().accumulators // vectors)
                full, rest = divmod(length, size)
                with out.block(f"for m in range(0, {out.number('full', full * size)}, {size}):"):
                    _visit(out, size, shape)
                if rest:
                    out("m = full")
                    _visit(out, rest, shape)


def _transposed(out: Lines, shape: LaneShape) -> None:
    """The panel: dy of the strip with samples, or pairs of them, and filters exchanged."""
    vectors, width, kind = shape.vectors, bytes_of(shape.dtype), "_pairs" if shape.paired else ""
    with (
        out.block("for block in range(block0, block1):"),
        out.block("for r in range(r0, r1):"),
        out.block("for t in range(t0, t1):"),
    ):
        out(f"yi = dy + ((block * oh + r) * ow + t) * y_pixel + fg * {width}")
        out(f"at = panel + {_PLACE.format(r='r', t='t')} * {vectors * shape.row_vectors * BYTES}")
        for c in range(vectors):
            operands = f"at + {c * BYTES}, yi + {c * LANES * width}, {vectors * BYTES}, lanes - {c * LANES + 1}"
            out(f"transpose{kind}({operands})")


def _visit(out: Lines, rows: int, shape: LaneShape) -> None:
    """Add what the strip gives to a tile of sums."""
    tile, kind = out.tile(rows, shape.vectors), "_pairs" if shape.paired else ""
    out(f"a = clear_{tile}()")
    with out.block("for block in range(block0, block1):"):
        out(f"live = min({LANES}, samples - block * {LANES})")
        if shape.paired:  # of an odd number the last is paired with zeros
            out("live = (live + 1) // 2")
        with out.block("for r in range(ra, rz):"):
            out("xi = x + ((block * h + r * r_step + i0) * w + ca * c_step + j0) * x_pixel")
            out(f"xi += (g * channels + m) * {bytes_of(shape.dtype)}")
            out(f"yi = panel + {_PLACE.format(r='r', t='ca')} * {shape.vectors * shape.row_vectors * BYTES}")
            out(f"a = spread{kind}_{tile}(a, xi, yi, cz - ca, live, c_step * x_pixel)")
    out("s = sums + (((kh * kw_ + kw) * channels + m) * all_filters + fg) * 4")
    out(f"deposit_{tile}(s, a, all_filters * 4, lanes, fresh)")
