"""The fit of the model of tile times to measured times, in NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from tile_cases import Case

from minicnn.backends._gpu.costs import Costs
from minicnn.backends._gpu.device import Gpu
from minicnn.backends._gpu.tile_times import Blocks

FARTHEST = math.log(8)  # that a constant goes from that of today
NEARBY = 2e-3  # weight of the mean square of how far they go
CAP = 3.0  # of a difference of logarithms: where the model says that a tile does not fit

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Timed:
    """The tiles of one shape that were timed.

    Attributes:
        blocks: Their blocks.
        precision: In which operands are multiplied.
        cycles: That each was measured to take.
        beside: Cycles of adding up its partial sums, by the model.
    """

    blocks: Blocks
    precision: str
    cycles: Array
    beside: Array

    @classmethod
    def of(cls, stored: dict[str, Any], gpu: Gpu) -> Timed:
        """What is stored of a shape; a tile that is not chosen from any more is left out."""
        case = Case(stored["kind"], stored["op"], stored["precision"], tuple(stored["sizes"]))
        wanted, us, parts = stored["tiles"], np.array(stored["us"]), []
        for some in case.candidates(gpu):
            count = len(some.work.blocks)
            sizes = {name: np.broadcast_to(size, count) for name, size in some.tiles.sizes.items()}
            places = [np.flatnonzero(np.all([sizes[name] == tile[name] for name in sizes], axis=0)) for tile in wanted]
            at = np.array([k[0] for k in places if len(k)], dtype=int)
            known = np.array([len(k) > 0 for k in places])
            parts.append((_taken(some.work, at), us[known], np.broadcast_to(some.beside, count)[at]))
        blocks, times, beside = zip(*parts, strict=True)
        cycles = np.concatenate(times) * 1e-6 * gpu.clock
        return cls(_joined(blocks), case.precision, cycles, np.concatenate(beside))

    def ratio(self, gpu: Gpu, costs: Costs) -> float:
        """How much longer the tile takes that the model chooses than the best of them."""
        chosen = int(np.argmin(self.blocks.cycles(gpu, costs, self.precision) + self.beside))
        whole = self.cycles + self.beside
        return float(whole[chosen] / whole.min())


def _taken(blocks: Blocks, at: Array) -> Blocks:
    """Some of the candidates."""

    def taken(of: Any) -> Any:
        return tuple(map(taken, of)) if isinstance(of, tuple) else np.broadcast_to(of, len(blocks.blocks))[at]

    return Blocks(*(taken(getattr(blocks, field.name)) for field in fields(Blocks)))


def _joined(blocks: Sequence[Blocks]) -> Blocks:
    """All candidates of several."""

    def joined(of: Sequence[Any]) -> Any:
        return tuple(map(joined, zip(*of, strict=True))) if isinstance(of[0], tuple) else np.concatenate(of)

    return Blocks(*(joined([getattr(one, field.name) for one in blocks]) for field in fields(Blocks)))


def fit(timed: Sequence[Timed], gpu: Gpu, today: Costs, restarts: int, seed: int = 0) -> Costs:
    """The constants near those of today that fit times best.

    Minimises the mean of Huber's loss of the logarithms of modelled by measured cycles, in which a tile counts by how
    quick it is beside the best of its shape, plus the mean square of the logarithms of constants by those of today.
    """
    names = [f.name for f in fields(Costs) if f.name != "resident" and getattr(today, f.name) > 0]
    groups = []
    for precision in sorted({one.precision for one in timed}):
        some = [one for one in timed if one.precision == precision]
        cycles = np.concatenate([one.cycles for one in some])
        weights = np.concatenate([one.cycles.min() / one.cycles for one in some])
        groups.append((precision, _joined([one.blocks for one in some]), np.log(cycles), weights))
    whole = sum(weights.sum() for *_, weights in groups)

    def costs(moves: Array) -> Costs:
        factors = zip(names, np.exp(moves).tolist(), strict=True)
        return replace(today, **{name: float(f"{getattr(today, name) * by:.4g}") for name, by in factors})

    def loss(moves: Array) -> float:
        total, now = 0.0, costs(moves)
        for precision, blocks, measured, weights in groups:
            modelled = blocks.cycles(gpu, now, precision)
            off = np.minimum(np.abs(np.log(modelled) - measured), CAP)
            total += (weights * np.where(off < 0.2, off * off / 2, 0.2 * (off - 0.1))).sum()
        return float(total / whole + NEARBY * (moves**2).mean())

    rng, best = np.random.default_rng(seed), np.zeros(len(names))
    least = loss(best)
    for restart in range(restarts + 1):
        start = best + rng.normal(0, 0.4, len(names)) * (restart > 0)
        moves, value = descended(loss, np.clip(start, -FARTHEST, FARTHEST))
        if value < least:
            best, least = moves, value
    return costs(best)


def descended(loss: Callable[[Array], float], at: Array) -> tuple[Array, float]:
    """Where steps along single coordinates, shorter and shorter ones, do not lead further down; and the loss there."""
    value = loss(at)
    for step in (0.5, 0.25, 0.1, 0.05, 0.02):
        moved = True
        for _ in range(8):
            if not moved:
                break
            moved = False
            for k in range(len(at)):
                for by in (step, -step):
                    new = at.copy()
                    new[k] = np.clip(at[k] + by, -FARTHEST, FARTHEST)
                    found = loss(new)
                    if found < value:
                        at, value, moved = new, found, True
                        break
    return at, value
