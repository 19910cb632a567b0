"""Times tiles on tensor cores on the GPU of this machine, and fits the constants of the model of their times.

    python benchmarks/fit_tiles.py [--kinds KIND,...] [--seconds N] [--out FILE] [--constants FILE]
    python benchmarks/fit_tiles.py --times FILE      # fit stored times again; no GPU is needed
    python benchmarks/fit_tiles.py --dry --gpu NAME  # say what would be timed, and compile a few; no GPU is needed

Draws shapes of convolutions, weight gradients and products: ordinary ones first, then random ones. Of each it takes a
sample of the tiles that the model chooses from, the more of them the better they are by the model of today; compiles
them side by side; compares their results; and times each in a CUDA graph. Times are written as JSON after each shape.

The constants are then fitted to the logarithms of the times, near the constants of today: a search along one constant
after the other, from those and from others at random. Every fourth shape is left out, and only judged. What counts is
how much longer the tile that the model chooses takes than the best of the sample, which is printed before and after.
The file of constants belongs into src/minicnn/backends/_gpu/fitted/.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tile_cases import MOST_ELEMENTS, Case, cases, kernel_of, sampled
from tile_fit import Timed, fit

from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.costs import KINDS, costs_on, fitted_on
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import KNOWN, Gpu
from minicnn.backends._gpu.errors import FitError
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends.cupy.compiler import compile_all
from minicnn.program.graph import Value

REPEATS, ROUNDS = 20, 5  # launches in a graph; launches of it, of which the median counts
TOLERANCE = 4e-3  # of the largest result: sums in another order, which tensor cores truncate


class Timer:
    """Times kernels on the GPU of a backend."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._runtime = backend, backend.runtime
        noise = np.random.default_rng(0).random(2 * MOST_ELEMENTS, dtype="float32") - np.float32(0.5)
        self._noise = backend.asarray(noise)
        self._short = functools.cache(
            lambda: backend.asarray((noise.view("uint32") >> 16).astype("uint16"))
        )  # bfloat16

    def __call__(self, case: Case, tiles: Sequence[Tile]) -> Iterator[tuple[Tile, float]]:
        """Microseconds of those tiles that fit.

        Raises:
            ArithmeticError: If one computes something else than the first.
        """
        runtime, gpu = self._runtime, self._backend.gpu
        sources = [kernel_of(case, gpu, tile) for tile in tiles]
        compile_all([source.text for source in sources], gpu.architecture)  # side by side; loading reads what it made
        expected = None
        for tile, source in zip(tiles, sources, strict=True):
            text = KernelText(source.text, source.signature, source.threads, source.shared, source.title)
            with runtime.active():
                try:
                    (kernel,) = runtime.load([text])
                except FitError:
                    continue
                arrays = {value.name: self._array(value) for value in source.arguments}
                us = self._microseconds(runtime.prepare(kernel, source.blocks, list(arrays.values())))
                (result,) = (arrays[value.name] for value in source.arguments if value.node is not None)
                found = self._backend.to_numpy(result).astype("float64").reshape(tile.splits, -1).sum(axis=0)
            expected = found if expected is None else expected
            error = np.abs(found - expected).max() / np.abs(expected).max()
            if not error < TOLERANCE:
                raise ArithmeticError(f"{case} with {tile}, which differs by {error:.2g} from {tiles[0]}. Report this.")
            yield tile, us

    def _array(self, value: Value) -> Any:
        """Memory of an operand, which holds noise, or of the result."""
        if value.node is not None:
            return self._runtime.empty(value.shape, value.dtype)
        start = 0 if value.name == "a" else 4 * MOST_ELEMENTS
        if value.dtype == "bfloat16":
            return self._runtime.view(self._short(), start // 2, value.shape, "uint16")
        return self._runtime.view(self._noise, start, value.shape, value.dtype)

    def _microseconds(self, launch: Callable[[], None]) -> float:
        runtime, times = self._runtime, []
        graph = runtime.capture([launch] * REPEATS)
        for _ in range(ROUNDS + 1):
            start, end = runtime.event(timed=True), runtime.event(timed=True)
            runtime.record(start)
            graph()
            runtime.record(end)
            runtime.synchronize(end)
            times.append(runtime.seconds(start, end) * 1e6 / REPEATS)
        return float(np.median(times[1:]))


def measure(kinds: Sequence[str], backend: Any, seconds: float, count: int, seed: int, out: Path) -> dict[str, Any]:
    """Time tiles of one case of each kind after the other until the time is over; all are in `out` at any time."""
    timer, rng, gpu = Timer(backend), np.random.default_rng(seed), backend.gpu
    stored: dict[str, Any] = {"gpu": asdict(gpu), "timed": [], "wrong": []}
    drawn, end = {kind: cases(kind, rng) for kind in kinds}, time.perf_counter() + seconds
    while True:
        for kind in kinds:
            case = next(drawn[kind])
            try:
                found = list(timer(case, sampled(case, gpu, count, rng)))
            except ArithmeticError as error:
                print(f"WRONG: {error}", flush=True)
                found = []
                stored["wrong"].append(str(error))
            if found:
                us = [us for _, us in found]
                stored["timed"].append(asdict(case) | {"tiles": [tile.sizes for tile, _ in found], "us": us})
                said = f"{len(us)} tiles, chosen {us[0]:.2f} us, best {min(us):.2f} us"
                print(f"{kind} {case.op} {case.precision} {case.sizes}: {said}", flush=True)
            out.write_text(json.dumps(stored), "utf-8")
            if time.perf_counter() > end:
                return stored


def fit_all(timed: Sequence[dict[str, Any]], gpu: Gpu, restarts: int) -> dict[str, Any]:
    """The constants of each kind that was timed, and what was fitted on the GPU before, as data."""
    name = next((known.name for known in KNOWN.values() if known.name in gpu.name), gpu.name)
    made: dict[str, Any] = {**fitted_on(gpu), "gpu": name}
    for kind in KINDS:
        found = [Timed.of(one, gpu) for one in timed if one["kind"] == kind]
        found = [one for one in found if len(one.cycles) > 1]
        if not found:
            continue
        judged = found[3::4] if len(found) >= 8 else []
        fitted = [one for k, one in enumerate(found) if k % 4 != 3 or not judged]
        today = getattr(costs_on(gpu), kind)
        costs = fit(fitted, gpu, today, restarts)
        for what, some in (("fitted to", fitted), ("left out", judged)):
            if some:
                ratios = [[one.ratio(gpu, by) for one in some] for by in (today, costs)]
                said = [f"{np.mean(r):.3f} in the mean, {max(r):.3f} at worst" for r in ratios]
                print(f"{kind}, {len(some)} shapes {what}: chosen / best was {said[0]}; is {said[1]}", flush=True)
        tiles = sum(len(one.cycles) for one in fitted)
        made[kind] = {"tiles": tiles, "shapes": len(fitted), "constants": asdict(costs)}
    return made


def dry(kinds: Sequence[str], gpu: Gpu, count: int, seed: int) -> None:
    """Say what would be timed first, and compile two tiles of each kind."""
    rng = np.random.default_rng(seed)
    for kind in kinds:
        drawn = cases(kind, rng)
        for k in range(12):
            case = next(drawn)
            tiles = sampled(case, gpu, count, rng)
            print(
                f"{kind} {case.op} {case.precision} {case.sizes}:",
                f"{len(tiles)} tiles, {[t.sizes for t in tiles[:2]]}",
            )
            if k == 0:
                sources = [kernel_of(case, gpu, tile) for tile in tiles[:2]]
                for source, code in zip(sources, compile_all([s.text for s in sources], gpu.architecture), strict=True):
                    found = resources(code)
                    print(f"  {source.blocks} x {source.threads}, {found.registers} registers, {source.shared} bytes")


def main(arguments: Sequence[str] | None = None) -> None:
    """Time tiles and fit, or one of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=600, help="for compiling and timing; the fit comes after it")
    parser.add_argument("--tiles", type=int, default=24, help="of each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("tile_times.json"), help="times")
    parser.add_argument("--constants", type=Path, help="the fitted constants; beside the times if it is not given")
    parser.add_argument("--times", type=Path, help="fit these, and time nothing")
    parser.add_argument("--dry", action="store_true", help="say what would be timed, and compile a few")
    parser.add_argument("--gpu", default="h200", choices=KNOWN, help="what --dry is for")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds are some of {', '.join(KINDS)}. Received: {', '.join(sorted(unknown))}.")
    if chosen.dry:
        dry(kinds, KNOWN[chosen.gpu], chosen.tiles, chosen.seed)
        return
    if chosen.times:
        stored = json.loads(chosen.times.read_text("utf-8"))
        described: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored["gpu"].items()}
        gpu = Gpu(**described)
    else:
        from minicnn.backends.cupy.backend import CupyBackend

        backend = CupyBackend()
        if backend.gpu is None or not backend.gpu.has_tensor_cores:
            sys.exit(f"Tiles on tensor cores need compute capability 8.0 or later. Received: {backend}, {backend.gpu}.")
        gpu = backend.gpu
        stored = measure(kinds, backend, chosen.seconds, chosen.tiles, chosen.seed, chosen.out)
    made = fit_all([one for one in stored["timed"] if one["kind"] in kinds], gpu, chosen.restarts)
    path = chosen.constants or (chosen.times or chosen.out).with_suffix(".constants.json")
    path.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(f"constants: {path}")
    if wrong := stored.get("wrong"):
        sys.exit(f"All tiles of a shape compute the same. Received: others for {len(wrong)} shapes, such as {wrong[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # no machine code of tiles that are not chosen stays on the disk
        os.environ.setdefault("MINICNN_CACHE", folder)
        main()
