"""Trainers by name: a model on a backend, or a peer, and trainings of several of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from minicnn.jobs.settings import Settings
from minicnn.loop.tracing import PRECISIONS
from minicnn.measure.comparison import Comparison
from minicnn.measure.jax_peer import JaxTrainer
from minicnn.measure.model_trainer import ModelTrainer, on_numpy
from minicnn.measure.parity import longest_sum
from minicnn.measure.torch_peer import LoaderTrainer, TorchTrainer
from minicnn.measure.trainer import USUAL, Row, Trainer, Work
from minicnn.tolerance import tolerance

PEER_TRAINERS: dict[str, type[Trainer]] = {
    "torch.nn": TorchTrainer, "torch.nn-loader": LoaderTrainer, "jax.lax": JaxTrainer,
}  # fmt: skip


def settings_of(network: str, data: str, data_dir: str | None = None, **options: Any) -> Settings:
    """Settings of a training; those of the network's recipe where they are not given."""
    known = ("epochs", "batch_size", "learning_rate", "momentum", "hold_out")
    rest = {"precision": "float32", "seed": 0, "samples": None, **dict.fromkeys(known), **options}
    return Settings.resolve(network, data=data, data_dir=data_dir, **rest)


def gradient_tolerance(settings: Settings, work: Work | None = None, steps: int = 1) -> float:
    """Tolerance of two correct gradients, or losses after some steps: the rounding of the longest sum.

    Inputs of products in 16 bits are rounded, each alike but for a few at the edge; the sums are exact by comparison.
    """
    policy, work = PRECISIONS[settings.precision], work or USUAL
    if policy.products:
        return tolerance(policy.products, steps)[0]
    samples = work.load(settings)
    batch = settings.batch_size or len(samples["x_train"])
    program = on_numpy(settings, samples, work).program("train", batch_size=batch)
    return tolerance(policy.dtype, longest_sum(program) * steps)[0]


def trainer(name: str, settings: Settings, options: Mapping[str, Any] | None = None, *, work: Work = USUAL) -> Trainer:
    """The trainer of a candidate.

    Args:
        name: Name of the candidate.
        settings: What to train and how.
        options: Further arguments of its trainer.
        work: What a step does.
    """
    kind = PEER_TRAINERS.get(name.partition(":")[0], ModelTrainer)
    return kind(name, settings, work, **(options or {}))


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
            for name, results in comparison.call("evaluate").items():
                history[name].append({**rows[name], **{f"test_{key}": value for key, value in results.items()}})
        return {"history": {name: history[name] for name in comparison.names}, "out": comparison.out}
