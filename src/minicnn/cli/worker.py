"""`minicnn worker`: one candidate of `minicnn compare`, in a process of its own.

It reads its order from standard input, one JSON object, and writes events to standard output, one JSON object a line:
"step" now and then, "epoch" after each epoch, "end" with all results. Weights go to a file, as JSON has no arrays.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from minicnn import machine
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback
from minicnn.callbacks.base import Logs
from minicnn.cli.candidates import PEER
from minicnn.jobs import job
from minicnn.jobs.parity import longest_sum
from minicnn.jobs.settings import Settings

INTERVAL = 0.2  # shortest time between two "step" events, in seconds

Weights = dict[str, np.ndarray[Any, Any]]
Tell = Callable[..., None]


@click.command(hidden=True)
def worker() -> None:
    """Train as standard input says, for `minicnn compare`."""
    order = json.load(sys.stdin)
    settings = Settings(**order["settings"])
    folder = Path(order["samples"])
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    if not order["held_out"]:
        arrays |= {"x_val": arrays["x_test"], "y_val": arrays["y_test"]}
    samples = job.Samples(arrays, order["num_classes"])
    run = _peer if order["name"].partition(":")[0] == PEER else _backend
    results, weights = run(order["name"], settings, samples, _tell)
    np.savez(order["weights"], **weights)  # type: ignore[arg-type]  # none is named allow_pickle
    _tell("end", **results)


def _tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def _backend(name: str, settings: Settings, samples: job.Samples, tell: Tell) -> tuple[dict[str, Any], Weights]:
    backend = job.open_backend(name, settings.precision)
    memory = machine.PeakMemory()
    model = job.make_model(settings, samples, backend)
    start = model.get_weights()
    rows = job.fit(model, settings, samples, [_Watch(tell)], verbose=0)
    results = {
        **_trained(backend, rows, memory),
        "test": job.judge(model, settings, samples, rows),
        "reduction": longest_sum(model.program("train", batch_size=settings.batch_size or len(samples["x_train"]))),
    }
    return results, stages(start, after_one_step(settings, samples, backend), model.get_weights())


def _peer(name: str, settings: Settings, samples: job.Samples, tell: Tell) -> tuple[dict[str, Any], Weights]:
    from minicnn.bench import torch_peer

    # Its first weights are those of minicnn's model, in NumPy arrays.
    model = job.make_model(settings, samples, job.open_backend("numpy", settings.precision))
    start = model.get_weights()
    backend = job.open_backend(name.replace(PEER, "torch"), settings.precision)
    memory = machine.PeakMemory()
    trained = torch_peer.train(settings, samples, start, lambda row: tell("epoch", **row), backend.device)
    results = {**_trained(backend, trained.rows, memory), "test": trained.test, "reduction": None}
    return results, stages(start, trained.first, trained.final)


def _trained(backend: Backend, rows: list[dict[str, Any]], memory: machine.PeakMemory) -> dict[str, Any]:
    """What there is to say of a training that has just ended: rows of its epochs, and what it took of the machine."""
    used = backend.memory()
    return {
        "device": backend.device,
        "history": rows,
        "memory_mb": (memory.growth() if used is None else used) / 2**20,
        "process_mb": memory.peak() / 2**20,
        "threads": machine.facts()["threads"],
    }


def after_one_step(settings: Settings, samples: job.Samples, backend: Backend) -> Weights:
    """Weights after the first step of the training, taken by itself: backends may run many steps at once."""
    model = job.make_model(settings, samples, backend)
    index = job.batches(settings, len(samples["x_train"]))[0]
    model.train_on_batch(samples["x_train"][index], samples["y_train"][index])
    return model.get_weights()


def stages(start: Weights, first: Weights, final: Weights) -> Weights:
    """Weights before training, after the first step and at the end, by stage and path."""
    named = {"start": start, "first": first, "final": final}
    return {f"{stage}/{path}": array for stage, weights in named.items() for path, array in weights.items()}


class _Watch(Callback):
    """Reports the progress of a training."""

    every_batch = False

    def __init__(self, tell: Tell) -> None:
        self._tell, self._told, self._epoch = tell, 0.0, 0

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """See `Callback`."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """See `Callback`."""
        if time.perf_counter() - self._told > INTERVAL:
            self._told = time.perf_counter()
            self._tell("step", done=self._epoch + (batch + 1) / self.params["steps"])

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """See `Callback`."""
        self._tell("epoch", **{c: float(logs[c]) for c in job.COLUMNS[1:]}, epoch=epoch + 1)
