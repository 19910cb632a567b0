"""Answer, claims, tables and figures of the study `mlp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from minicnn.bench import Column, Page, Panel, Run, Spread, figures
from minicnn.bench.candidates import on_gpu
from minicnn.bench.figures import OWN, PUBLISHED, Mark, duration, family
from minicnn.bench.page import Cell, Claim
from minicnn.studies.mlp import by_operation, sweeps
from minicnn.studies.mlp.by_operation import OPERATIONS_MS, WITHOUT, operations

# What was published for NumPy and for CuPy.
TOTAL_S = (42.3, 15.1)
ITERATION_MS = {"iteration": (84.6, 30.2), "forward": (36.7, 11.9), "backward": (47.9, 18.3)}
MEMORY_MB = {
    "parameters": (7.9, 7.9), "input": (47.1, 47.1), "activations": (26.3, 26.3), "gradients": (34.2, 34.2),
    "framework": (12.5, 158.6), "total": (128.0, 274.1),
}  # fmt: skip
PUBLISHED_ITERATIONS = 500
# Iterations of programs written as the study describes its own, measured by themselves.
OWN_MS = {
    "as the study writes it: NumPy in float64, 2 cores": 65.6,
    "as the study writes it: NumPy in float32, 2 cores": 33.0,
    "as the study writes it: CuPy, H200": 0.465,
}

Result = Mapping[str, Any]


def present(page: Page, runs: Sequence[Run]) -> None:
    """Totals, operations and memory of all machines beside the published; accuracy against iteration."""
    for data in runs[0].setting.data:
        found = [(run, run.results[f"training-{data}"]) for run in runs if f"training-{data}" in run.results]
        page.words(_answer(found))
        marks = [
            Mark(run.label(name), iteration(result, name), family(name))
            for run, result in found
            for name in result["rounds"]
        ]
        marks += [Mark(f"published: {name}", ITERATION_MS["iteration"][i] / 1e3, PUBLISHED)
                  for i, name in enumerate(("NumPy", "CuPy"))]  # fmt: skip
        marks += [Mark(name, ms / 1e3, OWN) for name, ms in OWN_MS.items()]
        page.figure(
            f"iterations-{data}", f"Time of an iteration on {data}",
            [Panel(_title(found), partial(figures.dots, marks=marks), len(marks))],
            "An iteration is a step of gradient descent on the whole training set. Medians of rounds of iterations "
            "after the first, lines are quartiles; hollow: published, on machines that are not named. What is written "
            "as the study writes it (float64 on the CPU) was measured by itself.",
        )  # fmt: skip
        page.claims(claims(found, sweeps.lead(data, runs)))
        for _, result in found:
            page.blocks += page.refused(result["out"])
        _times(page, data, found)
        _accuracy(page, data, found)
        by_operation.present(page, data, found)
        sweeps.present(page, data, runs)
        _memory(page, data, found)


# What was measured --------------------------------------------------------------------------------


def iteration(result: Result, name: str) -> Spread:
    """Seconds of an iteration, over the rounds after the first, with the study's work.

    Of results that were stored when an iteration copied its input and computed the accuracy, what these took is left
    out, where the candidate's nodes were timed within a step.
    """
    spread = Spread.after_first([row["time_s"] / row["steps"] for row in result["rounds"][name]])
    nodes = result["nodes"].get(name)
    if "work" in result or nodes is None or nodes["apart"] or on_gpu(name):
        return spread
    more = sum(s.median for kind, s in operations(nodes["nodes"]).items() if kind in WITHOUT)
    return spread.less(more)


def forward(result: Result, name: str) -> Spread:
    """Seconds of a forward pass, without what `iteration` leaves out."""
    spread = Spread.of(result["forward"][name])
    more = Spread.after_first([r["time_s"] / r["steps"] for r in result["rounds"][name]]).median
    more -= iteration(result, name).median
    return spread.less(more)


def components_mb(account: Mapping[str, Any]) -> dict[str, float | None]:
    """Measured memory by component, in MB."""
    held = account["samples_mb"] - account["library_mb"]
    return {
        "framework": account["library_mb"], "others": account["others_mb"], "input": held - account["others_mb"],
        "step": account["peak_mb"] - account["samples_mb"], "total": account["peak_mb"], "device": account["device_mb"],
    }  # fmt: skip


# Answer and claims --------------------------------------------------------------------------------

Found = Sequence[tuple[Run, Result]]


def _pair(found: Found) -> tuple[Result, str, str] | None:
    """The result in which NumPy and a GPU were measured side by side, NumPy's name and the GPU's best; None without."""
    for run, result in found:
        names = [n for n in result["rounds"] if run.where(n) != run.cpu]
        if names and "numpy" in result["rounds"]:
            best = "cupy" if "cupy" in names else min(names, key=lambda n: iteration(result, n).median)
            return result, "numpy", best
    return None


def _every(found: Found) -> dict[str, float]:
    return {run.label(name): iteration(result, name).median for run, result in found for name in result["rounds"]}


def _title(found: Found) -> str:
    every = _every(found)
    if not every:
        return "Time of an iteration"
    first, last = min(every, key=lambda n: every[n]), max(every, key=lambda n: every[n])
    return f"An iteration takes {duration(every[first])} with {first}, {duration(every[last])} with {last}"


def _answer(found: Found) -> str:
    every = _every(found)
    if not every:
        return "No candidate could be measured."
    pair = _pair(found)
    if pair is None:
        first, last = min(every, key=lambda n: every[n]), max(every, key=lambda n: every[n])
        text = (
            f"The fastest candidate, {first}, takes {duration(every[first])} for an iteration, the slowest, {last}, "
            f"{duration(every[last])}. "
        )
    else:
        result, cpu, gpu = pair
        slow, fast = iteration(result, cpu).median, iteration(result, gpu).median
        text = (
            f"One GPU trains this network {slow / fast:,.0f} times as fast as NumPy on the same machine's CPU, where "
            f"2.8 times was published: `{gpu}` takes {duration(fast)} for an iteration on the whole training set, "
            f"NumPy {duration(slow)}, published were 30.2 and 84.6 ms. "
        )
    for run, result in reversed(found):
        nodes = result["nodes"].get("numpy")
        if nodes:
            share = _products_share(nodes)
            text += (
                f"Of NumPy's iteration on {run.cpu} matrix products are {share:.0%} (published: 50 %), the rest goes "
                "through memory once for each operation, which is what merging operations into a few kernels saves. "
            )
            break
    return text + (
        "The network is not a CNN, as the study calls it, but a multilayer perceptron 784-10-10 with 7,960 parameters; "
        "all candidates compute the same loss and gradients, so their accuracies are equal."
    )


def _forward_share(result: Result, name: str) -> float | None:
    """The forward pass's share of a step's operations one after the other; None if they were not timed."""
    seconds: dict[str, float] = {}
    for node in (result["nodes"].get(name) or {"nodes": ()})["nodes"]:
        if by_operation.operation(node) not in WITHOUT:
            seconds[node["phase"]] = seconds.get(node["phase"], 0.0) + Spread.of(node["seconds"]).median
    return seconds["forward"] / sum(seconds.values()) if seconds else None


def _products_share(nodes: Mapping[str, Any]) -> float:
    """The matrix products' share of a step's operations."""
    parts = {k: s.median for k, s in operations(nodes["nodes"]).items() if k not in WITHOUT}
    return parts["matrix products"] / sum(parts.values())


def claims(found: Found, growth: sweeps.Lead | None = None) -> list[Claim]:
    """Each claim of the source, judged; the growth of the GPU's lead from the sweeps, if they were measured."""
    pair = _pair(found)
    result, cpu, gpu = pair if pair else (None, "", "")

    def ours(text: str) -> str | None:
        return text if result is not None else None

    slow = iteration(result, cpu).median if result else 0.0
    fast = iteration(result, gpu).median if result else 1.0
    lead = slow / fast
    shares = [share for name in (cpu, gpu) if result and (share := _forward_share(result, name)) is not None]
    products = {r.cpu: _products_share(n) for r, one in found if (n := one["nodes"].get("numpy"))}
    accounts = [result["account"][name]["peak_mb"] for name in (cpu, gpu)] if result else [0.0, 0.0]
    return [
        Claim("CuPy trains 2.8 times as fast as NumPy", "total and time of an iteration", "42.3 s and 15.1 s",
              ours(f"{lead:,.0f} times with `{gpu}`"), 2.8 / 1.5 < lead < 2.8 * 1.5,
              "a GPU wins by far more: 30 ms an iteration are not its arithmetic; the study's way of writing it takes "
              "0.465 ms on an H200, where launches hold it back"),
        Claim("An iteration takes 84.6 ms on the CPU and 30.2 ms on the GPU", "time of an iteration",
              "84.6 and 30.2 ms", ours(f"{duration(slow)} and {duration(fast)}"), None,
              "neither CPU, GPU nor precision is named"),
        Claim("The forward pass is 43 % of an iteration on the CPU, 39 % on the GPU", "forward and backward",
              "36.7 of 84.6 ms, 11.9 of 30.2 ms",
              f"{shares[0]:.0%} and {shares[1]:.0%}" if len(shares) == 2 else None,
              all(abs(a - b) < 0.1 for a, b in zip(shares, (0.43, 0.39), strict=False)),
              "operations one after the other, as the study runs them; a step that merges them has no such part"),
        Claim("Half of the CPU's time are matrix products", "by operation", "42.3 of 84.6 ms",
              ", ".join(f"{share:.0%} on {cpu}" for cpu, share in products.items()) or None,
              bool(products) and min(products.values()) - 0.1 < 0.5 < max(products.values()) + 0.1,
              "it depends on the number of cores, which share out products but hardly NumPy's other operations"),
        Claim("The GPU gains most in matrix products (6.3 times), least in ReLU (1.7), softmax (1.9) and gradients "
              "(1.8)", "by operation", "42.3 / 6.7, 3.1 / 1.8, 5.6 / 2.9, 33.6 / 18.8 ms",
              _gains(result, gpu) if result and "work" in result else None, False,
              "NumPy's products are a library's, on all cores; its other operations run on one core and go through "
              "memory each time, so that a GPU gains more there"),
        Claim("Training takes 128 MB on the CPU and 274 MB on the GPU", "memory", "128.0 and 274.1 MB",
              ours(f"{accounts[0]:,.0f} and {accounts[1]:,.0f} MB of the process"), False,
              "its table contradicts itself: 7,960 float32 parameters are 0.03 MB, not 7.9, and 59,000 images of 784 "
              "float32 are 185 MB, not 47.1"),
        Claim("The GPU's lead grows with the data", "hypothesis", "no figures",
              growth.with_samples if growth else None, bool(growth and growth.grows(model=False)),
              "an iteration on few samples is a few launches, whatever the GPU could do"),
        Claim("The GPU's lead grows with the model", "hypothesis", "no figures",
              growth.with_units if growth else None, bool(growth and growth.grows(model=True)),
              "with few hidden units an iteration moves data through memory once for each operation, with many it is "
              "matrix products: the lead is first that of the GPU's memory, then that of its arithmetic"),
        Claim("The network is a CNN", "title", "784-10-10", "no convolution", False,
              "it is a multilayer perceptron"),
    ]  # fmt: skip


def _gains(result: Result, gpu: str) -> str:
    slow, fast = (operations(result["nodes"][name]["nodes"]) for name in ("numpy", gpu))
    return ", ".join(f"{kind} {slow[kind].median / fast[kind].median:,.0f}" for kind in OPERATIONS_MS if kind in fast)


# Tables -------------------------------------------------------------------------------------------


def _times(page: Page, data: str, found: Found) -> None:
    page.section(f"Times on {data}")
    columns = [
        Column("candidate", "candidate"), Column("iterations", "iterations"), Column("total_s", "total (s)", "{:.3g}"),
        Column("first_s", "of these the first round (s)", "{:.3g}"), Column("iteration_ms", "iteration (ms)", "{:.3g}"),
        Column("forward_ms", "forward (ms)", "{:.3g}"), Column("backward_ms", "backward and update (ms)", "{:.3g}"),
        Column("speedup", "times NumPy's rate", "{:.3g}"), Column("accuracy", "held-out accuracy (%)", "{:.2f}"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for run, result in found:
        base = iteration(result, "numpy").median if "numpy" in result["rounds"] else None
        for name, rounds in result["rounds"].items():
            whole, passed = iteration(result, name), forward(result, name)
            rest = whole.median - passed.median
            seen = whole.low > passed.high  # else what is left is the noise of both
            rows.append({
                "candidate": run.label(name), "iterations": rounds[-1]["iteration"],
                "total_s": sum(r["time_s"] for r in rounds), "first_s": rounds[0]["time_s"],
                "iteration_ms": whole.scaled(1e3), "forward_ms": passed.scaled(1e3),
                "backward_ms": 1e3 * rest if seen else None,
                "speedup": base / whole.median if base else None, "accuracy": 100 * rounds[-1]["val_accuracy"],
            })  # fmt: skip
    for place, name in enumerate(("NumPy", "CuPy")):
        ms = {f"{key}_ms": values[place] for key, values in ITERATION_MS.items()}
        rows.append({"candidate": f"published: {name}", "iterations": PUBLISHED_ITERATIONS,
                     "total_s": TOTAL_S[place], **ms})  # fmt: skip
    note = (
        "Totals are of the iterations in their row: compare those of equal numbers only. In the first round a library "
        "may still compile; it counts for the total alone. Forward is the loss of the training set without gradients; "
        "backward and update is the rest of an iteration, a dash where it lies within the spread of the two."
    )
    for name, own in OWN_MS.items():
        rows.append({"candidate": name, "iterations": PUBLISHED_ITERATIONS, "iteration_ms": own,
                     "total_s": PUBLISHED_ITERATIONS * own / 1e3})  # fmt: skip
    page.table(f"totals-{data}", f"Times on {data}", columns, rows, note)


def _accuracy(page: Page, data: str, found: Found) -> None:
    """Held-out accuracy against iteration: one line a machine, as candidates agree, and by how much they do."""
    series, ends = {}, []
    for i, (run, result) in enumerate(found):
        last = [100 * rows[-1]["val_accuracy"] for rows in result["rounds"].values()]
        ends += [max(last) - min(last)] if last else []
        for rows in list(result["rounds"].values())[:1]:
            name = f"all {len(last)} on {run.gpu or run.cpu}"
            xs, ys = [r["iteration"] for r in rows], [100 * r["val_accuracy"] for r in rows]
            series[name] = (xs, ys, figures.PALETTE[i])
    if not series:
        return
    apart = f"differ by {max(ends):.2f} points" if max(ends) >= 0.005 else "are equal"
    page.figure(
        f"accuracy-{data}", f"Accuracy against iteration on {data}",
        [Panel(f"Accuracies of all candidates {apart}",
               lambda axes: figures.paths(axes, series, "iteration", "held-out accuracy (%)"))],
        "Accuracy on the samples that are held out; one line for all candidates of a machine.",
    )  # fmt: skip


def _memory(page: Page, data: str, found: Found) -> None:
    page.section("Memory")
    plan: Mapping[str, int] = next((a["plan"] for _, r in found for a in r["account"].values() if "plan" in a), {})
    planned = {key: value / 1e6 for key, value in plan.items()}
    names = {
        "parameters": "parameters", "input": "input", "others": "samples held out and test samples",
        "activations": "activations, at the peak", "gradients": "gradients, at the peak",
        "step": "growth in training: activations, gradients, workspace", "framework": "framework: Python and libraries",
        "total": "total of the process", "device": "on the device",
    }  # fmt: skip
    plan_of = {"step": "arena", "total": "peak", "device": "peak"} | {
        key: key for key in ("parameters", "input", "activations", "gradients")
    }
    columns = [
        Column("component", "component (MB)"), Column("published_cpu", "published: CPU", "{:.1f}"),
        Column("published_gpu", "published: GPU", "{:.1f}"), Column("plan", "the Program's plan", "{:,.2f}"),
    ]  # fmt: skip
    measured = {run.label(name): components_mb(a) for run, result in found for name, a in result["account"].items()}
    columns += [Column(name, name, "{:,.0f}") for name in measured]
    rows: list[dict[str, Cell]] = []
    for key, text in names.items():
        published = MEMORY_MB.get(key, (None, None))
        row: dict[str, Cell] = {"component": text, "published_cpu": published[0], "published_gpu": published[1]}
        row["plan"] = planned.get(plan_of.get(key, ""))
        rows.append(row | {name: parts.get(key) for name, parts in measured.items()})
    note = (
        "MB are 10^6 bytes. The plan is for one step on the training set, if every value is held from the node that "
        "makes it to the last that reads it. Measured: growth of the resident process from stage to stage, at its peak "
        "in training; parameters, activations and gradients lie in one pool, so they cannot be told apart by "
        "measuring. Less than the plan is held where operations are merged, more where a library packs factors of its "
        "products, copies the input, compiles code, or keeps memory that it has freed."
    )
    page.table(f"memory-{data}", f"Memory by component on {data}", columns, rows, note)
