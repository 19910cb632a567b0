"""What several processes cost: DataParallel on one rank beside none, and two ranks of one thread beside one of two.

The two ranks split the batch alone (data), or the dense kernels, too (hybrid): see arXiv:1404.5997.

    python benchmarks/ranks.py [--networks alexnet,vgg11] [--image 64,64,3] [--batch N] [--backend NAME] [--runs N]

Within a process models are timed in turn; processes, which compile anew, take turns. Ranks are started by mpiexec.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from minicnn import machine, zoo
from minicnn.distribution import DataParallel, ModelParallel
from minicnn.distribution.launchers import OPEN_MPI, mpiexec
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.timing import interleaved
from minicnn.optimizers import SGD


def arguments() -> argparse.Namespace:
    """What is measured, and how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="alexnet,vgg11")
    parser.add_argument("--image", default="64,64,3")
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--backend", default="numba")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7, help="of a process")
    parser.add_argument("--as", dest="kind", choices=["ranks", "threads"])
    return parser.parse_args()


def measure(given: argparse.Namespace) -> None:
    """Print this process's times of steps, by kind."""
    shape = tuple(map(int, given.image.split(",")))
    rng = np.random.default_rng(0)
    x = rng.random((given.batch, *shape), dtype=np.float32)
    y = rng.integers(0, given.classes, given.batch)
    kinds: dict[str, DataParallel | None]
    if given.kind == "ranks":
        hybrid = ModelParallel(2, layout_map={"kernel": (None, "model")})
        kinds = {"two ranks, data": DataParallel(2), "two ranks, hybrid": hybrid}
    else:
        kinds = {"none": None, "one rank": DataParallel(1)}

    def step(distribution: DataParallel | None) -> Callable[[], float]:
        model = zoo.get_model(given.networks, num_classes=given.classes, input_shape=shape, backend=given.backend)
        model.compile(
            SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), distribution=distribution
        )
        model.train_on_batch(x, y)

        def run() -> float:
            start = time.perf_counter()
            model.train_on_batch(x, y)
            return time.perf_counter() - start

        return run

    found = interleaved({kind: step(distribution) for kind, distribution in kinds.items()}, rounds=given.rounds)
    if all(distribution is None or distribution.rank == 0 for distribution in kinds.values()):
        print(json.dumps({kind: statistics.median(times) for kind, times in found.items()}))


def main() -> None:
    """Start the processes in turn, and print the medians and their spread."""
    given = arguments()
    if given.kind:
        measure(given)
        return
    launcher = mpiexec()
    if launcher is None:
        raise SystemExit("mpi4py or mpiexec is missing: the extra mpi")
    for network in given.networks.split(","):
        found = defaultdict[str, list[float]](list)
        own = [sys.executable, __file__, *sys.argv[1:], "--networks", network, "--as"]
        for _ in range(given.runs):
            for command, threads in (([launcher, "-n", "2", *own, "ranks"], "1"), ([*own, "threads"], "2")):
                environment = {**OPEN_MPI, **os.environ, "MINICNN_THREADS": threads, "OMP_NUM_THREADS": threads}
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                for kind, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                    found[kind].append(seconds)
        print(f"{network}, {given.image}, batch {given.batch}, {given.backend}: ms of a step")
        for kind, times in found.items():
            print(f"  {kind:18} {_spread([t * 1e3 for t in times], '.1f')}")
        cost = [a / b - 1 for a, b in zip(found["one rank"], found["none"], strict=True)]
        print(f"  one rank beside no distribution: {_spread(cost, '+.1%')}")
        for kind in ("data", "hybrid"):
            speed = [a / b for a, b in zip(found["one rank"], found[f"two ranks, {kind}"], strict=True)]
            print(f"  two ranks, {kind}, beside one: {_spread(speed, '.2f')} of its speed")


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    machine.prepare()
    main()
