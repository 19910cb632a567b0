"""Products and convolutions in bfloat16 by tiles; see `matrix_tiles`.

    y[f, n] = bias[f] + sum over pairs of terms q of w[f, q] . x[q, n]

for each output pixel of a block, n being its 16 samples. The terms are all taps and channels, as one axis: rows of
weights lie in tiles, packed once in a step. The inputs of some pixels are laid out with pairs of channels side by side,
zeros where a tap is outside, in memory of the thread's own that the second-level cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba.correlate import Line, Operands, line_numbers
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.matrix_tiles import TILE
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.short import SHORT, SHORT_BYTES, bytes_of
from minicnn.machine import second_level_cache

SIDE = TILE.together  # tiles of pixels, and of filters, of one product
PAIRS = TILE.row_bytes // 4  # of a row
MOST_PIXELS = 32  # whose inputs are laid out together: their places fit on the stack
START = 10_000  # cycles of one more kernel, and of the tiles' beginning
_WIDTH = 8  # vectors of sums that are finished together


@dataclass(frozen=True)
class TileShape:
    """Sizes of a product by tiles.

    Attributes:
        rows: Geometries along the rows; see `correlate`.
        columns: The same along the columns.
        operands: Sizes of the operands.
        blocks: Blocks of 16 samples.
    """

    rows: list[Line]
    columns: list[Line]
    operands: Operands
    blocks: int

    def chunks(self, row: Line, column: Line) -> int:
        """Tiles along the terms."""
        return -(-row.taps * column.taps * self.operands.terms // PAIRS)

    @property
    def phases(self) -> list[tuple[Line, Line]]:
        """Pairs of geometries, each of which makes a part of the output."""
        return [(row, column) for row in self.rows for column in self.columns]

    @property
    def filter_tiles(self) -> int:
        """Tiles along the filters."""
        return -(-self.operands.filters // TILE.rows)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in tiles."""
        return sum(self.chunks(*phase) for phase in self.phases) * self.filter_tiles * TILE.nbytes

    @property
    def pixel_bytes(self) -> int:
        """Most bytes of the inputs of a pixel."""
        return max(self.chunks(*phase) for phase in self.phases) * TILE.nbytes

    @property
    def together(self) -> int:
        """Pixels that are laid out together."""
        fitting = second_level_cache() // 2 // max(self.pixel_bytes, 1)
        return min(MOST_PIXELS, max(fitting // SIDE, 1) * SIDE)

    @property
    def part_bytes(self) -> int:
        """Bytes that a thread needs: sums of a product, inputs of pixels."""
        return SIDE * SIDE * TILE.nbytes + self.together * self.pixel_bytes

    @property
    def whole(self) -> bool:
        """True if a tile's terms are of one tap."""
        return self.operands.terms % PAIRS == 0


def cost(shape: TileShape) -> float:
    """Cycles of a core."""
    o, total = shape.operands, float(START)
    for row, column in shape.phases:
        terms = row.taps * column.taps
        products = shape.chunks(row, column) * shape.filter_tiles * TILE.cycles * 1.3
        laid = terms * (o.terms * 2 + 10) + 60
        total += row.count * column.count * shape.blocks * (products + laid + 5 * o.filters)
    return total + shape.weight_bytes / 4


def direct_cost(shape: TileShape) -> float:
    """The same by pairs in vectors, which a CPU that has tiles multiplies in two cycles."""
    o = shape.operands
    each = sum(row.count * column.count * row.taps * column.taps for row, column in shape.phases)
    return each * shape.blocks * o.filters * o.terms * 2


def tiled_weights(shape: TileShape) -> tuple[KernelCode, int]:
    """Weights in tiles, and the number of items; each is a tile.

    They come as (taps, C, F), or, where terms of a tile are of several taps, as pairs of `movement.paired_weights`.
    """
    o, out = shape.operands, Lines()
    out("rows = stack()")
    counts = [shape.chunks(*phase) * shape.filter_tiles for phase in shape.phases]
    first = 0
    out.all_numbers(terms=o.terms, filters=o.filters, kernel_width=o.kernel_width)
    with out.block("for item in range(start, stop):"):
        for k, ((row, column), count) in enumerate(zip(shape.phases, counts, strict=True)):
            r, c = line_numbers(out, f"r{k}", row), line_numbers(out, f"c{k}", column)
            begin, end, chunks = out.all_numbers(
                **{f"begin{k}": first, f"end{k}": first + count, f"chunks{k}": max(shape.chunks(row, column), 1)}
            )
            with out.block(f"if {begin} <= item < {end}:"):
                out(f"m = (item - {begin}) // {chunks} * {TILE.rows}", f"q = (item - {begin}) % {chunks} * {PAIRS}")
                _tile(out, shape, r, c)
            first += count
    return out.source("tiled_weights", "w", "y"), first


def _tile(out: Lines, shape: TileShape, r: dict[str, str], c: dict[str, str]) -> None:
    o = shape.operands
    tap = [
        f"tap = ({r['weight']} + k // {c['taps']} * {r['weight_step']}) * kernel_width",
        f"tap += {c['weight']} + k % {c['taps']} * {c['weight_step']}",
    ]
    out("left = filters - m", f"at = y + item * {TILE.nbytes}")
    if not shape.whole:
        with out.block(f"for i in range({PAIRS}):"):
            out("k = (q + i) // terms", *tap, "word = w + ((tap * terms + (q + i) % terms) * filters + m) * 4")
            # Rows behind the last are zeros.
            out(f"inside = left if k < {r['taps']} * {c['taps']} else 0")
            out(f"vstore(rows + i * {BYTES}, vload_some(word, inside))")
        out(f"transpose(at, rows, {BYTES}, {LANES - 1})")
        return
    out("k = q // terms", *tap, "p = q % terms")
    if o.flipped:
        with out.block(f"for i in range({TILE.rows}):"):
            out("word = w + ((tap * filters + m + i) * terms + p) * 8", f"inside = {LANES} if i < left else 0")
            out(f"v = vneighbours(vload_some(word, inside), vload_some(word + {BYTES}, inside))")
            out(f"vstore(at + i * {BYTES}, v)")
        return
    with out.block(f"for i in range({PAIRS}):"):
        out("word = w + ((tap * terms + p + i) * 2 * filters + m) * 4")
        out(f"vstore(rows + i * {BYTES}, vpair(vload_some(word, left), vload_some(word + filters * 4, left)))")
    out(f"transpose(at, rows, {BYTES}, {LANES - 1})")


def tile_correlate(name: str, shape: TileShape, parts: int) -> KernelCode:
    """y (B, OH, OW, F, 16) from x (B, H, W, C, 16) and weights in tiles; one item a part of the pixels.

    Args:
        name: For `explain`.
        shape: Sizes.
        parts: Number of parts.
    """
    o, out = shape.operands, Lines()
    width = bytes_of(o.result)
    out.all_numbers(
        in_width=o.in_width, oh=o.out_height, ow=o.out_width, channels=o.channels, terms=o.terms,
        x_block=shape.rows[0].size * o.in_width * o.channels * SHORT_BYTES, y_pixel=o.filters * width,
        together=shape.together, pixel_bytes=shape.pixel_bytes, part_bytes=shape.part_bytes,
        filter_tiles=shape.filter_tiles,
    )  # fmt: skip
    out.varying("parts_", parts)
    out("mode = flush_denormals()", "begin_tiles()", "places = stack()")
    with out.block("for part in range(start, stop):"):
        out("sums = parts + part * part_bytes", f"packed = sums + {SIDE * SIDE * TILE.nbytes}", "wt = w")
        for k, (row, column) in enumerate(shape.phases):
            r, c = line_numbers(out, f"r{k}", row), line_numbers(out, f"c{k}", column)
            chunks = out.number(f"chunks{k}", shape.chunks(row, column))
            total = out.varying(f"total{k}", shape.blocks * row.count * column.count)
            out(f"first = {total} * part // parts_", f"last = {total} * (part + 1) // parts_")
            with out.block("for u0 in range(first, last, together):"):
                out("u1 = min(u0 + together, last)")
                with out.block("for u in range(u0, u1):"):
                    _laid_out(out, shape, r, c, chunks)
                full, rest = divmod(o.filters, SIDE * TILE.rows)
                step = SIDE * TILE.rows
                with out.block(f"for f in range(0, {out.number('full', full * step)}, {step}):"):
                    _pixels(out, shape, chunks, SIDE, step)
                if rest:
                    out("f = full")
                    _pixels(out, shape, chunks, -(-rest // TILE.rows), rest)
            out(f"wt += filter_tiles * {chunks} * {TILE.nbytes}")
    out("end_tiles()", "restore_mode(mode)")
    extra = [*(["bias"] if o.bias else []), *(["mask"] if o.finish == "mask" else [])]
    return out.source(name, "x", "w", *extra, "parts", "y")


def _laid_out(out: Lines, shape: TileShape, r: dict[str, str], c: dict[str, str], chunks: str) -> None:
    """The inputs of pixel u, and its place in the output."""
    o = shape.operands
    out(
        f"rest = u % ({r['count']} * {c['count']})", f"block = u // ({r['count']} * {c['count']})",
        f"i0 = rest // {c['count']}", f"j0 = rest % {c['count']}",
        f"line = (block * oh + {r['start']} + i0 * {r['out_step']}) * ow + {c['start']} + j0 * {c['out_step']}",
        "astore(places + (u - u0) * 8, y + line * y_pixel)", "o = packed + (u - u0) * pixel_bytes",
    )  # fmt: skip
    with out.block(f"for kh in range({r['taps']}):"):
        out(f"i = i0 * {r['in_step']} + {r['offset']} + kh * {r['offset_step']}")
        out(f"xi = x + block * x_block + i * in_width * channels * {SHORT_BYTES}")
        with out.block(f"for kw in range({c['taps']}):"):
            out(f"j = j0 * {c['in_step']} + {c['offset']} + kw * {c['offset_step']}")
            with out.block(f"if 0 <= i < {r['size']} and 0 <= j < {c['size']}:"):
                out(f"at = xi + j * channels * {SHORT_BYTES}", "lay_pairs(o, at, channels // 2)")
                if o.channels % 2:
                    last = f"(terms - 1) * {BYTES}"
                    out(f"lay_single(o + {last}, at + {last})")
            with out.block("else:"):
                out("clear_rows(o, terms)")
            out(f"o += terms * {BYTES}")
    out(f"clear_rows(o, {chunks} * {PAIRS} - {r['taps']} * {c['taps']} * terms)")


def _pixels(out: Lines, shape: TileShape, chunks: str, tiles: int, live: int) -> None:
    """The laid-out pixels, for filters f to f + live in so many tiles."""
    o, name = shape.operands, out.tile(tiles, SIDE)
    width = even_tile(live, _WIDTH)
    vectors, kind = out.tile(1, width), {"float32": "", SHORT: "short_"}
    with out.block(f"for v in range(0, u1 - u0, {SIDE}):"):
        step = f"{chunks} * {TILE.nbytes}, {TILE.nbytes}"
        out(
            f"multiply_tiles_{name}(sums, {BYTES}, {tiles * TILE.nbytes}, wt + f // {TILE.rows} * {chunks} * "
            f"{TILE.nbytes}, {step}, packed + v * pixel_bytes, pixel_bytes, {TILE.nbytes}, {chunks}, 1)"
        )
        with out.nest(f"for k in range(min({SIDE}, u1 - u0 - v)):", f"for g0 in range(0, {live}, {width}):"):
            out(f"g = min(g0, {live - width})", f"at = aload(places + (v + k) * 8) + (f + g) * {bytes_of(o.result)}")
            out(f"a = take_{vectors}(sums + (k * {tiles * TILE.rows} + g) * {BYTES}, 0)")
            if o.bias:
                out(f"a = biased_{vectors}(a, bias + (f + g) * 4)")
            if o.finish == "mask":
                scale = f"* {bytes_of(o.mask)} // {bytes_of(o.result)}"
                out(f"a = keep_{kind[o.mask]}{vectors}(a, mask + (at - y) {scale}, 0)")
            elif o.finish:
                out(f"a = clip_{vectors}(a, float32(0), float32({'inf' if o.finish == 'relu' else '6'}))")
            out(f"put_{kind[o.result]}{vectors}(at, a, 0)")
