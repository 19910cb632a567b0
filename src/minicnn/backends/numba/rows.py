"""Matrix products with samples that lie in plain rows of bytes or floats: y = s x w + b and dw = s x^T dy.

For a dense layer with few units on the samples themselves. Blocking the samples first would take longer than the
products: here 16 neighbouring elements of a row are in the lanes, bytes become floats on the way into the registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.elementwise import code
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.panels import SCRATCH

UNITS, SUMMED_UNITS = 6, 12  # of a tile at most: so few that their weights stay in the cache beside the rows; of sums
TOGETHER = 8
ELEMENT = {"uint8": 1, "float32": 4}  # bytes


@dataclass(frozen=True)
class RowShape:
    """Sizes of a product.

    Attributes:
        samples: N.
        length: K, elements of a row.
        units: F.
        dtype: Type of the elements.
        gathered: Whether rows are chosen by an index.
        scale: s.
    """

    samples: int
    length: int
    units: int
    dtype: str
    gathered: bool
    scale: float

    @property
    def blocks(self) -> int:
        """Number of blocks of 16 samples."""
        return -(-self.samples // LANES)

    @property
    def padded(self) -> int:
        """K rounded up to whole vectors, the length of rows of weights here."""
        return -(-self.length // LANES) * LANES

    @property
    def size(self) -> int:
        """Elements of the weights (F, K), padded."""
        return self.units * self.padded


def worth_it(length: int, units: int) -> bool:
    """True if this is faster than products of blocked samples: long rows, which are seldom read again."""
    return length >= 8 * LANES and units <= 2 * LANES


def transposed_weights(shape: RowShape) -> KernelCode:
    """w (K, F) as rows (F, K) padded with zeros; one item a unit."""
    out = Lines()
    length, padded, units = out.all_numbers(length=shape.length, padded=shape.padded, units=shape.units)
    with out.block("for f in range(start, stop):"):
        with out.block(f"for k in range({length}):"):
            out(f"fstore(y + (f * {padded} + k) * 4, fload(w + (k * {units} + f) * 4))")
        with out.block(f"for k in range({length}, {padded}):"):
            out(f"fstore(y + (f * {padded} + k) * 4, float32(0))")
    return out.source("transpose_weights", "w", "y")


def _begin(out: Lines, shape: RowShape) -> None:
    out.all_numbers(samples=shape.samples, length=shape.length, padded=shape.padded, units=shape.units)
    out.number("row_bytes", shape.length * ELEMENT[shape.dtype])


def _addresses(out: Lines, shape: RowShape) -> None:
    """Addresses of the rows of a block at `table`; the last sample's again beyond it.

    The rows are fetched into the cache at once, since several are then read side by side.
    """
    with out.block(f"for lane in range({LANES}):"):
        out(f"n = min(block * {LANES} + lane, samples - 1)")
        out(f"row = {'int64(iload(index + n * 4))' if shape.gathered else 'n'}")
        out("astore(table + lane * 8, x + row * row_bytes)")
        with out.block(f"for at in range(x + row * row_bytes, x + row * row_bytes + row_bytes, {BYTES}):"):
            out("prefetch(at)")


def forward(shape: RowShape, *, bias: bool, finish: str = "") -> KernelCode:
    """y (B, F, 16) from rows and weights (F, K padded), through "relu" or "relu6"; one item a block."""
    out = Lines()
    _begin(out, shape)
    # So few units that their weights stay in the cache beside the rows.
    accumulators = cpus.host().accumulators
    width = even_tile(shape.units, min(UNITS, accumulators))
    rows = next(r for r in (4, 2, 1) if r * width <= accumulators)
    tile, kind = out.tile(rows, width), "bytes" if shape.dtype == "uint8" else "floats"
    out("panel = stack()", f"table = panel + {SCRATCH - 8 * LANES}")
    with out.block("for block in range(start, stop):"):
        _addresses(out, shape)
        with out.block(f"for fq in range(0, units, {width}):"):
            out(f"f = min(fq, units - {width})")
            with out.block(f"for lane in range(0, {LANES}, {rows}):"):
                out(
                    # Sums along the row stay apart in 16 lanes, and are added up once, when the row is done.
                    f"a = dot_{kind}_{tile}(clear_{tile}(), table + lane * 8, w + f * padded * 4, length, padded * 4)",
                    f"put_{tile}(panel + lane * {width * BYTES}, a, {width * BYTES})",
                )
            with out.block(f"for c in range({width}):"):
                # The scale is applied to the sum: once a result instead of once an element.
                start = "bload(bias + (f + c) * 4)" if bias else "splat(float32(0))"
                value = f"vfma(sums(panel + c * {BYTES}, {width * BYTES}), splat(float32({shape.scale!r})), {start})"
                ended = code(finish, [value], ["float32"], {}) if finish else value
                out(f"vstore(y + (block * units + f + c) * {BYTES}, {ended})")
    names = ("x", *(("index",) if shape.gathered else ()), "w", *(("bias",) if bias else ()), "y")
    return out.source("matmul of rows", *names)


def weight_gradient(shape: RowShape, parts: int) -> KernelCode:
    """Parts of x^T dy as (F, K padded) from rows and dy (B, F, 16), without the scale; one item a part."""
    out = Lines()
    _begin(out, shape)
    out.number("parts_", parts), out.number("blocks", shape.blocks), out.number("size", shape.size)
    # Accumulators are vectors x width, which must stay in registers.
    accumulators = cpus.host().accumulators
    width = even_tile(shape.units, min(SUMMED_UNITS, accumulators))
    vectors, kind = (
        next(v for v in (4, 2, 1) if v * width <= accumulators),
        "bytes" if shape.dtype == "uint8" else "floats",
    )
    full = shape.length // (vectors * LANES) * vectors * LANES
    out("table0 = stack()")
    with (
        out.block("for part in range(start, stop):"),
        out.block(f"for block0 in range(blocks * part // parts_, blocks * (part + 1) // parts_, {TOGETHER}):"),
    ):
        out(f"block1 = min(block0 + {TOGETHER}, blocks * (part + 1) // parts_)")
        # The first blocks write their sums, the others add to them.
        out("fresh = int64(block0 == blocks * part // parts_)")
        with out.block("for block in range(block0, block1):"):
            out(f"table = table0 + (block - block0) * {LANES * 8}")
            _addresses(out, shape)
        for begin, end, columns in _runs(out, shape.units, width):
            with out.block(f"for f in range({begin}, {end}, {columns}):"):
                tile = out.tile(vectors, columns)
                with out.block(f"for k in range(0, {out.number('full', full)}, {vectors * LANES}):"):
                    _fold(out, tile, kind, "")
                if full < shape.length:
                    out("k = full")
                    _fold(out, tile, kind, "_some")
    return out.source("matmul of rows", "x", *(("index",) if shape.gathered else ()), "dy", "parts")


def _runs(out: Lines, total: int, size: int) -> list[tuple[str, str, int]]:
    full = total // size * size
    runs = [("0", out.number("full_units", full), size)]
    return runs + ([("full_units", "units", total - full)] if full < total else [])


def _fold(out: Lines, tile: str, kind: str, some: str) -> None:
    out(f"a = clear_{tile}()")
    with out.block("for block in range(block0, block1):"):
        out(
            f"live = min({LANES}, samples - block * {LANES})",
            f"yi = dy + (block * units + f) * {BYTES}",
            f"a = fold_{kind}{some}_{tile}(a, table0 + (block - block0) * {LANES * 8}, k, yi, live, length)",
        )
    out(f"lay_{tile}(parts + (part * size + f * padded + k) * 4, a, padded * 4, padded - k, fresh)")


def join(shape: RowShape, parts: int) -> KernelCode:
    """dw (K, F): the parts added up, times the scale; one item a vector of K."""
    out = Lines()
    _begin(out, shape)
    size, count = out.all_numbers(size=shape.size, parts_=parts)
    with out.block("for item in range(start, stop):"), out.block("for f in range(units):"):
        out(f"at = parts + (f * padded + item * {LANES}) * 4", "v = vload(at)")
        with out.block(f"for p in range(1, {count}):"):
            out(f"v = vadd(v, vload(at + p * {size} * 4))")
        out(f"v = vmul(v, splat(float32({shape.scale!r})))")
        with out.block(f"for k in range(min({LANES}, length - item * {LANES})):"):
            out(f"fstore(y + ((item * {LANES} + k) * units + f) * 4, vlane(v, k))")
    return out.source("join_parts", "parts", "y")
