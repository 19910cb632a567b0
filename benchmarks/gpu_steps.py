"""Time of training steps on one GPU: kernel by kernel beside its roof, by layer, the whole, and the host's work.

    python benchmarks/gpu_steps.py [--backend NAME ...] [--precision NAME ...] [--shared KB] [--json FILE]
                                   [--ablate OPTIONS ...] [--image N] [--classes N] [--batch N] [--whole] [--dry]
                                   [NETWORK ...]

Networks are the reference studies (mlp, platforms, kernels) and the deep ones of `gpu_peers.py` (resnet18, resnet50,
mobilenet_v2, squeezenet1_1, vgg11), whose sizes can be chosen.

Data are random uint8 images, which take the same time as real ones; `mlp_float` is `mlp` on images in float32, as its
study has them. Times are medians, synchronised, on CUDA graphs. With --shared, blocks have at most so much shared
memory, as they do on other GPUs: 99 KB on an RTX 30, 40 or 50.

With --ablate, each network is measured again with a field of `Options` the other way round, or with several, right
after the first measurement: `--ablate pipelined --ablate fused,tiled`.

The roof of a kernel is the time that its bytes or its FLOPs take at the GPU's peaks. The host's work is how long a call
that runs one step takes while the GPU is idle, and nothing is read; beside it stands what the launch of the step's
graph takes of that, which is CUDA's. Results are written after each network.

With --whole, kernels are not timed by themselves.

With --dry, kernels run on the CPU (tests/backends/cupy/emulated.py): to see that it works.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.backends import backend_class
from minicnn.backends._gpu.device import KB
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import planned_launch
from minicnn.backends._gpu.source import Source
from minicnn.data.forms import as_data
from minicnn.jobs.settings import DEFAULT, RECIPES
from minicnn.loop.totals import Totals
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import Spread, stopwatch
from minicnn.measure.cases import CASES, TrainingCase
from minicnn.measure.cases import network as case_network
from minicnn.optimizers import SGD
from minicnn.zoo import get_model


def build(study: str, backend: Any, precision: str = "float32", deep: TrainingCase | None = None) -> Any:
    """A network, compiled; a deep one for the images of a case."""
    name = study.removesuffix("_float")
    recipe = RECIPES.get(name, DEFAULT)
    model = get_model(name, backend=backend) if name != study else case_network(name, deep, backend)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(recipe.learning_rate, momentum=recipe.momentum), loss, ["accuracy"], precision=precision)
    return model


# Batch, samples and steps of one timed run of each study.
SIZES = {
    "mlp": (59_000, 59_000, 500), "mlp_float": (59_000, 59_000, 500), "platforms": (512, 60_000, 118),
    "kernels": (64, 60_000, 938),
}  # fmt: skip
DEEP = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "vgg11")


def network(name: str, options: Options, *, dry: bool) -> Any:
    """The backend of a name; one that runs kernels on the CPU in a dry run."""
    if not dry or name == "webgpu":  # which has an adapter on the CPU
        return backend_class(name)(strict=True, options=options)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from backends.cupy.emulated import EmulatedBackend

    return EmulatedBackend(strict=True, options=options)


def by_layer(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Microseconds and roof of each layer, the longest first; of a kernel for several layers, the first has all."""
    found: dict[str, list[float]] = {}
    for row in rows:
        one = found.setdefault(row["layers"][0] if row["layers"] else "", [0.0, 0.0])
        one[0], one[1] = one[0] + row["us"], one[1] + row["roof_us"]
    return sorted(((name, us, roof) for name, (us, roof) in found.items()), key=lambda r: -r[1])


def host_seconds(call: Callable[[], Any], synchronize: Callable[[], None], rounds: int) -> float:
    """Median time of a call that runs one step: of two calls after the GPU was idle, so that none waits for it.

    A third would: it writes to pinned memory, from which the GPU copies for the first, and a fourth to that of the
    second, which is copied once the first step has ended. Two steps are far from filling CUDA's queue, too.
    """
    times: list[float] = []
    for _ in range(rounds):
        synchronize()
        times += [stopwatch(call), stopwatch(call)]
    synchronize()
    return Spread.of(times[2:]).median


def seconds(backend: Any, run: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of a call, with the device idle before and after."""
    return Spread.of([stopwatch(run, backend.synchronize) for _ in range(repeats)]).median


def graphs(executable: Any, arrays: dict[str, Any], repeats: int) -> Iterator[Callable[[], None]]:
    """For each kernel of a step a graph that runs it so many times, unless that is 0; then one of 16 steps."""
    runtime = executable._runtime
    runtime.clear(executable._cursor)
    for launch in executable._launches(arrays, 0)[: executable.launched if repeats else 0]:
        yield runtime.capture([launch] * repeats)
    yield runtime.capture([launch for k in range(16) for launch in executable.step(arrays, k)])


def orders(rng: np.random.Generator, samples: int, batch: int, steps: int) -> np.ndarray[Any, Any]:
    """Row numbers of each step, int32 (steps, batch)."""
    if batch == samples:  # the whole set each time: the queue holds one order
        return np.broadcast_to(np.arange(batch, dtype="int32"), (steps, batch))
    some = np.stack([rng.permutation(samples)[:batch] for _ in range(min(steps, 64))]).astype("int32")
    return np.resize(some, (steps, batch))


def measure(
    study: str,
    name: str,
    precision: str = "float32",
    shared: int | None = None,
    repeats: int = 50,
    *,
    deep: TrainingCase | None = None,
    dry: bool = False,
    other: str | None = None,
) -> dict[str, Any]:
    """All figures of one network on one backend, whose options named in `other` (by commas) are not the usual ones."""
    batch, samples, steps = SIZES[study] if deep is None else (deep.batch, 20 * deep.batch, 64)
    if dry:
        batch = min(batch, 8)
        samples, steps = 2 * batch, 16  # as a graph has
    rng, case = np.random.default_rng(0), deep or TrainingCase()
    x = rng.integers(0, 256, (samples, *case.image)).astype("uint8")
    y = rng.integers(0, case.classes, samples).astype("int32")
    given: tuple[Any, Any] = x, y
    index: np.ndarray[Any, Any] | None = orders(rng, samples, batch, steps)
    if study == "mlp_float":  # as its study does: each step takes the arrays as they are
        given, index = (as_data([((x / 255).astype("float32"), y)]), None), None
    start = time.perf_counter()
    usual = Options()
    changed = {option: not getattr(usual, option) for option in (other or "").split(",") if option}
    backend = network(name, replace(usual, **changed), dry=dry)
    if shared:
        backend.tiles = replace(backend.tiles, gpu=replace(backend.tiles.gpu, shared_block=shared * KB))
    model = build(study, backend, precision, deep)
    training = model._training
    source = training.source(*given, None, batch, last_batch="pad")
    first_step = next(source.runs(shuffle=False, seed=0, epoch=0))
    training.train(first_step, Totals())
    backend.synchronize()
    first = time.perf_counter() - start
    model.optimizer.learning_rate = 1e-4
    every_step = replace(first_step, steps=steps, index=index)

    def run() -> None:
        training.train(every_step, Totals())

    run()
    whole = seconds(backend, run, 1 if dry else 5)
    executable = training.executor._compiled["train", first_step.feed].many.__self__
    state = training.variables.state()
    bound = {**state, **first_step.arrays, **executable._static, **executable._queue}
    *each, graph = graphs(executable, bound, repeats)
    rows = []
    for one, groups, launch in zip(executable._sources, executable._plan.launches, each, strict=bool(repeats)):
        launch()
        us = seconds(backend, launch, 1 if dry else 5) / repeats * 1e6
        known = planned_launch(executable._plan, groups, lambda one=one: one) if isinstance(one, Source) else None
        rows.append(
            {
                "title": f"{one.title[:70]} [{one.blocks} x {one.threads}]",
                "layers": list(dict.fromkeys(n.scope for n in known.nodes)) if known else [],
                "us": us,
                "roof_us": known.roof * 1e6 if known else 0.0,
                "modelled_us": known.seconds * 1e6 if known else 0.0,
                "bytes": known.nbytes if known else 0,
                "flops": known.flops if known else 0,
            }
        )

    def graph_only() -> None:
        for _ in range(max(1, steps // 16)):
            graph()

    alone = seconds(backend, graph_only, 1 if dry else 5) / (max(1, steps // 16) * 16) * steps
    so_far, one_step = Totals(), replace(first_step, index=None if index is None else index[:1])

    def step() -> None:
        nonlocal so_far
        so_far = training.train(one_step, so_far)

    rounds = 2 if dry else 20
    host = host_seconds(step, backend.synchronize, rounds)
    last_used = next(reversed(executable._graphs.values()))

    def idle() -> None:
        executable._runtime.clear(executable._cursor)  # each launch takes another row of the queue
        backend.synchronize()

    launching = host_seconds(last_used[1], idle, rounds)
    result = {
        "study": study,
        "backend": name,
        "precision": precision,
        "ablated": other,
        "batch": batch,
        "ms": whole * 1e3,
        "graph_ms": alone * 1e3,
        "host_us": host * 1e6,
        "launch_us": launching * 1e6,
        "steps": steps,
        "first_s": first,
        "arena_bytes": executable.arena_bytes,
        "kernels": rows,
    }
    ablated = f" with the other {other}" if other else ""
    print(f"\n{study} on {name} in {precision}{ablated}: {whole * 1e3:.2f} ms,")
    print(f"  {steps} steps of {whole / steps * 1e6:.1f} us,")
    print(f"  {batch * steps / whole:,.0f} samples a second; {alone / steps * 1e6:.1f} us a step in a graph of 16;")
    print(f"  host's work in a step {host * 1e6:.0f} us, {launching * 1e6:.0f} of them the graph's launch;")
    print(f"  first step {first:.2f} s;")
    if not repeats:
        print(f"  {len(executable._sources)} launches", flush=True)
        return result
    totals = [sum(row[key] for row in rows) for key in ("us", "roof_us", "modelled_us")]
    print(f"  {len(rows)} kernels, sum {totals[0]:.1f} us, roofs {totals[1]:.1f}, model {totals[2]:.1f}")
    print("  us, roof, model, kernel, layer")
    for row in rows:
        layer = row["layers"][0] if row["layers"] else ""
        print(f"  {row['us']:8.2f} {row['roof_us']:8.2f} {row['modelled_us']:8.2f}  {row['title']}  {layer}")
    if deep:
        print("  by layer: us, roof")
        for layer, us, roof in by_layer(rows):
            print(f"  {us:8.2f} {roof:8.2f}  {layer}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join((*SIZES, *DEEP)))
    parser.add_argument("--backend", action="append", choices=["cupy", "numba_cuda", "webgpu"])
    parser.add_argument("--precision", action="append", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    parser.add_argument("--ablate", action="append", default=[])
    parser.add_argument("--shared", type=int, metavar="KB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--dry", action="store_true")
    for size, default in (("image", 64), ("classes", 200), ("batch", 128)):
        parser.add_argument(f"--{size}", type=int, default=default, help="of deep networks")
    chosen = parser.parse_args()
    sizes_of_deep = {"image": (chosen.image, chosen.image, 3), "classes": chosen.classes, "batch": chosen.batch}
    results = []
    if unknown := set(chosen.networks) - {*SIZES, *DEEP}:
        parser.error(f"the networks are {', '.join((*SIZES, *DEEP))}. Received: {', '.join(sorted(unknown))}.")
    switches = [one.name for one in fields(Options) if isinstance(one.default, bool)]
    if unknown := {option for several in chosen.ablate for option in several.split(",")} - {*switches}:
        parser.error(f"the options are {', '.join(switches)}. Received: {', '.join(sorted(unknown))}.")
    for study in chosen.networks or ["platforms", "kernels", "mlp"]:
        for precision in chosen.precision or ["float32"]:
            for name in chosen.backend or ["cupy"]:
                deep, repeats = (replace(CASES[study], **sizes_of_deep), 20) if study in DEEP else (None, 50)
                repeats = 0 if chosen.whole else 1 if chosen.dry else repeats
                for other in (None, *chosen.ablate):
                    sizes = (precision, chosen.shared, repeats)
                    results.append(measure(study, name, *sizes, deep=deep, dry=chosen.dry, other=other))
                if chosen.json:
                    chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
