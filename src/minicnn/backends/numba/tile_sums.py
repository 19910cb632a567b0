"""Weight gradients in bfloat16 by tiles; see `matrix_tiles`.

    dw[k, f] = sum over output pixels p and samples n of x[k, p, n] * dy[p, n, f]

k being a tap and a channel. A product sums over the samples of two pixels. dy is laid out once, with pairs of samples
side by side. Of x some pixels are laid out for 32 of the k, which then meet all filters. Shares are some of the k, and
ranges of pixels where there are few k: how many does not depend on the threads, so neither do the bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba.filter_lanes import LaneShape, worth_it
from minicnn.backends.numba.kernel import KernelCode, Lines
from minicnn.backends.numba.matrix_tiles import TILE
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.short import SHORT_BYTES
from minicnn.backends.numba.tile_products import SIDE, START

CHUNK = SIDE * TILE.rows  # of the k
PIXELS = 15  # pairs of pixels that are laid out together: they fit on the stack with their places
SHARES = 64  # for so many threads there is something to do
_PLACE_BYTES = 24  # of a pixel: its address, row and column in x
_NOWHERE = -(1 << 40)  # row of a pixel that does not exist


@dataclass(frozen=True)
class SumShape:
    """Sizes of a weight gradient by tiles.

    Attributes:
        lanes: Sizes of the gradient, without groups.
    """

    lanes: LaneShape

    @property
    def weights(self) -> int:
        """Weights of a filter."""
        return self.lanes.row.taps * self.lanes.column.taps * self.lanes.channels

    @property
    def pixels(self) -> int:
        """Output pixels of all blocks."""
        return self.lanes.blocks * self.lanes.row.count * self.lanes.column.count

    @property
    def pairs(self) -> int:
        """Pairs of pixels."""
        return -(-self.pixels // 2)

    @property
    def filter_tiles(self) -> int:
        """Tiles along the filters."""
        return -(-self.lanes.filters // LANES)

    @property
    def chunks(self) -> int:
        """Squares of sums along the k."""
        return -(-self.weights // CHUNK)

    @property
    def ranges(self) -> int:
        """Ranges of pixels, each with sums of its own."""
        return max(1, min(-(-SHARES // self.chunks), self.pairs // PIXELS))

    @property
    def panel_bytes(self) -> int:
        """Bytes of dy, laid out."""
        return self.pairs * self.filter_tiles * TILE.nbytes

    @property
    def sum_bytes(self) -> int:
        """Bytes of the sums of one range."""
        return self.chunks * CHUNK * self.filter_tiles * LANES * 4

    @property
    def exact(self) -> bool:
        """True if the sums lie as the weights do."""
        return self.ranges == 1 and self.weights % CHUNK == 0 and self.lanes.filters % LANES == 0


def cost(shape: SumShape) -> float:
    """Cycles of a core."""
    runs = 1 if shape.lanes.channels % CHUNK == 0 else 1 + -(-CHUNK // shape.lanes.channels)
    products = shape.chunks * shape.filter_tiles * TILE.cycles * 1.3
    pixel = products + shape.chunks * (40 + 25 * runs) + shape.filter_tiles * 40
    visits = -(-shape.pairs // PIXELS) * shape.sum_bytes / 8
    return START + shape.pixels * pixel + visits


def direct_cost(shape: SumShape) -> float:
    """The same in vectors, of filters if they fill some: a CPU that has tiles takes two cycles for 16 pairs."""
    filters = shape.filter_tiles * LANES if worth_it(shape.lanes) else shape.lanes.filters
    return float(shape.pixels * shape.weights * filters)


def panels(shape: SumShape) -> KernelCode:
    """dy (B, OH, OW, F, 16) in tiles: rows of pairs of samples; one item a pair of pixels."""
    out = Lines()
    filters, tiles = out.all_numbers(filters=shape.lanes.filters, filter_tiles=shape.filter_tiles)
    total = out.varying("pixels_", shape.pixels)
    with out.nest("for item in range(start, stop):", "for half in range(2):", f"for f in range({tiles}):"):
        out("u = 2 * item + half", f"o = y + ((item * {tiles} + f) * 2 + half) * {TILE.nbytes // 2}")
        with out.block(f"if u < {total}:"):
            at = f"dy + (u * {filters} + f * {LANES}) * {SHORT_BYTES}"
            out(f"transpose_pairs(o, {at}, {BYTES}, {filters} - f * {LANES} - 1)")
        with out.block("else:"):
            out(f"clear_rows(o, {TILE.rows // 2})")
    return out.source("tiles_of_gradient", "dy", "y")


def weight_gradient(name: str, shape: SumShape) -> KernelCode:
    """Sums (ranges, k, F), with rows and columns of zeros, from tiles of dy and x; one item 32 of the k of a range."""
    out, s = Lines(), shape.lanes
    row, column = s.row, s.column
    out.all_numbers(
        filter_tiles=shape.filter_tiles, chunks=shape.chunks, channels=s.channels, weights=shape.weights,
        x_pixel=s.channels * SHORT_BYTES, oh=row.count, ow=column.count, h=row.size, w=column.size, kw_=column.taps,
        r_step=row.in_step, r_offset=row.offset, r_taps=row.offset_step,
        c_step=column.in_step, c_offset=column.offset, c_taps=column.offset_step,
    )  # fmt: skip
    for key, value in (("pixels_", shape.pixels), ("pairs_", shape.pairs), ("ranges_", shape.ranges)):
        out.varying(key, value)
    out("mode = flush_denormals()", "begin_tiles()")
    out("panel = stack()", f"places = panel + {PIXELS * SIDE * TILE.nbytes}")
    with out.block("for part in range(start // chunks, (stop + chunks - 1) // chunks):"):
        out("c0 = max(start - part * chunks, 0)", "c1 = min(stop - part * chunks, chunks)")
        out("first = pairs_ * part // ranges_", "last = pairs_ * (part + 1) // ranges_")
        with out.block(f"for g0 in range(first, last, {PIXELS}):"):
            out(f"g1 = min(g0 + {PIXELS}, last)")
            with out.block("for u in range(2 * g0, 2 * g1):"):
                _placed(out)
            with out.block("for c in range(c0, c1):"):
                with out.block("for u in range(2 * g1 - 2 * g0):"):
                    _laid_out(out, whole=s.channels % CHUNK == 0)
                out(f"sums = dw + (part * chunks + c) * {CHUNK * LANES * 4} * filter_tiles")
                full, rest = divmod(shape.filter_tiles, SIDE)
                with out.block(f"for f in range(0, {out.number('full', full * SIDE)}, {SIDE}):"):
                    _multiplied(out, SIDE)
                if rest:
                    out("f = full")
                    _multiplied(out, rest)
    out("end_tiles()", "restore_mode(mode)")
    return out.source(name, "dy", "x", "dw")


def _placed(out: Lines) -> None:
    """Where the input of pixel u begins."""
    out("rest = u % (oh * ow)", "block = u // (oh * ow)")
    out("i = rest // ow * r_step + r_offset", "j = rest % ow * c_step + c_offset")
    out(f"at = places + (u - 2 * g0) * {_PLACE_BYTES}", "astore(at, x + ((block * h + i) * w + j) * x_pixel)")
    out(f"astore(at + 8, i if u < pixels_ else {_NOWHERE})", "astore(at + 16, j)")


def _laid_out(out: Lines, *, whole: bool) -> None:
    """The 32 rows of x of one pixel, zeros where a tap is outside."""
    out(f"at = places + u * {_PLACE_BYTES}", "i = aload(at + 8)", "j = aload(at + 16)", "xi = aload(at)")
    out(f"o = panel + u // 2 * {SIDE * TILE.nbytes} + u % 2 * {SHORT_BYTES}", f"k = c * {CHUNK}")
    if whole:
        _run(out, str(CHUNK))
        return
    out(f"stop_ = min(k + {CHUNK}, weights)", f"spare = k + {CHUNK} - stop_")
    with out.block("while k < stop_:"):
        out("count = min(channels - k % channels, stop_ - k)")
        _run(out, "count")
        out(f"o += count * {BYTES}", "k += count")
    out("clear_halves(o, spare)")


def _run(out: Lines, count: str) -> None:
    """Rows of one tap."""
    out("tap = k // channels", "di = tap // kw_ * r_taps", "dj = tap % kw_ * c_taps")
    with out.block("if 0 <= i + di < h and 0 <= j + dj < w:"):
        out(f"lay_halves(o, xi + (di * w + dj) * x_pixel + k % channels * {SHORT_BYTES}, {count})")
    with out.block("else:"):
        out(f"clear_halves(o, {count})")


def _multiplied(out: Lines, tiles: int) -> None:
    name, nbytes = out.tile(SIDE, tiles), TILE.nbytes
    out(
        f"multiply_tiles_{name}(sums + f * {BYTES}, filter_tiles * {BYTES}, {BYTES}, panel, {nbytes}, {SIDE * nbytes}, "
        f"dy + (g0 * filter_tiles + f) * {nbytes}, {nbytes}, filter_tiles * {nbytes}, g1 - g0, int64(g0 == first))"
    )


def joined(shape: SumShape) -> tuple[KernelCode, int]:
    """dw (k, F) from the sums of all ranges, and the number of items: each is one of the k."""
    out = Lines()
    filters, step, nbytes = out.all_numbers(
        filters=shape.lanes.filters, step=shape.filter_tiles * BYTES, sum_bytes=shape.sum_bytes
    )
    ranges = out.varying("ranges_", shape.ranges)
    with out.nest("for k in range(start, stop):", f"for f in range(0, {filters}, {LANES}):"):
        out(f"at = sums + k * {step} + f * 4", "a = vload(at)")
        with out.block(f"for part in range(1, {ranges}):"):
            out(f"a = vadd(a, vload(at + part * {nbytes}))")
        out(f"vstore_some(dw + (k * {filters} + f) * 4, a, {filters} - f)")
    return out.source("join_parts", "sums", "dw"), shape.weights
