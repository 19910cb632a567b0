"""Sizes of products with rows in memory: what `bytes.cuh` and `floats.cuh` make of their tiles' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicnn.backends._gpu.costs import Models


@dataclass(frozen=True)
class RowSizes:
    """Sizes common to the tiles of bytes and of floats; their THREADS and SLICES are those to choose from.

    Attributes:
        k: Elements of a row.
        m: Columns of the matrix.
        rows: Rows that a block takes at a time.
        threads: Threads of a block.
        stages: Tiles of rows that are in shared memory or on their way there.
        slices: Warps that share the terms of the product of some rows.
        back: Whether the product with the gradient is taken as well.
    """

    k: int
    m: int
    rows: int
    threads: int
    stages: int
    slices: int
    back: bool

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // 32

    @property
    def tiles(self) -> int:
        """Fragments along the rows."""
        return self.rows // 16

    @property
    def own_tiles(self) -> int:
        """Fragments along the rows that a warp multiplies."""
        return -(-self.tiles // (self.warps // self.slices))


class ByteSizes(RowSizes):
    """Sizes that `ByteTile` of `bytes.cuh` derives from its parameters."""

    THREADS: ClassVar[tuple[int, ...]] = (256, 512)
    SLICES: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8)

    @property
    def steps(self) -> int:
        """Fragments along a row of bytes."""
        return -(-self.k // 32)

    @property
    def groups(self) -> tuple[int, int]:
        """Columns by eight; whether there is a fragment for one or two that are left."""
        # A fragment has 8 columns: for the last one or two of 10 classes a packed one spares most of it.
        pair = int(self.m % 8 in (1, 2))
        return -(-self.m // 8) - pair, pair

    @property
    def fragments(self) -> int:
        """Fragments of all bytes of all columns."""
        groups, pair = self.groups
        return 3 * groups + pair

    @property
    def products(self) -> int:
        """Bytes of shared memory up to the end of the products' results."""
        # An odd number of 16 bytes a row keeps neighbouring rows in different banks.
        buffer = self.rows * 16 * (-(-self.k // 16) | 1) + 16
        left = -(-self.slices * self.rows * self.m // 4) * 16
        gradient = -(-self.rows // 32) * self.fragments * 256 if self.back else 0
        beside = self.steps * self.fragments * 256 + max(left, gradient)
        # At the end the sums of the gradient lie where fragments and results were.
        return self.stages * buffer + max(-(-self.k * self.m // 4) * 16, beside)

    @property
    def shared(self) -> int:
        """All bytes of shared memory."""
        return self.products + 12 * self.m + 4 * self.rows * self.stages

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        groups, pair = self.groups
        total = 4 * (groups + pair) * -(-self.k // (16 * self.warps)) if self.back else 0
        forward = 4 * self.own_tiles * (self.fragments + 1) + 2 * self.fragments
        backward = -(-self.rows // 32) * self.fragments * 2 + 4 * self.fragments + 8
        return total + max(forward, backward if self.back else 0) + 24

    def cycles(self, models: Models, thread_per_row: bool, resident: int) -> float:
        """Cycles of a tile in each block of a multiprocessor.

        Args:
            models: The constants for a GPU.
            thread_per_row: Whether a thread takes a row by itself through what follows the product.
            resident: Blocks of a multiprocessor, 1 or 2.
        """
        costs, columns, load = models.byte_rows, -(-self.k // 16), self.rows * self.k
        forward = max(
            costs.mma * self.tiles * self.steps * self.fragments,
            -(-self.steps // self.slices) * (costs.step + costs.fragment * self.fragments * self.own_tiles),
        )
        backward = costs.mma * columns * -(-self.rows // 32) * self.fragments + costs.column * columns / self.warps
        rest = costs.tile + (costs.thread_per_row if thread_per_row else costs.block_per_row) * self.rows
        rest += costs.slice * self.slices + costs.thread * (self.threads - 256)
        # With two stages the next rows arrive while these are multiplied; with one, everybody waits.
        arrival = load / costs.arriving if self.stages > 1 else load / costs.loaded + costs.latency
        shared = costs.alone + costs.resident * resident
        return (rest + forward + (backward if self.back else 0.0) + arrival) * shared


class FloatSizes(RowSizes):
    """Sizes that `FloatTile` of `floats.cuh` derives from its parameters."""

    THREADS: ClassVar[tuple[int, ...]] = (128, 256)
    SLICES: ClassVar[tuple[int, ...]] = tuple(range(1, 9))

    @property
    def steps(self) -> int:
        """Fragments along a row."""
        return -(-self.k // 8)

    @property
    def groups(self) -> int:
        """Columns of the matrix by eight."""
        return -(-self.m // 8)

    @property
    def products(self) -> int:
        """Bytes that the sums of products with the gradient take in the end, where rows were; other sums lie behind."""
        return -(-self.k * self.m // 4) * 16

    @property
    def shared(self) -> int:
        """All bytes of shared memory."""
        left = -(-self.slices * self.rows * self.m // 4) * 16
        gradient = self.rows * 32 * (self.groups | 1) if self.back else 0
        buffer = self.rows * 32 * (2 * -(-self.k // 16) + 1)
        return (
            (self.stages - 1) * buffer + max(buffer + max(left, gradient), self.products) + 4 * self.rows * self.stages
        )

    @property
    def registers(self) -> int:
        """Registers of a thread, about; many more than so few threads need, where what follows is done row by row."""
        total = 4 * self.groups * -(-self.k // (16 * self.warps)) if self.back else 0
        weights = 2 * self.groups * -(-self.steps // self.slices)
        forward = 4 * self.own_tiles * (self.groups + 2) + 4 * self.groups
        backward = 12 * self.groups + 8
        return weights + total + max(forward, backward if self.back else 0) + 64

    def cycles(self, models: Models, thread_per_row: bool, resident: int) -> float:
        """Cycles of a tile in each block of a multiprocessor.

        What this chooses for the sixteen steps and evaluations to which it was fitted took 1.02 times as long as the
        fastest, and 1.13 times at most.

        Args:
            models: The constants for a GPU.
            thread_per_row: Whether a thread takes a row by itself through what follows the product.
            resident: Blocks of a multiprocessor, 1 or 2.
        """
        costs = models.float_rows
        load = self.rows * self.k * 4 / costs.loaded
        steps, columns = -(-self.steps // self.slices), -(-self.k // (16 * self.warps))
        row = costs.thread_per_row if thread_per_row else costs.block_per_row
        busy = costs.tile + row * self.rows + costs.slice * self.slices
        busy += (costs.step + costs.fragment * self.groups * self.own_tiles) * steps
        if self.back:
            busy += costs.column * self.groups * columns * self.rows
        if self.stages == 1:
            return (busy + load + costs.latency) * (costs.alone + costs.resident * resident)
        # Loads and products overlap, but not quite: they share issue slots.
        both = max(busy, load) + costs.apart * min(busy, load) + costs.ahead
        return both * (costs.ahead_alone + costs.ahead_resident * resident)
