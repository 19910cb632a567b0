"""Answer, claims, tables and figures of the study `kernels`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from minicnn.bench import Column, Page, Panel, Run, Spread, figures
from minicnn.bench.figures import OWN, Mark, duration, family
from minicnn.bench.figures import PUBLISHED as HOLLOW
from minicnn.bench.page import Cell, Claim, span
from minicnn.studies.kernels.levels import BASE, BLOCKS, LEVELS
from minicnn.studies.platforms.pages import times

EPOCH = 60_000  # samples
EPOCHS = 5  # of what was published
SWEEPS = ("ablation", "blocks", "loaders")
SAME = 0.03  # a change of less is none
ALL = "all, with tensor cores"  # the level of `cupy` that trains

# What was published: seconds of 5 epochs of MNIST, at least and at most; accuracy (%) on MNIST and on Fashion-MNIST.
PUBLISHED = {
    "PyTorch, CPU": ((155.0, 185.0), 95.34, 74.91),
    "PyTorch, V100": ((19.0, 25.0), 95.34, 74.91),
    "CUDA, naive, A40": ((23.5, 23.5), 97.26, 87.18),
    "CUDA, naive, RTX 6000": ((25.1, 25.1), 97.26, 87.18),
    "CUDA, naive, V100": ((41.8, 41.8), 97.26, 87.18),
    "CUDA, optimised, A40": ((5.18, 5.18), 98.08, 87.53),
    "CUDA, optimised, RTX 6000": ((6.43, 6.43), 98.08, 87.53),
    "CUDA, optimised, V100": ((8.50, 8.50), 98.08, 87.53),
}
ACCURACIES = {"mnist": "95.34, 97.26, 98.08 %", "fashion_mnist": "74.91, 87.18, 87.53 %"}
# The study's own programs, seconds of an epoch of MNIST measured by themselves on an H200.
OWN_S = {"the study's CUDA, naive, H200": 4.87, "the study's CUDA, optimised, H200": 1.16}

History = Mapping[str, Sequence[Mapping[str, Any]]]
Found = Sequence[tuple[Run, History]]


def present(page: Page, runs: Sequence[Run]) -> None:
    """One figure of all machines, the claims, then trainings, ablation, block sizes and loaders on each data set."""
    every = runs[0].setting.data
    page.words(_answer(runs, every[0]))
    found = history(runs, "training", every[0])
    marks = [Mark(run.label(n), _epoch(rows), family(n)) for run, h in found for n, rows in h.items()]
    marks += [
        Mark(f"{run.label(n)}", _epoch(rows), family(n))
        for run, h in history(runs, "ablation", every[0])
        for n, rows in h.items()
        if n.endswith("/ naive")
    ]
    if every[0] == "mnist":
        marks += [
            Mark(f"published: {n}", (low + high) / 2 / EPOCHS, HOLLOW) for n, ((low, high), *_) in PUBLISHED.items()
        ]
        marks += [Mark(n, seconds, OWN) for n, seconds in OWN_S.items()] if any(run.gpu for run in runs) else []
    if marks:
        page.figure(
            f"epochs-{every[0]}", f"Time of an epoch of {every[0]}",
            [Panel(_title(marks), partial(figures.dots, marks=marks), len(marks))],
            f"Seconds for {EPOCH:,} samples in batches of 64, medians of the epochs after the first, lines are "
            "quartiles; shorter epochs are scaled. Published: a fifth of five epochs. The study's own programs leave "
            "most of their gradients out; they were measured by themselves.",
        )  # fmt: skip
    page.claims(claims(runs))
    for run in runs:
        for result in run.results.values():
            page.refused(result["out"])
    for data in every:
        _trainings(page, runs, data)
        for sweep in SWEEPS:
            _sweep(page, runs, sweep, data)


def history(runs: Sequence[Run], what: str, data: str) -> Found:
    """Epochs by candidate of a measurement, of each machine that has them."""
    found = [(run, run.results[f"{what}-{data}"]["history"]) for run in runs if f"{what}-{data}" in run.results]
    return [(run, rows) for run, rows in found if rows]


def _seen(rows: Sequence[Mapping[str, Any]]) -> int:
    return round(rows[-1]["samples_per_s"] * rows[-1]["time_s"])


def _epoch(rows: Sequence[Mapping[str, Any]]) -> Spread:
    """Seconds of as many samples as a whole epoch has."""
    return times(rows).scaled(EPOCH / _seen(rows))


def _pick(runs: Sequence[Run], what: str, data: str, wanted: Callable[[str], bool]) -> dict[str, float]:
    """Median seconds of a whole epoch by candidate, of the first machine that has any such."""
    for _, rows in sorted(history(runs, what, data), key=lambda pair: pair[0].gpu is None):
        found = {name: _epoch(epochs).median for name, epochs in rows.items() if wanted(name)}
        if found:
            return found
    return {}


# Answer and claims --------------------------------------------------------------------------------


def _title(marks: Sequence[Mark]) -> str:
    ours = sorted((m for m in marks if m.family not in (HOLLOW, OWN)), key=lambda m: m.spread.median)
    return f"An epoch takes {duration(ours[0].spread.median)} with {ours[0].label}" if ours else "Time of an epoch"


def _gains(runs: Sequence[Run], data: str, engine: str) -> dict[str, float]:
    """How many times as fast as the naive level each level of an engine is."""
    seconds = _pick(runs, "ablation", data, lambda name: name.startswith(f"{engine} / "))
    naive = seconds.get(f"{engine} / naive")
    return {name.partition(" / ")[2]: naive / s for name, s in seconds.items()} if naive else {}


def _answer(runs: Sequence[Run], data: str) -> str:
    gains = _gains(runs, data, "cupy")
    training = _pick(runs, "training", data, lambda _: True)
    text = ""
    if gains.get(ALL):
        alone = gains["graph alone"]
        graph = f"{alone:.2f} times" if abs(alone - 1) > SAME else "brings nothing"
        text += (
            f"With `cupy` merged kernels in tiles on tensor cores, launched as a graph, are {gains[ALL]:,.0f} times as "
            f"fast as one thread a result. By itself tiling makes training {gains['tiling alone']:.1f} times as fast, "
            f"fusion {gains['fusion alone']:.1f} times, a graph {graph}: it pays when the kernels have become short. "
        )
    if training:
        first = min(training, key=lambda n: training[n])
        peers = [s for n, s in training.items() if n.startswith("torch.nn:")]
        text += f"`{first}` takes {duration(training[first])} for an epoch with every gradient"
        text += f", PyTorch's modules {duration(min(peers))} on the same machine" if peers else ""
        text += (
            "; the study's optimised program takes 1.16 s on an H200 and leaves most gradients out. " if gains else ". "
        )
    return text + (
        "The published failure with 1,024 threads a block comes from a gradient that is summed rather than averaged, "
        "not from registers: here every block size gives the same loss."
    )


def claims(runs: Sequence[Run]) -> list[Claim]:
    """Each claim of the source, judged on the first data set."""
    data = runs[0].setting.data[0]
    gains = _gains(runs, data, "cupy")
    training = _pick(runs, "training", data, lambda _: True)
    gpu = {n: s for n, s in training.items() if n in ("cupy", "torch.nn:cuda")}
    naive = _pick(runs, "ablation", data, lambda name: name == "cupy / naive").get("cupy / naive")
    made = [
        Claim("Optimised kernels are 3.9 to 4.9 times as fast as naive ones", "training times",
              "23.5 to 5.18, 25.1 to 6.43, 41.8 to 8.50 s", f"{gains[ALL]:,.0f} times" if gains.get(ALL) else None,
              False, "its speed-up is mostly work left undone: its optimised weight gradient reads every 32nd pixel, "
              "its input gradient fails to launch; ours compute all gradients, and gain more"),
        Claim("Its own optimised CUDA is faster than PyTorch on the GPU", "training times", "8.50 s, 19 to 25 s (V100)",
              ", ".join(duration(s) for s in gpu.values()) + " an epoch" if len(gpu) == 2 else None,
              len(gpu) == 2 and gpu["cupy"] < gpu["torch.nn:cuda"],
              "with complete gradients, too; the study's own program takes 1.16 s an epoch on an H200, where PyTorch "
              "took 0.90 s beside it"),
        Claim("Naive CUDA is no faster than PyTorch on the GPU", "training times", "41.8 s, 19 to 25 s (V100)",
              f"{duration(naive)}, {duration(gpu['torch.nn:cuda'])} an epoch" if naive and len(gpu) == 2 else None,
              bool(naive and len(gpu) == 2 and naive >= gpu["torch.nn:cuda"]),
              "one thread sums each weight's gradient over the whole batch: 4,608 threads with 36,864 terms each, on a "
              "GPU that runs 270,000"),
    ]  # fmt: skip
    for place, name in (("mnist", "MNIST"), ("fashion_mnist", "Fashion-MNIST")):
        last = [100 * rows[-1]["test_accuracy"] for run, h in history(runs, "training", place) for rows in h.values()
                if run.gpu or len(runs) == 1]  # fmt: skip
        made.append(Claim(
            f"CUDA reaches a higher accuracy than PyTorch on {name}", "accuracies: PyTorch, naive, optimised",
            ACCURACIES[place],
            f"{span(last)} % with all candidates" if last else None, False,
            "its PyTorch network is another one, with padding and a ReLU on the logits",
        ))  # fmt: skip
    tested = [times(rows, "test_time_s").median for _, h in history(runs, "training", data) for rows in h.values()]
    made.append(Claim(
        "Testing takes 0.09 to 0.13 s", "testing", "0.09 to 0.13 s",
        f"{duration(min(tested))} to {duration(max(tested))}" if tested else None, None, "other machines",
    ))  # fmt: skip
    losses = [rows[-1]["loss"] for _, h in history(runs, "blocks", data) for rows in h.values()]
    made.append(Claim(
        "With 1,024 threads a block the network does not learn, for want of registers", "block sizes",
        "loss stays at 2.303",
        f"a loss of {span(losses, '{:.4f}')} with 32 to 1,024" if losses else None, False,
        "its softmax gradient covers all 64 samples of a batch only then, and the summed gradient diverges",
    ))  # fmt: skip
    made.append(Claim(
        "More workers and pinned memory make loading faster", "data loaders", "workers 2, 4, 8, pinned or not",
        _loading(runs, data), None, "its network, images and machine are others",
    ))  # fmt: skip
    return made


def _loading(runs: Sequence[Run], data: str) -> str | None:
    """The fastest loader of each library as a multiple of data in memory, where whole epochs were timed."""
    texts = []
    for run, rows in history(runs, "loaders", data):
        if run.setting.sizes.loader_samples:
            continue
        for name in rows:
            base, _, how = name.partition(" / ")
            own = [n for n in rows if _library(n) == base and n != name]
            if how == "in memory" and own:
                best = min(own, key=lambda n: times(rows[n]).median)
                ratio = times(rows[best]).median / times(rows[name]).median
                texts.append(f"{run.label(base)}: {best.partition(' / ')[2]} best, {ratio:.2f} times data in memory")
    return "; ".join(texts) or None


# Tables and figures -------------------------------------------------------------------------------


def _trainings(page: Page, runs: Sequence[Run], data: str) -> None:
    found = history(runs, "training", data)
    if not found:
        return
    page.section(f"Training on {data}")
    columns = [
        Column("candidate", "candidate"), Column("epochs", "epochs"), Column("seen", "samples", "{:,d}"),
        Column("total_s", "total (s)", "{:.3g}"), Column("first_s", "of it the first epoch (s)", "{:.3g}"),
        Column("epoch_s", "epoch (s)", "{:.3g}"), Column("test_s", "testing (s)", "{:.2g}"),
        Column("accuracy", "test accuracy (%)", "{:.2f}"), Column("loss", "training loss (nats)", "{:.4f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for run, own in found:
        for name, epochs in own.items():
            rows.append({
                "candidate": run.label(name), "epochs": len(epochs), "seen": _seen(epochs),
                "total_s": sum(r["time_s"] for r in epochs), "first_s": epochs[0]["time_s"], "epoch_s": times(epochs),
                "test_s": times(epochs, "test_time_s").median, "accuracy": 100 * epochs[-1]["test_accuracy"],
                "loss": epochs[-1]["loss"],
            })  # fmt: skip
    for name, ((low, high), mnist, fashion) in PUBLISHED.items():
        accuracy = {"mnist": mnist, "fashion_mnist": fashion}.get(data)
        total = (f"{low:g} to {high:g}" if low < high else low) if data == "mnist" else None
        if accuracy is not None:
            rows.append({"candidate": f"published: {name}", "epochs": EPOCHS, "seen": EPOCH, "total_s": total,
                         "accuracy": accuracy})  # fmt: skip
    note = (
        "Two convolutions of 3x3, max-pooling and one dense layer: 50,890 parameters. Batches of 64, shuffled, plain "
        "SGD with learning rate 0.01 on the mean loss, float32, the same first weights and batches everywhere. In the "
        "first epoch a library may still compile, so it counts for the total alone. Totals and accuracies of rows with "
        "fewer samples or epochs do not compare with those of whole trainings."
    )
    page.table(f"training-{data}", f"Training on {data}", columns, rows, note)


NOTES = {
    "ablation": (
        "Levels of optimisation",
        "Each level switches on what it names and nothing else. Naive is one thread for each result and one kernel for "
        "each operation; fusion merges operations into one kernel, tiling computes convolutions, products and sums by "
        "tiles in shared memory, graph captures whole steps, and many at once, in CUDA graphs. Tensor cores compute "
        "tiles from operands in parts, with float32's accuracy, or with products in bfloat16. Data stay on the device "
        f"unless they are said to come from the host. {BASE} computes the references.",
    ),
    "blocks": (
        "Threads of a block, naive level",
        "Published: with 1,024 threads a block the loss stays at 2.303.",
    ),
    "loaders": (
        "Data loading",
        "Batch by batch through PyTorch's DataLoader, which makes single images in worker processes, or through "
        "`minicnn.data.Loader`, which makes whole batches in threads. Pinned memory is for copies to a GPU.",
    ),
}  # fmt: skip


def _sweep(page: Page, runs: Sequence[Run], sweep: str, data: str) -> None:
    found = history(runs, sweep, data)
    if not found:
        return
    title, note = NOTES[sweep]
    page.section(f"{title} ({data})")
    columns = [
        Column("candidate", "candidate"), Column("seen", "samples", "{:,d}"), Column("epoch_s", "epoch (s)", "{:.3g}"),
        Column("speedup", "times the first's rate", "{:.2f}"), Column("test_s", "testing (s)", "{:.2g}"),
        Column("loss", "training loss (nats)", "{:.4f}"), Column("accuracy", "test accuracy (%)", "{:.2f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    marks = []
    for run, own in found:
        for name, epochs in own.items():
            first = next(n for n in own if _library(n) in (_library(name), BASE))
            rows.append({
                "candidate": run.label(name), "seen": _seen(epochs), "epoch_s": times(epochs),
                "speedup": times(own[first]).median / times(epochs).median,
                "test_s": times(epochs, "test_time_s").median, "loss": epochs[-1]["loss"],
                "accuracy": 100 * epochs[-1]["test_accuracy"],
            })  # fmt: skip
            marks.append(Mark(run.label(name), _epoch(epochs), family(name)))
    page.table(f"{sweep}-{data}", f"{title} on {data}", columns, rows, note)
    if sweep != "blocks":
        page.figure(
            f"{sweep}-{data}", f"{title} on {data}",
            [Panel(f"{title}: seconds for {EPOCH:,} samples", partial(figures.dots, marks=marks), len(marks))],
            "Medians of the epochs after the first, scaled to a whole epoch; lines are quartiles.",
        )  # fmt: skip
        return
    series = {}
    for run, own in found:
        for i, engine in enumerate(LEVELS):
            sizes = [b for b in BLOCKS if f"{engine} / block {b}" in own]
            if sizes:
                seconds = [_epoch(own[f"{engine} / block {b}"]).median for b in sizes]
                series[run.label(engine)] = (sizes, seconds, figures.PALETTE[i])

    def draw(axes: Any) -> None:
        figures.paths(axes, series, "threads of a block", "", say=lambda s: duration(s) if s else "0")
        axes.set_xscale("log", base=2)
        axes.set_xticks(BLOCKS, [str(b) for b in BLOCKS])
        axes.set_ylim(0, 1.1 * max(max(seconds) for _, seconds, _ in series.values()))

    change = max(max(seconds) / min(seconds) - 1 for _, seconds, _ in series.values())
    found_text = f"The block size changes an epoch of {EPOCH:,} samples by up to {change:.0%}, the loss not at all"
    page.figure(f"blocks-{data}", f"{title} on {data}", [Panel(found_text, draw)])


def _library(name: str) -> str:
    """Name of a candidate of a sweep without its level or loader: the candidate that it is compared with."""
    return name.partition(" / ")[0].replace("-loader", "")
