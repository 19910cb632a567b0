"""Sums over the batch: gradients of few weights, and the last step that joins the threads' parts of any sum.

Each part goes over its own blocks of samples and keeps sums of its own, in one call or in several; a second kernel adds
the parts, always in the same order, so that results do not depend on timing. While blocks are summed, the 16 lanes stay
apart. Lanes beyond the last sample must be 0: see `movement.clear`.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.correlate import FEW_TERMS, Line
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.short import SHORT, bytes_of

LANES_LIMIT = 1 << 18  # bytes of sums with their lanes apart, beyond which they are added up at once
PIXELS = 48  # least number of positions between two visits to the sums in memory


def lanes_apart(size: int) -> bool:
    """True if sums of this many elements keep their lanes apart between blocks."""
    # 16 sums for each weight save adding up lanes in every block, as long as they stay in the cache.
    return size * BYTES <= LANES_LIMIT


def part_bytes(size: int) -> int:
    """Bytes of one part's sums."""
    return size * (BYTES if lanes_apart(size) else 4)


@dataclass(frozen=True)
class Gradient:
    """Sizes of a weight gradient.

    Attributes:
        row: Forward geometry along the rows.
        column: The same along the columns.
        channels: C of one group.
        filters: F of one group.
        groups: Groups of channels that do not see each other.
        samples: N.
        dtype: Type of both images.
    """

    row: Line
    column: Line
    channels: int
    filters: int
    groups: int
    samples: int
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.row.taps * self.column.taps * self.channels * self.filters * self.groups

    @property
    def blocks(self) -> int:
        """Number of blocks of 16 samples."""
        return -(-self.samples // LANES)


def weight_gradient(shape: Gradient, parts: int) -> KernelCode:
    """Part of dw (KH, KW, C, groups * F) from x (B, H, W, groups * C, 16) and dy (B, OH, OW, groups * F, 16).

    One item a row of a block.
    """
    row, column, channels, groups = shape.row, shape.column, shape.channels, shape.groups
    out, filters = Lines(bake=column.taps * channels <= FEW_TERMS), shape.filters * groups
    # Each visit loads and stores the sums: enough positions in between hide that.
    strip = even_tile(row.count, max(1, -(-PIXELS // column.count)))
    padded = column.inside != (0, column.count)
    # Taps of a row and channels lie one after the other in memory: as one loop they fill tiles better.
    joined = column.joined and not padded and groups == 1
    length = column.taps * channels if joined else channels
    accumulators = cpus.host().accumulators
    columns = even_tile(shape.filters, min(6, accumulators))
    rows = even_tile(length, accumulators // columns)
    width = bytes_of(shape.dtype)
    numbers = {
        "part_bytes": shape.size * BYTES, "kh_": row.taps, "kw_": column.taps,
        "lines": 1 if joined else column.taps, "strip": strip, "oh": row.count, "ow": column.count, "h": row.size,
        "w": column.size, "channels": channels, "filters": filters, "per_group": shape.filters, "length": length,
        "x_pixel": channels * groups * width, "y_pixel": filters * width, "r_step": row.in_step,
        "r_offset": row.offset, "r_taps": row.offset_step, "c_step": column.in_step, "c_offset": column.offset,
        "c_taps": column.offset_step,
    }  # fmt: skip
    n = {name: out.number(name, value) for name, value in numbers.items()}
    # Rows of all blocks are numbered through, and a part is some of them.
    with out.parts(parts, shape.blocks, row.count):
        out(f"sums = parts + part * {n['part_bytes']}")
        with out.block(f"for k in range({n['part_bytes']} // 4 * fresh):"):
            out("fstore(sums + k * 4, float32(0))")
        with out.block(f"for block in range(u0 // {n['oh']}, (u1 + {n['oh']} - 1) // {n['oh']}):"):
            out(f"ya = max(0, u0 - block * {n['oh']})", f"yz = min({n['oh']}, u1 - block * {n['oh']})")
            out(f"xb = x + block * {n['h']} * {n['w']} * {n['x_pixel']}")
            out(f"yb = dy + block * {n['oh']} * {n['ow']} * {n['y_pixel']}")
            with (
                out.block(f"for r0 in range(ya, yz, {n['strip']}):"),
                out.block(f"for g in range({out.number('groups', groups) if groups > 1 else 1}):"),
            ):
                for f_size, f_range in _ranges(n["per_group"], shape.filters, columns):
                    with (
                        out.block(f"for f in range({f_range}):"),
                        out.block(f"for kh in range({n['kh_']}):"),
                        out.block(f"for kw in range({n['lines']}):"),
                    ):
                        _inside(out, n, padded)
                        for m_size, m_range in _ranges(n["length"], length, rows):
                            with out.block(f"for m in range({m_range}):"):
                                _accumulate(out, n, m_size, f_size, shape.dtype)
    return out.source("conv2d_weight_gradient", "dy", "x", "parts")


def _ranges(name: str, total: int, size: int) -> list[tuple[int, str]]:
    """Tile widths that together cover a total, with the range of starts of each."""
    # A narrower last tile, as one that overlaps would add its sums twice.
    rest = total % size
    runs = [(size, f"0, {name} - {size - 1}, {size}")] if total >= size else []
    return runs + ([(rest, f"{name} - {rest}, {name}, {rest}")] if rest else [])


def _inside(out: Lines, n: dict[str, str], padded: bool) -> None:
    """Output positions whose input is inside the image, for this tap."""
    out(f"i0 = {n['r_offset']} + kh * {n['r_taps']}", f"j0 = {n['c_offset']} + kw * {n['c_taps']}")
    # Bounds instead of tests: the inner loop then has no condition.
    out(f"ra = max(r0, -(i0 // {n['r_step']}))")
    out(f"rz = min(min(r0 + {n['strip']}, yz), ({n['h']} - 1 - i0) // {n['r_step']} + 1)")
    if padded:
        out(f"ca = max(0, -(j0 // {n['c_step']}))")
        out(f"cz = min({n['ow']}, ({n['w']} - 1 - j0) // {n['c_step']} + 1)")
    else:
        out("ca = 0", f"cz = {n['ow']}")


def _accumulate(out: Lines, n: dict[str, str], rows: int, columns: int, dtype: str) -> None:
    tile, width, kind = out.tile(rows, columns), bytes_of(dtype), "_short" if dtype == SHORT else ""
    out(f"a = clear_{tile}()", f"fg = g * {n['per_group']} + f")
    with out.block("for r in range(ra, rz):"):
        out(f"xi = xb + ((r * {n['r_step']} + i0) * {n['w']} + ca * {n['c_step']} + j0) * {n['x_pixel']}")
        out(f"xi += (g * {n['channels']} + m) * {width}")
        out(f"yi = yb + (r * {n['ow']} + ca) * {n['y_pixel']} + fg * {width}")
        out(f"a = outer{kind}_{tile}(a, xi, yi, cz - ca, {n['c_step']} * {n['x_pixel']}, {n['y_pixel']})")
    out(f"s = sums + (((kh * {n['kw_']} + kw) * {n['channels']} + m) * {n['filters']} + fg) * {BYTES}")
    out(f"gather_{tile}(s, a, {n['filters']} * {BYTES})")


def join(size: int, parts: int, *, apart: bool, divisor: int = 1) -> KernelCode:
    """Parts of `size` sums added up, and divided by a count; one item 16 elements.

    Args:
        size: Number of sums.
        parts: Number of parts, one after the other.
        apart: Whether the lanes of a sum are apart.
        divisor: The count.
    """
    out = Lines()
    total, number = out.all_numbers(size=size, parts_=parts)
    count = out.number("divisor", divisor) if divisor != 1 else ""
    with out.block("for item in range(start, stop):"):
        if apart:
            with out.block(f"for k in range(item * {LANES}, min(item * {LANES} + {LANES}, {total})):"):
                out(f"a = vload(parts + k * {BYTES})")
                with out.block(f"for p in range(1, {number}):"):
                    out(f"a = vadd(a, vload(parts + (p * {total} + k) * {BYTES}))")
                out(f"fstore(y + k * 4, vsum(a){f' / float32({count})' if count else ''})")
        else:
            out(f"k = item * {LANES}", f"live = {total} - k", "a = vload_some(parts + k * 4, live)")
            with out.block(f"for p in range(1, {number}):"):
                out(f"a = vadd(a, vload_some(parts + (p * {total} + k) * 4, live))")
            out(f"vstore_some(y + k * 4, {f'vdiv(a, splat(float32({count})))' if count else 'a'}, live)")
    return out.source("join_parts", "parts", "y")
