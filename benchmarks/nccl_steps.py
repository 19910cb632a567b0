"""Steps whose sums go through NCCL, on one GPU with one rank: do they leave the same weights, and what do they cost?

    python benchmarks/nccl_steps.py [--network NAME] [--image H,W,C] [--classes N] [--batch N] [--shards N] [--rounds N]
        [--backends cupy,numba_cuda]

For each backend, with CUDA graphs and without: steps without NCCL, with it in the fixed tree, and in the fast mode,
timed in turn. One rank sends nothing to others; what is tried is that NCCL takes part in the stream and in the graphs.
With one shard steps without NCCL are those of no distribution, and weights differ by rounding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minicnn import zoo
from minicnn.backends import get_backend
from minicnn.backends._gpu.options import Options
from minicnn.bench.timing import interleaved
from minicnn.distribution import DataParallel, NcclCommunicator, OneProcess
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.models import Model
from minicnn.optimizers import SGD

STEPS = 20  # of a round


def main() -> None:
    """Check the bits, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="platforms")
    parser.add_argument("--image", default="28,28,1")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--backends", default="cupy,numba_cuda")
    given = parser.parse_args()
    shape = tuple(map(int, given.image.split(",")))
    rng = np.random.default_rng(0)
    x = rng.random((given.batch, *shape), dtype=np.float32)
    y = rng.integers(0, given.classes, given.batch)
    nccl = {"communicator": NcclCommunicator(OneProcess())}
    kinds: dict[str, dict[str, Any]] = {"without": {}, "tree": nccl, "fast": nccl | {"deterministic": False}}

    def made(backend: Any, **about: Any) -> Model:
        model = zoo.get_model(given.network, num_classes=given.classes, input_shape=shape, backend=backend)
        loss = SparseCategoricalCrossentropy(from_logits=True)
        model.compile(SGD(0.01, momentum=0.9), loss, distribution=DataParallel(given.shards, **about))
        return model

    def timed(model: Model) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in range(STEPS):
                model.train_on_batch(x, y)
            return (time.perf_counter() - start) / STEPS

        return run

    for name in given.backends.split(","):
        for graph in (True, False):
            backend = type(get_backend(name))(options=Options(graph=graph))  # type: ignore[call-arg]
            models = {kind: made(backend, **about) for kind, about in kinds.items()}
            seconds = interleaved({kind: timed(model) for kind, model in models.items()}, rounds=given.rounds)
            weights = [list(model.get_weights().values()) for model in models.values()]
            apart = max(np.abs(a - b).max() for other in weights[1:] for a, b in zip(weights[0], other, strict=True))
            print(f"{name}, {'CUDA graphs' if graph else 'no graphs'}: weights at most {apart:.1e} apart")
            for kind, found in seconds.items():
                print(f"  {kind:8} {statistics.median(found) * 1e3:9.3f} ms a step, least {min(found) * 1e3:.3f}")


if __name__ == "__main__":
    main()
