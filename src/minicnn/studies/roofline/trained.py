"""What the networks of the study `roofline` make of the machines in training: steps, sweeps, epochs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minicnn.bench import Column, Page, Panel, Run, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.figures import FAMILIES, KERNELS, TORCH, Mark, family, quantity
from minicnn.bench.page import Cell, Claim, span
from minicnn.studies.roofline.counting import CLASSES, NETWORKS
from minicnn.studies.roofline.steps import TITLES, Step, best_of, epoch_batch, epochs_of, largest, verdict_of
from minicnn.studies.roofline.verdict import NAMES

# Images per second by PyTorch compiled, bfloat16, channels last, measured by itself on an H200.
COMPILED = {"resnet18": 78_300, "mobilenet_v2": 43_500, "resnet50": 34_800, "squeezenet1_1": 46_400}


def present(page: Page, runs: Sequence[Run], every: Sequence[Step]) -> None:
    """Rates and CPU against GPU, batch sizes, epochs with accuracies and utilisation, losses that are no numbers."""
    page.section("Training")
    page.words(
        "SGD with learning rate 0.01 and momentum 0.9, float32, no dropout, 200 classes. All candidates start from the "
        "same weights, and the losses before and after their first step were compared before anything was timed. "
        + " ".join(dict.fromkeys(
            f"Data on {run.gpu or run.cpu}: {run.results[f'training-{n}']['data']}."
            for run in runs for n in NETWORKS if f"training-{n}" in run.results
        ))
    )  # fmt: skip
    marks = []
    for run in runs:
        for name in dict.fromkeys(s.candidate for s in every if s.run is run):
            found = largest([s for s in every if s.run is run], name)
            marks += [Mark(f"{TITLES[n]}, {run.label(name)}", s.rate, family(name)) for n, s in found.items()]
    if marks and any(run.gpu for run in runs):
        marks += [Mark(f"{TITLES[n]}, PyTorch compiled, bfloat16, H200", float(r), TORCH) for n, r in COMPILED.items()]
    if marks:
        page.figure(
            "rates", "Images per second",
            [Panel(_title(every),
                   partial(figures.dots, marks=marks, say=quantity("/s"), more_is_better=True), len(marks))],
            "Steps without their input, float32, at the largest batch size that all networks were trained with; "
            "compiled PyTorch in bfloat16 was measured by itself.",
        )  # fmt: skip
    _machines(page, every)
    _steps(page, every)
    _sweep(page, every)
    _epochs(page, runs)
    _diverging(page, runs)


def _title(every: Sequence[Step]) -> str:
    """The finding: by how much the fastest of ours leads PyTorch's modules."""
    gpu = any(on_gpu(s.candidate) for s in every)
    own = [s for s in every if on_gpu(s.candidate) == gpu]
    own = [s for s in own if s.run is own[0].run]
    best = best_of([s for s in own if family(s.candidate) == KERNELS]) or ""
    peer = next((s.candidate for s in own if s.candidate.startswith("torch.nn:")), "")
    ours, theirs = largest(own, best), largest(own, peer)
    ratios = [step.rate / theirs[name].rate for name, step in ours.items() if name in theirs]
    if not ratios:
        return "Images of 64x64 per second in training"
    where = own[0].run.where(peer)
    return f"{best} trains {span(ratios, '{:.1f}')} times as many images a second as PyTorch's modules on {where}"


def _machines(page: Page, every: Sequence[Step]) -> None:
    """The fastest candidate on a CPU beside the fastest on a GPU, network by network."""
    columns = [Column("network", "network")]
    for key, name in (("cpu", "CPU"), ("gpu", "GPU")):
        columns += [
            Column(key, f"fastest on a {name}"), Column(f"{key}_batch", "batch", "{:d}"),
            Column(f"{key}_ms", "time of a batch (ms)", "{:,.1f}"), Column(f"{key}_rate", "images per s", "{:,.0f}"),
            Column(f"{key}_gflops", "GFLOP/s", "{:,.0f}"),
        ]  # fmt: skip
    columns.append(Column("ratio", "GPU against CPU (times)", "{:,.1f}"))
    rows: list[dict[str, Cell]] = []
    for name in NETWORKS:
        row: dict[str, Cell] = {"network": TITLES[name]}
        rates: dict[str, float] = {}
        for key in ("cpu", "gpu"):
            own = [s for s in every if s.network == name and on_gpu(s.candidate) == (key == "gpu")]
            if own:
                best = max(own, key=lambda step: step.rate)
                rates[key] = best.rate
                row |= {key: best.run.label(best.candidate), f"{key}_batch": best.batch, f"{key}_rate": best.rate,
                        f"{key}_ms": best.time.scaled(1e3), f"{key}_gflops": best.place[1] / 1e9}  # fmt: skip
        rows.append(row | ({"ratio": rates["gpu"] / rates["cpu"]} if len(rates) == 2 else {}))
    if every:
        page.table(
            "machines", "CPU against GPU: the fastest candidate and batch size, without the input", columns, rows
        )


def _steps(page: Page, every: Sequence[Step]) -> None:
    columns = [
        Column("network", "network"), Column("candidate", "candidate"), Column("batch", "batch", "{:d}"),
        Column("ms", "time of a batch (ms)", "{:,.1f}"), Column("rate", "images per s", "{:,.0f}"),
        Column("input_ms", "input of a batch (ms)", "{:.2f}"), Column("epoch_s", "100,000 images (s)", "{:,.0f}"),
        Column("peak_mb", "process memory (MB)", "{:,.0f}"), Column("device_mb", "device memory (MB)", "{:,.0f}"),
        Column("bottleneck", "held back by"), Column("share", "for this share of its time (%)", "{:.0f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
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
    page.table(
        "steps", "Training steps", columns, rows, "The batch is on the device already; its input is timed apart."
    )


def _sweep(page: Page, every: Sequence[Step]) -> None:
    """Images per second against the batch size, a panel for each network."""
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
    if lines:
        gpus, cpus = (
            " and ".join(dict.fromkeys(s.run.where(s.candidate) for s in every if on_gpu(s.candidate) == gpu))
            for gpu in (True, False)
        )
        where = "; ".join(f"{kind}: {names}" for kind, names in (("GPU", gpus), ("CPU", cpus)) if names)
        panels = figures.multiples(lines, log="xy", say=quantity("/s"), more_is_better=True)
        page.figure("sweep", "Images per second against the batch size", panels, f"Training steps, float32; {where}.")


def _epochs(page: Page, runs: Sequence[Run]) -> None:
    columns = [
        Column("network", "network"), Column("candidate", "candidate"), Column("images", "images", "{:,d}"),
        Column("batch", "batch"), Column("seconds", "time (s)", "{:.3g}"), Column("rate", "images per s", "{:,.0f}"),
        Column("loss", "last loss (nats)", "{:.3f}"), Column("batch_top1", "top-1 on its batch (%)", "{:.1f}"),
        Column("top1", "top-1 on test images (%)", "{:.1f}"), Column("top5", "top-5 (%)", "{:.1f}"),
        Column("chance", "chance (%)", "{:.1f}"), Column("cpu", "CPU busy (%)", "{:.0f}"),
        Column("gpu", "GPU busy (%)", "{:.0f}"), Column("gpu_memory", "its memory (%)", "{:.0f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for run in runs:
        for name, candidate, epoch in epochs_of(run):
            shares = ("batch_top1", "top1", "top5", "cpu", "gpu", "gpu_memory")
            rows.append({
                "network": TITLES[name], "candidate": run.label(candidate), "images": run.setting.sizes.samples,
                "batch": epoch_batch(run, name), "seconds": epoch["seconds"], "rate": epoch["images_per_s"],
                "loss": epoch["loss"], "chance": 100 / run.results[f"training-{name}"].get("classes", CLASSES),
                **{key: 100 * epoch[key] for key in shares if epoch.get(key) is not None},
            })  # fmt: skip
    page.table(
        "epochs", "An epoch", columns, rows,
        "The last batch is normalised by its own mean and variance, test images by moving ones, which lag behind "
        "weights that change quickly: after 30 steps ResNet-50, with 53 normalisations one after the other, "
        "classifies 87 % of its last batch and 0.4 % of the test images (loss 1.3 and 547, measured with `numba` on "
        "images of 200 classes), where ResNet-18, with 20, is at 98 %. MobileNetV2 and SqueezeNet have not begun to "
        "learn by then; SqueezeNet, which has no normalisation, stays at chance in a longer epoch, too. CPU: the share "
        "of all cores' time that the process computed; GPU: the share of time "
        "in which a kernel ran, by NVML.",
    )  # fmt: skip


def _diverging(page: Page, runs: Sequence[Run]) -> None:
    """SqueezeNet's losses by batch size and learning rate, and after how many steps one is no number."""
    columns = [Column("candidate", "candidate"), Column("batch", "batch"), Column("first", "first loss", "{:.3f}")]
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for run in runs:
        found = run.results.get("diverging", {"runs": ()})
        for tried in found["runs"]:
            head, losses = f"rate_{tried['rate']:g}", tried["losses"]
            if head not in [c.key for c in columns]:
                columns.append(Column(head, f"learning rate {tried['rate']:g}"))
            row = rows.setdefault((run.label(found["candidate"]), tried["batch"]), {"batch": tried["batch"]})
            row |= {"candidate": run.label(found["candidate"]), "first": losses[0] if losses else None}
            ended = len(losses) < found["steps"]
            row[head] = f"no number after step {len(losses)}" if ended else f"{losses[-1]:.3f}"
    if rows:
        page.table("diverging", "SqueezeNet 1.1: losses (nats) by batch size and learning rate", columns,
                   list(rows.values()), "The loss after the last of some steps of SGD with momentum 0.9, float32, from "
                   "the same first weights.")  # fmt: skip


def diverging_claim(runs: Sequence[Run]) -> Claim:
    """What became of the published NaN."""
    text, place = "SqueezeNet 1.1 gives NaN at batch 128, and needs 64", "set-up"
    for run in reversed(runs):
        found = run.results.get("diverging")
        if found:
            whole = {(t["batch"], t["rate"]): len(t["losses"]) == found["steps"] for t in found["runs"]}
            batches = sorted({batch for batch, _ in whole})
            said = []
            for batch in batches:
                lost = [rate for (b, rate), kept in whole.items() if b == batch and not kept]
                said.append(f"batch {batch}: " + (f"NaN from a learning rate of {min(lost):g}" if lost else "no NaN"))
            small, large = batches[0], batches[-1]
            holds = any(whole[small, r] and not kept for (b, r), kept in whole.items() if b == large)
            most = max(max(t["losses"], default=0.0) for t in found["runs"])
            if all(whole.values()):
                rates = span([rate for _, rate in whole], "{:g}")
                why = (
                    f"in {found['steps']} steps at learning rates of {rates} no loss is NaN, the largest is "
                    f"{most:.2f}; the source names no rate"
                )
            else:
                why = (
                    "SqueezeNet has no normalisation, so a step that is too large throws its activations out of range: "
                    f"the loss grows up to {most:.0e} before it is no number. "
                    f"{'The' if holds else 'Not the batch but the'} learning rate decides; the source names none"
                )
            return Claim(text, place, "NaN", "; ".join(said), holds, why)
    return Claim(text, place, "NaN", None, None, "losses at each learning rate were not measured")
