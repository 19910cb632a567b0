"""Answer, claims, tables and figures of the study `kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from minicnn.bench import Page, Panel, Run, figures
from minicnn.bench.figures import OWN, Mark, duration, family
from minicnn.bench.figures import PUBLISHED as HOLLOW
from minicnn.bench.page import Claim, span
from minicnn.studies.kernels import tables
from minicnn.studies.kernels.tables import ALL, EPOCH, EPOCHS, OWN_S, PUBLISHED, epoch_of, history, library, pick
from minicnn.studies.platforms.pages import times

SAME = 0.03  # a change of less is none

ACCURACIES = {"mnist": "95.34, 97.26, 98.08 %", "fashion_mnist": "74.91, 87.18, 87.53 %"}


def present(page: Page, runs: Sequence[Run]) -> None:
    """One figure of all machines, the claims, then trainings, ablation, block sizes and loaders on each data set."""
    every = runs[0].setting.data
    page.words(_answer(runs, every[0]))
    found = history(runs, "training", every[0])
    marks = [Mark(run.label(n), epoch_of(rows), family(n)) for run, h in found for n, rows in h.items()]
    marks += [
        Mark(f"{run.label(n)}", epoch_of(rows), family(n))
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
            page.blocks += page.refused(result["out"])
    tables.present(page, runs)


# Answer and claims --------------------------------------------------------------------------------


def _title(marks: Sequence[Mark]) -> str:
    ours = sorted((m for m in marks if m.family not in (HOLLOW, OWN)), key=lambda m: m.spread.median)
    return f"An epoch takes {duration(ours[0].spread.median)} with {ours[0].label}" if ours else "Time of an epoch"


def _gains(runs: Sequence[Run], data: str, engine: str) -> dict[str, float]:
    """How many times as fast as the naive level each level of an engine is."""
    seconds = pick(runs, "ablation", data, lambda name: name.startswith(f"{engine} / "))
    naive = seconds.get(f"{engine} / naive")
    return {name.partition(" / ")[2]: naive / s for name, s in seconds.items()} if naive else {}


def _answer(runs: Sequence[Run], data: str) -> str:
    gains = _gains(runs, data, "cupy")
    training = pick(runs, "training", data, lambda _: True)
    text = ""
    if gains.get(ALL):
        alone = gains["graph alone"]
        graph = f"{alone:.2f} times" if abs(alone - 1) > SAME else "brings nothing"
        text += (
            f"With `cupy` merged kernels in tiles on tensor cores, launched as a graph, are {gains[ALL]:,.0f} times as "
            f"fast as one thread a result; by itself tiling makes training {gains['tiling alone']:.1f} times as fast, "
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
    training = pick(runs, "training", data, lambda _: True)
    gpu = {n: s for n, s in training.items() if n in ("cupy", "torch.nn:cuda")}
    naive = pick(runs, "ablation", data, lambda name: name == "cupy / naive").get("cupy / naive")
    made = [
        Claim("Optimised kernels are 3.9 to 4.9 times as fast as naive ones", "training times",
              "23.5 to 5.18, 25.1 to 6.43, 41.8 to 8.50 s", f"{gains[ALL]:,.0f} times" if gains.get(ALL) else None,
              False, "its speed-up is mostly work left undone: its optimised weight gradient reads every 32nd pixel, "
              "its input gradient fails to launch; ours compute all gradients, and gain more"),
        Claim("Its own optimised CUDA is faster than PyTorch on the GPU", "training times", "8.50 s, 19 to 25 s (V100)",
              "1.16 s and 0.90 s an epoch", False,
              "the study's own program beside PyTorch on an H200"
              + (f"; `cupy` with complete gradients takes {duration(gpu['cupy'])} where PyTorch takes "
                 f"{duration(gpu['torch.nn:cuda'])}, which is mostly launching and depends on the host"
                 if len(gpu) == 2 else "")),
        Claim("Naive CUDA is no faster than PyTorch on the GPU", "training times", "41.8 s, 19 to 25 s (V100)",
              f"{duration(naive)}, {duration(gpu['torch.nn:cuda'])} an epoch" if naive and len(gpu) == 2 else None,
              bool(naive and len(gpu) == 2 and naive >= gpu["torch.nn:cuda"]),
              "one thread sums each weight's gradient over the whole batch: 4,608 threads with 36,864 terms each, on a "
              "GPU that runs 270,000"),
    ]  # fmt: skip
    for place, name in (("mnist", "MNIST"), ("fashion_mnist", "Fashion-MNIST")):
        last = [100 * rows[-1]["test_accuracy"] for run, h in history(runs, "training", place) for rows in h.values()
                if not run.setting.quick or len(runs) == 1]  # fmt: skip
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
            own = [n for n in rows if library(n) == base and n != name]
            if how == "in memory" and own:
                best = min(own, key=lambda n: times(rows[n]).median)
                ratio = times(rows[best]).median / times(rows[name]).median
                texts.append(f"{run.label(base)}: {best.partition(' / ')[2]} best, {ratio:.2f} times data in memory")
    return "; ".join(texts) or None
