"""Tiles of `depthwise.cuh`: those that take the least time, by counted instructions and bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tile_times import quotient
from minicnn.kernels.elements import widens
from minicnn.kernels.windows import Image, Window, images, window
from minicnn.program.graph import Node

RUN = 8  # channels of a thread, which are 16 bytes
DEPTHWISE = frozenset({"depthwise_conv2d", "depthwise_conv2d_input_gradient"})  # which have one result a position
MOST_TOTALS = 2  # sums over positions that a block takes of what it makes
_MOST_THREADS = 256
_MOST_SUMS = 9  # taps of a weight gradient whose sums a thread keeps, unless a row has more
_MOST_TAPS = 11  # along an axis
_MOST_RUNS = 16  # of channels, of a block
_AHEAD = 4  # runs that a thread asks for before it waits


@dataclass(frozen=True)
class _Axis:
    """Windows along an axis: `Axis` of `depthwise.cuh`."""

    back: bool
    taps: int
    stride: int
    before: int
    dilation: int

    def seen(self, results: int) -> int:
        """Number of elements that so many results see along the axis."""
        reach = (self.taps - 1) * self.dilation
        # Of a gradient the window runs backwards, over elements of dy that lie apart by the stride.
        if self.back:
            return (results - 1 + self.before) // self.stride - (self.before - reach) // self.stride + 1
        return (results - 1) * self.stride + reach + 1


class _Piece(NamedTuple):
    """Piece of an image that a block has at a time: `DepthwiseTile` of `depthwise.cuh`."""

    out: Image
    down: _Axis
    right: _Axis
    runs: int  # of channels
    images: int
    rows: int
    columns: int
    strip: int  # columns of a thread

    @property
    def tiles(self) -> int:
        """Pieces of the image, for each slice of the channels."""
        down, right = quotient(self.out.h, self.rows), quotient(self.out.w, self.columns)
        return quotient(self.out.n, self.images) * down * right

    @property
    def slices(self) -> int:
        """Slices of the channels."""
        return self.out.c // (RUN * self.runs)

    @property
    def items(self) -> int:
        """Strips, of one run of channels."""
        return self.images * self.rows * self.columns // self.strip

    @property
    def pixels(self) -> int:
        """Of the piece, with its margin."""
        return self.images * self.down.seen(self.rows) * self.right.seen(self.columns)

    def work(self, loaded: float) -> float:
        """Instructions of a strip beside those that finish it, of which each run that it loads takes so many."""
        rows = self.down.taps / (self.down.stride if self.down.back else 1)
        products = self.strip * self.right.taps / (self.right.stride if self.right.back else 1)
        return rows * (self.right.seen(self.strip) * loaded + products * RUN)

    def bytes_of(self, pixels: int) -> int:
        """Shared memory of so many pixels."""
        # An odd number of runs, so that neighbouring pixels lie in different banks.
        return pixels * (self.runs | 1) * 2 * RUN


class _DepthwiseWork(NamedTuple):
    """Work of a launch's blocks, as the model of times sees it."""

    blocks: int
    threads: int  # of a block
    resident: int  # blocks of a multiprocessor at a time
    brought: int  # runs that a thread brings, in a turn
    items: int  # strips of a thread
    item: float  # instructions of a strip
    pixels: int  # that a block reads and writes
    runs: int  # of a pixel
    turns: int = 1  # pieces that a block takes one after the other

    def cycles(self, gpu: Gpu) -> float:
        """Cycles of the launch on a GPU."""
        costs = costs_on(gpu).depthwise
        instructions = self.brought * costs.brought + self.items * self.item
        each = quotient(self.blocks, gpu.multiprocessors)
        moved = self.pixels * max(32, 2 * RUN * self.runs) * gpu.multiprocessors * gpu.clock / gpu.bandwidth
        lines = self.pixels * quotient(self.runs, 8) * costs.line
        # Few products for each byte: instructions, lines of the cache and bandwidth are all near, and the slowest
        # decides.
        busy = max(instructions * quotient(self.threads, 32) * 32 / gpu.lanes32, lines, moved)
        alone = instructions / costs.alone + costs.latency * (quotient(self.brought, _AHEAD) + self.items)
        turn = max(each * busy, quotient(each, self.resident) * alone)
        return costs.launch + costs.latency + self.turns * turn


def applies(node: Node) -> bool:
    """True if depthwise tiles can do a node: images in 16 bits, multiples of 8 channels, each of one filter."""
    x, y = images(node)
    read = node.inputs[:1] if node.op.name in DEPTHWISE else node.inputs
    short = all(widens(v.node) for v in read) and len({v.node.inputs[0].dtype for v in read if v.node}) == 1
    runs = node.attrs["data_format"] == "NHWC" and x.c == y.c and x.c % RUN == 0
    return short and runs and max(window(node).kernel) <= _MOST_TAPS


def _score(tile: DepthwiseTile) -> float:
    return tile.score


def _threads(team: int, items: int) -> Iterator[int]:
    """Threads of a block: multiples of those that share an item, not more than there is work for."""
    most = max(1, min(_MOST_THREADS // team, items))
    for count in sorted({most, quotient(most, 2)}):
        yield count * team


def _pieces(out: Image, seen: Window, *, back: bool) -> Iterator[_Piece]:
    """Pieces that blocks may have of a result."""
    axes = zip(seen.kernel, seen.strides, seen.before, seen.dilation, strict=True)
    down, right = (_Axis(back, *axis) for axis in axes)
    (sh, sw), runs = seen.strides if back else (1, 1), out.c // RUN
    for g in (n for n in range(1, min(runs, _MOST_RUNS) + 1) if runs % n == 0):
        for px in sorted({_up(n, sw) for n in (1, 2, 4)}):
            for tw, th in itertools.product(_lengths(out.w, px), _lengths(out.h, sh)):
                whole = tw >= out.w and th >= out.h
                # Several images in a piece only where one does not fill it.
                for nb in (1, 2, 4, 8, 16) if whole else (1,):
                    if nb == 1 or nb < 2 * out.n:
                        yield _Piece(out, down, right, g, nb, th, tw, px)


def _lengths(length: int, step: int) -> list[int]:
    """Multiples of a step to cut a length into."""
    return sorted({_up(min(length, n), step) for n in (length, 4, 8, 16, 32)})


def _up(n: int, step: int) -> int:
    return quotient(n, step) * step


@dataclass(frozen=True, kw_only=True)
class DepthwiseTile(Tile):
    """Tile of a depthwise convolution, or of its input gradient, of images in 16 bits.

    Attributes:
        runs: Runs of channels of a block.
        images: Images of a piece.
        rows: Rows of a piece.
        columns: Columns of a piece.
        strip: Neighbouring columns that a thread computes.
    """

    has_template: ClassVar[bool] = True

    runs: int
    images: int
    rows: int
    columns: int
    strip: int

    def row_blocks(self, channels: int, groups: int) -> int:
        """Blocks that make the same channels of a convolution's result, of which there are as many as groups."""
        return self.blocks // (channels // (RUN * self.runs))

    @classmethod
    def best(cls, node: Node, gpu: Gpu) -> DepthwiseTile | None:
        """Tile of a depthwise convolution or of its input gradient; None if nothing fits."""
        (x, y), seen, back = images(node), window(node), node.op.name.endswith("gradient")
        tiles, costs = [], costs_on(gpu).depthwise
        for piece in _pieces(x if back else y, seen, back=back):
            g, px = piece.runs, piece.strip
            filters = 4 * RUN * g * seen.kernel[0] * seen.kernel[1]
            for threads in _threads(g, piece.items):
                # Sums over positions are added up at the end, over the pixels, which are done with.
                shared = max(piece.bytes_of(piece.pixels) + filters, MOST_TOTALS * threads * RUN * 4)
                work = _DepthwiseWork(
                    blocks=piece.tiles * piece.slices,
                    threads=threads,
                    resident=gpu.resident(threads, 56 + 10 * px, shared),
                    brought=quotient(piece.pixels * g, threads),
                    items=quotient(piece.items * g, threads),
                    item=piece.work(costs.loaded) + px * costs.finished,
                    pixels=piece.pixels + 2 * piece.items * px,
                    runs=g,
                )
                if work.resident:
                    # Each piece leaves a row of sums that somebody adds up.
                    score = work.cycles(gpu) + piece.tiles * costs.row
                    tile = cls(
                        runs=g, images=piece.images, rows=piece.rows, columns=piece.columns, strip=px,
                        blocks=work.blocks, threads=threads, shared=shared, stages=1, score=score,
                    )  # fmt: skip
                    tiles.append(tile)
        return min(tiles, key=_score, default=None)


@dataclass(frozen=True, kw_only=True)
class DepthwiseWeightGradientTile(DepthwiseTile):
    """Tile of a depthwise convolution's weight gradient.

    Attributes:
        tap_rows: Rows of taps of a thread.
    """

    tap_rows: int

    @classmethod
    def best(cls, node: Node, gpu: Gpu) -> DepthwiseWeightGradientTile | None:
        """Tile of a depthwise weight gradient; None if nothing fits."""
        (_, y), seen, tiles = images(node), window(node), []
        (kh, kw), costs = seen.kernel, costs_on(gpu)
        loaded = costs.depthwise.loaded
        for piece, rows in itertools.product(
            _pieces(y, seen, back=False), sorted({1, max(1, min(kh, _MOST_SUMS // kw))})
        ):
            g, px = piece.runs, piece.strip
            positions, teams = piece.items * px, quotient(kh, rows)
            for threads in _threads(g * teams, piece.items):
                shared = piece.bytes_of(piece.pixels) + piece.bytes_of(positions)
                shared = max(shared, threads * RUN * 4 * (kw if kw <= 3 else 1))  # AT_ONCE
                resident = gpu.resident(threads, 56 + RUN * (rows * kw + px), shared)
                room = resident * gpu.multiprocessors * 15 // 16  # which leaves some for others beside it
                splits = min(piece.tiles, max(1, room // piece.slices))
                work = _DepthwiseWork(
                    blocks=splits * piece.slices,
                    threads=threads,
                    resident=resident,
                    brought=quotient((piece.pixels + positions) * g, threads),
                    items=quotient(piece.items * g * teams, threads),
                    item=piece.work(loaded) * rows / kh + px * loaded,
                    pixels=piece.pixels + positions,
                    runs=g,
                    turns=quotient(piece.tiles, splits),
                )
                if resident:
                    score = work.cycles(gpu) + splits * kh * kw * y.c / costs.launches.gradients
                    tile = cls(
                        runs=g, images=piece.images, rows=piece.rows, columns=piece.columns, strip=px, tap_rows=rows,
                        blocks=work.blocks, threads=threads, splits=splits, shared=shared, stages=1, score=score,
                    )  # fmt: skip
                    tiles.append(tile)
        return min(tiles, key=_score, default=None)
