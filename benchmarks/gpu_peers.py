"""Training on one GPU beside PyTorch and JAX, interleaved, after checking that all compute the same losses.

    python benchmarks/gpu_peers.py [--quick] [--json FILE] [--rounds N] [--image N] [--classes N] [--batch N] [--dry]
                                   [CASE ...]

Each candidate runs in a process of its own and is idle while another is timed. All have the samples on the GPU and
start from the same weights; each round the host hands them the rows of every step, and reads the mean loss at the end.
minicnn runs through `fit`. Peers run at their best: images in float32 and normalised beforehand, PyTorch's optimizer
fused, its CUDA graph holding the whole step with the choice of the rows, in the faster of its two layouts, JAX with all
steps in one jitted scan.
"TF32" is what a candidate's products and convolutions are rounded to; all else is float32 everywhere.

    mlp        500 steps on 59,000 samples        platforms, kernels    an epoch of 60,000 samples
    channels12, kernel5, stride2, batch96, batch1000, rgb32    variations of `platforms` and `kernels`
    resnet18, resnet50, mobilenet_v2, squeezenet1_1, vgg11     20 steps on images of 64x64, 200 classes, batch 128;
        float32, bfloat16 and float16: PyTorch by autocast, channels last, compiled with max-autotune

With --dry, all run on the CPU, a few steps on small images, minicnn on PyTorch's arrays: it shows that the candidates
agree and that the script works, and times nothing that counts.

A candidate whose losses differ from the others' is refused: its time is shown with a star, and counts nowhere. How far
losses may differ is what rounding makes of them: at least a tolerance for each precision, and where steps are chaotic
three times what the losses of minicnn change if its first weights move by a rounding in that precision.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax_networks import DeepJaxTrainer
from torch_graphs import GraphTrainer

from minicnn import machine
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import Settings
from minicnn.measure import Comparison, Spread
from minicnn.measure.cases import CASES as EVERY
from minicnn.measure.cases import TrainingCase, as_samples
from minicnn.measure.jax_peer import JaxTrainer
from minicnn.measure.trainer import Trainer, Work
from minicnn.measure.trainers import trainer

STUDIES = ("mlp", "platforms", "kernels")
DEEP = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "vgg11")
LIKE = {
    **dict.fromkeys(("channels12", "kernel5", "stride2", "batch96", "batch1000"), "platforms"), "rgb32": "kernels",
}  # fmt: skip
CASES = {
    "mlp": replace(EVERY["mlp"], steps=500),
    **{name: EVERY[name] for name in ("platforms", "kernels", *LIKE)},
    **{name: replace(EVERY[name], batch=128, steps=20) for name in DEEP},
}
TOLERANCE = {  # of the mean losses of the first two rounds; rounding grows from step to step
    "float32": (1e-3, 1e-2), "tf32": (3e-3, 3e-2), "bfloat16": (2e-2, 3e-2), "float16": (5e-3, 2e-2),
}  # fmt: skip


ROUNDING = {"float32": 2.0**-23, "tf32": 2.0**-10, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # of a number by 1
APART = 3.0  # how many times as far as rounding moves them losses of two candidates may be apart


@dataclass(frozen=True)
class Candidate:
    """Who trains and how.

    Attributes:
        library: "minicnn", "torch" or "jax".
        kind: Backend or way of running.
        precision: Key of `TOLERANCE`.
        standard: Whether it takes part in the variations, and in a quick run.
        deep: Whether it trains the deep networks, and only these if its precision is of 16 bits.
    """

    library: str
    kind: str
    precision: str = "float32"
    standard: bool = False
    deep: bool = False

    def trains(self, case: str, *, few: bool) -> bool:
        """Whether it takes part in a case; in a quick run the `standard` ones do."""
        if case in DEEP:
            return self.deep and (self.standard or not few)
        return not self.precision.endswith("16") and (self.standard or not few)


CANDIDATES = {
    "minicnn cupy": Candidate("minicnn", "cupy", standard=True, deep=True),
    "minicnn cupy, bfloat16": Candidate("minicnn", "cupy", "bfloat16", standard=True, deep=True),
    "minicnn cupy, float16": Candidate("minicnn", "cupy", "float16", deep=True),
    "minicnn numba_cuda": Candidate("minicnn", "numba_cuda"),
    "minicnn webgpu": Candidate("minicnn", "webgpu"),
    "PyTorch graph": Candidate("torch", "graph", standard=True, deep=True),
    "PyTorch eager": Candidate("torch", "eager"),
    "PyTorch compile": Candidate("torch", "compile"),
    "PyTorch eager, TF32": Candidate("torch", "eager", "tf32"),
    "PyTorch graph, TF32": Candidate("torch", "graph", "tf32", standard=True),
    "PyTorch compile, TF32": Candidate("torch", "compile", "tf32"),
    "PyTorch compile in a graph, TF32": Candidate("torch", "compile graph", "tf32"),
    "PyTorch eager, bfloat16": Candidate("torch", "eager", "bfloat16", deep=True),
    "PyTorch graph, bfloat16": Candidate("torch", "graph", "bfloat16", deep=True),
    "PyTorch compile, bfloat16": Candidate("torch", "compile", "bfloat16", standard=True, deep=True),
    "PyTorch compile in a graph, bfloat16": Candidate("torch", "compile graph", "bfloat16", deep=True),
    "PyTorch compile, float16": Candidate("torch", "compile", "float16", deep=True),
    "JAX": Candidate("jax", "scan", standard=True),
    "JAX, TF32": Candidate("jax", "scan", "tf32", standard=True),
    "JAX, bfloat16": Candidate("jax", "scan", "bfloat16", deep=True),
}


MANY = 10_000  # samples of a batch from which on it is the whole set
DRY_STEPS, DRY_BATCH = 4, 32  # at most, in a dry run


def samples(case: TrainingCase, _: Settings) -> Samples:
    """Images uint8 (N, H, W, C) that can be told apart, with noise, and labels (N,); an epoch sees each once."""
    generator = np.random.default_rng(0)
    count = case.batch * case.steps if case.batch < MANY else case.batch
    y = generator.integers(0, case.classes, count).astype(np.int32)
    ink = (generator.random((case.classes, *case.image)) < 0.15) * np.uint8(150)  # mostly dark, as digits are
    noise = generator.integers(0, 50, (count, *case.image), np.uint8)
    return as_samples(ink[y] + noise * (noise < 5), y, case.classes)


def contender(candidate: str, name: str, case: TrainingCase, *, dry: bool) -> Trainer:
    """The trainer of a candidate; in a dry run on the CPU."""
    who = CANDIDATES[candidate]
    own, short = who.library == "minicnn", who.precision.endswith("16")
    precision = f"mixed_{who.precision}" if own and short else "float32"
    work = Work(scaled=not own, accuracy=False, network=case.options, load=partial(samples, case))
    settings = case.settings(name, precision=precision)
    if own:
        return trainer("torch" if dry else who.kind, settings, {} if dry else {"strict": True}, work=work)
    if who.library == "torch":
        # Deep networks are channels last; compiling takes too long to try both.
        layout = True if case.deep else who.precision == "tf32" if "compile" in who.kind else None
        kind, device = ("eager", "cpu") if dry else (who.kind, "cuda")
        return GraphTrainer(
            f"torch.nn:{device}", settings, work, kind=kind, precision=who.precision, channels_last=layout
        )
    device, precision_of = "cpu" if dry else "gpu", None if who.precision == "tf32" else "highest"
    if case.deep:
        kept = who.precision if short else "float32"
        return DeepJaxTrainer(f"jax.lax:{device}", settings, work, short=kept, precision=precision_of)
    return JaxTrainer(f"jax.lax:{device}", settings, work, precision=precision_of)


def measure(
    name: str, case: TrainingCase, candidates: Sequence[str], rounds: int, *, dry: bool, patience: float | None
) -> dict[str, Any]:
    """Milliseconds of a round of each candidate: median and quartiles, interleaved; why it was refused or not timed."""
    judges = (c for c in candidates if (CANDIDATES[c].library, CANDIDATES[c].precision) == ("torch", "float32"))
    threads = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    start = time.perf_counter()
    with Comparison(
        candidates, partial(contender, dry=dry), name, case, environment=dict.fromkeys(candidates, threads),
        reference=next(judges, None), patience=patience,
    ) as comparison:  # fmt: skip
        print(f"{len(candidates)} candidates ready after {time.perf_counter() - start:.0f} s", flush=True)
        allowed = tolerances(comparison)
        precisions = {c: allowed[CANDIDATES[c].precision] for c in candidates}
        losses, refused = comparison.losses("losses", 2, rtols=allowed["float32"], others=precisions)
        whole = name == "mlp"  # a batch is the whole set, and a round many steps
        times = comparison.time("iteration" if whole else "seconds", rounds=rounds)
        result: dict[str, Any] = {c: {"failed": why} for c, why in comparison.out.items()}
    for c, seconds in times.items():
        spread = Spread.of(seconds, 1e3 * (case.steps if whole else 1))
        result[c] = {"probe": losses[c][0], "loss": losses[c][1], "median_ms": spread.median, "low_ms": spread.low,
                     "high_ms": spread.high}  # fmt: skip
        if case.deep:
            result[c]["images_per_s"] = case.batch * case.steps / spread.median * 1e3
        if c in refused:
            result[c]["refused"] = refused[c]
    return {c: result[c] for c in candidates}


def tolerances(comparison: Comparison) -> dict[str, tuple[float, ...]]:
    """By precision, how far losses of the first two rounds may differ."""
    ours = next((c for c in comparison.names if CANDIDATES[c].library == "minicnn"), None)
    allowed: dict[str, tuple[float, ...]] = {}
    for precision in {CANDIDATES[c].precision for c in comparison.names} | {"float32"}:
        told = comparison.prepare("sensitivity", 2, ROUNDING[precision]) if ours else {}
        moved = told.get(ours, [0.0, 0.0])
        allowed[precision] = tuple(max(a, APART * b) for a, b in zip(TOLERANCE[precision], moved, strict=True))
    return allowed


def best(results: dict[str, Any], library: str | None = None, precision: str | None = None) -> tuple[float, str]:
    """Median and name of the fastest of minicnn's candidates, or of the others; infinity if there is none."""
    found = [
        (row["median_ms"], c)
        for c, row in results.items()
        if "median_ms" in row
        and "refused" not in row
        and (CANDIDATES[c].library == "minicnn") == (library == "minicnn")
        and precision in (None, CANDIDATES[c].precision)
    ]
    return min(found, default=(float("inf"), ""))


def table(results: dict[str, Any]) -> str:
    """Results as Markdown tables."""
    named = [name for name in STUDIES + DEEP if name in results]
    lines = ["| | " + " | ".join(f"`{name}`" for name in named) + " |", "| --- |" + " ---: |" * len(named)]
    for c in CANDIDATES:
        rows_of = [results[n].get(c, {}) for n in named]
        cells = [f"{row['median_ms']:,.1f}{'*' * ('refused' in row)}" if "median_ms" in row else "" for row in rows_of]
        if any(cells):
            lines.append(f"| {c} | {' | '.join(cells)} |")
    rows = [
        "",
        "| case | minicnn | fastest peer | times as fast | against its study's |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    ratio = {}
    for name in CASES:
        if name in results:
            ours, (peer, who) = best(results[name], "minicnn")[0], best(results[name])
            ratio[name] = peer / ours
            like = LIKE.get(name)
            against = f"{ratio[name] / ratio[like]:.2f}" if like in ratio else ""
            rows.append(f"| `{name}` | {ours:,.1f} | {peer:,.1f} ({who}) | {ratio[name]:.2f} | {against} |")
    return "\n".join([*lines, *rows])


def gpu() -> dict[str, str]:
    """The GPU and its libraries."""
    from importlib.metadata import PackageNotFoundError, version

    facts: dict[str, str] = {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        facts["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        facts["gpu"] = "unknown"
    for package in ("cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "cuda-core", "torch", "triton", "jax", "numpy"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases named, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; those of the studies if none is named")
    parser.add_argument("--all", action="store_true", help="the variations, too")
    parser.add_argument("--quick", action="store_true", help="few candidates, three rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--candidate", action="append", choices=sorted(CANDIDATES), help="one of those that take part")
    parser.add_argument("--json", type=Path, help="file for the results; cases that it has already are kept")
    parser.add_argument("--table", type=Path, help="print the results of a file as Markdown tables, measure nothing")
    deep = parser.add_argument_group("deep networks")
    for size, default in (("image", 64), ("classes", 200), ("batch", 128), ("steps", 20)):
        deep.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--patience", type=float, default=3600, help="seconds after which a candidate must be ready")
    parser.add_argument("--dry", action="store_true", help="on the CPU, to see that it works")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(table(json.loads(chosen.table.read_text("utf-8"))))
        return
    names = chosen.cases or list(CASES if chosen.all else STUDIES)
    if unknown := set(names) - set(CASES):
        parser.error(f"the cases are {', '.join(CASES)}. Received: {', '.join(sorted(unknown))}.")
    rounds = 3 if chosen.quick else chosen.rounds
    if rounds < 2:
        parser.error(f"quartiles need at least 2 rounds. Received: --rounds {rounds}.")
    results: dict[str, Any] = {}
    if chosen.json and chosen.json.exists():
        results = json.loads(chosen.json.read_text("utf-8"))
    results |= {"machine": {**machine.facts(), **gpu()}}
    failed = False
    sizes = {"image": (chosen.image, chosen.image, 3), "classes": chosen.classes, "batch": chosen.batch}
    for name in names:
        case = CASES[name]
        case = replace(case, steps=chosen.steps, **sizes) if case.deep else case
        case = replace(case, steps=min(case.steps, DRY_STEPS), batch=min(case.batch, DRY_BATCH)) if chosen.dry else case
        few = chosen.quick or name in LIKE
        candidates = chosen.candidate or [c for c, who in CANDIDATES.items() if who.trains(name, few=few)]
        rows = results[name] = measure(name, case, candidates, rounds, dry=chosen.dry, patience=chosen.patience)
        unit = {"mlp": "500 steps", **dict.fromkeys(DEEP, f"{case.steps} steps")}.get(name, "an epoch")
        print(f"{name}: ms of {unit}, median (quartiles), loss; images a second")
        for c, row in rows.items():
            failed |= ("failed" in row or "refused" in row) and CANDIDATES[c].library == "minicnn"
            if "failed" in row:
                print(f"  {c:34} {row['failed']}", flush=True)
                continue
            spread = f"({row['low_ms']:.2f} to {row['high_ms']:.2f})"
            rate = f" {row['images_per_s']:10,.0f}" if name in DEEP else ""
            star = f" * {row['refused']}" if "refused" in row else ""
            print(f"  {c:34} {row['median_ms']:9.2f} {spread:22} {row['loss']:.6f}{rate}{star}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(table(results))
    if failed:
        sys.exit("a candidate of minicnn could not be timed; see above")


if __name__ == "__main__":
    main()
