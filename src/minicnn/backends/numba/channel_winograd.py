"""Winograd's minimal filtering with channels in the lanes: for predictions of few samples, on plain arrays.

Tiles of all samples are numbered through. A group of them is transformed, 16 channels at a time; for each element of
the transform a matrix product of tiles x filters follows; results are transformed back, 16 filters at a time.
Transformed weights outweigh what they are made of, so this is for weights that stay the same from call to call.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.channel_lanes import End
from minicnn.backends.numba.channel_shapes import ROWS, Frame, sums_of, vectors_of
from minicnn.backends.numba.channel_tiles import CHAINS
from minicnn.backends.numba.correlate import Line
from minicnn.backends.numba.kernel import KernelCode, Lines, even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.winograd import Tiling, possible, tilings
from minicnn.machine import second_level_cache

TILES = 6  # that share each vector of weights, at least, where there are so many


@dataclass(frozen=True)
class ChannelTiling(Tiling):
    """Sizes of a convolution; its blocks are samples.

    Attributes:
        channels: C.
        filters: F.
        threads: Threads that share the work.
    """

    channels: int = 1
    filters: int = 1
    threads: int = 1

    @property
    def frame(self) -> Frame:
        """Zeros around an image that tiles reach."""
        lines = zip((self.row, self.column), self.across, (self.height, self.width), strict=True)
        return tuple(  # type: ignore[return-value]
            (max(0, -line.offset), max(0, tiles * side + line.taps - 1 + line.offset - line.size))
            for line, tiles, side in lines
        )

    @property
    def channel_vectors(self) -> int:
        """Vectors of the channels."""
        return -(-self.channels // LANES)

    @property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        return vectors_of(self.filters, sums_of(TILES))

    @property
    def panels(self) -> int:
        """Panels of filters."""
        return -(-self.filters // (LANES * self.vectors))

    @property
    def shares(self) -> tuple[int, int]:
        """Parts of the tiles and of the panels, which threads share: panels where weights are more than images."""
        image = self.size * self.tiles * self.channel_vectors * BYTES
        panels = min(self.threads, self.panels) if self.weight_bytes > image else 1
        return max(1, min(self.threads // panels, self.tiles)), panels

    @property
    def least(self) -> int:
        """Tiles whose sums keep the processor adding, so that none is split, whatever the threads."""
        return min(CHAINS // 2 // self.vectors + 1, sums_of(self.vectors))

    @property
    def rows(self) -> int:
        """Tiles whose products are summed at once."""
        share = -(-self.tiles // self.shares[0])
        return max(self.least, even_tile(share, min(ROWS, sums_of(self.vectors))))

    @property
    def steps(self) -> tuple[int, int]:
        """Bytes from an element of a group's tiles to the next, before and after the products."""
        sizes = self.channel_vectors, self.panels * self.vectors
        first, second = (self.together * vectors * BYTES + BYTES for vectors in sizes)  # no multiples of a page
        return first, second

    @property
    def together(self) -> int:
        """Tiles of a group."""
        each = self.size * (self.channel_vectors + self.panels * self.vectors) * BYTES
        most = max(self.rows, second_level_cache() // 2 // each // self.rows * self.rows)
        return min(most, -(-self.tiles // self.shares[0] // self.rows) * self.rows)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights (elements, panels, C, filters of a panel)."""
        return self.size * self.channels * self.panels * self.vectors * BYTES

    @property
    def part_bytes(self) -> int:
        """Bytes that a thread needs: zeros, outputs outside, a group's tiles, tables of addresses."""
        tables = -(-(self.size + 4 * self.height * self.width + 2 * self.rows) * 8 // BYTES) * BYTES
        return 2 * self.panels * self.vectors * BYTES + self.size * sum(self.steps) + tables

    @property
    def cost(self) -> float:
        """Time of all threads in multiply-adds of vectors; the choice, and with it results' bits, are those of one."""
        vectors, costs = self.panels * self.vectors, cpus.host().costs
        products = max(self.tiles, self.least) * self.size * self.channels * vectors * costs.channels
        transforms = self.tiles * self.size * (self.channel_vectors + vectors)
        element = costs.winograd.transforms(self.height * self.width)
        return products + element * transforms + costs.far * self.weight_bytes / BYTES


def chosen(
    row: Line, column: Line, samples: int, channels: int, filters: int, groups: int, threads: int
) -> ChannelTiling | None:
    """The tiles by which a convolution is computed, if they are faster than the direct kernel."""
    if not possible(row, column, groups):
        return None
    terms = row.taps * column.taps * channels
    every = (ChannelTiling(*one, channels, filters, threads) for one in tilings(row, column, samples, terms))
    best = min(every, key=lambda one: one.cost, default=None)
    costs = cpus.host().costs
    # A vector of packed weights is a cache line.
    direct = terms * -(-filters // LANES) * (row.count * column.count * samples * costs.channels + costs.far)
    return best if best is not None and best.cost < direct else None


def transformed_weights(s: ChannelTiling) -> KernelCode:
    """w (KH, KW, C, F) as (elements, panels, C, filters of a panel); one item a panel."""
    out = Lines()
    c, f, panels = out.all_numbers(channels=s.channels, filters=s.filters, panels=s.panels)
    width = s.vectors * BYTES
    with out.nest("for item in range(start, stop):", f"for k in range({c}):", f"for v in range({s.vectors}):"):
        out(f"first = (item * {s.vectors} + v) * {LANES}")
        out(
            f"spread_filters_{s.names[1]}(y + (item * {c} + k) * {width} + v * {BYTES}, {panels} * {c} * {width},"
            f" w + (k * {f} + first) * 4, {c} * {f} * 4, 0, {f} - first, {LANES})"
        )
    return out.source("winograd weights", "w", "y")


def forward(name: str, s: ChannelTiling, ending: End) -> KernelCode:
    """y (N, OH, OW, F) from x with its frame and transformed weights; one item a part of the tiles and panels.

    Args:
        name: For `explain`.
        s: Sizes.
        ending: What is done with the sums.
    """
    out = Lines()
    rows, vectors, outputs = s.rows, s.vectors, s.height * s.width
    tile, (elements, kind) = out.tile(rows, vectors), s.names
    out.all_numbers(
        hp=s.row.size + sum(s.frame[0]), wp=s.column.size + sum(s.frame[1]), oh=s.row.count, ow=s.column.count,
        channels=s.channels, filters=s.filters, panels=s.panels, rows_=s.across[0], columns_=s.across[1],
        x_vectors=s.channel_vectors, y_vectors=s.panels * vectors,
    )  # fmt: skip
    names = ("tiles_", "parts_", "runs", "together", "part_bytes", "v_step", "m_step")
    for key, value in zip(names, (s.tiles, *s.shares, s.together, s.part_bytes, *s.steps), strict=True):
        out.varying(key, value)
    with out.block("for item in range(start, stop):"):
        out("part = item // runs", "q0 = panels * (item % runs) // runs", "q1 = panels * (item % runs + 1) // runs")
        out("zeros = parts + item * part_bytes", f"outside = zeros + y_vectors * {BYTES}")
        out(f"v = outside + y_vectors * {BYTES}", f"m = v + {s.size} * v_step", f"inputs = m + {s.size} * m_step")
        out(f"ends = inputs + {s.size * 8}", f"border = ends + {outputs * 16}", f"places = border + {outputs * 16}")
        with out.block("for f in range(y_vectors):"):
            out(f"vstore(zeros + f * {BYTES}, splat(float32(0)))")
        with out.block(f"for k in range({rows}):"):
            out(f"astore(places + k * 8, k * x_vectors * {BYTES})")
            out(f"astore(places + {rows * 8} + k * 8, k * y_vectors * {BYTES})")
        with out.nest(f"for k in range({s.elements[0]}):", f"for l in range({s.elements[1]}):"):
            out(f"astore(inputs + (k * {s.elements[1]} + l) * 8, (k * wp + l) * channels * 4)")
        with out.nest(f"for k in range({s.height}):", f"for l in range({s.width}):"):
            out("at = (k * ow + l) * filters * 4", f"place = ends + (k * {s.width} + l) * 8")
            out("astore(place, at)", f"astore(place + {outputs * 8}, at)")
        out("first = tiles_ * part // parts_", "last = tiles_ * (part + 1) // parts_")
        with out.block("for t0 in range(first, last, together):"):
            out("t1 = min(t0 + together, last)")
            with out.block("for t in range(t0, t1):"):
                s.origin(out)
                out("start_ = x + ((block * hp + i0) * wp + j0) * channels * 4")
                out(f"patch_{elements}(v + (t - t0) * x_vectors * {BYTES}, v_step, {BYTES}, inputs, start_, x_vectors)")
            every = f"for p in range(0, t1 - t0, {rows}):"
            with out.nest(f"for k in range({s.size}):", "for q in range(q0, q1):", every):
                out(f"wk = w + (k * panels + q) * channels * {vectors * BYTES}", f"a = clear_{tile}()")
                at = f"v + k * v_step + p * x_vectors * {BYTES}"
                out(f"a = project_{tile}(a, places, {at}, wk, channels, {vectors * BYTES})")
                out(f"place_{tile}(places + {rows * 8}, m + k * m_step + (p * y_vectors + q * {vectors}) * {BYTES}, a)")
            with out.block("for t in range(t0, t1):"):
                s.origin(out)
                out("at = ((block * oh + i0) * ow + j0) * filters * 4", "table = ends", "yt = y + at")
                if ending.addend:
                    out("other = addend + at")
                with out.block(f"if i0 + {s.height} > oh or j0 + {s.width} > ow:"):
                    _border(out, s, ending)
                width = vectors * LANES
                with out.block(f"for f in range(q0 * {width}, min(q1 * {width}, filters), {LANES}):"):
                    some = ("_some", ", filters - f") if s.filters % LANES else ("", "")
                    other = "other" if ending.addend else "zeros"
                    call = f"release{'_join' * ending.addend}{ending.finish and '_'}{ending.finish}{some[0]}_{kind}"
                    at = f"m + ((t - t0) * y_vectors * {LANES} + f) * 4, m_step, table, yt + f * 4, {other} + f * 4"
                    out(f"{call}({at}, {'bias' if ending.bias else 'zeros'} + f * 4{some[1]})")
    return out.source(f"{name} by winograd {s.kind}", "x", "w", *ending.reads, "parts", "y")


def _border(out: Lines, s: ChannelTiling, ending: End) -> None:
    """Text for the places of a tile that is partly outside: there results go elsewhere, and zeros are added."""
    out("table = border")
    with out.nest(f"for k in range({s.height}):", f"for l in range({s.width}):"):
        out("to = (k * ow + l) * filters * 4", "from_ = to")
        with out.block("if i0 + k >= oh or j0 + l >= ow:"):
            out("to = outside - yt", f"from_ = zeros - {'other' if ending.addend else 'yt'}")
        out(f"place = border + (k * {s.width} + l) * 8")
        out("astore(place, to)", f"astore(place + {s.height * s.width * 8}, from_)")
