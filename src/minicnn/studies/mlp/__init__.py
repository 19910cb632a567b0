"""Study `mlp`: a multilayer perceptron trained on the whole set at once, operation by operation.

A. Sapra, Performance Benchmarking of CNN Implementation: CPU vs. CUDA, Thapar Institute, May 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from minicnn.jobs.settings import Settings
from minicnn.measure import Comparison, Measurement, Setting, Study
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import gradient_tolerance, settings_of, trainer
from minicnn.studies.mlp import pages, sweeps

SWEPT = ("hidden", "counts", "rounds")  # sizes of the sweeps alone


@dataclass(frozen=True)
class MlpSizes:
    """Sizes of the study.

    Attributes:
        iterations: Iterations, each on the whole training set.
        per_round: How many of them a candidate makes in a round, between two evaluations of the accuracy.
        hold_out: Samples held out; 0 evaluates on the test set.
        repeats: How often the forward pass and each operation are timed.
        samples: The most samples that are used; 0 for all.
        input: Whether images are scaled beforehand, as in the study ("float32"), or in each step ("uint8").
        hidden: Hidden units of the sweep over models, on the most samples.
        counts: Samples of the sweep over data, with the fewest hidden units.
        rounds: How often an iteration of the sweeps is measured.
    """

    iterations: int = 500
    per_round: int = 10
    hold_out: int = field(default=1000, metadata={"least": 0})
    repeats: int = 20
    samples: int = 0
    input: str = field(default="float32", metadata={"known": ("float32", "uint8")})
    hidden: tuple[int, ...] = (10, 32, 128, 512, 2048)
    counts: tuple[int, ...] = (1000, 4000, 16_000, 59_000)
    rounds: int = 5


def measurements(setting: Setting) -> Iterator[Measurement]:
    """On each data set the training, all candidates in one run, and the points of the sweeps."""
    sizes = setting.sizes
    for data in setting.data:
        settings = settings_of(
            "mlp", data, setting.data_dir, epochs=sizes.iterations, hold_out=sizes.hold_out,
            samples=sizes.samples or None,
        )  # fmt: skip
        fixed = {key: value for key, value in asdict(sizes).items() if key not in SWEPT}
        inputs: dict[str, Any] = {"settings": asdict(settings), "sizes": fixed, "candidates": setting.candidates}
        yield Measurement(f"training-{data}", inputs, partial(_train, settings, sizes, setting.candidates))
        for units, count in sweeps.points(sizes):
            few = replace(settings, samples=count)
            inputs = {"settings": asdict(few), "hidden": units, "rounds": sizes.rounds, "input": sizes.input}
            inputs |= {"candidates": setting.candidates}
            run = partial(_time, few, replace(_work(sizes), network={"hidden_units": units}), sizes.rounds)
            yield Measurement(sweeps.sweep_name(data, units, count), inputs, partial(run, setting.candidates))


def _work(sizes: MlpSizes) -> Work:
    """Options of a step: those of the study."""
    return Work(scaled=sizes.input == "float32", rows=True, accuracy=False)


def _time(settings: Settings, work: Work, rounds: int, candidates: Sequence[str]) -> dict[str, Any]:
    """Seconds of an iteration by candidate, interleaved; why others are out."""
    with Comparison(candidates, partial(trainer, work=work), settings) as comparison:
        comparison.check(gradient_tolerance(settings, work))
        seconds = comparison.time("iteration", rounds=rounds)
        return {"seconds": seconds, "out": comparison.out}


def _train(settings: Settings, sizes: MlpSizes, candidates: Sequence[str]) -> dict[str, Any]:
    """Interleaved rounds of iterations, then interleaved forward passes, single operations, and memory."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    tolerance = gradient_tolerance(settings)
    work = _work(sizes)
    with Comparison(candidates, partial(trainer, work=work), settings) as comparison:
        comparison.check(tolerance)
        for method, argument in (("evaluate", "val"), ("nodes", 1)):
            comparison.prepare(method, argument)  # compiles it
        done = 0
        while done < sizes.iterations:
            steps = min(sizes.per_round, sizes.iterations - done)
            done += steps
            rows = comparison.call("train_whole", steps)
            for name, scores in comparison.call("evaluate", "val").items():
                row = {key: rows[name][key] for key in ("time_s", "loss")}
                rounds[name].append({"iteration": done, "steps": steps, **row, "val_accuracy": scores["accuracy"]})
        account = comparison.call("account")
        forward = comparison.time("forward", rounds=sizes.repeats)
        nodes = comparison.call("nodes", sizes.repeats)
        return {
            "rounds": {name: rounds[name] for name in comparison.names}, "forward": forward, "nodes": nodes,
            "account": account, "out": comparison.out, "work": work.plain(),
        }  # fmt: skip


STUDY = Study(
    title="MLP: NumPy against the others, operation by operation",
    question="What does each operation of a small network cost on a CPU and on a GPU?",
    source="A. Sapra, Performance Benchmarking of CNN Implementation: CPU vs. CUDA, Thapar Institute, May 2025.",
    full=MlpSizes(),
    quick=MlpSizes(iterations=100, repeats=5, hidden=(10, 256), counts=(1000, 10_000), rounds=3),
    data=("mnist",),
    others=("fashion_mnist", "kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=pages.present,
    peers=("torch.nn", "jax.lax"),
)
