"""Training on the CPU beside PyTorch and JAX, interleaved, after checking that all compute the same.

    python benchmarks/cpu_peers.py [--json FILE] [--rounds N] [--threads N] [--candidates NUMBERS] [--batch N] [CASE]

Each candidate runs in a process of its own and is idle while another is timed. PyTorch runs at its best: images in
float32 and normalised beforehand, channels last, also with malloc tuned so that it keeps its memory; on request with
products in bfloat16, and through torch.compile, which needs a C++ compiler. minicnn runs through `fit` on uint8 images,
on request in bfloat16. Data are random bytes, which take the same time as real ones; cases are those of
`minicnn.measure.cases`.

    platforms, kernels, mlp                          the reference studies' networks, time of an epoch (an iteration)
    resnet18, resnet50, mobilenet_v2, squeezenet1_1  64x64 images, 200 classes, time of a step; so vgg11, and in
                                                     their own size alexnet and overfeat, whose batches are small
    channels12, kernel5, stride2, batch96, rgb32     variations of `platforms` and `kernels`, time of an epoch
    unpooled16, unpooled32, unpooled64               three 3x3 convolutions without pooling, up to so many filters
    kernel5_32, kernel5_64                           two 5x5 convolutions of up to so many filters
    dense300, dense1024                              two dense layers of so many units
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from minicnn import machine
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import Settings
from minicnn.measure import Comparison, Spread
from minicnn.measure.cases import CASES, TrainingCase
from minicnn.measure.trainer import Trainer, Work
from minicnn.measure.trainers import gradient_tolerance, trainer
from minicnn.tolerance import tolerance

TUNED_MALLOC = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456",
}  # fmt: skip
SHOWN = ("platforms", "kernels", "mlp", "channels12", "kernel5", "stride2", "batch96", "rgb32", "resnet18", "resnet50",
         "mobilenet_v2", "squeezenet1_1", "unpooled16", "unpooled32", "unpooled64", "kernel5_32", "kernel5_64",
         "dense300", "dense1024")  # fmt: skip
FEW_SAMPLES = ("vgg11", "alexnet", "overfeat")  # large networks, on request
# By name in the results: the trainer and its options.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "minicnn": ("numba", {}),
    "torch": ("torch.nn:cpu", {"channels_last": False}),
    "torch channels-last": ("torch.nn:cpu", {"channels_last": True}),
    "torch channels-last, tuned malloc": ("torch.nn:cpu", {"channels_last": True}),
    "jax": ("jax.lax:cpu", {}),
    "minicnn on numpy": ("numpy", {}),
    "torch channels-last, tuned malloc, bfloat16": ("torch.nn:cpu", {"channels_last": True, "autocast": True}),
    "torch channels-last, tuned malloc, compiled": ("torch.nn:cpu", {"channels_last": True, "compiled": True}),
    "minicnn, bfloat16": ("numba", {"precision": "mixed_bfloat16"}),
}
OWN = ("numba", "numpy")  # trainers of minicnn's own
TIMED, DEEP_TIMED = 40, 2  # steps that are timed, at most
LOSS_RTOL = 2e-4


def sized(name: str, batch: int, side: int = 0) -> TrainingCase:
    """A case, with another batch size and images of another height and width unless these are 0."""
    case = CASES[name]
    image = (side, side, case.image[2]) if side else case.image
    return replace(case, batch=batch or case.batch, image=image)


def timed_steps(name: str) -> int:
    """Steps that are timed at once."""
    case = CASES[name]
    return DEEP_TIMED if case.deep else min(case.steps, TIMED)


def samples(case: TrainingCase, count: int, _: Settings) -> Samples:
    """Random samples of a case."""
    return case.samples(count)


def training(
    name: str, count: int = 0, batch: int = 0, side: int = 0, *, scaled: bool = False
) -> tuple[Settings, Work]:
    """How a case is trained: on so many samples, or on those of the timed steps."""
    case = sized(name, batch, side)
    load = partial(samples, case, count or case.batch * timed_steps(name))
    return case.settings(name), Work(scaled=scaled, accuracy=False, network=case.options, load=load)


def contender(candidate: str, name: str, threads: int, count: int = 0, batch: int = 0, side: int = 0) -> Trainer:
    """The trainer of a candidate; peers have images that are normalised beforehand, unless samples are counted."""
    kind, options = CANDIDATES[candidate]
    settings, work = training(name, count, batch, side, scaled=kind not in OWN and not count)
    precision, options = options.get("precision", "float32"), {k: v for k, v in options.items() if k != "precision"}
    options |= {"threads": threads} if kind == "numba" else {}
    return trainer(kind, replace(settings, precision=precision), options, work=work)


def environment(candidate: str, threads: int) -> dict[str, str]:
    """Variables of a candidate's process."""
    known = {"OMP_NUM_THREADS": str(threads), "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"}
    return known | (TUNED_MALLOC if "malloc" in candidate else {})


def measure(
    name: str, candidates: Sequence[str], rounds: int, threads: int, batch: int = 0, side: int = 0
) -> dict[str, Any]:
    """Milliseconds of an epoch of each candidate: median and quartiles; rounds are interleaved."""
    case = sized(name, batch, side)
    rounded = {candidate: tolerance("bfloat16")[0] for candidate in candidates if "bfloat16" in candidate}
    around = {candidate: environment(candidate, threads) for candidate in candidates}
    sizes = 0, batch, side
    with Comparison(candidates, contender, name, threads, *sizes, environment=around, reference=None) as comparison:
        if not case.deep:  # many normalisations magnify rounding in gradients, not in losses
            comparison.check(gradient_tolerance(*training(name, batch=batch)), others=rounded)
        others = {candidate: [rtol] for candidate, rtol in rounded.items()}
        losses = comparison.check_losses("losses", rtols=[LOSS_RTOL], others=others)
        times = comparison.time("iteration" if timed_steps(name) == 1 else "seconds", rounds=rounds)
        if comparison.out:
            raise RuntimeError(f"{name}: all candidates compute the same. Received: {comparison.out}.")
    result = {}
    for candidate, seconds in times.items():
        spread = Spread.of(seconds, 1e3 * case.steps / timed_steps(name))
        result[candidate] = {
            "loss": losses[candidate][0], "median_ms": spread.median, "low_ms": spread.low, "high_ms": spread.high,
            "best_ms": min(seconds) * 1e3 * case.steps / timed_steps(name),
        }  # fmt: skip
    return result


def table(path: Path) -> str:
    """Results of a file as a Markdown table, with the candidates that it has."""
    results = json.loads(path.read_text("utf-8"))
    measured = {name: results[name] for name in (*SHOWN, *FEW_SAMPLES) if name in results}
    names = [c for c in CANDIDATES if any(c in rows for rows in measured.values())]
    peers = [c for c in names if c.startswith("torch") and "bfloat16" not in c]
    titles = [c.replace("torch", "PyTorch").replace("jax", "JAX") for c in names]
    lines = [
        f"| case | {' | '.join(titles)} | minicnn against the fastest PyTorch |",
        "| --- |" + " ---: |" * (len(names) + 1),
    ]
    for name, rows in measured.items():
        case = sized(name, results.get("batch", 0))
        cells = [f"{rows[c]['median_ms']:,.1f}" if c in rows else "" for c in names]
        ratio = min(rows[c]["median_ms"] for c in peers if c in rows) / rows["minicnn"]["median_ms"]
        what = "an epoch" if case.steps > 1 else "a step"
        lines.append(f"| `{name}`, {what}, batch {case.batch:,} | {' | '.join(cells)} | {ratio:.2f} times |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the cases named, print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; all if none is named")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=machine.cores())
    listed = ", ".join(f"{i} {c}" for i, c in enumerate(CANDIDATES))
    parser.add_argument("--candidates", default="0,1,2,3,4", help=f"numbers of candidates ({listed})")
    parser.add_argument("--batch", type=int, default=0, help="samples of a step, where not those of the case")
    parser.add_argument("--side", type=int, default=0, help="height and width of images, where not those of the case")
    parser.add_argument("--table", type=Path, help="print the results of a file as a Markdown table, measure nothing")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(table(chosen.table))
        return
    if unknown := set(chosen.cases) - {*SHOWN, *FEW_SAMPLES}:
        parser.error(f"the cases are {', '.join((*SHOWN, *FEW_SAMPLES))}. Received: {', '.join(sorted(unknown))}.")
    if chosen.rounds < 2:
        parser.error(f"quartiles need at least 2 rounds. Received: --rounds {chosen.rounds}.")
    results: dict[str, Any] = {"machine": machine.facts(), "threads": chosen.threads, "precision": "float32"}
    results |= {"batch": chosen.batch} if chosen.batch else {}
    wanted = [list(CANDIDATES)[int(i)] for i in chosen.candidates.split(",")]
    for name in chosen.cases or SHOWN:
        each = [c for c in wanted if c != "jax" or not CASES[name].deep]
        rows = results[name] = measure(name, each, chosen.rounds, chosen.threads, chosen.batch, chosen.side)
        base = rows[each[0]]["median_ms"]
        print(f"{name}: ms per {'epoch' if CASES[name].steps > 1 else 'step'}, median (quartiles), ratio, loss")
        for c, row in rows.items():
            spread = f"({row['low_ms']:.1f} to {row['high_ms']:.1f})"
            ratio = row["median_ms"] / base
            print(f"  {c:36} {row['median_ms']:10.1f} {spread:24} {ratio:6.2f}  {row['loss']:.6f}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
