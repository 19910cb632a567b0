"""Trainers by name: a model on a backend, or a peer, and trainings of several of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.loop.tracing import PRECISIONS
from minicnn.measure import jax_peer, torch_peer
from minicnn.measure.candidates import PEERS
from minicnn.measure.comparison import Comparison
from minicnn.measure.model_trainer import ModelTrainer, build
from minicnn.measure.parity import Probe
from minicnn.measure.trainer import USUAL, Batch, Row, Trainer, Work
from minicnn.models import Model
from minicnn.tolerance import tolerance

PEER_TRAINERS: dict[str, Callable[..., torch_peer.TorchTrainer | jax_peer.JaxTrainer]] = {
    "torch.nn": torch_peer.TorchTrainer, "torch.nn-loader": torch_peer.LoaderTrainer, "jax.lax": jax_peer.JaxTrainer,
}  # fmt: skip
Weights = dict[str, np.ndarray[Any, Any]]


def settings_of(network: str, data: str, data_dir: str | None = None, **given: Any) -> Settings:
    """Settings of a training; those of the network's recipe where they are not given."""
    known = ("epochs", "batch_size", "learning_rate", "momentum", "hold_out")
    rest = {"precision": "float32", "seed": 0, "samples": None, **dict.fromkeys(known), **given}
    return Settings.resolve(network, data=data, data_dir=data_dir, **rest)


def gradient_tolerance(settings: Settings, work: Work | None = None, steps: int = 1) -> float:
    """How far two correct gradients, or losses after some steps, may differ: by the rounding of the longest sum.

    Inputs of products in 16 bits are rounded, each alike but for a few at the edge; the sums are exact by comparison.
    """
    policy = PRECISIONS[settings.precision]
    if policy.products:
        return tolerance(policy.products, steps)[0]
    return tolerance(policy.dtype, longest_sum(settings, work) * steps)[0]


def longest_sum(settings: Settings, work: Work | None = None) -> int:
    """The most terms that an element of a product or convolution of a training step sums, gradients included."""
    samples = (work or USUAL).load(settings)
    model = _on_numpy(settings, samples, work or USUAL)
    program = model.program("train", batch_size=settings.batch_size or len(samples["x_train"]))
    return max(int(n.cost.flops // (2 * sum(v.size for v in n.outputs))) for n in program.nodes)


def _on_numpy(settings: Settings, samples: job.Samples, work: Work) -> Model:
    """The network on NumPy, which has no products in 16 bits: weights are the same without."""
    return build(replace(settings, precision=PRECISIONS[settings.precision].dtype), samples, get_backend("numpy"), work)


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


class Peer(Trainer):
    """Another library by itself: PyTorch with the data on the device or through a DataLoader, or plain JAX.

    Args:
        name: See `Trainer`.
        settings: See `Trainer`.
        options: Further arguments of the peer.
        work: See `Trainer`.
        make: Makes the peer, if it is not the one of the name.
    """

    def __init__(
        self, name: str, settings: Settings, options: Mapping[str, Any], work: Work,
        make: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, settings, options, work)
        make = make or PEER_TRAINERS[name.partition(":")[0]]
        first = first_weights(self.settings, self.samples, work)
        device = self.backend.device
        self.peer: Any = make(self.settings, self.samples, first, device, accuracy=work.accuracy, **options)

    def probe(self, epoch: int = 0) -> Probe:
        """See `Trainer.probe`; the batch comes as in training, through the loader if there is one."""
        return Probe(*self.peer.gradients(epoch), {})

    def reset(self, batch: int | None = None) -> None:
        """See `Trainer.reset`."""
        self.peer.reset(batch)

    def place(self, rows: np.ndarray[Any, Any]) -> Batch:
        """See `Trainer.place`."""
        return self.peer.place(rows)

    def step(self, batch: Batch) -> float:
        """See `Trainer.step`."""
        return float(self.peer.step(*batch)[0])

    def accuracy(self, batch: Batch) -> float:
        """See `Trainer.accuracy`."""
        return self.peer.hits(*batch)

    def logits(self, batch: int) -> np.ndarray[Any, Any]:
        """See `Trainer.logits`."""
        return self.peer.logits(batch)

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
    return _on_numpy(settings, samples, work).get_weights()
