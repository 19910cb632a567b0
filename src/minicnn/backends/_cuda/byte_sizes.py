"""Sizes of products with rows of bytes: what `ByteTile` of `bytes.cuh` makes of its parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ByteSizes:
    """What `ByteTile` of `bytes.cuh` makes of its parameters."""

    k: int
    m: int
    rows: int
    threads: int
    stages: int
    parts: int
    back: bool

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // 32

    @property
    def steps(self) -> int:
        """Fragments along a row of bytes."""
        return -(-self.k // 32)

    @property
    def tiles(self) -> int:
        """Fragments along the rows."""
        return self.rows // 16

    @property
    def groups(self) -> tuple[int, int]:
        """Columns by eight; whether there is a fragment for one or two that are left."""
        pair = int(self.m % 8 in (1, 2))
        return -(-self.m // 8) - pair, pair

    @property
    def fragments(self) -> int:
        """Fragments of all digits of all columns."""
        groups, pair = self.groups
        return 3 * groups + pair

    @property
    def own_tiles(self) -> int:
        """Fragments along the rows that a warp multiplies."""
        return -(-self.tiles // (self.warps // self.parts))

    @property
    def products(self) -> int:
        """Bytes of shared memory up to the end of the products' results."""
        buffer = self.rows * 16 * (-(-self.k // 16) | 1) + 16
        left = -(-self.parts * self.rows * self.m // 4) * 16
        gradient = -(-self.rows // 32) * self.fragments * 256 if self.back else 0
        beside = self.steps * self.fragments * 256 + max(left, gradient)
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

    def cycles(self, narrow: bool) -> float:
        """Cycles of a tile, fitted by hand to some thirty that were timed on an H200.

        Args:
            narrow: Whether a thread takes a row by itself through what follows the product.
        """
        columns, load = -(-self.k // 16), self.rows * self.k
        forward = max(
            3.2 * self.tiles * self.steps * self.fragments,
            -(-self.steps // self.parts) * (40 + 6 * self.fragments * self.own_tiles),
        )
        backward = 3.2 * columns * -(-self.rows // 32) * self.fragments + 200 * columns / self.warps
        rest = 4000 + (10 if narrow else 85) * self.rows + 100 * self.parts + 8 * (self.threads - 256)
        arrival = load / 32 if self.stages > 1 else load / 20 + 1500
        return rest + forward + (backward if self.back else 0.0) + arrival
