"""Answer, claims, tables and figures of the study `platforms`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minicnn.bench import Column, Page, Panel, Run, Spread, figures
from minicnn.bench.candidates import HYBRID, on_gpu
from minicnn.bench.figures import OWN, Mark, duration, family, quantity
from minicnn.bench.figures import PUBLISHED as HOLLOW
from minicnn.bench.page import Cell, Claim, span
from minicnn.jobs.spread import disturbed
from minicnn.studies.platforms import variants

COLUMNS = (
    Column("candidate", "candidate"), Column("epoch", "epoch"), Column("time_s", "time (s)", "{:.3g}"),
    Column("samples_per_s", "samples per s", "{:,.0f}"), Column("loss", "training loss (nats)", "{:.4f}"),
    Column("accuracy", "training accuracy", "{:.2%}"), Column("test_loss", "test loss (nats)", "{:.4f}"),
    Column("test_accuracy", "test accuracy", "{:.2%}"), Column("process_mb", "process memory (MB)", "{:,.0f}"),
    Column("device_mb", "device memory (MB)", "{:,.1f}"),
)  # fmt: skip
EPOCH = 60_416  # samples of an epoch of MNIST, with the padding


@dataclass(frozen=True)
class Published:
    """A row of what was published, from the study's own CSV files where its report gives means alone.

    Attributes:
        epoch_s: Mean seconds of an epoch, the first included.
        rate: Samples per second, mean.
        mean: Test accuracy (%) as the report has it: the mean of ten epochs, not that after the last.
        last: Test accuracy (%) after the last epoch.
        highest: The highest of the ten.
        process_mb: Memory of the process, at most.
        device_mb: Memory of the device; None where it was not measured.
    """

    epoch_s: float
    rate: float
    mean: float
    last: float
    highest: float
    process_mb: float
    device_mb: float | None = None


PUBLISHED = {
    "Numba CPU, Core Ultra 7": Published(2.093, 30_501, 96.33, 97.42, 97.42, 1366.4),
    "Numba CUDA, RTX 4060": Published(0.927, 71_758, 96.68, 97.56, 97.56, 1157.0),
    "PyTorch CPU, Core Ultra 7": Published(11.27, 5_340, 97.57, 98.50, 98.50, 1704.7),
    "PyTorch CUDA, RTX 4060": Published(8.72, 6_948, 97.21, 98.50, 98.50, 1363.5, 16.9),
    "PyTorch MPS, M4 Pro": Published(9.05, 6_645, 97.31, 98.49, 98.50, 1248.5),
}
# The study's own Numba program, seconds of an epoch measured by itself.
OWN_S = {"the study's Numba, dense layers only, 2 cores": 14.0}

Result = Mapping[str, Any]
Found = Sequence[tuple[Run, Result]]


def times(rows: Sequence[Mapping[str, Any]], key: str = "time_s") -> Spread:
    """Median and quartiles over the epochs after the first that were not disturbed."""
    return Spread.after_first([row[key] for row in rows], rate=key == "samples_per_s")


def present(page: Page, runs: Sequence[Run]) -> None:
    """One figure and table of all machines beside what was published, the claims, memory, and all epochs."""
    for data in runs[0].setting.data:
        found = [(run, run.results[f"training-{data}"]) for run in runs if f"training-{data}" in run.results]
        page.words(_answer(found))
        marks = [Mark(label, spread, family(name)) for label, name, spread in _every(found)]
        marks += [Mark(f"published: {name}", values.epoch_s, HOLLOW) for name, values in PUBLISHED.items()]
        marks += [Mark(name, seconds, OWN) for name, seconds in OWN_S.items()]
        panel = Panel(_title(found), partial(figures.dots, marks=marks), len(marks))
        hybrid = next((name for _, name, _ in _every(found) if HYBRID in name), None)
        page.figure(
            f"epochs-{data}", f"Time of an epoch of {data}", [panel],
            f"Seconds for {EPOCH:,} samples in batches of 512, float32, medians of the epochs after the first, lines "
            "are quartiles; epochs of another length are scaled. Gradients were compared before."
            + (f" With {hybrid} the forward pass is by the first, all that follows by the second." if hybrid else ""),
        )  # fmt: skip
        page.claims(claims(found, runs, data))
        for _, result in found:
            page.refused(result["out"])
        page.section(f"All candidates on {data}")
        _summary(page, data, found)
        page.words(_disturbed(found))
        variants.present(page, data, runs)
        _figures(page, data, found)
        rows = [
            {"candidate": run.label(name), **{c.key: row.get(c.key) for c in COLUMNS[1:]}}
            for run, result in found
            for name, epochs in result["history"].items()
            for row in epochs
        ]
        page.table(f"epochs-{data}", f"Every epoch on {data}", COLUMNS, rows)


def epoch(rows: Sequence[Mapping[str, Any]], samples: int = EPOCH) -> Spread:
    """Seconds of as many samples as a whole epoch has."""
    return times(rows).scaled(samples / variants.seen(rows))


def _every(found: Found) -> list[tuple[str, str, Spread]]:
    """Label, name and time of an epoch of every candidate, the fastest first."""
    rows = [(run.label(n), n, epoch(rows)) for run, result in found for n, rows in result["history"].items()]
    return sorted(rows, key=lambda row: row[2].median)


def _pick(found: Found, name: str, *, gpu: bool | None = None) -> float | None:
    """Median seconds of an epoch of a library, on the machine with a GPU if there is one; None without."""
    for _, result in sorted(found, key=lambda pair: pair[0].gpu is None):
        for candidate, rows in result["history"].items():
            if candidate.partition(":")[0] == name and gpu in (None, on_gpu(candidate)):
                return epoch(rows).median
    return None


# Answer and claims --------------------------------------------------------------------------------


def _title(found: Found) -> str:
    every = _every(found)
    if not every:
        return "Time of an epoch"
    (first, _, fast), (last, _, slow) = every[0], every[-1]
    return f"An epoch takes {duration(fast.median)} with {first}, {duration(slow.median)} with {last}"


def _answer(found: Found) -> str:
    every = _every(found)
    if not every:
        return "No candidate could be measured."
    first, fastest, fast = every[0]
    text = f"If all train the same thing, {first} is the fastest: {duration(fast.median)} for an epoch"
    library = "PyTorch modules"
    peer = next((s.median for label, n, s in every if n.startswith("torch.nn:") and on_gpu(n) == on_gpu(fastest)), None)
    text += f", where {library} take {duration(peer)} beside it. " if peer else ". "
    memory, loader = _pick(found, "torch.nn", gpu=on_gpu(fastest)), _pick(found, "torch.nn-loader", gpu=on_gpu(fastest))
    if memory and loader:
        text += (
            "What was published as PyTorch's time is mostly its data loader's: with single images through a DataLoader "
            f"an epoch takes {duration(loader)}, with the data in memory {duration(memory)}. "
        )
    last = [100 * r[-1]["test_accuracy"] for _, result in found for r in result["history"].values()]
    return text + (
        "The published Numba versions use no such loader, and never update their convolutions; here "
        f"every candidate computes the same gradients, and accuracies of one machine differ by at "
        f"most {_apart(found):.2f} points (up to {max(last):.2f} %)."
    )


def _apart(found: Found) -> float:
    """Largest difference of the accuracies of one machine, in points."""
    spans = [[100 * r[-1]["test_accuracy"] for r in result["history"].values()] for _, result in found]
    return max((max(span) - min(span) for span in spans if span), default=0.0)


def claims(found: Found, runs: Sequence[Run], data: str) -> list[Claim]:
    """Each claim of the source, judged."""
    numba, numba_cuda = _pick(found, "numba"), _pick(found, "numba_cuda")
    cpu, gpu = _pick(found, "torch.nn", gpu=False), _pick(found, "torch.nn", gpu=True)
    loader, loaded_cpu = _pick(found, "torch.nn-loader", gpu=True), _pick(found, "torch.nn-loader", gpu=False)
    peers = [t for t in (numba, cpu, gpu, loader) if t]
    hybrids = [spread.median for _, name, spread in _every(found) if HYBRID in name and on_gpu(name)]
    waits = "A hybrid, such as the candidate `numba_cuda+numba`, would hand"
    if hybrids:
        waits = f"A hybrid takes {duration(min(hybrids))}, as it hands"

    def said(*seconds: float | None) -> str | None:
        return ", ".join(map(duration, filter(None, seconds))) if all(seconds) else None

    accuracies = [100 * r[-1]["test_accuracy"] for _, result in found for r in result["history"].values()]
    loaded = [
        f"{epochs[-1]['device_mb']:,.0f} MB"
        for _, result in found
        for n, epochs in result["history"].items()
        if n == "torch.nn-loader:cuda" and epochs[-1]["device_mb"] is not None
    ]
    process = [max(e["peak_mb"] for e in epochs) for _, r in found for epochs in r["history"].values()]
    return [
        Claim("Numba CUDA is the fastest of the five", "epoch times", "0.927 s", said(numba_cuda),
              bool(numba_cuda and peers and numba_cuda < min(peers)),
              "with all gradients on the GPU it leads by more; `cupy`, which the study does not have, is faster still"),
        Claim("Numba on a CPU is faster than PyTorch on a GPU", "epoch times", "2.093 s, 8.72 s",
              said(numba, loader), bool(numba and loader and numba < loader),
              "through a DataLoader, as published, PyTorch waits for single images"
              + (f"; with the data on the GPU it takes {duration(gpu)}" if gpu else "")
              + ". The published Numba version does not train its convolutions, ours does"),
        Claim("PyTorch on a GPU is hardly faster than on a CPU", "epoch times", "8.72 s, 11.27 s (1.3 times)",
              said(loader, loaded_cpu), bool(loader and loaded_cpu and loaded_cpu / loader < 1.3 * 1.5),
              "through a DataLoader, as published, both wait for it"
              + (f"; with the data in memory the GPU is {cpu / gpu:.1f} times as fast" if cpu and gpu else "")),
        Claim("MPS (M4 Pro) takes as long as CUDA", "epoch times", "9.05 s", None, None,
              "no such machine was at hand; `minicnn study platforms` measures it where there is one"),
        Claim("Numba on CUDA needs the CPU for the gradients of its dense layers", "description of its program",
              "0.927 s", said(numba_cuda, numba), False,
              f"all on the GPU, and all on the CPU beside it. {waits} 25 MB of activations from the "
              "GPU to the CPU in each step"),
        Claim("PyTorch reaches a higher accuracy than Numba", "test accuracies", "97.2 to 97.6 %, 96.3 to 96.7 %",
              f"at most {_apart(found):.2f} points apart, up to {max(accuracies):.2f} %" if accuracies else None,
              _apart(found) > 0.5,
              "the published ones are means of ten epochs (97.4 to 98.5 % after the last, by its own files); the Numba "
              "versions never update their convolutions, sum gradients and scale momentum otherwise"
              + _frozen(runs, data)),
        Claim("Training takes 1,157 to 1,612 MB of memory", "memory of the process", "1,157 to 1,612 MB",
              f"{span(process, '{:,.0f}')} MB" if process else None, None,
              "most of it are libraries: NumPy alone needs the least, JAX and PyTorch with CUDA the most; by the "
              "source's own files it is 1,157 to 1,705 MB"),
        Claim("PyTorch takes 16.9 MB of the GPU's memory", "memory of the device", "16.9 MB",
              loaded[0] if loaded else None, None,
              "ours counts what the allocator has held at most, with the test set and cuDNN's workspace"),
    ]  # fmt: skip


def _frozen(runs: Sequence[Run], data: str) -> str:
    """What frozen convolutions reach, if that was measured."""
    reached = [at for run in runs if (at := variants.last(run, "frozen", data)) is not None]
    return f": with frozen convolutions ours reach {max(reached):.2f} %" if reached else ""


# Tables and figures -------------------------------------------------------------------------------


def _summary(page: Page, data: str, found: Found) -> None:
    columns = [
        Column("candidate", "candidate"), Column("epochs", "epochs"), Column("seen", "samples", "{:,d}"),
        Column("time_s", "time per epoch (s)", "{:.3g}"), Column("samples_per_s", "samples per s", "{:,.0f}"),
        Column("total_s", "total (s)", "{:.3g}"), Column("first_s", "of it the first epoch (s)", "{:.3g}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"), Column("best", "highest (%)", "{:.2f}"),
        Column("process_mb", "process memory (MB)", "{:,.0f}"), Column("device_mb", "device memory (MB)", "{:,.1f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for run, result in found:
        for name, epochs in result["history"].items():
            rows.append({
                "candidate": run.label(name), "epochs": len(epochs),
                "seen": variants.seen(epochs), "time_s": times(epochs),
                "samples_per_s": times(epochs, "samples_per_s"), "total_s": sum(e["time_s"] for e in epochs),
                "first_s": epochs[0]["time_s"], "accuracy": 100 * epochs[-1]["test_accuracy"],
                "best": 100 * max(e["test_accuracy"] for e in epochs),
                "process_mb": max(e["peak_mb"] for e in epochs), "device_mb": epochs[-1].get("device_mb"),
            })  # fmt: skip
    for name, p in PUBLISHED.items():
        rows.append({"candidate": f"published: {name}", "epochs": 10, "seen": EPOCH, "time_s": p.epoch_s,
                     "samples_per_s": p.rate, "total_s": 10 * p.epoch_s, "accuracy": p.last, "best": p.highest,
                     "process_mb": p.process_mb, "device_mb": p.device_mb})  # fmt: skip
    rows += [{"candidate": name, "seen": EPOCH, "time_s": s, "samples_per_s": EPOCH / s} for name, s in OWN_S.items()]
    note = (
        "Batches of 512, the last one padded, SGD with learning rate 0.01 and momentum 0.9, float32, the same first "
        "weights and batches everywhere; epochs interleaved, each candidate in a process of its own. Accuracies and "
        "totals of rows with fewer samples or epochs do not compare with those of whole trainings. Published: the mean "
        "time of an epoch, the first included; accuracies and memory from the study's CSV files, as its report has "
        f"means over ten epochs ({', '.join(f'{p.mean:.2f}' for p in PUBLISHED.values())} %). Process memory is the "
        "peak with libraries and data."
    )
    page.table(f"summary-{data}", f"All candidates on {data}", columns, rows, note)


def _disturbed(found: Found) -> str:
    texts = [
        f"Of {run.label(name)} {said}."
        for run, result in found
        for name, rows in result["history"].items()
        if (said := disturbed([row["time_s"] for row in rows]))
    ]
    return " ".join(texts) or "No epoch was disturbed."


def _figures(page: Page, data: str, found: Found) -> None:
    memory = [
        Mark(run.label(name), max(e["peak_mb"] for e in rows), family(name))
        for run, result in found
        for name, rows in result["history"].items()
    ]
    if not memory:
        return
    memory += [Mark(f"published: {name}", p.process_mb, HOLLOW) for name, p in PUBLISHED.items()]
    page.figure(
        f"memory-{data}", "Memory of the process",
        [Panel("Libraries take most of the memory of a training",
               partial(figures.dots, marks=memory, say=quantity("MB")), len(memory))],
        "Resident memory of the process at its peak, with libraries and data; MB of 10^6 bytes.",
    )  # fmt: skip
    series = {}
    for i, (run, result) in enumerate(found):
        for rows in list(result["history"].values())[:1]:
            name = f"all {len(result['history'])} on {run.gpu or run.cpu}"
            ys = [100 * r["test_accuracy"] for r in rows]
            series[name] = ([r["epoch"] for r in rows], ys, figures.PALETTE[i])
    page.figure(
        f"accuracy-{data}", "Test accuracy by epoch",
        [Panel(f"Accuracies of one machine differ by at most {_apart(found):.2f} points",
               partial(figures.paths, series=series, xlabel="epoch", ylabel="test accuracy (%)"))],
        "The first candidate of each machine stands for all.",
    )  # fmt: skip
