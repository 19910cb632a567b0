"""Candidates that train the study's networks: times of steps and of an epoch, memory, and accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends.base import PlannedMemory, TimedLaunches
from minicnn.data import batch_indices, epoch_order
from minicnn.machine import PeakMemory
from minicnn.measure import CandidateError, Comparison, Worker, awaken, stopwatch, torch_peer
from minicnn.measure.candidates import PEERS, backend_of, on_gpu
from minicnn.measure.memory import MB, allocated, footprint
from minicnn.measure.operations import step_inputs
from minicnn.measure.utilisation import utilisation
from minicnn.measure.worker import together
from minicnn.program.graph import Node, Program
from minicnn.program.memory import plan
from minicnn.studies.roofline import counting
from minicnn.studies.roofline.images import ARRAYS

# How far losses of the first steps may differ: the first by rounding; the second, which shows that the gradients are
# the same, by what batch normalisation over few pixels makes of rounding: see `Runner.sensitivity`.
RTOLS = (1e-4, 2e-2)
MOVES, APART = 5, 3.0  # how often weights are moved, and how many times as far two candidates may be apart


class Runner:
    """A candidate with a network; lives in a process of its own.

    Args:
        candidate: A backend, or the peer "torch.nn" with a device.
        name: Name of the network.
        folder: Where `prepare` has written.
    """

    def __init__(self, candidate: str, name: str, folder: str) -> None:
        self._arrays = {n: np.load(Path(folder) / f"{n}.npy") for n in ARRAYS}
        self._image = self._arrays["x"].shape[1:]
        self._peer = candidate.partition(":")[0] in PEERS
        self._name, self._device = name, candidate.partition(":")[2] or "cpu"
        self._on_gpu = on_gpu(candidate)
        self._model = counting.network(name, backend_of(candidate), self._image)
        self._state = self._model.get_state()
        self._batch: tuple[Any, Any] = (None, None)
        self._orders: dict[int, Any] = {}  # of the axes of PyTorch's images, by batch size: the faster
        self.peak = PeakMemory()

    # Steps ----------------------------------------------------------------------------------------

    def losses(self, batch: int) -> list[float]:
        """Losses of the first steps from the first weights on one batch."""
        self.begin(batch)
        return [self._step() for _ in RTOLS]

    def sensitivity(self, batch: int) -> float:
        """By which share the second loss changes at most if the first weights move by a rounding; 0 for peers."""
        if self._peer:
            return 0.0
        state, (_, loss) = self._state, self.losses(batch)
        changes = []
        for seed in range(MOVES):
            rng = np.random.default_rng(seed)
            moved = {
                name: a + a * np.finfo(a.dtype).eps * rng.integers(-1, 2, a.shape).astype(a.dtype)
                if a.dtype.kind == "f" else a
                for name, a in state["arrays"].items()
            }  # fmt: skip
            self._state = {**state, "arrays": moved}
            changes.append(abs(self.losses(batch)[1] / loss - 1))
        self._state = state
        return max(changes)

    def begin(self, batch: int) -> None:
        """Start again from the initial weights, with a batch of so many images on the device."""
        if self._peer:
            self._begin_torch(batch)
        else:
            self._model.set_state(self._state)
        self._batch = self._given(np.arange(batch) % len(self._arrays["x"]))
        self.peak = PeakMemory()

    def time(self) -> float:
        """Seconds of a step on the batch."""
        if self._on_gpu:
            awaken(self._model.backend)
        return stopwatch(self._step, self._model.backend.synchronize)

    def input(self, batch: int) -> float:
        """Seconds of making a batch: picking images at random, and handing them to the device."""
        order = epoch_order(len(self._arrays["x"]), shuffle=True, seed=0, epoch=0)
        rows = np.resize(order, batch)
        return stopwatch(lambda: self._given(rows), self._model.backend.synchronize)

    def memory(self) -> dict[str, float | None]:
        """Memory of the process and the device in MB."""
        return footprint(self.peak, self._model.backend)

    def epoch(self, batch: int) -> dict[str, float | None]:
        """One epoch from the first weights, its input included, and the accuracy on the test images after it."""
        self.begin(batch)
        order = epoch_order(len(self._arrays["x"]), shuffle=True, seed=0, epoch=0)
        last = [0.0]
        batches = batch_indices(order, batch, "drop")

        def train() -> None:
            for rows in batches:
                self._batch = self._given(rows)
                last[0] = self._step()

        with utilisation() as used:
            seconds = stopwatch(train, self._model.backend.synchronize)
        logits = self._logits(batch)
        return {
            "seconds": seconds, "images_per_s": len(batches) * batch / seconds, "steps": len(batches),
            "loss": last[0] if np.isfinite(last[0]) else None, "batch_top1": self._batch_accuracy(),
            "top1": top(1, logits, self._arrays["y_test"]), "top5": top(5, logits, self._arrays["y_test"]), **used,
        }  # fmt: skip

    def diverging(self, batch: int, rate: float, steps: int) -> list[float]:
        """Losses of steps from the first weights with a learning rate, up to the first that is no finite number."""
        self.begin(batch)
        optimizer: Any = self._model.optimizer
        usual, optimizer.learning_rate = optimizer.learning_rate, rate
        losses: list[float] = []
        for step in range(steps):
            self._batch = self._given(np.arange(step * batch, (step + 1) * batch) % len(self._arrays["x"]))
            loss = self._step()
            if not np.isfinite(loss):
                break
            losses.append(loss)
        optimizer.learning_rate = usual
        return losses

    def _given(self, rows: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        x, y = self._arrays["x"][rows], self._arrays["y"][rows]
        if self._peer:
            import torch

            return torch_peer.on_device(x, y, self._device, self._orders.get(len(x), torch.channels_last))
        return self._model.backend.asarray(x), self._model.backend.asarray(y)

    def _step(self) -> float:
        x, y = self._batch
        if not self._peer:
            return float(self._model.train_on_batch(x, y, return_dict=True)["loss"])
        import torch

        self._optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self._module(x.float() / 255), y)
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def _logits(self, batch: int) -> np.ndarray[Any, Any]:
        """What the network makes of the test images."""
        x = self._arrays["x_test"]
        if not self._peer:
            return np.asarray(self._model.predict(x, batch))
        import torch

        self._module.eval()
        with torch.no_grad():
            images = torch.from_numpy(x).permute(0, 3, 1, 2)
            found = [self._module(part.to(self._device).float() / 255).cpu() for part in images.split(batch)]
        self._module.train()
        return torch.cat(found).numpy()

    def _batch_accuracy(self) -> float:
        """Accuracy on the last batch of training, normalised by its own statistics; it takes one step more."""
        x, y = self._batch
        if not self._peer:
            return float(self._model.train_on_batch(x, y, return_dict=True)["accuracy"])
        import torch

        with torch.no_grad():
            return float((self._module(x.float() / 255).argmax(1) == y).float().mean())

    def _begin_torch(self, batch: int) -> None:
        import torch

        from minicnn.measure import torch_networks

        torch_peer.at_its_best()
        weights = self._model.get_weights()
        module = torch_networks.build(self._name, self._image, counting.CLASSES, weights).to(self._device).train()
        if batch not in self._orders:
            x, y = self._given(np.arange(batch) % len(self._arrays["x"]))
            self._orders[batch] = torch_peer.faster_order(module, x.float() / 255, y)
        self._module = module.to(memory_format=self._orders[batch])
        self._optimizer = torch.optim.SGD(self._module.parameters(), counting.LEARNING_RATE, counting.MOMENTUM)

    def launched(self) -> int | None:
        """Operations that PyTorch launches in a step: kernels on a GPU; None for backends, whose Program tells."""
        if not self._peer:
            return None
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        with profile(activities=activities) as seen:
            self._step()
        if self._on_gpu:
            return sum(event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for event in seen.events())
        return sum(_is_operation(event.name) and not _within_operation(event) for event in seen.events())

    # The account ----------------------------------------------------------------------------------

    def account(self, batch: int) -> dict[str, float] | None:
        """MB of a step as the Program's plan says and as measured, where a backend tells; None where it does not."""
        backend, model = self._model.backend, self._model
        if self._peer or backend.name == "jax":
            return None
        program, arrays = self._program(batch)
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
            given = sum(v.nbytes for v in program.inputs if v.kind == "input")  # it keeps a copy of its own
            return {
                "plan_mb": (run.arena_bytes + given) / MB, "measured_mb": measured / MB, "batch": batch,
                "launches": run.launched,
            }  # fmt: skip
        program = model.program("train", batch_size=batch)
        planned = plan(backend.rewrite(program), in_place=False).arena_bytes
        run = backend.compile(model.program("train", batch_size=batch))
        peak = allocated(backend, lambda: run(arrays))
        return None if peak is None else {"plan_mb": planned / MB, "measured_mb": peak / MB, "batch": batch}

    def _program(self, batch: int) -> tuple[Program, dict[str, Any]]:
        """A step as a Program, and its inputs on the backend."""
        program = self._model.program("train", batch_size=batch)
        rows = np.arange(batch) % len(self._arrays["x"])
        given = {name: self._arrays[name][rows] for name in "xy"}
        given["learning_rate"] = np.float32(counting.LEARNING_RATE)
        return program, step_inputs(self._model, program, given)

    def kernels(self, batch: int, repeats: int) -> list[dict[str, float]] | None:
        """FLOPs, bytes and median seconds of each kernel of a step; None where a backend does not tell."""
        backend = self._model.backend
        if self._peer or backend.device == "cpu":
            return None
        program, arrays = self._program(batch)
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
    found = []
    for number, (nodes, seconds) in enumerate(launches):
        made = {id(value): value for node in nodes for value in node.outputs}
        read = {id(value): value for node in nodes for value in node.inputs if id(value) not in made}
        kept = [value for key, value in made.items() if readers.get(key, set()) != {number}]
        found.append({
            "flops": sum(node.cost.flops for node in nodes), "seconds": float(np.median(seconds)),
            "bytes": sum(value.nbytes for value in (*read.values(), *kept)),
        })  # fmt: skip
    return found


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
        result["refused"] = refused(losses, result["sensitivity"])
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


def refused(losses: Mapping[str, Sequence[float]], sensitivity: float) -> dict[str, str]:
    """Candidates whose losses of the first steps differ too much from the first's, and by how much.

    Args:
        losses: Losses by candidate.
        sensitivity: See `Runner.sensitivity`.
    """
    found, rtols = {}, (RTOLS[0], max(RTOLS[1], APART * sensitivity))
    first = next(iter(losses), "")
    for candidate, own in losses.items():
        off = [abs(a - b) / abs(b) for a, b in zip(own, losses[first], strict=True)]
        if not all(a <= b for a, b in zip(off, rtols, strict=True)):
            said = " and ".join(f"{a:.1e} (relative; at most {b:.0e})" for a, b in zip(off, rtols, strict=True))
            found[candidate] = f"its losses before and after the first step differ from {first}'s by {said}"
    return found


def accounts(folder: Path, batch: int) -> dict[str, dict[str, float]]:
    """Planned and measured memory of a step of each network on NumPy, which tells exactly what it allocates."""
    made = {name: Worker("numpy", Runner, "numpy", name, str(folder)) for name in counting.NETWORKS}
    with together(made) as (workers, out):
        for name, why in out.items():
            raise CandidateError(name, why)
        for worker in workers.values():
            worker.send("account", batch)
        return {name: worker.receive() for name, worker in workers.items()}
