"""Candidates that train the study's networks: times of steps and of an epoch, memory, and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.backends._executables import PlannedMemory, TimedLaunches
from minicnn.backends._gpu.backend import GpuBackend
from minicnn.data import batch_indices, epoch_order
from minicnn.machine import PeakMemory
from minicnn.measure import CandidateError, Comparison, Worker, awaken, stopwatch
from minicnn.measure.candidates import on_gpu
from minicnn.measure.memory import MB, allocated, footprint
from minicnn.measure.model_trainer import ModelTrainer
from minicnn.measure.operations import step_inputs
from minicnn.measure.parity import loss_parity
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import settings_of, trainer
from minicnn.measure.utilisation import utilisation
from minicnn.measure.worker import together
from minicnn.models import Model
from minicnn.program.graph import Node, Program
from minicnn.program.memory import plan
from minicnn.studies.roofline import counting, images

# How far losses of the first steps may differ: the first by rounding; the second, which shows that the gradients are
# the same, by what batch normalisation over few pixels makes of rounding: see `Runner.sensitivity`.
RTOLS = (1e-4, 2e-2)
LOSSES = "losses before and after the first step"
MOVES, APART = 5, 3.0  # how often weights are moved, and how many times as far two candidates may be apart


class Runner:
    """A candidate with a network, step by step; lives in a process of its own.

    Args:
        candidate: A backend, or the peer "torch.nn" with a device.
        name: Name of the network.
        folder: Where `prepare` has written.
    """

    def __init__(self, candidate: str, name: str, folder: str) -> None:
        rate, momentum = counting.LEARNING_RATE, counting.MOMENTUM
        settings = settings_of(name, "tiny_imagenet", learning_rate=rate, momentum=momentum)
        work = Work(load=partial(images.samples, folder), network=counting.options(name))
        self.trainer = trainer(candidate, settings, work=work)
        self._backend, self._samples = self.trainer.backend, self.trainer.samples
        self._on_gpu = on_gpu(candidate)

    @property
    def _model(self) -> Model | None:
        """The model of a backend; None for a peer."""
        return self.trainer.model if isinstance(self.trainer, ModelTrainer) else None

    # Steps ----------------------------------------------------------------------------------------

    def losses(self, batch: int) -> list[float]:
        """Losses of the first steps from the first weights on one batch."""
        self.begin(batch)
        return [self.step() for _ in RTOLS]

    def sensitivity(self, batch: int) -> float:
        """By which share the second loss changes at most if the first weights move by a rounding; 0 for peers."""
        if self._model is None:
            return 0.0
        _, loss = self.losses(batch)
        self.begin(batch)
        first = self._model.get_weights()
        changes = []
        for seed in range(MOVES):
            rng = np.random.default_rng(seed)
            self.begin(batch)
            self._model.set_weights({
                name: a + a * np.finfo(a.dtype).eps * rng.integers(-1, 2, a.shape).astype(a.dtype)
                for name, a in first.items()
            })  # fmt: skip
            changes.append(abs([self.step() for _ in RTOLS][1] / loss - 1))
        return max(changes)

    def begin(self, batch: int) -> None:
        """Start again from the initial weights, with a batch of so many images on the device."""
        self.trainer.reset(batch)
        self._batch = self.trainer.place(self._rows(0, batch))
        self.trainer.peak = PeakMemory()

    def _rows(self, start: int, count: int) -> np.ndarray[Any, Any]:
        return np.arange(start, start + count) % len(self._samples["x_train"])

    def step(self) -> float:
        """A step on the batch; the loss before it."""
        return self.trainer.step(self._batch)

    def time(self) -> float:
        """Seconds of a step on the batch."""
        if self._on_gpu:
            awaken(self._backend)
        return stopwatch(self.step, self._backend.synchronize)

    def input(self, batch: int) -> float:
        """Seconds of making a batch: picking images at random, and handing them to the device."""
        rows = np.resize(self._order(), batch)
        return stopwatch(lambda: self.trainer.place(rows), self._backend.synchronize)

    def _order(self) -> np.ndarray[Any, Any]:
        return epoch_order(len(self._samples["x_train"]), shuffle=True, seed=0, epoch=0)

    def memory(self) -> dict[str, float | None]:
        """Memory of the process and the device in MB."""
        return footprint(self.trainer.peak, self._backend)

    def epoch(self, batch: int) -> dict[str, float | None]:
        """One epoch from the first weights, its input included, and the accuracy on the test images after it."""
        self.begin(batch)
        last = [0.0]
        batches = batch_indices(self._order(), batch, "drop")

        def train() -> None:
            for rows in batches:
                self._batch = self.trainer.place(rows)
                last[0] = self.step()

        with utilisation() as used:
            seconds = stopwatch(train, self._backend.synchronize)
        logits, labels = self.trainer.logits(batch), self._samples["y_test"]
        return {
            "seconds": seconds, "images_per_s": len(batches) * batch / seconds, "steps": len(batches),
            "loss": last[0] if np.isfinite(last[0]) else None, "batch_top1": self.trainer.accuracy(self._batch),
            "top1": top(1, logits, labels), "top5": top(5, logits, labels), **used,
        }  # fmt: skip

    def diverging(self, batch: int, rate: float, steps: int) -> list[float]:
        """Losses of steps from the first weights with a learning rate, up to the first that is no finite number."""
        self.begin(batch)
        optimizer: Any = self._model.optimizer if self._model else None
        usual, optimizer.learning_rate = optimizer.learning_rate, rate
        losses: list[float] = []
        for number in range(steps):
            self._batch = self.trainer.place(self._rows(number * batch, batch))
            loss = self.step()
            if not np.isfinite(loss):
                break
            losses.append(loss)
        optimizer.learning_rate = usual
        return losses

    def launched(self) -> int | None:
        """Operations that PyTorch launches in a step: kernels on a GPU; None for backends, whose Program tells."""
        if self._model is not None:
            return None
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        with profile(activities=activities) as seen:
            self.step()
        if self._on_gpu:
            return sum(event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for event in seen.events())
        return sum(_is_operation(event.name) and not _within_operation(event) for event in seen.events())

    # The account ----------------------------------------------------------------------------------

    def account(self, batch: int) -> dict[str, float] | None:
        """MB of a step as the Program's plan says and as measured, where a backend tells; None where it does not."""
        backend, model = self._backend, self._model
        if model is None or backend.name == "jax":
            return None
        program, arrays = self._program(model, batch)
        if backend.name == "numba":
            planned, run = plan(program).arena_bytes, backend.compile(program)
            if not isinstance(run, PlannedMemory):
                return None
            measured, launches = run.arena_bytes, run.launched
            return {"plan_mb": planned / MB, "measured_mb": measured / MB, "batch": batch, "launches": launches}
        if isinstance(backend, GpuBackend):
            backend = backend.__reduce__()[0]()  # one whose memory no other step shares
        before = backend.memory() or 0
        run = backend.compile(program)
        if isinstance(run, PlannedMemory):
            run(arrays)
            measured = (backend.memory() or 0) - before
            inputs = sum(v.nbytes for v in program.inputs if v.kind == "input")  # it keeps a copy of its own
            return {
                "plan_mb": (run.arena_bytes + inputs) / MB, "measured_mb": measured / MB, "batch": batch,
                "launches": run.launched,
            }  # fmt: skip
        program = model.program("train", batch_size=batch)
        planned = plan(backend.rewrite(program), in_place=False).arena_bytes
        run = backend.compile(model.program("train", batch_size=batch))
        peak = allocated(backend, lambda: run(arrays))
        return None if peak is None else {"plan_mb": planned / MB, "measured_mb": peak / MB, "batch": batch}

    def _program(self, model: Model, batch: int) -> tuple[Program, dict[str, Any]]:
        """A step as a Program, and its inputs on the backend."""
        program = model.program("train", batch_size=batch)
        data = {name: self._samples[f"{name}_train"][self._rows(0, batch)] for name in "xy"}
        data["learning_rate"] = np.float32(counting.LEARNING_RATE)
        return program, step_inputs(model, program, data)

    def kernels(self, batch: int, repeats: int) -> list[dict[str, float]] | None:
        """FLOPs, bytes and median seconds of each kernel of a step; None where a backend does not tell."""
        backend, model = self._backend, self._model
        if model is None or backend.device == "cpu":
            return None
        program, arrays = self._program(model, batch)
        run = backend.compile(program)
        if not isinstance(run, TimedLaunches):
            return None
        return account_of(run.launch_times(arrays, repeats))


def top(k: int, logits: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """Share of samples whose class is among the k largest logits."""
    return float((np.argsort(-logits, axis=1)[:, :k] == y[:, None]).any(1).mean())


def diverging(
    candidate: str, name: str, folder: Path, batches: Sequence[int], rates: Sequence[float], steps: int
) -> dict[str, Any]:
    """Losses of a network's first steps at each batch size and learning rate: see `Runner.diverging`.

    Returns:
        "candidate", "steps", and "runs": batch, rate and losses; fewer than steps where one was no finite number.
    """
    with Worker(candidate, Runner, candidate, name, str(folder)) as worker:
        runs = [
            {"batch": batch, "rate": rate, "losses": worker.call("diverging", batch, rate, steps)}
            for batch in batches
            for rate in rates
        ]
    return {"candidate": candidate, "steps": steps, "runs": runs}


def account_of(launches: Sequence[tuple[Sequence[Node], Sequence[float]]]) -> list[dict[str, float]]:
    """FLOPs, bytes from and to memory, and median seconds of each kernel.

    Args:
        launches: The nodes of each kernel, and its seconds.
    """
    readers: dict[int, set[int]] = {}  # which kernels read a value
    for number, (nodes, _) in enumerate(launches):
        for node in nodes:
            for value in node.inputs:
                readers.setdefault(id(value), set()).add(number)
    accounts = []
    for number, (nodes, seconds) in enumerate(launches):
        values = {id(value): value for node in nodes for value in node.outputs}
        read = {id(value): value for node in nodes for value in node.inputs if id(value) not in values}
        kept = [value for key, value in values.items() if readers.get(key, set()) != {number}]
        accounts.append({
            "flops": sum(node.cost.flops for node in nodes), "seconds": float(np.median(seconds)),
            "bytes": sum(value.nbytes for value in (*read.values(), *kept)),
        })  # fmt: skip
    return accounts


def _is_operation(name: str) -> bool:
    return name.startswith("aten::")


def _within_operation(event: Any) -> bool:
    return event.cpu_parent is not None and (
        _is_operation(event.cpu_parent.name) or _within_operation(event.cpu_parent)
    )


def measure(
    candidates: Sequence[str], name: str, folder: Path, batches: Sequence[int], rounds: int, budget_s: float,
    epoch_batch: int,
) -> dict[str, Any]:  # fmt: skip
    """A network on all candidates: interleaved steps at each batch size, memory, and an epoch.

    Args:
        candidates: The candidates.
        name: Name of the network.
        folder: Where `prepare` has written.
        batches: Batch sizes, the smallest first.
        rounds: How often each candidate is measured.
        budget_s: Seconds after which no round of a batch size starts, once each candidate has had three.
        epoch_batch: Batch size of the epoch.
    """
    result: dict[str, Any] = {"steps": {}, "inputs": {}, "memory": {}}
    with Comparison(candidates, Runner, name, str(folder)) as comparison:
        losses = comparison.prepare("losses", batches[0])
        result["sensitivity"] = max(comparison.prepare("sensitivity", batches[0]).values(), default=0.0)
        result["refused"] = loss_parity(losses, rtols(result["sensitivity"]), what=LOSSES)
        comparison.out.update(result["refused"])
        result["accounts"] = {c: a for c, a in comparison.prepare("account", batches[0]).items() if a is not None}
        result["kernels"] = {c: k for c, k in comparison.prepare("kernels", epoch_batch, 5).items() if k is not None}
        result["launched"] = {c: n for c, n in comparison.prepare("launched").items() if n is not None}
        for batch in batches:
            comparison.prepare("begin", batch)
            result["steps"][str(batch)] = comparison.time("time", rounds=rounds, budget_s=budget_s)
            result["memory"][str(batch)] = comparison.call("memory")
            result["inputs"][str(batch)] = comparison.time("input", batch, rounds=3)
        result["epochs"] = comparison.call("epoch", epoch_batch)
        result["losses"], result["out"] = losses, dict(comparison.out)
    return result


def rtols(sensitivity: float) -> tuple[float, float]:
    """Tolerances of losses of the first steps: see `Runner.sensitivity`."""
    return RTOLS[0], max(RTOLS[1], APART * sensitivity)


def accounts(folder: Path, batch: int) -> dict[str, dict[str, float]]:
    """Planned and measured memory of a step of each network on NumPy, which tells exactly what it allocates."""
    waiting = {name: Worker("numpy", Runner, "numpy", name, str(folder)) for name in counting.NETWORKS}
    with together(waiting) as (workers, out):
        for name, why in out.items():
            raise CandidateError(name, why)
        for worker in workers.values():
            worker.send("account", batch)
        return {name: worker.receive() for name, worker in workers.items()}
