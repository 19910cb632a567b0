"""Time of the training steps of the reference studies on one GPU, kernel by kernel, beside the whole.

    python benchmarks/gpu_steps.py [--backend cupy|numba_cuda ...] [--precision NAME ...] [--shared KB] [--json FILE]
                                   [study ...]

Data are random uint8 images, which take the same time as real ones; `mlp_float` is `mlp` on images in float32, as its
study has them. Times are medians, synchronised, on CUDA graphs. With --shared, blocks have at most so much shared
memory, as they do on other GPUs: 99 KB on an RTX 30, 40 or 50.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from minicnn import Sequential, get_backend, layers
from minicnn.backends._gpu.device import KB
from minicnn.loop.adapters import as_data
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD


def build(study: str, backend: Any, precision: str = "float32") -> Sequential:
    """The network of a study, compiled."""
    conv, dense, pool = layers.Conv2D, layers.Dense, layers.MaxPooling2D
    floats, scaled = [layers.Input((28, 28, 1))], [layers.Input((28, 28, 1), dtype="uint8"), layers.Rescaling(1 / 255)]
    mlp = [layers.Flatten(), dense(10, "relu"), dense(10)], SGD(0.1)
    rest, optimizer = {
        "mlp": mlp, "mlp_float": mlp,
        "platforms": (
            [conv(8, 3, activation="relu"), pool(), conv(16, 3, activation="relu"), pool(), layers.Flatten(),
             dense(128, "relu"), dense(10)], SGD(0.01, momentum=0.9),
        ),
        "kernels": (
            [conv(16, 3, activation="relu"), conv(32, 3, activation="relu"), pool(), layers.Flatten(), dense(10)],
            SGD(0.01),
        ),
    }[study]  # fmt: skip
    model = Sequential([*(floats if study == "mlp_float" else scaled), *rest], backend=backend)
    model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], precision=precision)
    return model


# Batch, samples and steps of one timed run of each study.
SIZES = {
    "mlp": (59_000, 59_000, 500), "mlp_float": (59_000, 59_000, 500), "platforms": (512, 60_000, 118),
    "kernels": (64, 60_000, 938),
}  # fmt: skip


def seconds(backend: Any, run: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of a call, with the device idle before and after."""
    times = []
    for _ in range(repeats):
        backend.synchronize()
        start = time.perf_counter()
        run()
        backend.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def graphs(executable: Any, arrays: dict[str, Any], repeats: int) -> Iterator[Callable[[], None]]:
    """For each kernel of a step a graph that runs it so many times; then one of 16 steps."""
    runtime = executable._runtime
    runtime.clear(executable._cursor)
    for launch in executable._launches(arrays, 0)[: executable.launched]:
        yield runtime.capture([launch] * repeats)
    yield runtime.capture([launch for k in range(16) for launch in executable._launches(arrays, k)])


def orders(rng: np.random.Generator, samples: int, batch: int, steps: int) -> np.ndarray[Any, Any]:
    """Row numbers of each step, int32 (steps, batch)."""
    if batch == samples:  # the whole set each time: the queue holds one order
        return np.broadcast_to(np.arange(batch, dtype="int32"), (steps, batch))
    some = np.stack([rng.permutation(samples)[:batch] for _ in range(min(steps, 64))]).astype("int32")
    return np.resize(some, (steps, batch))


def measure(
    study: str, name: str, precision: str = "float32", shared: int | None = None, repeats: int = 50
) -> dict[str, Any]:
    """All figures of one study on one backend."""
    batch, samples, steps = SIZES[study]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (samples, 28, 28, 1)).astype("uint8"), rng.integers(0, 10, samples).astype("int32")
    given: tuple[Any, Any] = x, y
    index: np.ndarray[Any, Any] | None = orders(rng, samples, batch, steps)
    if study == "mlp_float":  # as its study does: each step takes the arrays as they are
        given, index = (as_data([((x / 255).astype("float32"), y)]), None), None
    start = time.perf_counter()
    backend: Any = get_backend(name, strict=True)
    if shared:
        backend.tiles = replace(backend.tiles, gpu=replace(backend.tiles.gpu, shared_block=shared * KB))
    model = build(study, backend, precision)
    source = model._source(*given, None, batch, "pad")
    feed, arrays = next(iter(source.epoch(shuffle=False, seed=0, epoch=0)))
    engine = model._engine
    engine.train_many(feed, arrays, {}, None, [0.01])
    backend.synchronize()
    first = time.perf_counter() - start
    rates = [1e-4] * steps

    def run() -> None:
        engine.train_many(feed, arrays, {}, index, rates)

    run()
    whole = seconds(backend, run)
    executable = engine._steps["train", feed].many.__self__
    state = engine.state()
    bound = {v.name: {**state, **arrays}[v.name] for v in executable._bound} | executable._static
    *each, graph = graphs(executable, bound, repeats)
    rows = []
    for one, launch in zip(executable._sources, each, strict=True):
        launch()
        us = seconds(backend, launch) / repeats * 1e6
        rows.append((f"{one.title[:70]} [{one.blocks} x {one.threads}]", us))

    def graph_only() -> None:
        for _ in range(steps // 16):
            graph()

    alone = seconds(backend, graph_only) / (steps // 16 * 16) * steps
    print(f"\n{study} on {name} in {precision}: {whole * 1e3:.2f} ms, {steps} steps of {whole / steps * 1e6:.1f} us;")
    print(f"  first step {first:.2f} s, {len(rows)} kernels, sum {sum(t for _, t in rows):.1f} us")
    for title, us in rows:
        print(f"  {us:8.2f} us  {title}")
    return {
        "study": study,
        "backend": name,
        "precision": precision,
        "ms": whole * 1e3,
        "graph_ms": alone * 1e3,
        "steps": steps,
        "first_s": first,
        "kernels": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", default=[])
    parser.add_argument("--backend", action="append", choices=["cupy", "numba_cuda"])
    parser.add_argument("--precision", action="append", choices=["float32", "mixed_bfloat16", "mixed_float16"])
    parser.add_argument("--shared", type=int, metavar="KB")
    parser.add_argument("--json")
    chosen = parser.parse_args()
    studies, names = chosen.studies or ["platforms", "kernels", "mlp"], chosen.backend or ["cupy"]
    precisions = chosen.precision or ["float32"]
    results = [measure(s, name, p, chosen.shared) for s in studies for name in names for p in precisions]
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
