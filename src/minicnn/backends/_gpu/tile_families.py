"""Families of tiles: sizes that a kernel is made of, by name, and what a launch with it asks of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from minicnn.kernels.convolutions import ConvolutionSizes
from minicnn.kernels.reductions import Sharing
from minicnn.kernels.tiles import TileShape
from minicnn.kernels.weight_gradients import WeightGradientSizes

Arguments: TypeAlias = tuple[int | bool, ...]
RUN = 8  # channels of a thread of depthwise tiles, which are 16 bytes


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Tile of a kernel: the piece of a result that a block computes at a time.

    Attributes:
        blocks: Blocks of the launch.
        threads: Threads of a block.
        splits: Into how many partial sums each sum is split (split-K).
        precision: In which operands are multiplied on tensor cores; None if they are not, but in their own.
        shared: Bytes of `dynamic_shared()` that a block needs, beside what its text declares.
        resident: Blocks of a multiprocessor that the compiler leaves registers for.
        stages: Steps of a sum that shared memory holds, ahead of the tensor cores; 0: it is filled for each.
        warpgroups: Whether tensor cores take operands from shared memory for four warps at a time (wgmma).
        score: By which it was chosen: the less, the faster; comparable with others of its kind.
    """

    blocks: int
    threads: int
    splits: int = 1
    precision: str | None = None
    shared: int = 0
    resident: int = 1
    stages: int = 0
    warpgroups: bool = False
    score: float = 0.0

    @property
    def arguments(self) -> Arguments:
        """Numbers that the template takes of what was chosen, in its order."""
        return ()


@dataclass(frozen=True, kw_only=True)
class ReductionTile(Tile):
    """Tile of a sum or a maximum.

    Attributes:
        results: Results.
        terms: Terms of each.
        columns: Results that a block has side by side.
        rows: Threads that share a result.
        terms_first: Whether neighbours in memory are terms, rather than results.
    """

    results: int
    terms: int
    columns: int
    rows: int
    terms_first: bool

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        return self.results, self.terms, self.splits, self.columns, self.rows

    @property
    def sharing(self) -> Sharing:
        """Division of the terms among threads, as the kernel language has it."""
        return Sharing(self.results, self.terms, self.columns, self.rows, self.splits, self.terms_first)


@dataclass(frozen=True, kw_only=True)
class ProductTile(Tile):
    """Tile of a matrix product by multiply-adds.

    Attributes:
        rows: Rows of a block.
        columns: Columns of a block.
        terms: Terms that shared memory holds.
        thread_rows: Rows of a thread.
        thread_columns: Columns of a thread.
    """

    rows: int
    columns: int
    terms: int
    thread_rows: int
    thread_columns: int

    @property
    def shape(self) -> TileShape:
        """The sizes, as the kernel language has them."""
        return TileShape(self.rows, self.columns, self.thread_rows, self.thread_columns, self.terms, self.splits)


@dataclass(frozen=True, kw_only=True)
class ConvolutionTile(Tile, ConvolutionSizes):
    """Tile of a convolution, or of its input gradient, by multiply-adds."""


@dataclass(frozen=True, kw_only=True)
class WeightGradientTile(Tile, WeightGradientSizes):
    """Tile of a convolution's weight gradient by multiply-adds."""


@dataclass(frozen=True, kw_only=True)
class TensorConvolutionTile(Tile):
    """Tile of a convolution, or of its input gradient, on tensor cores.

    Attributes:
        result_rows: Rows of the result that are computed: whole windows of a pooling behind it.
        result_columns: Columns of the result that are computed.
        images: Images of a block.
        patches_down: Patches of a block, down.
        patches_across: Patches of a block, across.
        filters: Filters of a block.
        channels: Channels that shared memory holds.
        patch_rows: Rows of a patch, which four threads compute.
        patch_columns: Columns of a patch.
        warp_columns: Columns of fragments of a warp.
        wide: Whether a record has a row of taps, which spares padding, rather than a single one.
    """

    result_rows: int
    result_columns: int
    images: int
    patches_down: int
    patches_across: int
    filters: int
    channels: int
    patch_rows: int
    patch_columns: int
    warp_columns: int
    wide: bool

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        block = (self.images, self.patches_down, self.patches_across, self.filters, self.channels)
        warp = (self.patch_rows, self.patch_columns, self.warp_columns)
        return self.result_rows, self.result_columns, *block, *warp, self.wide


@dataclass(frozen=True, kw_only=True)
class TensorWeightGradientTile(Tile):
    """Tile of a convolution's weight gradient on tensor cores.

    Attributes:
        channels: Channels of a block.
        filters: Filters of a block.
        images: Images that shared memory holds.
        rows: Rows of these.
        warp_rows: Rows of fragments of a warp.
        warp_columns: Columns of fragments of a warp.
        slices: Groups of warps that share the terms of a sum.
        wide: Whether a record has a row of taps, which spares padding, rather than a single one.
    """

    channels: int
    filters: int
    images: int
    rows: int
    warp_rows: int
    warp_columns: int
    slices: int
    wide: bool

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        block = (self.channels, self.filters, self.images, self.rows)
        return *block, self.warp_rows, self.warp_columns, self.slices, self.splits, self.wide


@dataclass(frozen=True, kw_only=True)
class TensorProductTile(Tile):
    """Tile of a matrix product on tensor cores.

    Attributes:
        rows: Rows of a block.
        columns: Columns of a block.
        terms: Terms that shared memory holds.
        warp_rows: Rows of fragments of a warp.
        warp_columns: Columns of fragments of a warp.
        slices: Groups of warps that share the terms of a sum.
    """

    rows: int
    columns: int
    terms: int
    warp_rows: int
    warp_columns: int
    slices: int

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        return self.rows, self.columns, self.terms, self.warp_rows, self.warp_columns, self.slices, self.splits


@dataclass(frozen=True, kw_only=True)
class PipelinedTile(Tile):
    """Tile of a convolution or one of its gradients, as a product whose 16-bit operands are loaded ahead.

    Attributes:
        rows: Rows of a block: positions, or weights of a filter.
        columns: Columns of a block: filters.
        terms: Terms of a step.
        warp_rows: Rows of fragments of a warp; of a warpgroup, rows of 64.
        warp_columns: Columns of fragments of a warp, or of a warpgroup.
    """

    rows: int
    columns: int
    terms: int
    warp_rows: int
    warp_columns: int

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        return self.rows, self.columns, self.terms, self.warp_rows, self.warp_columns, self.stages, self.splits

    def row_blocks(self, channels: int, groups: int) -> int:
        """Blocks that make the same channels of a convolution's result."""
        return self.blocks // (-(-channels // groups // self.columns) * groups)


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

    runs: int
    images: int
    rows: int
    columns: int
    strip: int

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        return self.runs, self.images, self.rows, self.columns, self.strip, self.threads

    def row_blocks(self, channels: int, groups: int) -> int:
        """Blocks that make the same channels of a convolution's result, of which there are as many as groups."""
        return self.blocks // (channels // (RUN * self.runs))


@dataclass(frozen=True, kw_only=True)
class DepthwiseWeightGradientTile(DepthwiseTile):
    """Tile of a depthwise convolution's weight gradient.

    Attributes:
        tap_rows: Rows of taps of a thread.
    """

    tap_rows: int

    @property
    def arguments(self) -> Arguments:
        """See `Tile.arguments`."""
        return *super().arguments, self.tap_rows, self.splits


@dataclass(frozen=True, kw_only=True)
class PlainTile(Tile):
    """Tile of a product that is in the kernel language.

    Attributes:
        shape: Its sizes.
    """

    shape: TileShape
