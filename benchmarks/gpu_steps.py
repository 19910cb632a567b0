"""Time of the training steps of the reference studies on one GPU, kernel by kernel, beside the whole.

    python benchmarks/gpu_steps.py [--json FILE] [study ...]

Data are random uint8 images, which take the same time as real ones. Times are medians, synchronised, on CUDA graphs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from minicnn import Sequential, layers
from minicnn.backends.cupy import CupyBackend
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD


def build(study: str, backend: Any) -> Sequential:
    """The network of a study, compiled."""
    conv, dense, pool = layers.Conv2D, layers.Dense, layers.MaxPooling2D
    first = [layers.Input((28, 28, 1), dtype="uint8"), layers.Rescaling(1 / 255)]
    rest, optimizer = {
        "mlp": ([layers.Flatten(), dense(10, "relu"), dense(10)], SGD(0.1)),
        "platforms": (
            [conv(8, 3, activation="relu"), pool(), conv(16, 3, activation="relu"), pool(), layers.Flatten(),
             dense(128, "relu"), dense(10)], SGD(0.01, momentum=0.9),
        ),
        "kernels": (
            [conv(16, 3, activation="relu"), conv(32, 3, activation="relu"), pool(), layers.Flatten(), dense(10)],
            SGD(0.01),
        ),
    }[study]  # fmt: skip
    model = Sequential([*first, *rest], backend=backend)
    model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


# Batch, samples and steps of one timed run of each study.
SIZES = {"mlp": (59_000, 59_000, 500), "platforms": (512, 60_000, 118), "kernels": (64, 60_000, 938)}


def seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    """Median time of a call, with the device idle before and after."""
    times = []
    for _ in range(repeats):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        run()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernel_times(executable: Any, arrays: dict[str, Any], repeats: int = 50) -> list[tuple[str, float]]:
    """Microseconds of each kernel of a step, each repeated in a graph of its own."""
    stream = cupy.cuda.Stream(non_blocking=True)
    everything = {**arrays, **executable._static}
    rows = []
    executable._cursor.fill(0)
    for source, function in zip(executable._sources, executable._functions, strict=True):
        arguments = executable._arguments(source, everything)
        arguments += [executable._cursor, np.int32(0)] if source.queued else []
        with stream:
            stream.begin_capture()
            for _ in range(repeats):
                function((source.blocks,), (source.threads,), tuple(arguments))
            graph = stream.end_capture()
        graph.launch()
        rows.append(
            (f"{source.title[:70]} [{source.blocks} x {source.threads}]", seconds(graph.launch) / repeats * 1e6)
        )
    return rows


def measure(study: str) -> dict[str, Any]:
    """All figures of one study."""
    batch, samples, steps = SIZES[study]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (samples, 28, 28, 1)).astype("uint8"), rng.integers(0, 10, samples).astype("int32")
    start = time.perf_counter()
    model = build(study, CupyBackend(strict=True))
    source = model._source(x, y, None, batch, "pad")
    feed, arrays = next(iter(source.epoch(shuffle=False, seed=0, epoch=0)))
    engine = model._engine
    engine.train(feed, arrays, {}, 0.01)
    cupy.cuda.Device().synchronize()
    first = time.perf_counter() - start
    index = np.stack([rng.permutation(samples)[:batch] for _ in range(min(steps, 64))]).astype("int32")
    index = np.resize(index, (steps, batch))
    rates = [1e-4] * steps
    if study == "mlp":  # the whole set each time: the queue holds one order
        index = np.ascontiguousarray(np.broadcast_to(np.arange(batch, dtype="int32"), (steps, batch)))

    def run() -> None:
        engine.train_many(feed, arrays, {}, index, rates)

    run()
    whole = seconds(run)
    step = engine._steps["train", feed]
    executable = step.many.__self__
    state = engine.state()
    bound = {v.name: {**state, **arrays}[v.name] for v in executable._bound}
    rows = kernel_times(executable, bound)
    graph = executable._graph({**bound, **executable._static}, 16)
    executable._cursor.fill(0)

    def graph_only() -> None:
        executable._cursor.fill(0)
        for _ in range(steps // 16):
            graph.launch()

    alone = seconds(graph_only) / (steps // 16 * 16) * steps
    print(f"\n{study}: {whole * 1e3:.2f} ms for {steps} steps, {whole / steps * 1e6:.1f} us a step;")
    print(f"  first step {first:.2f} s, {len(rows)} kernels, sum {sum(t for _, t in rows):.1f} us")
    for title, us in rows:
        print(f"  {us:8.2f} us  {title}")
    return {
        "study": study,
        "ms": whole * 1e3,
        "graph_ms": alone * 1e3,
        "steps": steps,
        "first_s": first,
        "kernels": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", default=[])
    parser.add_argument("--json")
    chosen = parser.parse_args()
    results = [measure(study) for study in chosen.studies or ["platforms", "kernels", "mlp"]]
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
