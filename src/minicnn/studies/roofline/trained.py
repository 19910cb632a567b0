"""Training of the networks of the study `roofline` on each machine: steps, sweeps, epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicnn.measure import Panel, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.figures import FAMILIES, KERNELS, TORCH, Mark, family, quantity
from minicnn.measure.page import Cell
from minicnn.measure.template import PageTemplate
from minicnn.studies.roofline.counting import CLASSES, NETWORKS
from minicnn.studies.roofline.steps import (
    TITLES,
    NetworkStep,
    best_of,
    epoch_batch,
    epochs_of,
    largest,
    verdict_of,
)
from minicnn.studies.roofline.verdict import NAMES

TEMPLATE = PageTemplate(Path(__file__).with_name("page.md"))
# Images per second by PyTorch compiled, bfloat16, channels last, measured by itself on an H200.
COMPILED = {"resnet18": 78_300, "mobilenet_v2": 43_500, "resnet50": 34_800, "squeezenet1_1": 46_400}
Rows = list[dict[str, Cell]]


def data(runs: Sequence[StudyRun]) -> str | None:
    """Data that each machine was trained on, in sentences."""
    said = dict.fromkeys(
        f"Data on {run.gpu or run.cpu}: {run.results[f'training-{n}']['data']}."
        for run in runs for n in NETWORKS if f"training-{n}" in run.results
    )  # fmt: skip
    return " ".join(said) or None


def rates(runs: Sequence[StudyRun], every: Sequence[NetworkStep]) -> tuple[list[Panel], str]:
    """Images per second of all candidates, and the finding."""
    marks = []
    for run in runs:
        for name in dict.fromkeys(s.candidate for s in every if s.run is run):
            best = largest([s for s in every if s.run is run], name)
            marks += [
                Mark(f"{TITLES[n]}, {run.name(name)}", s.rate, family(name), run.where(name)) for n, s in best.items()
            ]
    if marks and any(run.gpu for run in runs):
        marks += [Mark(TITLES[n], float(r), TORCH, "PyTorch compiled, bfloat16, H200") for n, r in COMPILED.items()]
    if not marks:
        return [], ""
    panels = figures.grouped(marks, "images a second", quantity("/s"), more_is_better=True)
    return panels, TEMPLATE.words("rates", _lead(every))


def _lead(every: Sequence[NetworkStep]) -> dict[str, Any]:
    """By how much the fastest of ours leads PyTorch's modules, and where."""
    gpu = any(on_gpu(s.candidate) for s in every)
    mine = [s for s in every if on_gpu(s.candidate) == gpu]
    mine = [s for s in mine if s.run is mine[0].run]
    best = best_of([s for s in mine if family(s.candidate) == KERNELS]) or ""
    peer = next((s.candidate for s in mine if s.candidate.startswith("torch.nn:")), "")
    ours, theirs = largest(mine, best), largest(mine, peer)
    ratios = [step.rate / theirs[name].rate for name, step in ours.items() if name in theirs]
    return {"best": best, "ratios": ratios, "where": mine[0].run.where(peer)}


def machines(every: Sequence[NetworkStep]) -> Rows:
    """The fastest candidate on a CPU beside the fastest on a GPU, network by network."""
    rows: Rows = []
    for name in NETWORKS if every else ():
        row: dict[str, Cell] = {"network": TITLES[name]}
        fastest: dict[str, float] = {}
        for key in ("cpu", "gpu"):
            mine = [s for s in every if s.network == name and on_gpu(s.candidate) == (key == "gpu")]
            if mine:
                best = max(mine, key=lambda step: step.rate)
                fastest[key] = best.rate
                row |= {key: best.run.label(best.candidate), f"{key}_batch": best.batch, f"{key}_rate": best.rate,
                        f"{key}_ms": best.time.scaled(1e3), f"{key}_gflops": best.place[1] / 1e9}  # fmt: skip
        rows.append(row | ({"ratio": fastest["gpu"] / fastest["cpu"]} if len(fastest) == 2 else {}))
    return rows


def steps(every: Sequence[NetworkStep]) -> Rows:
    """Steps with their input, memory, and what holds them back."""
    rows: Rows = []
    for step in sorted(every, key=lambda s: (NETWORKS.index(s.network), not on_gpu(s.candidate))):
        verdict = verdict_of(step)
        kept = step.run.results[f"training-{step.network}"]["memory"][str(step.batch)].get(step.candidate, {})
        rows.append({
            "network": TITLES[step.network], "candidate": step.run.label(step.candidate), "batch": step.batch,
            "ms": step.time.scaled(1e3), "rate": step.rate, "input_ms": 1e3 * step.input_s,
            "epoch_s": 1e5 / step.batch * (step.time.median + step.input_s), "peak_mb": kept.get("peak_mb"),
            "device_mb": kept.get("device_mb"),
            "bottleneck": NAMES.get(verdict.bottleneck, "none") if verdict else None,
            "share": 100 * verdict.share if verdict else None,
        })  # fmt: skip
    return rows


def sweep(every: Sequence[NetworkStep]) -> tuple[list[Panel], str, str | None]:
    """Images per second against the batch size by network, where they were trained, and which candidate leads."""
    lines: dict[tuple[str, str], figures.Series] = {}
    for name in NETWORKS:
        series: dict[str, tuple[list[int], list[float], str]] = {}
        for step in sorted((s for s in every if s.network == name), key=lambda s: s.batch):
            library, *_ = step.run.label(step.candidate).partition(", ")
            label = f"{library}, {'GPU' if on_gpu(step.candidate) else 'CPU'}"
            xs, ys, _ = series.setdefault(label, ([], [], FAMILIES[family(step.candidate)]))
            xs.append(step.batch)
            ys.append(step.rate)
        if any(len(xs) > 1 for xs, *_ in series.values()):
            lines[TITLES[name], "batch"] = series
    gpus, cpus = (
        " and ".join(dict.fromkeys(s.run.where(s.candidate) for s in every if on_gpu(s.candidate) == gpu))
        for gpu in (True, False)
    )
    where = "; ".join(f"{kind}: {names}" for kind, names in (("GPU", gpus), ("CPU", cpus)) if names)
    if not lines:
        return [], where, None
    panels = figures.multiples(lines, "images a second", log="xy", say=quantity("/s"), more_is_better=True)
    return panels, where, figures.leader(lines.values(), more_is_better=True)


def epochs(runs: Sequence[StudyRun]) -> Rows:
    """Epochs with accuracies and utilisation."""
    shares = ("batch_top1", "top1", "top5", "cpu", "gpu", "gpu_memory")
    return [
        {
            "network": TITLES[name], "candidate": run.label(candidate), "images": run.setting.sizes.samples,
            "batch": epoch_batch(run, name), "seconds": epoch["seconds"], "rate": epoch["images_per_s"],
            "loss": epoch["loss"], "chance": 100 / run.results[f"training-{name}"].get("classes", CLASSES),
            **{key: 100 * epoch[key] for key in shares if epoch.get(key) is not None},
        }
        for run in runs
        for name, candidate, epoch in epochs_of(run)
    ]  # fmt: skip


def diverging(runs: Sequence[StudyRun]) -> tuple[Rows, list[str]]:
    """SqueezeNet's losses by batch size, and the learning rates whose columns they are in."""
    heads: dict[str, None] = {}
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for run in runs:
        results = run.results.get("diverging", {"runs": ()})
        for tried in results["runs"]:
            rate, losses = f"{tried['rate']:g}", tried["losses"]
            heads[rate] = None
            row = rows.setdefault((run.label(results["candidate"]), tried["batch"]), {"batch": tried["batch"]})
            row |= {"candidate": run.label(results["candidate"]), "first": losses[0] if losses else None}
            ended = len(losses) < results["steps"]
            row[f"rate_{rate}"] = f"no number after step {len(losses)}" if ended else f"{losses[-1]:.3f}"
    return list(rows.values()), list(heads)


def diverging_values(runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Values on the published NaN, of the last machine that tried."""
    names = ("nan", "nan_holds", "nan_steps", "nan_rates", "largest_loss", "lost_loss", "decides")
    values: dict[str, Any] = {**dict.fromkeys(names), "no_nan": ""}
    results = next((run.results["diverging"] for run in reversed(runs) if run.results.get("diverging")), None)
    if results is None:
        return values
    whole = {(t["batch"], t["rate"]): len(t["losses"]) == results["steps"] for t in results["runs"]}
    batches = sorted({batch for batch, _ in whole})
    said = []
    for batch in batches:
        lost = [rate for (b, rate), kept in whole.items() if b == batch and not kept]
        said.append(f"batch {batch}: " + (f"NaN from a learning rate of {min(lost):g}" if lost else "no NaN"))
    holds = any(whole[batches[0], r] and not kept for (b, r), kept in whole.items() if b == batches[-1])
    most = max(max(t["losses"], default=0.0) for t in results["runs"])
    values |= {"nan": "; ".join(said), "nan_holds": holds, "no_nan": None}
    if all(whole.values()):
        return values | {"nan_steps": results["steps"], "nan_rates": [r for _, r in whole], "largest_loss": most}
    return values | {"lost_loss": most, "decides": "The" if holds else "Not the batch but the"}
