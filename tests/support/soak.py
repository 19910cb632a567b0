"""Work without end, and how much memory it leaves: `python -m support.soak steps numpy 2000 20000`.

Does the first number of rounds to warm up, goes on to the second, and prints by how many bytes the process grew
in between.
"""

from __future__ import annotations

import gc
import sys

import numpy as np
import psutil

from minicnn import Sequential
from support.small_training import compiled, digits, go_on


def steps(model: Sequential, first: int, last: int) -> None:
    x, y = digits(8)
    for _ in range(first, last):
        model.train_on_batch(x, y)


def models(model: Sequential, first: int, last: int) -> None:
    """Each is trained, and then nobody holds it."""
    for seed in range(first, last):
        go_on(compiled(model.backend.name, seed=seed))


def batch_sizes(model: Sequential, first: int, last: int) -> None:
    for size in range(first, last):
        x, y = digits(size + 1)
        model.train_on_batch(x, y)


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    _, what, backend, warm, rounds = sys.argv
    work = {"steps": steps, "models": models, "batch_sizes": batch_sizes}[what]
    model = compiled(backend)
    work(model, 0, int(warm))
    before = resident()
    work(model, int(warm), int(rounds))
    grown = resident() - before
    assert all(np.isfinite(array).all() for array in model.get_weights().values())
    print(grown)
