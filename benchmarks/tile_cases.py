"""What `fit_tiles.py` times: shapes of operations, samples of their tiles, and the kernels of these."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tensor_families import (
    TensorConvolutionTile,
    TensorProductTile,
    TensorWeightGradientTile,
)
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tile_times import Candidates
from minicnn.backends.cupy.generation import generate
from minicnn.program.graph import Node, Program

MOST_OPERATIONS, LEAST_OPERATIONS, MOST_ELEMENTS = 2**33, 2**17, 2**25


@dataclass(frozen=True)
class Case:
    """An operation of one shape.

    Attributes:
        kind: Whose constants it is for, one of `KINDS`.
        op: The primitive.
        precision: In which operands are multiplied.
        sizes: Of a product rows, columns, terms and whether either operand is transposed; else images, their rows and
            columns, channels, filters, taps along an axis, stride, padding and window of the max-pooling behind.
        stored: In which format a convolution's operands are in memory.
    """

    kind: str
    op: str
    precision: str
    sizes: tuple[int, ...]
    stored: str = "float32"

    def program(self) -> Program:
        """The operation alone, on arrays that begin where an engine places them."""
        program = Program(self.op)
        if self.kind == "product":
            m, n, k, ta, tb = self.sizes
            a = program.input("a", (k, m) if ta else (m, k), kind="parameter")
            b = program.input("b", (n, k) if tb else (k, n), kind="parameter")
            program.outputs["y"] = ops.matmul(a, b, transpose_a=bool(ta), transpose_b=bool(tb))
            return program
        n, image, c, f, kernel, stride, pad, pool = self.sizes
        out, plain = self.out, {"dilation": (1, 1), "groups": 1, "data_format": "NHWC"}
        attrs: dict[str, Any] = {**plain, "strides": (stride, stride), "padding": ((pad, pad), (pad, pad))}
        x = (n, image, image, c) if self.op != "conv2d_input_gradient" else (n, out, out, f)
        w = (kernel, kernel, c, f) if self.kind == "convolution" else (n, out, out, f)
        a, b = (program.input(name, s, self.stored, kind="parameter") for name, s in (("a", x), ("b", w)))
        if self.stored != "float32":
            a, b = (ops.cast(v, dtype="float32") for v in (a, b))
        if self.op == "conv2d":
            y = ops.conv2d(a, b, **attrs)
            window: dict[str, Any] = {"kernel": (pool, pool), "strides": (pool, pool), "padding": ((0, 0), (0, 0))}
            program.outputs["y"] = ops.max_pool2d(y, **window, data_format="NHWC") if pool > 1 else y
        elif self.op == "conv2d_input_gradient":
            program.outputs["y"] = ops.conv2d_input_gradient(a, b, **attrs, image=(image, image))
        else:
            program.outputs["y"] = ops.conv2d_weight_gradient(b, a, **attrs, kernel=(kernel, kernel))
        return program

    @property
    def out(self) -> int:
        """Rows of a convolution's result."""
        _, image, _, _, kernel, stride, pad, _ = self.sizes
        return (image + 2 * pad - kernel) // stride + 1

    @property
    def sensible(self) -> bool:
        """Whether there is such an operation, neither tiny nor huge."""
        if self.kind == "product":
            m, n, k, *_ = self.sizes
            operations, elements = m * n * k, max(m * n, m * k, n * k)
        else:
            n, image, c, f, kernel, _, pad, pool = self.sizes
            if image + 2 * pad < kernel or self.out < pool:
                return False
            operations, elements = n * self.out**2 * c * f * kernel**2, n * max(image**2 * c, self.out**2 * f)
        return LEAST_OPERATIONS <= operations <= MOST_OPERATIONS and elements <= MOST_ELEMENTS

    def candidates(self, gpu: Gpu) -> list[Candidates]:
        """The tiles that the model chooses from."""
        node = self.program().nodes[0]
        if self.kind == "product":
            return TensorProductTile.candidates(node, gpu, self.precision)
        if self.kind == "weight_gradient":
            return TensorWeightGradientTile.candidates(node, gpu, self.precision)
        pool = (self.sizes[-1], self.sizes[-1]) if self.sizes[-1] > 1 else None
        return TensorConvolutionTile.candidates(node, gpu, self.precision, pool=pool)


# The layers of the studies' networks and of common deep ones.
CONVOLUTIONS = (
    (512, 28, 1, 8, 3, 1, 0, 2), (512, 13, 8, 16, 3, 1, 0, 2), (64, 28, 1, 16, 3, 1, 0, 1),
    (64, 26, 16, 32, 3, 1, 0, 2),
    (128, 32, 64, 64, 3, 1, 1, 1), (128, 16, 128, 128, 3, 1, 1, 1), (128, 16, 64, 128, 3, 2, 1, 1),
    (64, 64, 3, 64, 7, 2, 3, 1), (128, 8, 256, 256, 3, 1, 1, 1), (128, 16, 128, 32, 1, 1, 0, 1),
)  # fmt: skip
PRODUCTS = (
    (512, 128, 400, 0, 0),
    (400, 128, 512, 1, 0),
    (512, 400, 128, 0, 1),
    (64, 10, 4608, 0, 0),
    (2048, 512, 512, 0, 0),
)


def cases(kind: str, rng: np.random.Generator) -> Iterator[Case]:
    """Shapes of a kind: ordinary ones, then random ones without end."""
    precisions = ("float32", "float32", "bfloat16")
    ordinary = PRODUCTS if kind == "product" else CONVOLUTIONS
    ops_of = {"product": ("matmul",), "weight_gradient": ("conv2d_weight_gradient",)}
    names = ops_of.get(kind, ("conv2d", "conv2d_input_gradient"))
    for k, sizes in enumerate(ordinary):
        yield _case(kind, names[k // 2 % len(names)], precisions[k % 3], sizes)
    while True:
        if kind == "product":
            sizes = (*(int(2 ** rng.uniform(3, 11.5)) for _ in range(3)), *rng.integers(0, 2, 2).tolist())
        else:
            channels = (1, 3, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
            batches, images = (1, 16, 32, 64, 96, 128, 256, 512), (4, 7, 8, 13, 14, 16, 28, 32, 56)
            kernel = int(rng.choice((1, 3, 3, 3, 5, 7)))
            some = batches, images, channels, channels[3:], (kernel,), (1, 1, 2), (0, kernel // 2), (1, 1, 2)
            sizes = tuple(int(rng.choice(values)) for values in some)
        case = _case(kind, str(rng.choice(names)), str(rng.choice(precisions)), sizes)
        if case.sensible:
            yield case


def _case(kind: str, op: str, precision: str, sizes: tuple[int, ...]) -> Case:
    """A case, in which only what comes out of a convolution goes through max-pooling."""
    return Case(kind, op, precision, sizes if kind == "product" or op == "conv2d" else (*sizes[:-1], 1))


def sampled(case: Case, gpu: Gpu, count: int, rng: np.random.Generator) -> list[Tile]:
    """Some tiles of a case that fit a GPU: the best by the model first, and of the others the more the better."""
    found, costs = case.candidates(gpu), getattr(costs_on(gpu), case.kind)
    cycles = [some.cycles(gpu, costs, case.precision) for some in found]
    together = np.concatenate([np.zeros(0), *cycles])
    order = np.argsort(together, kind="stable")[: int(np.isfinite(together).sum())]
    ends = np.cumsum([len(some) for some in cycles])
    ranks = np.exp(rng.uniform(0, math.log(max(2, len(order))), 20 * count)).astype(int) - 1
    tiles: dict[str, Tile] = {}
    for k in order[[0, *ranks]].tolist() if len(order) else ():
        which = int(np.searchsorted(ends, k, side="right"))
        tile = found[which].tile(k - int(ends[which]), case.precision)  # counted from the end
        tiles.setdefault(str(tile.sizes), tile)
        if len(tiles) == count:
            break
    return list(tiles.values())


@dataclass(frozen=True)
class One(TensorTiles):
    """The same tile for everything."""

    tile: Tile | None = None

    def convolution(self, node: Node, pool: tuple[int, int] | None = None) -> Tile | None:
        """See `Tiles.convolution`."""
        return self.tile

    def weight_gradient(self, node: Node) -> Tile | None:
        """See `Tiles.weight_gradient`."""
        return self.tile

    def product(self, node: Node, *, joined: bool = False) -> Tile:
        """See `Tiles.product`."""
        if self.tile is None:
            raise ValueError(f"The kernel of a product has a tile. Received: none for {node!r}.")
        return self.tile


def kernel_of(case: Case, gpu: Gpu, tile: Tile) -> Source:
    """The kernel of a case with a tile, without that which adds up its partial sums."""
    tiles = One(gpu, case.precision, tile=tile, pipelined=tile.stages > 0)
    plan = Plan(rewrite(case.program(), tiles=tiles, fuse=True, tiled=True), tiles=tiles, fuse=True, tiled=True)
    source = generate(plan, plan.launches[0], set())
    if source.blocks != tile.blocks or source.shared != tile.shared:
        raise AssertionError(f"The first launch of a case is that of its tile. Received: {source.title} for {case}.")
    return source
