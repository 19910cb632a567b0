"""The candidates of `minicnn compare`: which there are, and running one in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import backends
from minicnn.cli.errors import DEBUG, INTERRUPTED, one_line
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import Settings
from minicnn.measure.spread import Spread, disturbed
from minicnn.measure.torch_peer import takes_part
from minicnn.measure.utilisation import Others, disturbance
from minicnn.measure.worker import ended

SLOW = ("array_api_strict",)  # takes part only when named
REFERENCE = "numpy"
PEER = "torch.nn"

Show = Callable[[dict[str, Any]], None]


@dataclass
class Result:
    """How a candidate fared.

    Attributes:
        name: Backend, with its device if named, or the peer.
        facts: What the worker told at the end; empty if it failed.
        weights: Weights by stage ("start", "first", "final") and path.
        failure: Why it failed, if so.
        others: Share of the cores' time that other programs took meanwhile; None if it is not known.
    """

    name: str
    facts: dict[str, Any]
    weights: dict[str, np.ndarray[Any, Any]]
    failure: str | None = None
    others: float | None = None

    @property
    def times(self) -> list[float]:
        """Seconds of training of each epoch."""
        return [row["time_s"] for row in self.facts["history"]]

    @property
    def time(self) -> float:
        """Median seconds of an epoch, the first left out where there are more, and those that were disturbed."""
        return Spread.after_first(self.times).median

    @property
    def rate(self) -> float:
        """Median samples per second, likewise."""
        rates = [row["samples_per_s"] for row in self.facts["history"]]
        return Spread.after_first(rates, rate=True).median

    @property
    def disturbed(self) -> list[str]:
        """In words, which epochs were, and how busy other programs were."""
        beside = disturbance(self.others)
        return [*filter(None, (disturbed(self.times), beside and f"{beside}: its times may be too long"))]


def found(settings: Settings, *, with_peer: bool) -> tuple[list[str], list[str]]:
    """The backends that can run, NumPy first, then the peer; and for each of the others why it cannot."""
    names, notes = [], []
    for name in sorted(backends.names(), key=lambda n: (n != REFERENCE, n)):
        if name in SLOW:
            continue
        try:
            kind = backends.backend_class(name)
            if "cpu" not in kind.devices:
                kind()  # says if there is no device
        except Exception as error:  # a library may be there and broken in any way
            notes.append(f"{name} is left out: {one_line(str(error))}")
            continue
        if settings.precision not in kind.precisions:
            notes.append(f"{name} is left out: it computes in {' or '.join(kind.precisions)}")
            continue
        names.append(name)
    return [*names, *(peers(names, settings) if with_peer else [])], notes


def peers(names: Sequence[str], settings: Settings) -> list[str]:
    """The peers of the PyTorch backends among the names, each on its device; none where there is no such network."""
    if not takes_part(settings):
        return []
    parts = [name.partition(":") for name in names]
    return [f"{PEER}{colon}{device}" for base, colon, device in parts if base == "torch"]


def write_samples(samples: Samples, folder: Path) -> None:
    """Write the samples where workers read them."""
    for name, array in samples.arrays.items():
        if samples.held_out or not name.endswith("_val"):
            np.save(folder / f"{name}.npy", array)


def run(name: str, settings: Settings, samples: Samples, folder: Path, show: Show) -> Result:
    """Train in a fresh process, so that memory, threads and settings of libraries do not mix.

    Args:
        name: The candidate.
        settings: The training.
        samples: What `write_samples` has written into the folder.
        folder: Folder for files between the processes.
        show: Called with each event of the worker.
    """
    weights = folder / f"{name.replace(':', '_')}.npz"
    order = {
        "name": name, "settings": asdict(settings), "samples": str(folder), "num_classes": samples.num_classes,
        "held_out": samples.held_out, "weights": str(weights),
    }  # fmt: skip
    said = folder / "stderr.txt"
    facts: dict[str, Any] = {}
    others = Others()
    with said.open("w+", encoding="utf-8", errors="replace") as stderr:
        command = [sys.executable, "-P", "-m", "minicnn", "worker"]  # -P: no module of the folder that it runs in
        debug = os.environ.get(DEBUG, "0") not in ("", "0")
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if debug else stderr, text=True
        )
        try:
            with worker:
                _send(worker, json.dumps(order))
                for line in worker.stdout or ():
                    event = _event(line)
                    if event.get("event") == "end":
                        facts = event
                    elif event:
                        show(event)
        finally:
            worker.kill()  # of no effect on one that has ended
        if worker.returncode == INTERRUPTED:
            raise KeyboardInterrupt
        if worker.returncode or not facts:
            stderr.seek(0)
            return Result(name, {}, {}, _last_words(stderr.readlines(), worker.returncode))
    with np.load(weights) as file:
        return Result(name, facts, dict(file), others=others.busy())


def _send(worker: subprocess.Popen[str], text: str) -> None:
    with suppress(BrokenPipeError):  # it has ended already, and said why
        if worker.stdin:
            worker.stdin.write(text)
            worker.stdin.close()


def _event(line: str) -> dict[str, Any]:
    """The event on a line; libraries may print other lines."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _last_words(lines: Sequence[str], code: int) -> str:
    said = [line.strip() for line in lines if line.strip()]
    if said and said[-1].startswith("error: "):
        return said[-1].removeprefix("error: ")
    return ended(code, said)
