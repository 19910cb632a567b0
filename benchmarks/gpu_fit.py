"""What a user waits for on a GPU beyond the steps: fit with all that it does, and the first step.

    python benchmarks/gpu_fit.py [--json FILE] [--rounds N] [study ...]
    python benchmarks/gpu_fit.py --first [--precision NAME] [--batch N] [NETWORK ...]    # the first step alone

`fit` runs with accuracy, validation on 10,000 samples and the progress bar (into a terminal that nobody sees); beside
it, alternating, the bare loop: the same training and evaluation steps called on the engine, and their totals read. The
first step is that of a process of its own, with nothing in the folders of compiled kernels (cold) and once more (warm);
deep networks have images of 64x64 and 200 classes. Beside it stands what the line on the terminal said last. Cores are
those that this process may use: `taskset -c 0-3`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from gpu_steps import SIZES, build

from minicnn.data.forms import as_data
from minicnn.loop.totals import Totals
from minicnn.loop.tracing import Run
from minicnn.measure import Spread, interleaved, stopwatch

EPOCHS = {"platforms": 8, "kernels": 2, "mlp": 1}


def data(samples: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (N, 28, 28, 1) uint8 and labels (N,)."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (samples, 28, 28, 1)).astype("uint8"), rng.integers(0, 10, samples).astype("int32")


@contextmanager
def terminal() -> Iterator[tuple[TextIO, list[bytes]]]:
    """Context manager: a terminal that nobody sees, and what was written on it."""
    leader, follower = os.openpty()
    seen: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # which is how it ends
            while some := os.read(leader, 65536):
                seen.append(some)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with os.fdopen(follower, "w") as tty:
        yield tty, seen
    reader.join()
    os.close(leader)


def candidates(study: str, backend: str, tty: TextIO) -> dict[str, Callable[[], Any]]:
    """Functions that train for some epochs and wait for the end."""
    batch, samples, steps = SIZES[study]
    (x, y), validation = data(samples), data(10_000)
    model, bare = build(study, backend), build(study, backend)
    epochs = EPOCHS[study]
    whole = batch == samples
    validated = 512 if whole else batch  # samples at a time, in all ways
    on_device = [bare.backend.asarray(a) for a in (x, y)]
    valid = [bare.backend.asarray(a) for a in validation]

    def fit(verbose: int, **extra: Any) -> None:
        with redirect_stdout(tty):
            if whole:
                model.fit([tuple(on_device)] * steps, None, validated, epochs, verbose, **extra)
            else:
                model.fit(*on_device, batch, epochs, verbose, last_batch="pad", **extra)

    source = (
        bare._training.source(as_data([tuple(on_device)] * steps), None, None, batch)
        if whole
        else bare._training.source(*on_device, None, batch, last_batch="pad")
    )
    tested = bare._training.source(*valid, None, validated, several_epochs=True)
    at_once = bare.backend.steps_at_once
    runs = [list(source.runs(shuffle=not whole, seed=0, epoch=e, longest=at_once)) for e in range(epochs)]
    tests = list(tested.runs(shuffle=False, seed=0, epoch=0, longest=at_once))
    training = bare._training

    def loop(evaluated: list[Run]) -> None:
        for epoch in runs:
            totals = Totals()
            for run in epoch:
                totals = training.train(run, totals)
            training.logs(totals)
            totals = Totals()
            for run in evaluated:
                totals = training.executor.evaluate(run, totals)
            if evaluated:
                training.logs(totals)

    return {
        "bare training": lambda: loop([]),
        "bare training and validation": lambda: loop(tests),
        "fit, silent, training": lambda: fit(0),
        "fit, progress bar, validation": lambda: fit(1, validation_data=tuple(valid)),
    }


def overhead(study: str, backend: str, rounds: int, tty: TextIO) -> dict[str, float]:
    """Median milliseconds of an epoch of each way; all wait for the end of what they did."""
    ways = {name: partial(stopwatch, run) for name, run in candidates(study, backend, tty).items()}
    times = interleaved(ways, rounds=rounds, warmup=2)
    return {name: Spread.of(seconds, 1e3 / EPOCHS[study]).median for name, seconds in times.items()}


FIRST = """
import sys, time
start = time.perf_counter()
import numpy as np
from dataclasses import replace
from gpu_steps import DEEP, SIZES, build
from minicnn.measure.cases import CASES
study, backend, precision, deep_batch = sys.argv[1:]
deep = replace(CASES[study], batch=int(deep_batch)) if study in DEEP else None
batch = SIZES[study][0] if deep is None else deep.batch
import minicnn
from minicnn.backends import get_backend
chosen = get_backend(backend)
chosen.synchronize()
chosen.asarray(np.zeros(1, "float32"))
loaded = time.perf_counter()
model = build(study, chosen, precision, deep)
x, y = np.zeros((batch, *((28, 28, 1) if deep is None else deep.image)), "uint8"), np.zeros(batch, "int32")
built = time.perf_counter()
model.train_on_batch(x, y)
end = time.perf_counter()
print(loaded - start, built - loaded, end - built)
"""


def first_step(study: str, backend: str, precision: str = "float32", batch: int = 128) -> dict[str, Any]:
    """Seconds to the end of the first step, in a new process, by their parts."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"MINICNN_CACHE": f"{folder}/a", "CUPY_CACHE_DIR": f"{folder}/b"}
        env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")])
        for state in ("cold", "warm"):
            start = time.perf_counter()
            command = [sys.executable, "-c", FIRST, study, backend, precision, str(batch)]
            with terminal() as (tty, seen):
                done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=tty, text=True, check=False)
            said = b"".join(seen).decode(errors="replace")
            if done.returncode:
                raise RuntimeError(said)
            names = ("import and device", "model", "first step")
            parts = dict(zip(names, map(float, done.stdout.split()), strict=True))
            lines = re.findall(r"compiling kernel \d+ of \d+", said)
            result[state] = {**parts, "process": time.perf_counter() - start, "said": lines[-1] if lines else ""}
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", default=[])
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first", action="store_true", help="the first step alone")
    parser.add_argument("--precision", default="float32", help="of the first step")
    parser.add_argument("--batch", type=int, default=128, help="of deep networks")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    for study in chosen.studies or list(EPOCHS):
        result = results[study] = {"first step, s": first_step(study, chosen.backend, chosen.precision, chosen.batch)}
        print(study)
        for state, parts in result["first step, s"].items():
            told = [f"{k} {v:.2f} s" for k, v in parts.items() if k != "said"]
            print(f"  first step, {state}: {', '.join(told)}; {parts['said'] or 'no line'}", flush=True)
        if chosen.first:
            continue
        with terminal() as (tty, _):
            found = result["ms"] = overhead(study, chosen.backend, chosen.rounds, tty)
        for name, ms in found.items():
            base = found["bare training" if "training" in name and "fit" in name else "bare training and validation"]
            print(f"  {name:32} {ms:9.2f} ms an epoch  {ms / base:6.3f}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
