"""Convolution by Winograd's minimal filtering: fewer multiplications for kernels of 3 or 5 taps with stride 1.

Tiles of M x N outputs of all blocks of samples are numbered through. For a group of tiles the inputs are transformed to
images of one pixel a tile, one image for each element of the transform; a matrix product over the channels follows for
each image; the results are transformed back to outputs, which end with bias and activation. A group is as large as the
second-level cache allows, so nothing of it goes through main memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from minicnn.backends.numba import cpus, winograd_zeros
from minicnn.backends.numba.correlate import Line, filters_of_tile
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES
from minicnn.machine import second_level_cache
from minicnn.ops.winograd_matrices import OUTPUTS, accurate, keeps_zeros


@dataclass(frozen=True)
class Tiling:
    """Geometry along the rows and columns, and the outputs of a tile along each.

    Attributes:
        row: Geometry along the rows.
        column: The same along the columns.
        height: Outputs of a tile along the rows.
        width: The same along the columns.
        blocks: B.
    """

    row: Line
    column: Line
    height: int
    width: int
    blocks: int

    @property
    def elements(self) -> tuple[int, int]:
        """Elements of a transformed tile along rows and columns."""
        return self.height + self.row.taps - 1, self.width + self.column.taps - 1

    @property
    def size(self) -> int:
        """Elements of a transformed tile."""
        rows, columns = self.elements
        return rows * columns

    @property
    def across(self) -> tuple[int, int]:
        """Tiles along rows and columns; the last of each may be partly outside."""
        return -(-self.row.count // self.height), -(-self.column.count // self.width)

    @property
    def tiles(self) -> int:
        """Tiles of all blocks."""
        rows, columns = self.across
        return self.blocks * rows * columns

    @property
    def names(self) -> tuple[str, str]:
        """Suffixes of operations on elements, and on outputs and taps."""
        rows, columns = self.elements
        return f"{rows}_{columns}", f"{self.height}_{self.row.taps}_{self.width}_{self.column.taps}"

    @property
    def kind(self) -> str:
        """Name of the tile."""
        return f"F({self.height}x{self.width})"

    def origin(self, out: Lines) -> None:
        """Text for the block and the first output of tile t."""
        out("block = t // (rows_ * columns_)", "rest = t % (rows_ * columns_)")
        out(f"i0 = rest // columns_ * {self.height}", f"j0 = rest % columns_ * {self.width}")

    def addresses(self, out: Lines, shape: tuple[int, int], image: str, table: str, start: str, none: str) -> None:
        """Text for the addresses of the pixels from i0 + .., j0 + .. of an image h x w; `none` for those outside."""
        (rows, columns), (base, h, w, pixel) = shape, image.split()
        with out.block(f"for k in range({rows}):"), out.block(f"for l in range({columns}):"):
            out(f"i = i0 + k{start and ' + top'}", f"j = j0 + l{start and ' + left'}", f"at = {none}")
            with out.block(f"if 0 <= i < {h} and 0 <= j < {w}:"):
                out(f"at = {base} + ((block * {h} + i) * {w} + j) * {pixel} * {BYTES}")
            out(f"astore({table} + (k * {columns} + l) * 8, at)")

    def pixels(self, out: Lines, first: str, last: str) -> None:
        """Text for tables of addresses of the pixels of some tiles; pixels beyond the border are zeros elsewhere."""
        with out.block(f"for t in range({first}, {last}):"):
            self.origin(out)
            table = f"tables + (t - {first}) * {8 * self.size}"
            self.addresses(out, self.elements, "x h w_ channels", table, "offset", "zeros")


@dataclass(frozen=True)
class WinogradShape(Tiling):
    """Sizes of a convolution.

    Attributes:
        channels: C.
        filters: F.
        flipped: Whether taps come in reverse, as for the input gradient.
        exact: Whether results of zeros are exactly those: see `winograd_zeros`.
    """

    channels: int = 1
    filters: int = 1
    flipped: bool = False
    exact: bool = False

    @property
    def mended(self) -> bool:
        """Whether results of zeros are written anew."""
        kinds = (self.height, self.row.taps), (self.width, self.column.taps)
        return self.exact and not all(keeps_zeros(*kind) for kind in kinds)

    @property
    def panel(self) -> int:
        """Filters that a product sums at once."""
        return even_tile(self.filters, filters_of_tile())

    @property
    def panels(self) -> int:
        """Products for all filters."""
        return -(-self.filters // self.panel)

    @property
    def run(self) -> int:
        """Channels of a tile's element that lie side by side, those of the next element behind them."""
        # A transform stores all elements of a channel at a time, in as many pages as the CPU has at hand for stores.
        fitting = cpus.host().costs.stored // (self.size * cpus.host().pixels * BYTES)
        return min(self.channels, 1 << max(fitting, 1).bit_length() - 1)

    @property
    def runs(self) -> int:
        """Runs of all channels."""
        return -(-self.channels // self.run)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a transformed tile: channels, and filters."""
        return self.size * (self.runs * self.run + self.panels * self.panel + 1) * BYTES

    @property
    def together(self) -> int:
        """Tiles of a group."""
        pixels = cpus.host().pixels
        most = max(pixels, second_level_cache() // 2 // self.tile_bytes // pixels * pixels)
        return min(most, -(-self.tiles // pixels) * pixels)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights (elements, panels, C, filters of a panel)."""
        return self.size * self.channels * self.panels * self.panel * 4

    @property
    def part_bytes(self) -> int:
        """Bytes that a thread needs: zeros, outputs outside, a tile, those of a group, tables of addresses, cores."""
        ends = 2 * max(self.channels, self.filters) + self.size + self.together * self.mended
        addresses = (self.together + 1) * self.size + self.together * 2 * self.height * self.width
        tables = -(-addresses * 8 // BYTES)
        return (ends + tables) * BYTES + self.together * self.tile_bytes

    @property
    def cost(self) -> float:
        """Time in vectors of multiply-adds of the direct kernel."""
        # What does not fill registers is left out: the choice, and with it results' bits, are those of narrower ones.
        costs, products = cpus.host().costs.winograd, self.size * self.tiles * self.channels * self.filters
        transforms = self.tiles * self.size * (self.channels + self.filters)
        weights = self.size * self.channels * self.filters * 4 / BYTES
        element = costs.transforms(self.height * self.width) * (costs.backward if self.flipped else 1)
        return costs.product * products + element * transforms + costs.weight * weights


def possible(row: Line, column: Line, groups: int) -> bool:
    """True if there are transforms for a geometry."""
    return groups == 1 and all(
        line.taps in OUTPUTS and line.in_step == line.out_step == line.offset_step == 1 and abs(line.weight_step) == 1
        for line in (row, column)
    )


def tilings(
    row: Line, column: Line, blocks: int, terms: int, *, gradient: bool = False
) -> Iterator[tuple[Line, Line, int, int, int]]:
    """All that a `Tiling` of a geometry can be whose errors stay within the table; for results of so many terms."""
    for height, width in product(OUTPUTS[row.taps], OUTPUTS[column.taps]):
        if accurate((height, row.taps), (width, column.taps), terms, gradient=gradient):
            yield row, column, height, width, blocks


def chosen(pinned: str | None, row: Line, column: Line, channels: int, filters: int, groups: int, blocks: int,
           threads: int, *, exact: bool) -> WinogradShape | None:  # fmt: skip
    """The tiles by which a convolution is computed: where there are and they are faster, unless the user has pinned.

    `exact`: see `WinogradShape`.
    """
    if pinned == "direct" or not possible(row, column, groups):
        return None
    sizes = (channels, filters, row.weight_step < 0, exact)
    possible_tilings = tilings(row, column, blocks, row.taps * column.taps * channels)
    best = min((WinogradShape(*one, *sizes) for one in possible_tilings), key=lambda shape: shape.cost, default=None)
    if best is None:
        return None
    # Tiles are divided among threads as they are; the direct kernel divides rows.
    idle = -(-best.tiles // threads) * threads / best.tiles
    direct = row.taps * column.taps * row.count * column.count * blocks * channels * filters
    return best if pinned == "winograd" or best.cost * idle < direct else None


def transformed_weights(shape: WinogradShape) -> KernelCode:
    """w (KH, KW, C, F) as (elements, panels, C, filters of a panel); one item a panel."""
    out = Lines()
    c, f, panels = out.all_numbers(channels=shape.channels, filters=shape.filters, panels=shape.panels)
    width = shape.panel
    with out.block("for item in range(start, stop):"), out.block(f"for k in range({c}):"):
        out(
            f"spread_filters_{shape.names[1]}(y + (item * {c} + k) * {width * 4}, {panels} * {c} * {width * 4},"
            f" w + (k * {f} + item * {width}) * 4, {c} * {f} * 4, {int(shape.flipped)},"
            f" min({width}, {f} - item * {width}), {width})"
        )
    return out.source("winograd weights", "w", "y")


def _ends(out: Lines, shape: WinogradShape, finish: str) -> int:
    """Tables of addresses of the outputs of a group's tiles, and of their masks; how many a tile has."""
    size, outputs = (shape.height, shape.width), shape.height * shape.width
    each = 2 * outputs if finish == "mask" else outputs
    with out.block("for t in range(t0, t1):"):
        shape.origin(out)
        out(f"table = ends + (t - t0) * {8 * each}")
        shape.addresses(out, size, "y oh ow filters", "table", "", "outside")
        if finish == "mask":
            shape.addresses(out, size, "mask oh ow filters", f"table + {8 * outputs}", "", "zeros")
    return each


def fetched(out: Lines, tiles: str, table: str, each: int, every: str) -> None:
    """Text that brings part q of the channels or filters of element k of some tiles from afar."""
    with out.block(f"for r in range({tiles}):"):
        out(f"at = aload({table} + (r * {each} + k) * 8)")
        with out.block(f"for c in range({every} * q // panels, {every} * (q + 1) // panels):"):
            out(f"prefetch_second(at + c * {BYTES})")


def winograd(name: str, shape: WinogradShape, parts: int, *, bias: bool, finish: str) -> KernelCode:
    """y (B, OH, OW, F, 16) from x (B, H, W, C, 16) and transformed weights; one item a tile.

    Args:
        name: For `explain`.
        shape: Sizes.
        parts: Number of parts, each with memory of its own.
        bias: Whether there is a bias (F,).
        finish: See `correlate.Operands`.
    """
    out = Lines()
    row, column, size, pixels, width = shape.row, shape.column, shape.size, cpus.host().pixels, shape.panel
    run = shape.run
    tile, most = out.tile(pixels, width), max(shape.channels, shape.filters)
    out.all_numbers(
        h=row.size, w_=column.size, oh=row.count, ow=column.count, top=row.offset, left=column.offset,
        channels=shape.channels, filters=shape.filters, panels=shape.panels, runs=shape.runs, most=most,
        rows_=shape.across[0], columns_=shape.across[1],
    )  # fmt: skip
    out.varying("together", shape.together), out.varying("part_bytes", shape.part_bytes)
    elements, outputs = shape.names
    # Tiles that are multiplied at once lie side by side, channel by channel.
    inputs, results = f"runs * {size * shape.run * pixels * BYTES}", f"{size} * m_step"
    with out.parts(parts, shape.blocks, shape.tiles // shape.blocks):
        out("zeros = parts + part * part_bytes", f"outside = zeros + most * {BYTES}")
        out(f"work = outside + most * {BYTES}", f"v = work + {size * BYTES}")
        with out.block("for c in range(most):"):
            out(f"vstore(zeros + c * {BYTES}, splat(float32(0)))")
        out(f"m_step = panels * {pixels * width * BYTES} + {BYTES}")
        out(f"m = v + together // {pixels} * ({inputs})", f"cores = m + together // {pixels} * ({results})")
        out(f"pixels = cores + {'together' if shape.mended else 0} * {BYTES}")
        out(f"tables = pixels + {size * 8}", f"ends = tables + together * {size * 8}")
        shape.pixels(out, "u0", "min(u0 + together, u1)")
        with out.block("for t0 in range(u0, u1, together):"):
            out("t1 = min(t0 + together, u1)")
            with out.block("for t in range(t0, t1):"):
                out(f"at = v + (t - t0) // {pixels} * ({inputs}) + (t - t0) % {pixels} * {BYTES}")
                out(f"places = tables + (t - t0) * {8 * size}")
                if shape.mended:
                    winograd_zeros.begin_cores(out, shape, "places")
                with out.block(f"for c in range(0, channels, {run}):"):
                    out(
                        f"patch_{elements}(at + c * {size * pixels * BYTES}, {run * pixels * BYTES}, {pixels * BYTES},"
                        f" places, c * {BYTES}, min({run}, channels - c))"
                    )
                    if shape.mended:
                        winograd_zeros.add_cores(out, shape, f"c, min(c + {run}, channels)")
                if shape.mended:
                    winograd_zeros.end_cores(out, shape, f"cores + (t - t0) * {BYTES}")
            # While products keep the CPU busy, the next group's pixels come from afar, and what outputs are stored to.
            shape.pixels(out, "t1", "min(t1 + together, u1)")
            each = _ends(out, shape, finish)
            with (
                out.block(f"for k in range({size}):"),
                out.block(f"for p in range(0, t1 - t0, {pixels}):"),
            ):
                out(f"vk = v + p // {pixels} * ({inputs}) + k * {run * pixels * BYTES}")
                out(f"mk = m + p // {pixels} * ({results}) + k * m_step")
                with out.block("for q in range(panels):"):
                    fetched(out, f"p, p + {pixels}", "tables", size, "channels")
                    with out.block(f"if k < {each}:"):
                        fetched(out, f"p, p + {pixels}", "ends", each, "filters")
                    out(
                        f"wk = w + (k * panels + q) * channels * {width * 4}",
                        f"a = clear_{tile}()",
                    )
                    with out.block(f"for c in range(0, channels, {run}):"):
                        at = f"vk + c * {size * pixels * BYTES}, wk + c * {width * 4}"
                        out(f"a = multiply_{tile}(a, {at}, min({run}, channels - c))")
                    out(f"put_{tile}(mk + q * {width * BYTES}, a, panels * {width * BYTES})")
            with out.block("for t in range(t0, t1):"):
                out(f"table = ends + (t - t0) * {8 * each}")
                out(f"at = m + (t - t0) // {pixels} * ({results})")
                out(f"at += (t - t0) % {pixels} * panels * {width * BYTES}")
                out(
                    f"unpatch{finish and '_'}{finish}_{outputs}(at, m_step, table, filters,"
                    f" {'bias' if bias else 'zeros'})"
                )
                if shape.mended:
                    winograd_zeros.mend(
                        out, shape, f"cores + (t - t0) * {BYTES}", "table", "pixels", bias=bias, finish=finish
                    )
    extra = [*(["bias"] if bias else []), *(["mask"] if finish == "mask" else [])]
    return out.source(f"{name} by winograd {shape.kind}", "x", "w", *extra, "parts", "y")
