"""Weight gradients by Winograd's minimal filtering, for kernels of 3 or 5 taps with stride 1.

    dw = G^T [ sum over samples and tiles of (B^T x B) * (A dy A^T) ] G

is the transpose of what `winograd` computes. A group of tiles is transformed: x with samples in the lanes, dy with
filters in the lanes; then for each element of a tile a matrix product over tiles and samples follows. Its sums stay in
memory until all tiles are done, when they are transformed back to taps.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.filter_lanes import LaneShape
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.winograd import Tiling, fetched, possible, tilings
from minicnn.machine import second_level_cache

TOGETHER = 4  # tiles of a group at least, so that sums are not visited too often


@dataclass(frozen=True)
class GradientShape(Tiling):
    """Sizes of a weight gradient.

    Attributes:
        channels: C.
        filters: F.
    """

    channels: int = 1
    filters: int = 1

    @property
    def vectors(self) -> int:
        """Vectors of filters of a product: two, which share each float of x, where there are registers and filters."""
        return 2 if cpus.host().pixels > 1 and -(-self.filters // LANES) % 2 == 0 else 1

    @property
    def padded(self) -> int:
        """Filters with those that fill up the last vector."""
        return -(-self.filters // LANES) * LANES

    @property
    def sum_bytes(self) -> int:
        """Bytes of the sums (elements, C, F) of a part."""
        return self.size * self.channels * self.padded * 4

    @property
    def tile_bytes(self) -> int:
        """Bytes of a transformed tile of both images."""
        return self.size * (self.channels + self.padded) * BYTES

    @property
    def together(self) -> int:
        """Tiles of a group."""
        # A group does not depend on the CPU's registers, so that sums are in one order everywhere.
        most, block = max(TOGETHER, second_level_cache() // 2 // self.tile_bytes), self.tiles // self.blocks
        # Whole blocks, or groups of one: then sums have one order in whatever steps one goes from block to block.
        return min(self.tiles, most // block * block) if most >= block else even_tile(block, most)

    @property
    def zeros(self) -> int:
        """Vectors of a pixel beyond the border of either image."""
        return max(self.channels, self.padded)

    @property
    def work_bytes(self) -> int:
        """Bytes that a thread needs beside its sums: zeros, dy transposed, a group's tiles, addresses."""
        outputs = self.height * self.width
        addresses = -(-(self.together * (self.size + outputs) + outputs) * 8 // BYTES)
        return (self.zeros + outputs * LANES + addresses) * BYTES + self.together * self.tile_bytes

    def cost(self, threads: int) -> float:
        """Time of one thread in vectors of multiply-adds of the direct kernel."""
        tiles = -(-self.tiles // threads)
        products = tiles * self.size * self.channels * self.padded
        transforms = tiles * self.size * (self.channels + self.padded)
        visits = -(-tiles // self.together) + 2
        # Sums that the second-level cache cannot hold beside the tiles come from afar.
        afar = 1 if self.sum_bytes <= second_level_cache() // 2 else 2
        costs, sums = cpus.host().costs.winograd, afar * visits * self.sum_bytes / BYTES
        return products + costs.gradient_element * transforms + costs.gradient_sum * sums


def chosen(pinned: str | None, shape: LaneShape, threads: int) -> GradientShape | None:
    """The tiles by which a weight gradient is computed: where there are and they are faster, unless one has pinned."""
    if pinned == "direct" or shape.paired or not possible(shape.row, shape.column, shape.groups):
        return None
    row, column = shape.row, shape.column
    every = tilings(row, column, shape.blocks, shape.samples * row.count * column.count, gradient=True)
    sizes = (shape.channels, shape.filters)
    best = min((GradientShape(*one, *sizes) for one in every), key=lambda one: one.cost(threads), default=None)
    if best is None:
        return None
    direct = shape.size * shape.row.count * shape.column.count * shape.blocks / threads
    return best if pinned == "winograd" or best.cost(threads) < direct else None


def weight_gradient(shape: GradientShape, parts: int) -> KernelCode:
    """Sums (parts, elements, C, F) from dy (B, OH, OW, F, 16) and x (B, H, W, C, 16); one item a tile."""
    out = Lines()
    row, column, size, vectors = shape.row, shape.column, shape.size, shape.vectors
    outputs, filters = shape.height * shape.width, vectors * LANES
    zeros = out.number("zeros_", shape.zeros)
    out.all_numbers(
        h=row.size, w_=column.size, oh=row.count, ow=column.count, top=row.offset, left=column.offset,
        channels=shape.channels, filters=shape.filters, panels=shape.padded // filters, padded=shape.padded,
        rows_=shape.across[0], columns_=shape.across[1], sum_bytes=shape.sum_bytes,
    )  # fmt: skip
    out.varying("together", shape.together), out.varying("work_bytes", shape.work_bytes)
    # A tile's elements lie side by side: what transforms store, all elements of a vector at a time, is in few pages.
    names, element = shape.names, LANES * vectors * BYTES
    block = shape.tiles // shape.blocks
    with out.parts(parts, shape.blocks, block):
        out.resumes = shape.together <= block
        out("zeros = memory + part * work_bytes", f"transposed = zeros + {zeros} * {BYTES}")
        out(f"v = transposed + {outputs * LANES * BYTES}", f"u = v + {size} * together * channels * {BYTES}")
        out(f"places = u + together * panels * {size * element}", f"tables = places + {outputs * 8}")
        out(f"ends = tables + together * {size * 8}", "sums = parts + part * sum_bytes")
        with out.block(f"for c in range({zeros}):"):
            out(f"vstore(zeros + c * {BYTES}, splat(float32(0)))")
        with out.block(f"for k in range({outputs}):"):
            out(f"astore(places + k * 8, transposed + k * {LANES * BYTES})")
        _tables(out, shape, "u0", "min(u0 + together, u1)")
        with out.block("for t0 in range(u0, u1, together):"):
            out("t1 = min(t0 + together, u1)")
            with out.block("for t in range(t0, t1):"):
                steps, table = f"channels * {BYTES}, {BYTES}", f"tables + (t - t0) * {8 * size}"
                out(f"patch_{names[0]}(v + (t - t0) * {size} * channels * {BYTES}, {steps}, {table}, 0, channels)")
                with out.block(f"for f in range(0, filters, {LANES}):"):
                    with out.block(f"for k in range({outputs}):"):
                        out(f"yi = aload(ends + ((t - t0) * {outputs} + k) * 8) + f * {BYTES}")
                        out(f"transpose(transposed + k * {LANES * BYTES}, yi, {BYTES}, filters - f - 1)")
                    out(
                        f"at = u + ((t - t0) * panels + f // {filters}) * {size * element}",
                        f"at += f % {filters} // {LANES} * {BYTES}",
                        f"spread_gradients_{names[1]}(at, {element}, {vectors * BYTES}, places, 0, {LANES})",
                    )
            # While products keep the CPU busy, what the next group reads comes from afar.
            _tables(out, shape, "t1", "min(t1 + together, u1)")
            _products(out, shape)
    return out.source(f"conv2d_weight_gradient by winograd {shape.kind}", "dy", "x", "memory", "parts")


def _tables(out: Lines, shape: GradientShape, first: str, last: str) -> None:
    """Tables of addresses of the pixels of some tiles in both images."""
    shape.pixels(out, first, last)
    with out.block(f"for t in range({first}, {last}):"):
        shape.origin(out)
        table = f"ends + (t - {first}) * {8 * shape.height * shape.width}"
        shape.addresses(out, (shape.height, shape.width), "dy oh ow filters", table, "", "zeros")


def _products(out: Lines, shape: GradientShape) -> None:
    """Text for what a group of tiles adds to the sums."""
    rows = even_tile(shape.channels, cpus.host().accumulators // shape.vectors)
    rest, outputs = shape.channels % rows, shape.height * shape.width
    out.number("whole", shape.channels - rest)
    with out.block(f"for k in range({shape.size}):"), out.block("for q in range(panels):"):
        fetched(out, "min(together, u1 - t1)", "tables", shape.size, "channels")
        with out.block(f"if k < {outputs}:"):
            fetched(out, "min(together, u1 - t1)", "ends", outputs, "filters")
        out(f"sk = sums + (k * channels * padded + q * {shape.vectors * LANES}) * 4")
        for count, range_ in ((rows, f"0, whole, {rows}"), *([(rest, f"whole, channels, {rest}")] if rest else [])):
            tile = out.tile(count, shape.vectors)
            with out.block(f"for c in range({range_}):"):
                out(f"a = clear_{tile}()")
                with out.block("for t in range(t1 - t0):"):
                    vk = f"v + ((t * {shape.size} + k) * channels + c) * {BYTES}"
                    uk = f"u + ((t * panels + q) * {shape.size} + k) * {LANES * shape.vectors * BYTES}"
                    out(f"a = spread_{tile}(a, {vk}, {uk}, 1, {LANES}, 0)")
                with out.block("if fresh == 1 and t0 == u0:"):
                    out(f"put_{tile}(sk + c * padded * 4, a, padded * 4)")
                with out.block("else:"):
                    out(f"gather_{tile}(sk + c * padded * 4, a, padded * 4)")


def joined(shape: GradientShape, parts: int) -> KernelCode:
    """dw (KH, KW, C, F) from the sums of parts; one item a channel."""
    out = Lines()
    out.all_numbers(channels=shape.channels, filters=shape.filters, padded=shape.padded, sum_bytes=shape.sum_bytes)
    out.varying("parts_", parts)
    out("panel = stack()")
    with out.block("for c in range(start, stop):"), out.block(f"for f in range(0, filters, {LANES}):"):
        with out.block(f"for k in range({shape.size}):"):
            out("at = parts + ((k * channels + c) * padded + f) * 4", "a = vload(at)")
            with out.block("for p in range(1, parts_):"):
                out("a = vadd(a, vload(at + p * sum_bytes))")
            out(f"vstore(panel + k * {BYTES}, a)")
        out(
            f"join_filters_{shape.names[1]}(dw + (c * filters + f) * 4, channels * filters * 4, panel, {BYTES},"
            " filters - f)"
        )
    return out.source("winograd join", "parts", "dw")
