"""The trainer: one training of one network by one candidate, whatever its library, with the same methods.

It is made in a process of its own: see `minicnn.measure.comparison`. All trainers of a comparison start from the same
weights and see the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from minicnn import machine
from minicnn.backends import backend_class, get_backend
from minicnn.backends.base import Backend
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.machine import PeakMemory
from minicnn.measure.candidates import HYBRID, PEERS, backend_of
from minicnn.measure.hybrid import Hybrid
from minicnn.measure.memory import MB, footprint, let_go, resident
from minicnn.measure.parity import Probe
from minicnn.measure.timing import awaken, stopwatch

# Forward passes, or steps, are timed together up to so many seconds, and so many of them.
PASSES_S, MOST_PASSES, MOST_STEPS = 0.1, 100, 1000
Row = dict[str, Any]
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Work:
    """Options of a training step beside the step itself, and of what is done before the training.

    Attributes:
        scaled: Whether images are scaled to 0 .. 1 before the training, rather than in each step.
        rows: Whether images are rows of numbers before the training. In a step minicnn's models copy them, as no
            operation returns a view; PyTorch and JAX need no copy.
        accuracy: Whether steps, and the forward pass by itself, compute the accuracy beside the loss.
        network: Further arguments of `minicnn.jobs.job.make_model`, such as `hidden_units`, the only one that peers
            heed.
        load: Gives the samples of a training.
    """

    scaled: bool = False
    rows: bool = False
    accuracy: bool = True
    network: Mapping[str, Any] = field(default_factory=dict)
    load: Callable[[Settings], job.Samples] = field(default_factory=lambda: job.load_samples)  # as no method

    def plain(self) -> Row:
        """The options, as they are kept beside results."""
        return {key: value for key, value in vars(self).items() if key != "load"}


USUAL = Work()


class Trainer:
    """Training of a candidate, made and called in a process of its own.

    Args:
        name: Name of the candidate.
        settings: What to train and how.
        work: What a step does, and on which samples.
        options: Further arguments of the backend.
    """

    def __init__(self, name: str, settings: Settings, work: Work, **options: Any) -> None:
        self.bare_mb = resident() / MB
        self.settings, self.work = settings, work
        self.backend: Backend = open_candidate(name, options, settings.precision)
        _warm_up(self.backend)
        let_go()
        self.library_mb = resident() / MB
        dataset = work.load(settings)
        self.samples = dataset.scaled() if work.scaled else dataset
        del dataset
        let_go()
        self.settings = job.concrete(settings, self.samples)
        self.epoch = 0
        self._tested = ""  # what was evaluated last
        self._passes = self._steps = 0
        self.samples_mb = resident() / MB
        self.peak = PeakMemory()

    def probe(self, epoch: int = 0) -> Probe:
        """Loss and gradients of the first batch of an epoch; leaves the training as it was."""
        raise NotImplementedError

    def sensitivity(self, epochs: int, rounding: float) -> list[float]:
        """By which share the loss of each epoch changes at most if first weights move by a rounding; 0 for peers."""
        return [0.0] * epochs

    # Single steps, on batches that are handed to the device one by one

    def reset(self, batch: int | None = None) -> None:
        """Back to the first weights, for batches of a size; that of the settings if None."""
        raise NotImplementedError

    def place(self, rows: np.ndarray[Any, Any]) -> Batch:
        """Training samples on the device, as a batch."""
        raise NotImplementedError

    def step(self, batch: Batch) -> float:
        """A training step; the mean loss before it."""
        raise NotImplementedError

    def accuracy(self, batch: Batch) -> float:
        """Share of a batch that the network classifies, as it is in training; may take a step."""
        raise NotImplementedError

    def logits(self, batch: int) -> np.ndarray[Any, Any]:
        """Logits of the test samples, in batches of a size."""
        raise NotImplementedError

    # Whole epochs

    def train(self, epochs: int) -> list[Row]:
        """Train for some epochs, each followed by a validation; rows with `minicnn.jobs.job.COLUMNS`."""
        rows = []
        for _ in range(epochs):
            row, results = self.train_epoch(), self._evaluate("val")
            rows.append({**{k: row[k] for k in job.COLUMNS if k in row},
                         "val_loss": results["loss"], "val_accuracy": results["accuracy"]})  # fmt: skip
        return rows

    def facts(self) -> Row:
        """Use of the machine by a training: where it ran, memory in MB (2^20 bytes), and threads."""
        used = self.backend.memory()
        return {
            "device": self.backend.device, "memory_mb": (self.peak.growth() if used is None else used) / 2**20,
            "process_mb": self.peak.peak() / 2**20, "threads": machine.facts()["threads"],
        }  # fmt: skip

    def seconds(self) -> float:
        """Seconds of an epoch."""
        return float(self.train_epoch()["time_s"])

    def losses(self, epochs: int = 1) -> list[float]:
        """Mean losses of epochs."""
        return [float(self.train_epoch()["loss"]) for _ in range(epochs)]

    def train_epoch(self) -> Row:
        """Train for an epoch: loss and accuracy of the training, seconds, samples per second, memory."""
        self._awaken()
        row = self._epoch()
        self.epoch += 1
        return {"epoch": self.epoch, **row, **footprint(self.peak, self.backend)}

    def train_whole(self, steps: int) -> Row:
        """Train some steps with the whole training set as the batch; a row as `train_epoch` gives."""
        self._awaken()
        return {**self._whole(steps), **footprint(self.peak, self.backend)}

    def _awaken(self) -> None:
        if self._tested:
            awaken(self.backend, partial(self._evaluate, self._tested))

    def evaluate(self, part: str = "test") -> dict[str, float]:
        """Accuracy on "test" or "val" samples, loss where steps compute the accuracy too, and the seconds taken."""
        self._awaken()
        self._tested = part
        results: dict[str, float] = {}
        taken = stopwatch(lambda: results.update(self._evaluate(part)), self.backend.synchronize)
        return {**results, "time_s": taken}

    def _evaluate(self, part: str) -> dict[str, float]:
        raise NotImplementedError

    def forward(self) -> float:
        """Seconds of the loss and accuracy of the whole training set, without gradients; short ones in a row."""
        if not self._passes:
            self._forward(1)
            once = stopwatch(lambda: self._forward(1), self.backend.synchronize)
            self._passes = max(1, min(MOST_PASSES, int(PASSES_S / once)))
        self._awaken()
        return stopwatch(lambda: self._forward(self._passes), self.backend.synchronize) / self._passes

    def iteration(self) -> float:
        """Seconds of a step on the whole training set; short ones in a row."""
        if not self._steps:
            self._whole(1)
            self._steps = max(1, min(MOST_STEPS, int(PASSES_S / self._whole(1)["time_s"])))
            self._whole(self._steps)
        self._awaken()
        return float(self._whole(self._steps)["time_s"]) / self._steps

    def nodes(self, repeats: int) -> dict[str, Any] | None:
        """Time of each node of a step on the whole training set; None if the candidate has no Program.

        Returns:
            "nodes", and whether they were timed "apart", each compiled by itself, as the step merges nodes.
        """
        return None

    def account(self) -> dict[str, Any]:
        """Memory in MB: of this process at each stage, of samples not trained on, of the device; and the plan's."""
        others = {id(a): a for n, a in self.samples.arrays.items() if not n.endswith("_train")}
        return {
            "bare_mb": self.bare_mb, "library_mb": self.library_mb, "samples_mb": self.samples_mb,
            "others_mb": sum(a.nbytes for a in others.values()) / MB,
            **footprint(self.peak, self.backend),
        }  # fmt: skip

    def _forward(self, passes: int) -> object:
        raise NotImplementedError

    def _epoch(self) -> Row:
        raise NotImplementedError

    def _whole(self, steps: int) -> Row:
        raise NotImplementedError


def _warm_up(backend: Backend) -> None:
    """Have libraries make the buffers and threads that they keep, so that these count as theirs."""
    tall = backend.asarray(np.ones((2**15, 1024), np.float32))
    thin = backend.asarray(np.ones((1024, 16), np.float32))
    with backend.active():
        backend.to_numpy(backend.xp.matmul(tall, thin))


def open_candidate(name: str, options: Mapping[str, Any], precision: str = "float32") -> Backend:
    """The backend of a candidate, with options of its own such as `options=Options(fused=False)`; a hybrid has none."""
    if HYBRID in name:
        return Hybrid(*map(get_backend, name.split(HYBRID)))
    if not options:
        return job.open_backend(backend_of(name), precision if name.partition(":")[0] not in PEERS else "float32")
    base, _, device = backend_of(name).partition(":")
    return backend_class(base)(device or None, **options)
