"""Run on each of two hosts: what crosses the link while a model trains, and how long that takes."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import Sequential
from minicnn.distribution import DataParallel, OneProcess
from minicnn.layers import Dense, Input
from minicnn.ops.collectives import all_reduce
from minicnn.ops.groups import Group
from minicnn.optimizers import SGD
from support.namespaces import DEVICE

COUNTER = Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes")


def main(backend: str, units: str, steps: str, timeout: str, *sizes: str) -> None:
    distribution = DataParallel(2, timeout=float(timeout))
    wide, count = int(units), int(steps)

    def made(distribution: DataParallel) -> Sequential:
        model = Sequential([Input((wide,)), Dense(wide, activation="relu"), Dense(10)], backend=backend)
        model.compile(SGD(0.01), "mse", distribution=distribution)
        return model

    model, alone = made(distribution), made(DataParallel(1, communicator=OneProcess()))
    x = np.random.default_rng(0).standard_normal((16, wide)).astype("float32")
    y = np.zeros((16, 10), "float32")
    model.train_on_batch(x, y)
    distribution.communicator.share(b"")
    print("begun", flush=True)
    before, taken = int(COUNTER.read_text()), list[float]()
    for _ in range(count):
        start = time.perf_counter()
        model.train_on_batch(x, y)
        taken.append(time.perf_counter() - start)
    crossed = (int(COUNTER.read_text()) - before) / max(1, count)
    for _ in range(2):
        own = _timed(distribution.communicator, partial(alone.train_on_batch, x[:8], y[:8]))
    sent = model.program("train", batch_size=16).bytes_sent
    reduced = {}
    for nbytes in map(int, sizes):
        communicator = distribution.communicator
        group = Group(2, distribution.rank, 2, communicator)
        call = partial(all_reduce.reference, np.ones(nbytes // 4, np.float32), group=group, xp=np)
        reduced[nbytes] = min(_timed(communicator, call) for _ in range(5))
    if distribution.rank == 0:
        found = {"crossed": crossed, "sent": sent, "step": min(taken), "alone": own, "all_reduce": reduced}
        print(json.dumps(found))


def _timed(communicator: Any, call: Any) -> float:
    communicator.share(b"")
    start = time.perf_counter()
    call()
    return max(float(t) for t in communicator.share(repr(time.perf_counter() - start).encode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
