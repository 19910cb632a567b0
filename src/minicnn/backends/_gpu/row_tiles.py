"""Tiles of row-wise regions, and of those that begin with a product with rows in memory: `bytes.cuh`, `floats.cuh`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import Models


@dataclass(frozen=True, kw_only=True)
class RowTile(Tile):
    """Tile of a row-wise region.

    Attributes:
        rows: Rows of the batch that a block takes at a time.
        slices: Warps that share the terms of the product with rows in memory of some rows.
        stages: Tiles of rows that are in shared memory or on their way there.
    """

    rows: int = 1
    slices: int = 1
    blocks: int = 1
    threads: int = 256


@dataclass(frozen=True, kw_only=True)
class RowProductTile(RowTile):
    """Tile of a region that begins with a product with rows in memory; its THREADS and SLICES are those to choose from.

    Attributes:
        batch: Rows of the batch.
        terms: Elements of a row.
        columns: Columns of the matrix.
        back: Whether the product with the gradient is taken as well.
    """

    batch: int
    terms: int
    columns: int
    back: bool
    THREADS: ClassVar[tuple[int, ...]]
    SLICES: ClassVar[tuple[int, ...]]

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // 32

    @property
    def _fragments(self) -> int:
        """Fragments along the rows."""
        return self.rows // 16

    @property
    def own_tiles(self) -> int:
        """Fragments along the rows that a warp multiplies."""
        return -(-self._fragments // (self.warps // self.slices))

    @property
    def products(self) -> int:
        """Bytes of shared memory up to where sums over rows lie in the end."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that the product takes."""
        raise NotImplementedError

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        raise NotImplementedError

    def cycles(self, models: Models, thread_per_row: bool, resident: int) -> float:
        """Cycles of a tile in each block of a multiprocessor.

        Args:
            models: The constants for a GPU.
            thread_per_row: Whether a thread takes a row by itself through what follows the product.
            resident: Blocks of a multiprocessor, 1 or 2.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ByteRowTile(RowProductTile):
    """Such a tile of rows of bytes."""

    THREADS: ClassVar[tuple[int, ...]] = (256, 512)
    SLICES: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 8)

    @property
    def steps(self) -> int:
        """Fragments along a row of bytes."""
        return -(-self.terms // 32)

    @property
    def groups(self) -> tuple[int, int]:
        """Columns by eight; whether there is a fragment for one or two that are left."""
        # A fragment has 8 columns: for the last one or two of 10 classes a packed one spares most of it.
        pair = int(self.columns % 8 in (1, 2))
        return -(-self.columns // 8) - pair, pair

    @property
    def fragments(self) -> int:
        """Fragments of all bytes of all columns."""
        groups, pair = self.groups
        return 3 * groups + pair

    @property
    def products(self) -> int:
        """Bytes of shared memory up to the end of the products' results."""
        # An odd number of 16 bytes a row keeps neighbouring rows in different banks.
        buffer = self.rows * 16 * (-(-self.terms // 16) | 1) + 16
        left = -(-self.slices * self.rows * self.columns // 4) * 16
        gradient = -(-self.rows // 32) * self.fragments * 256 if self.back else 0
        beside = self.steps * self.fragments * 256 + max(left, gradient)
        # At the end the sums of the gradient lie where fragments and results were.
        return self.stages * buffer + max(-(-self.terms * self.columns // 4) * 16, beside)

    @property
    def nbytes(self) -> int:
        """All bytes of shared memory."""
        return self.products + 12 * self.columns + 4 * self.rows * self.stages

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        groups, pair = self.groups
        total = 4 * (groups + pair) * -(-self.terms // (16 * self.warps)) if self.back else 0
        forward = 4 * self.own_tiles * (self.fragments + 1) + 2 * self.fragments
        backward = -(-self.rows // 32) * self.fragments * 2 + 4 * self.fragments + 8
        return total + max(forward, backward if self.back else 0) + 24

    def cycles(self, models: Models, thread_per_row: bool, resident: int) -> float:
        """See `RowProductTile.cycles`."""
        costs, columns, load = models.byte_rows, -(-self.terms // 16), self.rows * self.terms
        forward = max(
            costs.mma * self._fragments * self.steps * self.fragments,
            -(-self.steps // self.slices) * (costs.step + costs.fragment * self.fragments * self.own_tiles),
        )
        backward = costs.mma * columns * -(-self.rows // 32) * self.fragments + costs.column * columns / self.warps
        rest = costs.tile + (costs.thread_per_row if thread_per_row else costs.block_per_row) * self.rows
        rest += costs.slice * self.slices + costs.thread * (self.threads - 256)
        # With two stages the next rows arrive while these are multiplied; with one, everybody waits.
        arrival = load / costs.arriving if self.stages > 1 else load / costs.loaded + costs.latency
        shared = costs.alone + costs.resident * resident
        return (rest + forward + (backward if self.back else 0.0) + arrival) * shared


@dataclass(frozen=True, kw_only=True)
class FloatRowTile(RowProductTile):
    """Such a tile of rows of float32 numbers."""

    THREADS: ClassVar[tuple[int, ...]] = (128, 256)
    SLICES: ClassVar[tuple[int, ...]] = tuple(range(1, 9))

    @property
    def steps(self) -> int:
        """Fragments along a row."""
        return -(-self.terms // 8)

    @property
    def groups(self) -> int:
        """Columns of the matrix by eight."""
        return -(-self.columns // 8)

    @property
    def products(self) -> int:
        """Bytes that the sums of products with the gradient take in the end, where rows were; other sums lie behind."""
        return -(-self.terms * self.columns // 4) * 16

    @property
    def nbytes(self) -> int:
        """All bytes of shared memory."""
        left = -(-self.slices * self.rows * self.columns // 4) * 16
        gradient = self.rows * 32 * (self.groups | 1) if self.back else 0
        buffer = self.rows * 32 * (2 * -(-self.terms // 16) + 1)
        return (
            (self.stages - 1) * buffer + max(buffer + max(left, gradient), self.products) + 4 * self.rows * self.stages
        )

    @property
    def registers(self) -> int:
        """Registers of a thread, about; many more than so few threads need, where what follows is done row by row."""
        total = 4 * self.groups * -(-self.terms // (16 * self.warps)) if self.back else 0
        weights = 2 * self.groups * -(-self.steps // self.slices)
        forward = 4 * self.own_tiles * (self.groups + 2) + 4 * self.groups
        backward = 12 * self.groups + 8
        return weights + total + max(forward, backward if self.back else 0) + 64

    def cycles(self, models: Models, thread_per_row: bool, resident: int) -> float:
        """See `RowProductTile.cycles`.

        What this chooses for the sixteen steps and evaluations to which it was fitted took 1.02 times as long as the
        fastest, and 1.13 times at most.
        """
        costs = models.float_rows
        load = self.rows * self.terms * 4 / costs.loaded
        steps, columns = -(-self.steps // self.slices), -(-self.terms // (16 * self.warps))
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
