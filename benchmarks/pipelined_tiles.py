"""Times convolutions of deep networks on the GPU of this machine: the tile of today beside pipelined ones.

    python benchmarks/pipelined_tiles.py [--seconds N] [--tiles N] [--out FILE]
    python benchmarks/pipelined_tiles.py --dry    # says what would be timed, and compiles some; no GPU is needed

For each shape, whose operands are in memory in bfloat16: the tile that is chosen with `Options(pipelined=False)`, the
pipelined one that the model chooses, and the next best ones by the model; where the GPU has products by warpgroups, as
many tiles of these. All must compute the same. Times are medians in CUDA graphs, in microseconds; the model's are
printed beside them. Results are written after each shape.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from fit_tiles import Timer
from tile_cases import Case, kernel_of
from tile_fit import NEARBY, descended

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import Pipelined, costs_on
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import H200, Gpu
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile, PipelinedWeightGradientTile, PipelineWork
from minicnn.backends._gpu.tensor_families import TensorConvolutionTile, TensorWeightGradientTile
from minicnn.backends.cupy.compiler import compile_all

# Images, rows, channels, filters, taps along an axis, stride, padding, pooling: of ResNet-18 and -50, MobileNetV2,
# SqueezeNet and airbench94.
SHAPES = (
    (128, 16, 64, 64, 3, 1, 1, 1), (128, 8, 128, 128, 3, 1, 1, 1), (128, 4, 256, 256, 3, 1, 1, 1),
    (128, 2, 512, 512, 3, 1, 1, 1), (128, 16, 64, 128, 3, 2, 1, 1), (128, 16, 64, 128, 1, 2, 0, 1),
    (128, 16, 64, 256, 1, 1, 0, 1), (128, 16, 256, 64, 1, 1, 0, 1), (128, 4, 1024, 256, 1, 1, 0, 1),
    (128, 2, 512, 2048, 1, 1, 0, 1), (128, 16, 24, 144, 1, 1, 0, 1), (128, 16, 144, 24, 1, 1, 0, 1),
    (128, 4, 96, 576, 1, 1, 0, 1), (64, 15, 64, 16, 1, 1, 0, 1), (64, 15, 16, 64, 3, 1, 1, 1),
    (512, 31, 24, 64, 3, 1, 1, 1), (512, 15, 64, 256, 3, 1, 1, 1), (512, 7, 256, 256, 3, 1, 1, 1),
)  # fmt: skip


def cases() -> Iterator[Case]:
    """All that is timed."""
    for shape in SHAPES:
        for op in ("conv2d", "conv2d_input_gradient"):
            yield Case("convolution", op, "bfloat16", shape, "bfloat16")
        yield Case("weight_gradient", "conv2d_weight_gradient", "bfloat16", shape, "bfloat16")


def ahead_of(case: Case) -> type[PipelinedTile]:
    """The kind of pipelined tiles for a case."""
    return PipelinedTile if case.kind == "convolution" else PipelinedWeightGradientTile


def tiles_of(case: Case, gpu: Gpu, count: int) -> list[Tile]:
    """The tile of today, then pipelined ones: the best by the model first, and of the others the more the better.

    As many come of those by warps as of those by warpgroups.
    """
    node = next(n for n in case.program().nodes if n.op.name == case.op)
    family = TensorConvolutionTile if case.kind == "convolution" else TensorWeightGradientTile
    today = family.best(node, gpu, "bfloat16")
    best: dict[tuple[bool, str], Tile] = {}
    for tile in sorted(ahead_of(case).candidates(node, gpu, "bfloat16"), key=lambda tile: tile.score):
        best.setdefault((tile.warpgroups, str(tile.sizes)), tile)
    made = [today] if today else []
    for kind in (False, True):
        ahead = [tile for tile in best.values() if tile.warpgroups == kind]
        ranks = np.exp(np.random.default_rng(0).uniform(0, np.log(max(2, len(ahead))), 20 * count)).astype(int) - 1
        places = list(dict.fromkeys([*range(min(len(ahead), -(-count // 3))), *ranks.tolist()]))[:count]
        made += [ahead[k] for k in places if k < len(ahead)]
    return made


def said(case: Case, tiles: Sequence[Tile], us: Sequence[float], gpu: Gpu) -> str:
    """A line for people: today's, and of those by warps and by warpgroups the chosen one and the best."""
    timed = zip(tiles, us, strict=True)
    texts = [f"{found:.1f} ({tile.score / gpu.clock * 1e6:.1f}) {tile.sizes}" for tile, found in timed]
    line = f"{case.op} {case.sizes}: today {texts[0]}"
    for name, kind in (("warps", False), ("warpgroups", True)):
        if own := [k for k, tile in enumerate(tiles) if tile.stages and tile.warpgroups == kind]:
            best = min(own, key=lambda k: us[k])
            line += f"; by {name} chosen {texts[own[0]]}, best {texts[best]}"
    return line


def fitted(stored: Sequence[dict[str, Any]], gpu: Gpu, kind: str, restarts: int = 8) -> Pipelined:
    """Constants of a kind of tiles that fit times best; every fourth shape is left out, and only judged.

    Args:
        stored: Times.
        gpu: The GPU that they were taken on.
        kind: "pipelined" or "warpgroups".
        restarts: How often the search begins anew.
    """
    groups: list[tuple[bool, PipelineWork, np.ndarray[Any, Any]]] = []
    for one in stored:
        case = Case(one["kind"], one["op"], one["precision"], tuple(one["sizes"]))
        node = next(n for n in case.program().nodes if n.op.name == case.op)
        known = {str(block.tile.sizes | {"splits": splits}): work
                 for block, splits, work in ahead_of(case).works(node, gpu)
                 if block.tile.warpgroups == (kind == "warpgroups")}  # fmt: skip
        timed = [(known[sizes], us) for tile, us in zip(one["tiles"], one["us"], strict=True)
                 if tile["stages"] and tile.get("warpgroups", False) == (kind == "warpgroups")
                 and (sizes := str(tile["sizes"])) in known]  # fmt: skip
        if not timed:
            continue
        works, us = zip(*timed, strict=True)
        joined = PipelineWork(
            *(np.array([getattr(work, name) for work in works], float) for name in PipelineWork._fields)
        )
        groups.append((SHAPES.index(case.sizes) % 4 == 3, joined, np.array(us) * 1e-6 * gpu.clock))
    today = getattr(costs_on(gpu), kind)
    names = [field.name for field in fields(Pipelined)]

    def costs(moves: np.ndarray[Any, Any]) -> Pipelined:
        factors = zip(names, np.exp(moves).tolist(), strict=True)
        return Pipelined(**{name: float(f"{getattr(today, name) * by:.3g}") for name, by in factors})

    def loss(moves: np.ndarray[Any, Any]) -> float:
        total, now = 0.0, costs(moves)
        for left_out, work, cycles in groups:
            if not left_out:
                off = np.abs(np.log((work.cycles(gpu, now) - work.beside) / cycles))
                weights = (cycles.min() / cycles) ** 2
                total += np.average(np.where(off < 0.2, off * off / 2, 0.2 * (off - 0.1)), weights=weights)
        return total / len(groups) + NEARBY * float((moves**2).mean())

    def judged(now: Pipelined) -> str:
        ratios: dict[bool, list[float]] = {False: [], True: []}
        for left_out, work, cycles in groups:
            whole = cycles + work.beside
            ratios[left_out].append(float(whole[np.argmin(work.cycles(gpu, now))] / whole.min()))
        return ", ".join(f"{np.mean(found):.3f} ({len(found)})" for found in ratios.values())

    rng, best = np.random.default_rng(0), np.zeros(len(names))
    least = loss(best)
    for restart in range(restarts + 1):
        moves, value = descended(loss, best + rng.normal(0, 0.4, len(names)) * (restart > 0))
        if value < least:
            best, least = moves, value
    print(f"{kind}: chosen by best, shapes fitted to and left out: {judged(today)}; now {judged(costs(best))}")
    print(json.dumps(asdict(costs(best))))
    return costs(best)


def main() -> None:
    """Time all cases, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument(
        "--tiles", type=int, default=12, help="pipelined tiles of each shape, by warps and by warpgroups each"
    )
    parser.add_argument("--out", type=Path, default=Path("pipelined_tiles.json"))
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--fit", type=Path, help="fit the constants of the model to stored times; no GPU is needed")
    parser.add_argument("--compile", action="store_true", help="compile all kernels and leave them in MINICNN_CACHE")
    chosen = parser.parse_args()
    if chosen.fit:
        times = json.loads(chosen.fit.read_text("utf-8"))
        for kind in ("pipelined", "warpgroups"):
            if any(tile.get("warpgroups", False) == (kind == "warpgroups") for one in times for tile in one["tiles"]):
                fitted(times, H200, kind)
        return
    if chosen.compile:
        sources = [kernel_of(case, H200, tile) for case in cases() for tile in tiles_of(case, H200, chosen.tiles)]
        compile_all([source.text for source in sources], H200.architecture)
        return
    if chosen.dry:
        for case in cases():
            tiles = tiles_of(case, H200, chosen.tiles)
            print(said(case, tiles, [tile.score / H200.clock * 1e6 for tile in tiles], H200))
        sources = [kernel_of(case, H200, tile) for tile in tiles[:3]]
        for code in compile_all([source.text for source in sources], H200.architecture):
            print(resources(code))
        return
    from minicnn.backends.cupy.backend import CupyBackend

    backend, stored, end = CupyBackend(), [], time.perf_counter() + chosen.seconds
    timer, gpu = Timer(backend), backend.gpu
    for case in cases():
        try:
            found = list(timer(case, tiles_of(case, gpu, chosen.tiles)))
        except ArithmeticError as error:
            print(f"WRONG: {error}", flush=True)
            continue
        if len(found) > 1:
            print(said(case, *zip(*found, strict=True), gpu), flush=True)
        stored.append(
            asdict(case)
            | {
                "tiles": [asdict(tile) | {"sizes": tile.sizes} for tile, _ in found],
                "us": [us for _, us in found],
            }
        )
        chosen.out.write_text(json.dumps(stored), "utf-8")
        if time.perf_counter() > end:
            break


if __name__ == "__main__":
    main()
