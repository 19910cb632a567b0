"""Sizes of correlations with channels in the lanes, and of their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicnn.backends.numba import cpus
from minicnn.backends.numba.correlate import Line
from minicnn.backends.numba.kernel import even_tile
from minicnn.backends.numba.operations import BYTES, LANES
from minicnn.backends.numba.panels import SCRATCH

ROWS, VECTORS = 10, 16  # of a tile, at most: each row needs a register for its address, each vector one for its weights

Frame = tuple[tuple[int, int], tuple[int, int]]  # zeros before and behind the rows of an image, and its columns


def margins(lines: Sequence[Line]) -> tuple[int, int]:
    """Zeros before and behind an image axis that its taps reach."""
    ends = [(line, line.offset + k * line.offset_step) for line in lines for k in {0, line.taps - 1} if line.taps]
    before = max((-offset for _, offset in ends), default=0)
    behind = max((offset + (line.count - 1) * line.in_step - line.size + 1 for line, offset in ends), default=0)
    return max(before, 0), max(behind, 0)


def sums_of(share: int) -> int:
    """Sums that registers hold for each of so many rows or vectors of a tile."""
    return max(cpus.host().accumulators // share, 1)


def vectors_of(filters: int, most: int) -> int:
    """Vectors of a panel of filters, at most so many: wide panels, but few vectors that are not full."""
    total = -(-filters // LANES)
    return min(range(1, most + 1), key=lambda n: (-(-total // n) * (2 * n + 1), -n))


@dataclass(frozen=True)
class ChannelShape:
    """Sizes of a correlation, or of its weight gradient.

    Attributes:
        row: Geometry along the rows.
        column: The same along the columns.
        samples: N.
        channels: Input channels of a group.
        filters: Output channels of a group.
        groups: Groups of channels that do not see each other.
        kernel_height: KH.
        kernel_width: KW.
        out_size: Height and width of the output, of which the geometries are all positions or some.
        frame: Zeros around an input image.
        threads: Threads that share the work.
        flipped: See `correlate.Operands`.
        packed: Whether weights are in the order in which they are read: see `packed`.
    """

    row: Line
    column: Line
    samples: int
    channels: int
    filters: int
    groups: int
    kernel_height: int
    kernel_width: int
    out_size: tuple[int, int]
    frame: Frame
    threads: int
    flipped: bool = False
    packed: bool = False

    @property
    def taps(self) -> int:
        """Taps of the kernel, and of other geometries of it."""
        return self.kernel_height * self.kernel_width

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed weights."""
        return self.panels * self.taps * self.channels * self.vectors * BYTES

    @property
    def positions(self) -> int:
        """Output positions of all samples."""
        return self.samples * self.row.count * self.column.count

    @property
    def vectors(self) -> int:
        """Vectors of a panel of filters."""
        share = -(-self.filters // (LANES * self.threads)) if self.positions < ROWS else VECTORS
        return vectors_of(self.filters, min(VECTORS, share, sums_of(min(self.positions, 6))))

    @property
    def wide(self) -> int:
        """Panels side by side whose sums are on the stack, so that weights are read in the order of their rows."""
        costs, weights = cpus.host().costs, self.row.taps * self.column.taps * self.channels * self.filters
        if self.packed or self.positions > costs.read_often or weights < costs.kept:
            return 1
        share = -(-self.filters // (LANES * self.threads))
        return -(-min(share, 3 * SCRATCH // (4 * BYTES * self.positions)) // self.vectors)

    @property
    def panels(self) -> int:
        """Panels of all groups, or runs of them."""
        return self.groups * -(-self.filters // (LANES * self.vectors * self.wide))

    @property
    def some(self) -> bool:
        """True if the last panel of a group is not full."""
        return self.filters % (LANES * self.vectors * self.wide) != 0

    @property
    def tile(self) -> int:
        """Positions of a tile."""
        return even_tile(self.positions, min(ROWS, sums_of(self.vectors)))

    def chunks(self, panels: int, tile: int) -> int:
        """Into how many parts positions are cut for threads to have equally much to do."""
        most = -(-self.positions // tile)
        even = (n for n in range(1, most + 1) if panels * n % self.threads == 0 or panels * n >= 8 * self.threads)
        return next(even, most)

    @property
    def joined(self) -> bool:
        """True if taps of a row and channels lie one after the other, both in the image and among the weights."""
        return self.groups == 1 and self.column.joined
