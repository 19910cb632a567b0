"""Convolution kernels: one tap correlator for the forward pass and, phase by phase, for the input gradient.

    out[o0 + t * out_step] = bias + sum over taps k of in[t * in_step + offset_k] * w[k]     for t = 0 .. count - 1

along rows and columns alike, taps that fall outside the image left out. Images are blocked: (B, H, W, C, 16), the
last axis being 16 samples, so every load, store and multiply-add is one full vector whatever the channels are.
A tile of pixels x filters is held in registers. Tiles have one width; the last one overlaps the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.short import SHORT, SHORT_BYTES, bytes_of

# Loops over taps and channels up to this length have their numbers written into the code.
FEW_TERMS = 16


@dataclass(frozen=True)
class Line:
    """Geometry along one image axis."""

    count: int  # number of outputs
    start: int  # place of the first in the output
    out_step: int  # distance between outputs
    in_step: int  # distance between the inputs that neighbouring outputs read
    taps: int  # number of taps
    weight: int  # index of the first tap's weight
    weight_step: int  # distance between the weights of neighbouring taps
    offset: int  # input of the first tap, relative to t * in_step
    offset_step: int  # distance between the inputs of neighbouring taps
    size: int  # length of the input

    @property
    def inside(self) -> tuple[int, int]:
        """Range of outputs all of whose taps are inside the image."""
        last = self.offset + max(self.taps - 1, 0) * self.offset_step
        # Only outputs near the border need tests; all others run without.
        low = min(max(0, -(min(self.offset, last) // self.in_step)), self.count)
        high = min(self.count, (self.size - 1 - max(self.offset, last)) // self.in_step + 1)
        return low, max(low, high)

    @property
    def joined(self) -> bool:
        """True if neighbouring taps are neighbours in the image and among the weights."""
        return self.offset_step == self.weight_step == 1 or self.taps == 1


def forward_line(size: int, kernel: int, stride: int, dilation: int, before: int, count: int) -> Line:
    """Geometry of the forward pass."""
    return Line(count, 0, 1, stride, kernel, 0, 1, -before, dilation, size)


def gradient_lines(size: int, kernel: int, stride: int, dilation: int, before: int, outputs: int) -> list[Line]:
    """Geometry of the input gradient.

    Input positions of one remainder modulo the stride meet the same taps: position start + stride * t of x
    meets dy at t + (start + before - k * dilation) / stride, for those k that divide evenly.
    """
    lines = []
    for start in range(min(stride, size)):
        taps = [
            (k, (start + before - k * dilation) // stride)
            for k in reversed(range(kernel)) if (start + before - k * dilation) % stride == 0
        ]  # fmt: skip
        (k0, o0), (k1, o1) = (taps[0], taps[min(1, len(taps) - 1)]) if taps else ((0, 0), (0, 0))
        count = -(-(size - start) // stride)
        lines.append(Line(count, start, stride, 1, len(taps), k0, k1 - k0, o0, o1 - o0, outputs))
    return lines


@dataclass(frozen=True)
class Operands:
    """Operands around the taps of a correlation.

    Attributes:
        in_width: Width of the input.
        out_height: Height of the output.
        out_width: Width of the output.
        channels: Input channels of a group.
        filters: Output channels of a group.
        groups: Groups of channels that do not see each other.
        kernel_width: KW.
        bias: Whether accumulators start from a bias (filters,).
        flipped: Whether weights are (KH, KW, groups, channels, filters) in one array for each group, as they are for
            the input gradient, rather than (KH, KW, channels, groups * filters).
        finish: What is done with the sums: "relu", "relu6", or "mask": 0 where another value is not positive.
        dtype: Type of the input. With bfloat16 the weights, too, are pairs along the channels: see
            `movement.paired_weights`.
        result: Type of the output.
        mask: Type of the other value.
    """

    in_width: int
    out_height: int
    out_width: int
    channels: int
    filters: int
    kernel_width: int
    groups: int = 1
    bias: bool = False
    flipped: bool = False
    finish: str = ""
    dtype: str = "float32"
    result: str = "float32"
    mask: str = "float32"

    @property
    def terms(self) -> int:
        """Rows of weights of a tap: channels, or pairs of them."""
        return -(-self.channels // 2) if self.paired else self.channels

    @property
    def paired(self) -> bool:
        """True if pairs of channels are multiplied at a time."""
        return self.dtype == SHORT

    @property
    def single(self) -> bool:
        """True if the output is one position, as a matrix product's is."""
        return self.out_height == self.out_width == 1


def correlate(
    name: str, rows: list[Line], columns: list[Line], operands: Operands, pieces: Callable[[int], int]
) -> KernelCode:
    """Kernel over blocks of 16 samples; one item a piece of a block: some rows, or some filters of a single position.

    Args:
        name: For `explain`.
        rows: Geometries along the rows; their outputs together are all rows.
        columns: The same along the columns.
        operands: Sizes.
        pieces: Into how many pieces a block is cut that has so many at most.
    """
    o = operands
    # Numbers in the code let LLVM unroll short loops; long ones share one compiled kernel for all sizes.
    longest = max(c.taps for c in columns) * o.channels
    out = Lines(bake=longest <= FEW_TERMS)
    every_in, every_out = o.channels * o.groups, o.filters * o.groups
    x_block, y_block, y_row = out.all_numbers(
        x_block=rows[0].size * o.in_width * every_in * bytes_of(o.dtype),
        y_block=o.out_height * o.out_width * every_out * bytes_of(o.result),
        y_row=o.out_width * every_out * bytes_of(o.result),
    )  # fmt: skip
    if o.paired:
        out("mode = flush_denormals()")
    with out.pieces(pieces(_tiles(o) if o.single else max(row.count for row in rows))):
        out(f"xb = x + block * {x_block}", f"yb = y + block * {y_block}")
        for i, row in enumerate(rows):
            r = _numbers(out, f"r{i}", row)
            with out.block(f"for r in {'range(1)' if o.single else out.rounds(r['count'])}:"):
                out(f"yr = yb + ({r['start']} + r * {r['out_step']}) * {y_row}")
                for j, column in enumerate(columns):
                    _columns(out, row, column, r, _numbers(out, f"c{j}", column), o)
    if o.paired:
        out("restore_mode(mode)")
    extra = [*(["bias"] if o.bias else []), *(["mask"] if o.finish == "mask" else [])]
    return out.source(name, "x", "w", *extra, "y")


def _tiles(o: Operands) -> int:
    """Tiles of filters at a single position."""
    return -(-o.filters // even_tile(o.filters, filters_alone()))


def filters_of_tile() -> int:
    """Filters of a tile of several pixels."""
    cpu = cpus.host()
    return cpu.accumulators // cpu.pixels


def filters_alone() -> int:
    """Filters of a tile of one pixel, which is no more than its inputs are worth being read for."""
    return min(16, cpus.host().accumulators)


def line_numbers(out: Lines, prefix: str, line: Line, **more: int) -> dict[str, str]:
    """Texts for the numbers of a geometry, by their names."""
    return {name: out.number(f"{prefix}_{name}", value) for name, value in (vars(line) | more).items()}


def _numbers(out: Lines, prefix: str, line: Line) -> dict[str, str]:
    low, high = line.inside
    return line_numbers(out, prefix, line, low=low, high=high)


def _columns(out: Lines, row: Line, column: Line, r: dict[str, str], c: dict[str, str], o: Operands) -> None:
    low, high = column.inside
    if high > low:
        # A single position has no neighbours to share weights with: twice the filters share its inputs instead.
        width = even_tile(o.filters, filters_of_tile() if high - low > 1 else filters_alone())
        pixels = even_tile(high - low, cpus.host().accumulators // width)
        with out.block(f"for q in range({c['low']}, {c['high']}, {pixels}):"):
            # The last tile overlaps the one before, and computes some pixels twice: one width needs one compiled tile.
            out(f"t = min(q, {c['high']} - {pixels})")
            _outputs(out, row, column, r, c, o, pixels, width, checked=False)
    for some, begin, end in ((low > 0, "0", c["low"]), (high < column.count, c["high"], c["count"])):
        if some:
            with out.block(f"for t in range({begin}, {end}):"):
                _outputs(out, row, column, r, c, o, 1, even_tile(o.filters, filters_alone()), checked=True)


def _outputs(out: Lines, row: Line, column: Line, r: dict[str, str], c: dict[str, str], o: Operands, pixels: int,
             width: int, *, checked: bool) -> None:  # fmt: skip
    """Tiles of `pixels` outputs from t on, for all filters."""
    tile = out.tile(pixels, width)
    filters, pixel = out.all_numbers(filters=o.filters, y_pixel=o.filters * o.groups * bytes_of(o.result))
    every = f"0, {filters}, {width}"
    if o.single:
        first, last = out.share(out.number("tiles_", _tiles(o)))
        every = f"{first} * {width}, {last} * {width}, {width}"
    with (
        out.block(f"for g in range({out.number('groups', o.groups) if o.groups > 1 else 1}):"),
        out.block(f"for fq in range({every}):"),
    ):
        out(f"f = min(fq, {filters} - {width})")
        out(f"a = bias_{tile}(bias + (g * {filters} + f) * 4)" if o.bias else f"a = clear_{tile}()")
        if row.taps and column.taps:
            with out.block(f"for kh in range({r['taps']}):"):
                out(f"i = r * {r['in_step']} + {r['offset']} + kh * {r['offset_step']}")
                with out.block(f"if 0 <= i < {r['size']}:"):
                    _taps(out, column, r, c, o, tile, checked)
        out(f"at = yr + ({c['start']} + t * {c['out_step']}) * {pixel} + (g * {filters} + f) * {bytes_of(o.result)}")
        kind = {"float32": "", SHORT: "short_"}
        if o.finish == "mask":
            scale = f"* {bytes_of(o.mask)} // {bytes_of(o.result)}"
            out(f"a = keep_{kind[o.mask]}{tile}(a, mask + (at - y) {scale}, {c['out_step']} * {pixel} {scale})")
        elif o.finish:
            out(f"a = clip_{tile}(a, float32(0), float32({'inf' if o.finish == 'relu' else '6'}))")
        out(f"put_{kind[o.result]}{tile}(at, a, {c['out_step']} * {pixel})")


def _taps(
    out: Lines, column: Line, r: dict[str, str], c: dict[str, str], o: Operands, tile: str, checked: bool
) -> None:
    # Where neighbouring taps are neighbours in memory, taps and channels are one loop.
    odd = o.paired and o.channels % 2 == 1
    joined = column.joined and not checked and o.groups == 1 and not odd
    width = bytes_of(o.dtype)
    channels, in_width, kernel_width, x_pixel, w_step, w_tap, w_group = out.all_numbers(
        channels=o.channels, in_width=o.in_width, kernel_width=o.kernel_width, x_pixel=o.channels * o.groups * width,
        w_step=(o.filters if o.flipped or o.paired else o.filters * o.groups) * 4,
        w_tap=o.terms * o.filters * o.groups * 4, w_group=o.filters * 4 * (o.terms if o.flipped or o.paired else 1),
    )  # fmt: skip
    terms = f"{channels} // 2" if o.paired else channels
    length = f"{terms} * {c['taps']}" if joined else terms
    multiply, x_step = "pairs" if o.paired else "correlate", f"{c['in_step']} * {x_pixel}"
    with out.block(f"for kw in range({1 if joined else c['taps']}):"):
        out(f"j = t * {c['in_step']} + {c['offset']} + kw * {c['offset_step']}")
        with out.block(f"if 0 <= j < {c['size']}:" if checked else "if True:"):
            out(
                f"wk = ({r['weight']} + kh * {r['weight_step']}) * {kernel_width}",
                f"wk += {c['weight']} + kw * {c['weight_step']}",
                f"xi = xb + (i * {in_width} + j) * {x_pixel} + g * {channels} * {width}",
                f"wi = w + wk * {w_tap} + g * {w_group} + f * 4",
                f"a = {multiply}_{tile}(a, xi, wi, {length}, {x_step}, {w_step})",
            )
            if odd:
                last = f"xi + {terms} * {2 * SHORT_BYTES}, wi + {terms} * {w_step}"
                out(f"a = single_{tile}(a, {last}, {x_step})")
