"""A training step of the CPU engine beside busy processes, with one thread and with more, interleaved.

    python benchmarks/busy_cores.py [--threads N] [--busy 0,1,2,4] [--rounds N] [NETWORK ...]

Median and mean milliseconds of a step. Bits depend on the number of threads, but not on who is busy.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

BATCHES = {"lenet5": 32, "kernels": 64, "platforms": 512}
SLOT_S = 0.4


def training(name: str, threads: int) -> Any:
    """A function that trains a network of the zoo for one step."""
    from minicnn.backends import backend_class
    from minicnn.layers import Rescaling
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.zoo import get_model

    backend = backend_class("numba")(threads=threads)
    model = get_model(name, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8", backend=backend, seed=0)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (BATCHES[name], 28, 28, 1), np.uint8)
    y = generator.integers(0, 10, BATCHES[name]).astype(np.int32)
    return lambda: model.train_on_batch(x, y)


def measure(steps: dict[int, Any], rounds: int) -> dict[int, list[float]]:
    """Seconds of many steps by number of threads, in interleaved slots of time."""
    times: dict[int, list[float]] = {threads: [] for threads in steps}
    for _ in range(rounds):
        for threads, step in steps.items():
            end = time.perf_counter() + SLOT_S
            while time.perf_counter() < end:
                start = time.perf_counter()
                step()
                times[threads].append(time.perf_counter() - start)
    return times


def main() -> None:
    """Print a line for each network and number of busy processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(BATCHES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", default="0,1,2,4")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    for name in given.networks:
        steps = {threads: training(name, threads) for threads in (1, given.threads)}
        for step in steps.values():
            step()
        for count in map(int, given.busy.split(",")):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
            try:
                times = measure(steps, given.rounds)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            found = (
                f"{threads} threads median {1e3 * statistics.median(t):.3f} mean {1e3 * statistics.fmean(t):.3f}"
                for threads, t in times.items()
            )
            print(f"{name}, {count} busy: {'; '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
