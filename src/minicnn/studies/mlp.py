"""Study `mlp`: a multilayer perceptron trained on the whole set at once, operation by operation.

A. Sapra, Performance Benchmarking of CNN Implementation: CPU vs. CUDA, Thapar Institute, May 2025.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from minicnn.bench import (
    Column,
    Comparison,
    Measurement,
    Missing,
    Page,
    Panel,
    Results,
    Setting,
    Spread,
    Study,
    figures,
)
from minicnn.bench.page import Cell
from minicnn.bench.trainers import gradient_tolerance, settings_of, trainer
from minicnn.jobs.settings import Settings

# What was published for NumPy and for CuPy.
TOTAL_S = (42.3, 15.1)
ITERATION_MS = {"iteration_ms": (84.6, 30.2), "forward_ms": (36.7, 11.9), "backward_ms": (47.9, 18.3)}
OPERATIONS_MS = {
    "matrix products": (42.3, 6.7), "ReLU": (3.1, 1.8), "softmax and loss": (5.6, 2.9), "other gradients": (33.6, 18.8),
}  # fmt: skip
MEMORY_MB = {
    "parameters": (7.9, 7.9), "input": (47.1, 47.1), "activations": (26.3, 26.3), "gradients": (34.2, 34.2),
    "framework": (12.5, 158.6), "total": (128.0, 274.1),
}  # fmt: skip
BESIDE = {"numpy": 0, "cupy": 1}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study.

    Attributes:
        iterations: Iterations, each on the whole training set.
        per_round: How many of them a candidate makes in a round, between two evaluations of the accuracy.
        hold_out: Samples held out.
        repeats: How often the forward pass and each operation are timed.
        samples: The most samples that are used; 0 for all.
        input: Whether images are scaled beforehand, as in the study ("float32"), or in each step ("uint8").
    """

    iterations: int = 500
    per_round: int = 10
    hold_out: int = 1000
    repeats: int = 20
    samples: int = 0
    input: str = "float32"


def measurements(setting: Setting) -> Iterator[Measurement]:
    """The training on each data set, all candidates in one run."""
    sizes = setting.sizes
    for data in setting.data:
        settings = settings_of(
            "mlp", data, setting.data_dir, epochs=sizes.iterations, hold_out=sizes.hold_out,
            samples=sizes.samples or None,
        )  # fmt: skip
        given = {"settings": asdict(settings), "sizes": asdict(sizes), "candidates": setting.candidates}
        yield Measurement(f"training-{data}", given, partial(_train, settings, sizes, setting.candidates))


def _train(settings: Settings, sizes: Sizes, candidates: Sequence[str]) -> dict[str, Any]:
    """Interleaved rounds of iterations, then interleaved forward passes, single operations, and memory."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in candidates}
    tolerance = gradient_tolerance(settings)
    with Comparison(candidates, partial(trainer, scaled=sizes.input == "float32"), settings) as comparison:
        comparison.check(tolerance)
        for method, given in (("evaluate", "val"), ("nodes", 1)):
            comparison.prepare(method, given)  # compiles it
        done = 0
        while done < sizes.iterations:
            steps = min(sizes.per_round, sizes.iterations - done)
            done += steps
            rows = comparison.call("train_whole", steps)
            for name, found in comparison.call("evaluate", "val").items():
                row = {key: rows[name][key] for key in ("time_s", "loss", "accuracy")}
                rounds[name].append({"iteration": done, "steps": steps, **row, "val_accuracy": found["accuracy"]})
        account = comparison.call("account")
        forward = comparison.time("forward", rounds=sizes.repeats)
        nodes = comparison.call("nodes", sizes.repeats)
        return {
            "rounds": {name: rounds[name] for name in comparison.names}, "forward": forward, "nodes": nodes,
            "account": account, "out": comparison.out,
        }  # fmt: skip


# Presentation -------------------------------------------------------------------------------------


def present(page: Page, setting: Setting, results: Results) -> None:
    """Totals, operations and memory, beside the published tables; accuracy against iteration."""
    for data in setting.data:
        result = results[f"training-{data}"]
        page.section(f"Training on {data}")
        page.refused(result["out"])
        page.words(
            "The network has 784 inputs, 10 hidden units with ReLU and 10 outputs with softmax: 7,960 parameters. The "
            "study calls it a CNN; it is a multilayer perceptron, and kept as the study defines it. The whole training "
            "set is one batch; plain gradient descent with learning rate 0.1, float32, the same first weights "
            "everywhere. "
            + ("Pixels are divided by 255 before the training." if setting.sizes.input == "float32"
               else "Pixels stay uint8 and are divided by 255 in each step.")
        )  # fmt: skip
        _totals(page, setting, data, result)
        page.figure(
            f"training-{data}", f"Training on {data}", _training_panels(result),
            f"Accuracy on the samples that are held out, after every round of {setting.sizes.per_round} "
            "iterations; the lines lie on each other where all candidates compute the same. Bars are medians of "
            "rounds, the first left out, whiskers their quartiles.",
        )  # fmt: skip
        page.words(_found(result))
        page.words(_beside_the_published(result))
        page.section(f"By operation ({data})")
        _operations(page, setting, data, result)
        page.section(f"Memory ({data})")
        _memory(page, setting, data, result)


def iteration_ms(result: Mapping[str, Any], name: str) -> Spread:
    """Milliseconds of an iteration, over the rounds after the first."""
    return Spread.after_first([row["time_s"] / row["steps"] for row in result["rounds"][name]], 1e3)


def forward_ms(result: Mapping[str, Any], name: str) -> Spread:
    """Milliseconds of a forward pass."""
    return Spread.of(result["forward"][name], 1e3)


def _totals(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    columns = [
        Column("candidate", "candidate"),
        Column("total_s", f"total, {setting.sizes.iterations} iterations (s)", "{:.3g}"),
        Column("first_s", "of these the first round (s)", "{:.3g}"),
        Column("iteration_ms", "iteration (ms)", "{:.3g}"), Column("forward_ms", "forward (ms)", "{:.3g}"),
        Column("backward_ms", "backward and update (ms)", "{:.3g}"), Column("speedup", "speed-up over numpy", "{:.2f}"),
        Column("accuracy", "held-out accuracy (%)", "{:.2f}"), Column("published_s", "published: total (s)", "{:.1f}"),
        Column("published_iteration_ms", "published: iteration (ms)", "{:.1f}"),
        Column("published_forward_ms", "published: forward (ms)", "{:.1f}"),
        Column("published_backward_ms", "published: backward (ms)", "{:.1f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for name in (*setting.candidates, *setting.absent):
        row: dict[str, Cell] = {"candidate": name}
        if name in result["rounds"]:
            rounds, whole, forward = result["rounds"][name], iteration_ms(result, name), forward_ms(result, name)
            rest = whole.median - forward.median
            row |= {
                "total_s": sum(r["time_s"] for r in rounds), "first_s": rounds[0]["time_s"], "iteration_ms": whole,
                "forward_ms": forward, "backward_ms": rest if rest > 0 else _NOT_LESS,
                "accuracy": 100 * rounds[-1]["val_accuracy"],
            }  # fmt: skip
            if "numpy" in result["rounds"]:
                row["speedup"] = iteration_ms(result, "numpy").median / whole.median
        else:
            keys = ("total_s", "first_s", "iteration_ms", "forward_ms", "backward_ms", "speedup", "accuracy")
            row |= dict.fromkeys(keys, setting.missing(name, result["out"]))
        if name in BESIDE:
            place = BESIDE[name]
            row["published_s"] = TOTAL_S[place]
            row |= {f"published_{key}": values[place] for key, values in ITERATION_MS.items()}
        rows.append(row)
    note = (
        f"A round is {setting.sizes.per_round} iterations. In the first a library may still compile, as plain JAX "
        "does: it counts for the total alone. Forward is the loss and accuracy of the training set without gradients; "
        "backward and update is the rest of an iteration. The published figures are for 500 iterations of NumPy on an "
        "unnamed CPU and of CuPy on an unnamed GPU, whose precision it does not state: NumPy's default is float64."
    )
    page.table(f"totals-{data}", f"Times on {data}", columns, rows, note)


_NOT_LESS = Missing("the forward pass, by itself and with loss and accuracy, took no less than a whole iteration")


def _training_panels(result: Mapping[str, Any]) -> list[Panel]:
    names = list(result["rounds"])
    accuracy = {
        name: ([r["iteration"] for r in rows], [100 * r["val_accuracy"] for r in rows])
        for name, rows in result["rounds"].items()
    }
    spreads = {name: iteration_ms(result, name) for name in names}
    return [
        Panel("Accuracy", lambda axes: figures.lines(axes, accuracy, "iteration", "held-out accuracy (%)")),
        Panel("Time of an iteration", lambda axes: figures.bars(axes, spreads, "time (ms)")),
    ]


def _found(result: Mapping[str, Any]) -> str:
    names = list(result["rounds"])
    if not names:
        return "No candidate could be measured."
    medians = {name: iteration_ms(result, name).median for name in names}
    order = sorted(names, key=lambda name: medians[name])
    last = [100 * result["rounds"][name][-1]["val_accuracy"] for name in names]
    shares = [forward_ms(result, name).median / medians[name] for name in names]
    less = [share for share in shares if share < 1] or [1.0]
    return (
        f"`{order[0]}` takes {medians[order[0]]:.3g} ms an iteration, `{order[-1]}` {medians[order[-1]]:.3g} ms, "
        f"{medians[order[-1]] / medians[order[0]]:.1f} times as long. The forward pass takes from "
        f"{min(less):.0%} to {max(less):.0%} of an iteration (published: 43 % on the CPU, 39 % "
        f"on the GPU). In the end the held-out accuracies lie between {min(last):.2f} and {max(last):.2f} %."
    )


def _beside_the_published(result: Mapping[str, Any]) -> str:
    """How ours compare with what was published, and why they differ."""
    texts = []
    for name, place in BESIDE.items():
        if name in result["rounds"]:
            ours, theirs = iteration_ms(result, name).median, ITERATION_MS["iteration_ms"][place]
            texts.append(f"`{name}` takes {ours:.3g} ms an iteration here, {theirs:.1f} ms in the study.")
    return " ".join(texts) + (
        " The machines differ, the study does not name its own. Precision may: NumPy's default is float64, in which an "
        "iteration moves twice the bytes that it moves in float32. The work may: the study says 59,000 samples, the "
        "file that it loads has 42,000."
    )


# By operation -------------------------------------------------------------------------------------


def operation(node: Mapping[str, Any]) -> str:
    """Which of the study's operations a node belongs to."""
    if node["scope"].startswith("metrics"):
        return "accuracy"
    if node["phase"] == "update":
        return "update"
    if node["op"] == "matmul":
        return "matrix products"
    if node["phase"] == "backward":
        return "other gradients"
    if node["op"] == "relu":
        return "ReLU"
    if node["scope"].startswith("loss"):
        return "softmax and loss"
    return "biases" if node["op"] == "add" else "input"


def operations_ms(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """Milliseconds of each of the study's operations: sums over the nodes, of each run."""
    runs: dict[str, list[float]] = {}
    for node in nodes:
        sums = runs.setdefault(operation(node), [0.0] * len(node["seconds"]))
        runs[operation(node)] = [a + 1e3 * b for a, b in zip(sums, node["seconds"], strict=True)]
    return {name: Spread.of(samples) for name, samples in runs.items()}


def _operations(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    timed = {name: found for name, found in result["nodes"].items() if found}
    found = {name: operations_ms(kept["nodes"]) for name, kept in timed.items()}
    single = [name for name, kept in timed.items() if kept["apart"]]
    columns = [Column("operation", "operation"), Column("published_cpu", "published: CPU (ms)", "{:.1f}"),
               Column("published_gpu", "published: GPU (ms)", "{:.1f}"),
               *(Column(n, f"`{n}`{', apart' if n in single else ''} (ms)", "{:.3g}") for n in found)]  # fmt: skip
    kinds = list(dict.fromkeys([*OPERATIONS_MS, *(kind for spreads in found.values() for kind in spreads)]))
    rows: list[dict[str, Cell]] = []
    for kind in kinds:
        published = OPERATIONS_MS.get(kind, (None, None))
        row: dict[str, Cell] = {"operation": kind, "published_cpu": published[0], "published_gpu": published[1]}
        rows.append(row | {name: spreads.get(kind, 0.0) for name, spreads in found.items()})
    total: dict[str, Cell] = {"operation": "sum of the operations", "published_cpu": 84.6, "published_gpu": 30.2}
    rows.append(total | {name: sum(s.median for s in spreads.values()) for name, spreads in found.items()})
    rows.append({"operation": "an iteration, as trained", "published_cpu": 84.6, "published_gpu": 30.2,
                 **{name: iteration_ms(result, name) for name in found}})  # fmt: skip
    note = (
        "Each node of the training step is timed by itself while the backend runs the step, with the device idle "
        "before and after. Apart: the backend merges nodes into kernels or compiles the step as a whole, so each "
        "operation is compiled by itself for this table, and launched by itself; what the sum takes longer than an "
        "iteration is what merging saves. Input is the copy into rows of 784, as no operation returns a view. Matrix "
        "products are those of both passes; other gradients are all else of the backward pass. PyTorch's and JAX's "
        "own modules are no Programs, so they have no nodes."
    )
    page.table(f"operations-{data}", f"Time by operation on {data}", columns, rows, note)
    if found:
        parts = {name: {kind: s.median for kind, s in spreads.items()} for name, spreads in found.items()}
        panel = Panel("Time by operation", lambda axes: figures.stacked(axes, parts, "time of an iteration (ms)"))
        caption = f"Operations apart: {', '.join(single)}." if single else ""
        page.figure(f"operations-{data}", "Where an iteration goes", [panel], caption)
        page.words(_costliest(found))


def _costliest(found: Mapping[str, Mapping[str, Spread]]) -> str:
    texts = []
    for name, spreads in found.items():
        total = sum(s.median for s in spreads.values())
        kind = max(spreads, key=lambda k: spreads[k].median)
        texts.append(f"{spreads[kind].median / total:.0%} of `{name}`'s operations are {kind}")
    return f"{'; '.join(texts)} (published: 50 % of NumPy's are matrix products, 62 % of CuPy's are gradients)."


# Memory -------------------------------------------------------------------------------------------


def _memory(page: Page, setting: Setting, data: str, result: Mapping[str, Any]) -> None:
    accounts = result["account"]
    plan = next((a["plan"] for a in accounts.values() if "plan" in a), None)
    columns = [Column("component", "component (MB)"), Column("published_cpu", "published: CPU", "{:.1f}"),
               Column("published_gpu", "published: GPU", "{:.1f}"), Column("plan", "the Program's plan", "{:,.2f}"),
               *(Column(name, f"`{name}`, measured", "{:,.1f}") for name in accounts)]  # fmt: skip
    planned = {key: value / 1e6 for key, value in (plan or {}).items()}
    measured = {name: components_mb(account) for name, account in accounts.items()}
    names = {
        "parameters": "parameters", "input": "input", "others": "samples held out and test samples",
        "activations": "activations, at the peak", "gradients": "gradients, at the peak",
        "step": "growth in training: activations, gradients, workspace", "framework": "framework: Python and libraries",
        "total": "total of the process", "device": "on the device",
    }  # fmt: skip
    plan_of = {"parameters": "parameters", "input": "input", "activations": "activations", "gradients": "gradients",
               "step": "arena", "total": "peak", "device": "peak"}  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for key, text in names.items():
        published = MEMORY_MB.get(key, (None, None))
        row: dict[str, Cell] = {"component": text, "published_cpu": published[0], "published_gpu": published[1]}
        row["plan"] = planned.get(plan_of.get(key, ""))
        rows.append(row | {name: parts.get(key) for name, parts in measured.items()})
    note = (
        "MB are 10^6 bytes. The plan is for one step on the training set, if every value is held from the node that "
        "makes it to the last that reads it; activations and gradients as they are when most is held. Measured: "
        "growth of the resident process from stage to stage, at its peak in training; parameters, activations and "
        "gradients lie in one pool, so they cannot be told apart by measuring. The published table cannot be right: "
        "7,960 float32 parameters are 0.03 MB, and 59,000 x 784 float32 inputs are 185 MB."
    )
    page.table(f"memory-{data}", f"Memory by component on {data}", columns, rows, note)
    kinds = {"framework": "framework", "input": "input", "others": "other samples", "step": "training"}
    shown = {n: {text: parts[key] or 0.0 for key, text in kinds.items()} for n, parts in measured.items()}
    panel = Panel("Memory of the process", lambda axes: figures.stacked(axes, shown, "memory (MB)", "{:,.0f}"))
    page.figure(f"memory-{data}", "What the process holds at its peak", [panel], "")
    if plan:
        page.words(_difference(measured, planned))


def components_mb(account: Mapping[str, Any]) -> dict[str, float | None]:
    """Measured memory by component, in MB."""
    held = account["samples_mb"] - account["library_mb"]
    return {
        "framework": account["library_mb"], "others": account["others_mb"], "input": held - account["others_mb"],
        "step": account["peak_mb"] - account["samples_mb"], "total": account["peak_mb"], "device": account["device_mb"],
    }  # fmt: skip


def _difference(measured: Mapping[str, Mapping[str, Any]], planned: Mapping[str, float]) -> str:
    """How the plan and what was measured differ, and why."""
    arena = planned["arena"]
    texts = [f"`{name}` {parts['step']:,.0f} MB ({parts['step'] - arena:+,.0f})" for name, parts in measured.items()]
    held = [f"`{name}` {parts['device']:,.0f} MB" for name, parts in measured.items() if parts["device"] is not None]
    device = (
        f" On the device {', '.join(held)} are in use, samples included, where the plan says {planned['peak']:,.0f} MB."
        if held
        else ""
    )
    return (
        f"In training the process grows beyond its samples by {', '.join(texts)}, where the plan of the step, made of "
        f"single operations, says {arena:,.0f} MB. Less than the plan is held where operations are merged, so that "
        "what lies between them is never stored; more where a library packs factors of its products into buffers, "
        "copies the input, compiles code while the process runs, or keeps memory that it has freed."
    ) + device


STUDY = Study(
    title="MLP: NumPy against the others, operation by operation",
    question="What does each operation of a small network cost on a CPU and on a GPU?",
    source="A. Sapra, Performance Benchmarking of CNN Implementation: CPU vs. CUDA, Thapar Institute, May 2025.",
    full=Sizes(),
    quick=Sizes(iterations=100, repeats=5),
    data=("mnist",),
    others=("fashion_mnist", "kaggle_digits", "synthetic_digits"),
    measurements=measurements,
    present=present,
    peers=("torch.nn", "jax.lax"),
)
