"""Convolutions and products with channels or filters in the lanes: for few samples, on plain arrays.

With samples in the lanes a convolution of one sample costs as much as one of 16. Here images are (N, H, W, C) as the
caller has them, and a vector is 16 filters of a kernel, which lie side by side in memory. A tile of positions x
vectors is held in registers; each float of an image is spread over all lanes:

    forward            y[p, f..]  += x[p + k, c] * w[k, c, f..]
    weight gradient    dw[k, c, f..] += x[p + k, c] * dy[p, f..]
    input gradient     the forward pass with turned weights, or, where the weights outweigh the images,
                       dx[p, c] = sum over k and f of dy[p - k, f..] * w[k, c, f..], whose lanes are added up at the end

Images are given a frame of zeros first, so that no loop needs to know borders.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba.channel_shapes import ROWS, VECTORS, ChannelShape, sums_of, vectors_of
from minicnn.backends.numba.elementwise import ElementwiseGroup, Operand, one
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES

ROUNDS = 8  # rows of weights that are read for one panel after the other, where several are side by side


def _numbers(out: Lines, s: ChannelShape) -> None:
    """Numbers of all kernels here."""
    row, column = s.row, s.column
    out.all_numbers(
        oh=row.count, ow=column.count, kh_=row.taps, kw_=1 if s.joined else column.taps,
        length=s.channels * (column.taps if s.joined else 1), channels=s.channels, filters=s.filters,
        r_step=row.in_step, c_step=column.in_step, top=row.offset + s.frame[0][0], left=column.offset + s.frame[1][0],
        r_taps=row.offset_step, c_taps=column.offset_step, hp=row.size + sum(s.frame[0]),
        wp=column.size + sum(s.frame[1]), x_pixel=s.channels * s.groups * 4, y_pixel=s.filters * s.groups * 4,
        r_weight=row.weight, c_weight=column.weight, r_weights=row.weight_step, c_weights=column.weight_step,
        wide=s.kernel_width, r_start=row.start, c_start=column.start, r_out=row.out_step, c_out=column.out_step,
        height=s.out_size[0], width=s.out_size[1],
    )  # fmt: skip
    out.varying("samples", s.samples)
    out.varying("positions", s.positions)


def _places(out: Lines, tile: int) -> None:
    """Set `places`, where the inputs of the positions from p on lie, and behind these where their results do."""
    out("n = p // (oh * ow)", "i = p // ow % oh", "j = p % ow")
    with out.block(f"for k in range({tile}):"):
        out(
            "astore(places + k * 8, ((n * hp + i * r_step) * wp + j * c_step) * x_pixel)",
            "at = ((n * height + r_start + i * r_out) * width + c_start + j * c_out) * y_pixel",
            f"astore(places + {tile * 8} + k * 8, at)",
            "j += 1",
        )
        with out.block("if j == ow:"):
            out("j = 0", "i += 1")
            with out.block("if i == oh:"):
                out("i = 0", "n += 1")


def _taps(out: Lines, s: ChannelShape) -> None:
    """Set `off`, where the inputs of a tap lie, and `tap`, its number among the weights."""
    out("off = ((top + kh * r_taps) * wp + left + kw * c_taps) * x_pixel + g * channels * 4")
    out("tap = (r_weight + kh * r_weights) * wide + c_weight + kw * c_weights")


def _finished(out: Lines, suffix: str, some: tuple[str, str], results: str, y: str, ending: End) -> None:
    """End a tile and store it at its places; `y` is the address of its channels, `some` says how many there are."""
    for name, there in (("addend", ending.addend), ("mask", ending.finish == "mask")):
        if there:
            call = "join" if name == "addend" else "mask"
            out(f"a = {call}{some[0]}_{suffix}(a, {results}, {name} - y + {y}{some[1]})")
    if ending.finish in ("relu", "relu6"):
        out(f"a = clip_{suffix}(a, float32(0), float32({'inf' if ending.finish == 'relu' else '6'}))")
    out(f"place{some[0]}_{suffix}({results}, {y}, a{some[1]})")


def packed(s: ChannelShape) -> tuple[KernelCode, int]:
    """w (KH, KW, C, groups * F) as (groups * panels, KH, KW, C, F of a panel), with 0 behind; and number of items."""
    out = Lines()
    width = s.vectors * LANES
    out.all_numbers(taps=s.taps, channels=s.channels, filters=s.filters, every=s.filters * s.groups,
                    panels=s.panels // s.groups)  # fmt: skip
    with out.block("for item in range(start, stop):"):
        out("panel = item // taps", "tap = item % taps", f"f = panel % panels * {width}")
        out("wi = w + (tap * channels * every + panel // panels * filters + f) * 4")
        with out.block("for k in range(channels):"), out.block(f"for c in range({s.vectors}):"):
            out(f"v = vload_some(wi + k * every * 4 + c * {BYTES}, filters - f - c * {LANES})")
            out(f"vstore(y + ((item * channels + k) * {s.vectors} + c) * {BYTES}, v)")
    return out.source("packed weights", "w", "y"), s.panels * s.taps


def places(s: ChannelShape) -> KernelCode:
    """Places of the inputs of all positions, and of their results, as 8 bytes each; one item."""
    out = Lines()
    _numbers(out, s)
    with out.block("for item in range(start, stop):"), out.block("for p in range(positions):"):
        out("places = y + p * 8", "n = p // (oh * ow)", "i = p // ow % oh", "j = p % ow")
        out("astore(places, ((n * hp + i * r_step) * wp + j * c_step) * x_pixel)")
        out("at = ((n * height + r_start + i * r_out) * width + c_start + j * c_out) * y_pixel")
        out("astore(places + positions * 8, at)")
    return out.source("places", "y")


@dataclass(frozen=True)
class End:
    """Ending of a correlation: operations on its sums.

    Attributes:
        bias: Whether there is a bias (F,).
        addend: Whether another image is added.
        finish: See `correlate.Operands`.
    """

    bias: bool = False
    addend: bool = False
    finish: str = ""

    @property
    def reads(self) -> list[str]:
        """Names of its buffers."""
        return [name for name, there in self._listed.items() if there]

    @property
    def _listed(self) -> dict[str, bool]:
        return {"bias": self.bias, "addend": self.addend, "mask": self.finish == "mask"}


def forward(name: str, s: ChannelShape, ending: End) -> tuple[KernelCode, int]:
    """y (N, OH, OW, groups * F) from x with its frame and w, and the number of items.

    An item is a part of the positions for a panel of filters. Where weights are packed, places follow them.

    Args:
        name: For `explain`.
        s: Sizes.
        ending: What is done with the sums.
    """
    out = Lines()
    _numbers(out, s)
    tile, vectors, wide = s.tile, s.vectors, s.wide * s.vectors
    suffix, some = out.tile(tile, vectors), ("_some", ", lanes") if s.some else ("", "")
    read = ("", "") if s.packed else some
    width = vectors * LANES if s.packed else s.filters if s.flipped else s.filters * s.groups
    taps, panels = s.channels * width * 4, s.panels // s.groups
    group = panels * s.taps * taps if s.packed else s.filters * 4 * (s.channels if s.flipped else 1)
    out.all_numbers(w_step=width * 4, w_tap=taps * (s.groups if s.flipped else 1), w_group=group,
                    w_panel=s.taps * taps if s.packed else wide * BYTES, panels=panels)  # fmt: skip
    chunks = s.chunks(s.panels, tile)
    out.varying("chunks", chunks)
    if not s.packed:
        out("panel = stack()", f"places = panel + {tile * wide * BYTES}")
    with out.block("for item in range(start, stop):"):
        out("chunk = item % chunks", "g = item // chunks // panels", "f = item // chunks % panels")
        out("wf = w + g * w_group + f * w_panel", f"f = f * {wide * LANES}", "fg = g * filters + f")
        out("lanes = filters - f")
        out("first = positions * chunk // chunks", "last = positions * (chunk + 1) // chunks")
        with out.block(f"for q in range(first, last, {tile}):"):
            # The last tile overlaps the one before, which makes the same numbers.
            out(f"p = min(q, positions - {tile})")
            if s.packed:
                out("places = first_place + p * 8", "results = places + positions * 8")
            else:
                _places(out, tile)
                out(f"results = places + {tile * 8}")
            columns = f"for c in range(0, {wide}, {vectors}):"
            begun = f"lift{some[0]}_{suffix}(bias + fg * 4{{}})" if ending.bias else f"clear_{suffix}()"
            if wide == vectors:
                out(f"a = {begun.format(some[1])}")
                with out.block("for kh in range(kh_):"), out.block("for kw in range(kw_):"):
                    _taps(out, s)
                    out("wi = wf + tap * w_tap")
                    out(f"a = project{read[0]}_{suffix}(a, places, x + off, wi, length, w_step{read[1]})")
                _finished(out, suffix, some, "results", "y + fg * 4", ending)
            else:
                some = (some[0], some[1] and f"{some[1]} - c * {LANES}")
                with out.block(columns):
                    out(f"a = {begun.format(f' + c * {BYTES}{some[1]}')}")
                    out(f"put_{suffix}(panel + c * {BYTES}, a, {wide * BYTES})")
                with out.block("for kh in range(kh_):"), out.block("for kw in range(kw_):"):
                    _taps(out, s)
                    out("wi = wf + tap * w_tap")
                    with out.block(f"for m in range(0, length, {ROUNDS}):"), out.block(columns):
                        at, count = f"wi + m * w_step + c * {BYTES}", f"min({ROUNDS}, length - m)"
                        out(f"a = take_{suffix}(panel + c * {BYTES}, {wide * BYTES})")
                        call = f"a = project{some[0]}_{suffix}(a, places, x + off + m * 4, {{}}, {{}}, w_step{some[1]})"
                        out(call.format(at, count))
                        out(f"put_{suffix}(panel + c * {BYTES}, a, {wide * BYTES})")
                with out.block(columns):
                    out(f"a = take_{suffix}(panel + c * {BYTES}, {wide * BYTES})")
                    _finished(out, suffix, some, "results", f"y + fg * 4 + c * {BYTES}", ending)
    return out.source(name, "x", "w", *(["first_place"] if s.packed else []), *ending.reads, "y"), s.panels * chunks


def contraction_worth_it(s: ChannelShape) -> bool:
    """True if sums along the filters are faster than turning the weights of an input gradient.

    Each sum ends with adding up its lanes, some 5 instructions; turning a weight takes one, if it is in the cache.
    """
    weights = s.row.taps * s.column.taps * s.channels * s.filters
    return s.channels >= LANES and s.filters >= LANES and s.positions * s.filters * 5 < weights


def contraction(name: str, s: ChannelShape, ending: End) -> tuple[KernelCode, int]:
    """dx (N, H, W, groups * C) from dy with its frame and w as it is, and the number of items.

    The channels of the shape are those of dy, its filters those of dx. An item is a part of the positions for a tile of
    the latter.

    Args:
        name: For `explain`.
        s: Sizes.
        ending: What is done with the sums; there is no bias.
    """
    out = Lines()
    _numbers(out, s)
    tile = next(n for n in (4, 2, 1) if n <= s.positions)
    width = LANES // tile
    tiles = s.groups * -(-s.filters // width)
    chunks = s.chunks(tiles, tile)
    suffix, row = out.tile(tile, width), out.tile(1, 1)
    out.all_numbers(w_step=s.channels * s.groups * 4, w_tap=s.channels * s.filters * s.groups * 4,
                    tiles=-(-s.filters // width))  # fmt: skip
    out.varying("chunks", chunks)
    out("panel = stack()", f"places = panel + {LANES * BYTES}")
    with out.block("for item in range(start, stop):"):
        out("chunk = item % chunks", "g = item // chunks // tiles")
        out(f"f = min(item // chunks % tiles * {width}, filters - {width})", "fg = g * filters + f")
        out("first = positions * chunk // chunks", "last = positions * (chunk + 1) // chunks")
        with out.block(f"for q in range(first, last, {tile}):"):
            out(f"p = min(q, positions - {tile})")
            _places(out, tile)
            out(f"a = clear_{suffix}()")
            with out.block("for kh in range(kh_):"), out.block("for kw in range(kw_):"):
                _taps(out, s)
                out("wi = w + tap * w_tap + f * w_step + g * channels * 4")
                out(f"a = contract_{suffix}(a, places, x + off, wi, channels, w_step)")
            out(f"put_{suffix}(panel, a, {width * BYTES})", f"vstore(panel, sums(panel, {BYTES}))")
            with out.block(f"for k in range({tile}):"):
                out(f"a = take_{row}(panel + k * {width * 4}, {BYTES})", f"results = places + {tile * 8} + k * 8")
                _finished(out, row, ("_some", f", {width}"), "results", "y + fg * 4", ending)
    return out.source(name, "x", "w", *ending.reads, "y"), tiles * chunks


@dataclass(frozen=True)
class Update:
    """The update of weights by their gradient.

    Attributes:
        group: Its operations.
        operands: How their inputs are read: "many" like the weights, "one" for all of them; "lanes" for the gradient.
        gradient: Which of them the gradient is.
        reads: Buffers of the others.
    """

    group: ElementwiseGroup
    operands: tuple[Operand, ...]
    gradient: int
    reads: tuple[tuple[str, str], ...]

    @property
    def read(self) -> list[int]:
        """Operands that are in memory."""
        return [i for i in range(len(self.operands)) if i != self.gradient]

    @property
    def passed(self) -> list[str]:
        """Buffers that are as large as the weights, if there are weights."""
        many = [f"b{i}" for i in self.read if self.operands[i].kind == "many"]
        return [*many, *(f"y{k}" for k in range(len(self.group.outputs)))] if many else []

    def write(self, out: Lines, at: str, some: str, live: str) -> list[str]:
        """Names of the results for the vector of weights at a place, whose gradient is in a variable."""
        for i in self.read:
            many = self.operands[i].kind == "many"
            out(f"v{i} = {f'vload{some}(b{i} + {at}{live})' if many else one(self.operands[i], f'b{i}')}")
        self.group.write(out, len(self.operands))
        return [f"v{place}" for place in self.group.outputs]


GRADIENT = Update(ElementwiseGroup((), (0,), ("float32",)), (Operand("lanes"),), 0, ())  # which is all that is wanted


def weight_gradient(name: str, s: ChannelShape, update: Update | None = None) -> tuple[KernelCode, int]:
    """dw (KH, KW, C, groups * F) from dy (N, OH, OW, groups * F) and x with its frame, and the number of its tiles.

    An item is a tile. With an update of the weights its results are stored in place of dw.
    """
    update = update or GRADIENT
    out = Lines()
    _numbers(out, s)
    length, lines = (s.channels * s.column.taps, 1) if s.joined else (s.channels, s.column.taps)
    vectors = vectors_of(s.filters, min(VECTORS, sums_of(min(length, 6))))
    rows, panels = even_tile(length, min(ROWS, sums_of(vectors))), -(-s.filters // (LANES * vectors))
    tiles = -(-length // rows)
    suffix = out.tile(rows, vectors)
    some = ("_some", ", lanes") if s.filters % (LANES * vectors) else ("", "")
    # Where a tap's inputs are neighbours throughout, all positions are one loop.
    dense = s.row.taps == s.column.taps == s.row.in_step == s.column.in_step == 1 and not any(map(sum, s.frame))
    dense = dense and (s.row.size, s.column.size) == (s.row.count, s.column.count)
    out.all_numbers(tiles=tiles, panels=panels, groups=s.groups)
    out("panel = stack()")
    with out.block("for item in range(start, stop):"):
        # Panels are innermost, so that the weights are gone through in the order in which they lie in memory.
        out(
            f"f = item % panels * {vectors * LANES}",
            "rest = item // panels",
            "g = rest % groups",
            "rest = rest // groups",
        )
        out(f"m0 = rest % tiles * {rows}", f"m = min(m0, length - {rows})", "rest = rest // tiles")
        out("kw = rest % kw_", "kh = rest // kw_", "fg = g * filters + f", "lanes = filters - f")
        _taps(out, s)
        out("xo = x + off + m * 4", "yo = dy + fg * 4", f"a = clear_{suffix}()")
        call = f"a = weigh{some[0]}_{suffix}(a, {{}}, {{}}, {{}}, c_step * x_pixel, y_pixel{some[1]})"
        if dense:
            out(call.format("xo", "yo", "positions"))
        else:
            with out.block("for n in range(samples):"), out.block("for i in range(oh):"):
                xi, yi = "xo + (n * hp + i * r_step) * wp * x_pixel", "yo + (n * oh + i) * ow * y_pixel"
                out(call.format(xi, yi, "ow"))
        out(f"put_{suffix}(panel, a, {vectors * BYTES})")
        # A tile that overlaps the one before leaves its rows alone.
        with out.block(f"for k in range(m0 - m, {rows}):"), out.block(f"for c in range({vectors}):"):
            out(f"at = ((tap * channels + m + k) * y_pixel) + fg * 4 + c * {BYTES}", f"live = lanes - c * {LANES}")
            out(f"v{update.gradient} = vload(panel + (k * {vectors} + c) * {BYTES})")
            results = update.write(out, "at", "_some", ", live")
            out(*(f"vstore_some(y{k} + at, {result}, live)" for k, result in enumerate(results)))
    buffers = (*(f"b{i}" for i in update.read), *(f"y{k}" for k in range(len(update.group.outputs))))
    return out.source(name, "dy", "x", *buffers), s.groups * panels * s.row.taps * lines * tiles
