"""Candidates that train one of the studies' networks: a model on a backend, or a peer, with the same methods.

A trainer is made in a process of its own: see `minicnn.measure.comparison`. All start from the same weights and see the
same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends.base import Backend
from minicnn.callbacks import Callback, Timer
from minicnn.callbacks.base import Logs
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.machine import PeakMemory
from minicnn.measure import jax_peer, torch_peer
from minicnn.measure.candidates import HYBRID, PEERS, backend_of
from minicnn.measure.comparison import Comparison
from minicnn.measure.hybrid import Hybrid
from minicnn.measure.memory import MB, footprint, let_go, resident
from minicnn.measure.operations import apart, step_inputs, step_times
from minicnn.measure.parity import Probe
from minicnn.measure.timing import awaken, stopwatch
from minicnn.tolerance import EPSILON, tolerance

# Forward passes, or steps, are timed together up to so many seconds, and so many of them.
PASSES_S, MOST_PASSES, MOST_STEPS = 0.1, 100, 1000

PEER_TRAINERS: dict[str, Callable[..., torch_peer.TorchTrainer | jax_peer.JaxTrainer]] = {
    "torch.nn": torch_peer.TorchTrainer, "torch.nn-loader": torch_peer.LoaderTrainer, "jax.lax": jax_peer.JaxTrainer,
}  # fmt: skip
Weights = dict[str, np.ndarray[Any, Any]]
Row = dict[str, Any]


def settings_of(network: str, data: str, data_dir: str | None = None, **given: Any) -> Settings:
    """Settings of a training; those of the network's recipe where they are not given."""
    known = ("epochs", "batch_size", "learning_rate", "momentum", "hold_out")
    rest = {"precision": "float32", "seed": 0, "samples": None, **dict.fromkeys(known), **given}
    return Settings.resolve(network, data=data, data_dir=data_dir, **rest)


def gradient_tolerance(settings: Settings, work: Work | None = None) -> float:
    """How far two correct gradients may differ: by the rounding of the longest sum of a training step."""
    samples = job.load_samples(settings)
    model = job.make_model(settings, samples, get_backend("numpy"), **(work or USUAL).network)
    program = model.program("train", batch_size=settings.batch_size or len(samples["x_train"]))
    longest = max(int(n.cost.flops // (2 * sum(v.size for v in n.outputs))) for n in program.nodes)
    return tolerance(settings.precision, longest)[0]


@dataclass(frozen=True)
class Work:
    """What a training step is to do beside the step itself, and what is done before the training.

    Attributes:
        scaled: Whether images are scaled to 0 .. 1 before the training, rather than in each step.
        rows: Whether images are rows of numbers before the training. In a step minicnn's models copy them, as no
            operation returns a view; PyTorch and JAX need no copy.
        accuracy: Whether steps, and the forward pass by itself, compute the accuracy beside the loss.
        network: Further arguments of `minicnn.jobs.job.make_model`, such as `hidden_units`, the only one that peers
            heed.
    """

    scaled: bool = False
    rows: bool = False
    accuracy: bool = True
    network: Mapping[str, Any] = field(default_factory=dict)


USUAL = Work()


def trainer(name: str, settings: Settings, options: Mapping[str, Any] | None = None, *, work: Work = USUAL) -> Trainer:
    """The trainer of a candidate.

    Args:
        name: Name of the candidate.
        settings: What to train and how.
        options: Further arguments: of the backend for one of minicnn's, of the trainer for a peer.
        work: What a step does.
    """
    kind = Peer if name.partition(":")[0] in PEERS else ModelTrainer
    return kind(name, settings, dict(options or {}), work)


class Trainer:
    """What a candidate does; made and called in a process of its own.

    Args:
        name: Name of the candidate.
        settings: What to train and how.
        options: See `trainer`.
        work: See `trainer`.
    """

    def __init__(self, name: str, settings: Settings, options: Mapping[str, Any], work: Work) -> None:
        self.bare_mb = resident() / MB
        self.settings, self.work = settings, work
        self.backend: Backend = open_candidate(name, {} if name.partition(":")[0] in PEERS else options)
        _warm_up(self.backend)
        let_go()
        self.library_mb = resident() / MB
        found = job.load_samples(settings)
        self.samples = found.scaled() if work.scaled else found
        del found
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
        found: dict[str, float] = {}
        taken = stopwatch(lambda: found.update(self._evaluate(part)), self.backend.synchronize)
        return {**found, "time_s": taken}

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


def train(
    make: Callable[..., Trainer], settings: Settings, candidates: Sequence[str], rtol: float,
    others: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """Train all candidates, epochs interleaved and each followed by a test, once their gradients were compared.

    Args:
        make: Makes a candidate's trainer from its name and the settings.
        settings: What to train and how.
        candidates: Their names.
        rtol: See `minicnn.measure.parity.parity`.
        others: See `minicnn.measure.parity.parity`.

    Returns:
        "history", rows of the epochs by candidate, and "out", why others are out.
    """
    history: dict[str, list[Row]] = {name: [] for name in candidates}
    with Comparison(candidates, make, settings) as comparison:
        comparison.check(rtol, others=others)
        comparison.prepare("evaluate")  # compiles it
        for _ in range(settings.epochs):
            rows = comparison.call("train_epoch")
            for name, found in comparison.call("evaluate").items():
                history[name].append({**rows[name], **{f"test_{key}": value for key, value in found.items()}})
        return {"history": {name: history[name] for name in comparison.names}, "out": comparison.out}


def _warm_up(backend: Backend) -> None:
    """Have libraries make the buffers and threads that they keep, so that these count as theirs."""
    tall = backend.asarray(np.ones((2**15, 1024), np.float32))
    thin = backend.asarray(np.ones((1024, 16), np.float32))
    with backend.active():
        backend.to_numpy(backend.xp.matmul(tall, thin))


def open_candidate(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of a candidate, with options of its own such as `options=Options(fused=False)`; a hybrid has none."""
    if HYBRID in name:
        return Hybrid(*map(get_backend, name.split(HYBRID)))
    if not options:
        return get_backend(backend_of(name))
    from minicnn.backends import backend_class

    base, _, device = backend_of(name).partition(":")
    return backend_class(base)(device or None, **options)


class ModelTrainer(Trainer):
    """A minicnn model on one of its backends, trained by `fit`."""

    def __init__(self, name: str, settings: Settings, options: Mapping[str, Any], work: Work) -> None:
        super().__init__(name, settings, options, work)
        self.samples = self.samples.in_rows() if work.rows else self.samples
        metrics = ("accuracy",) if work.accuracy else ()
        self.model = job.make_model(self.settings, self.samples, self.backend, metrics, **work.network)
        self.x, self.y = self.samples["x_train"], self.samples["y_train"]
        if self.backend.keeps(self.x.nbytes + self.y.nbytes):  # on the device once and for all
            self.x, self.y = self.backend.asarray(self.x), self.backend.asarray(self.y)
        self.backend.synchronize()

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`: one step with the learning rate 1 takes the gradients off the weights."""
        before, state = self.model.get_weights(), self.model.get_state()
        optimizer: Any = self.model.optimizer
        rate, optimizer.learning_rate = optimizer.learning_rate, 1.0
        if self.settings.batch_size == len(self.samples["x_train"]):
            row = self._whole(1)
        else:
            begun, self.epoch = self.epoch, epoch
            row = self._fit(_StopAtOnce())
            self.epoch = begun
        after = self.model.get_weights()
        optimizer.learning_rate = rate
        self.model.set_state(state)
        eps = EPSILON[self.settings.precision]
        rounding = {p: eps * float(max(np.abs(before[p]).max(), np.abs(after[p]).max())) for p in before}
        return Probe(row["loss"], {p: before[p].astype(np.float64) - after[p] for p in before}, rounding)

    def _evaluate(self, part: str) -> dict[str, float]:
        batch = min(self.settings.batch_size or 0, len(self.samples[f"x_{part}"]))
        x, y = self.samples[f"x_{part}"], self.samples[f"y_{part}"]
        if not self.work.accuracy:
            return {"accuracy": float((self.model.predict(x, batch).argmax(1) == y).mean())}
        found: dict[str, float] = self.model.evaluate(x, y, batch, return_dict=True)
        return found

    def nodes(self, repeats: int) -> dict[str, Any] | None:
        """See `Trainer.nodes`."""
        program = self.model.program("train", batch_size=len(self.x))
        given = {"x": self.x, "y": self.y, "learning_rate": np.asarray(self.settings.learning_rate, np.float32)}
        arrays = step_inputs(self.model, program, given)
        # Beside a host that waits after each, a GPU's operations all take as long as launching one and waiting for it.
        if self.backend.device == "cpu":
            found = step_times(self.backend, program, arrays, repeats=repeats, merged=False)
            if found is not None:
                return {"apart": False, "nodes": [asdict(node) for node in found[1]]}
        program, arrays = self.model.program("train", batch_size=len(self.x)), step_inputs(self.model, program, given)
        return {"apart": True, "nodes": [asdict(n) for n in apart(self.backend, program, arrays, repeats=repeats)]}

    def account(self) -> dict[str, Any]:
        """See `Trainer.account`."""
        plan = self.model.program("train", batch_size=self.settings.batch_size or 0).memory()
        return {**super().account(), "plan": {**plan.by_kind, "arena": plan.arena_bytes, "peak": plan.peak_bytes}}

    def _forward(self, passes: int) -> object:
        return self.model.evaluate([(self.x, self.y)] * passes, return_dict=True)

    def _epoch(self) -> Row:
        return self._fit()

    def _fit(self, *callbacks: Callback) -> Row:
        return self.fit(self.x, self.y, *callbacks)

    def fit(self, x: Any, y: Any, *callbacks: Callback) -> Row:
        """Train on arrays, or on a loader, for the epoch that comes next."""
        count, batch = len(self.samples["x_train"]), self.settings.batch_size or 0
        history = self.model.fit(
            x, y, batch, self.epoch + 1, 0, [Timer(), *callbacks], shuffle=batch < count,
            initial_epoch=self.epoch, last_batch=self.settings.last_batch,
        )  # fmt: skip
        return _row(history.history)

    def _whole(self, steps: int) -> Row:
        history = self.model.fit([(self.x, self.y)] * steps, epochs=1, verbose=0, callbacks=[Timer()])
        return _row(history.history)


def _row(history: Mapping[str, Any]) -> Row:
    keys = ("loss", "accuracy", "time_s", "samples_per_s")
    return {key: float(history[key][-1]) for key in keys if key in history}


class _StopAtOnce(Callback):
    """Stops training after its first step."""

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """See `Callback`."""
        self.model.stop_training = True


class Peer(Trainer):
    """Another library by itself: PyTorch with the data on the device or through a DataLoader, or plain JAX."""

    def __init__(self, name: str, settings: Settings, options: Mapping[str, Any], work: Work) -> None:
        super().__init__(name, settings, options, work)
        self.peer = PEER_TRAINERS[name.partition(":")[0]](
            self.settings, self.samples, first_weights(self.settings, self.samples, work), self.backend.device,
            accuracy=work.accuracy, **options,
        )  # fmt: skip

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`; the batch comes as in training, through the loader if there is one."""
        return Probe(*self.peer.gradients(epoch), {})

    def _evaluate(self, part: str) -> dict[str, float]:
        return self.peer.evaluate(part)

    def _forward(self, passes: int) -> object:
        return self.peer.forward(passes)

    def _epoch(self) -> Row:
        return self.peer.train_epoch(self.epoch)

    def _whole(self, steps: int) -> Row:
        return self.peer.train_whole(steps)


def first_weights(settings: Settings, samples: job.Samples, work: Work = USUAL) -> Weights:
    """The weights that every candidate starts from."""
    return job.make_model(settings, samples, get_backend("numpy"), **work.network).get_weights()
