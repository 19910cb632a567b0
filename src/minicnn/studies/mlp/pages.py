"""Values, tables and figures of the page of the study `mlp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minicnn.measure import Page, Panel, Spread, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.figures import OWN, PUBLISHED, Mark, family
from minicnn.measure.page import Cell
from minicnn.measure.template import Content, PageTemplate
from minicnn.studies.mlp import by_operation, sweeps
from minicnn.studies.mlp.by_operation import OPERATIONS_MS, WITHOUT, operations

TEMPLATE = PageTemplate(Path(__file__).with_name("page.md"))
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
COMPONENTS = {
    "parameters": "parameters", "input": "input", "others": "samples held out and test samples",
    "activations": "activations, at the peak", "gradients": "gradients, at the peak",
    "step": "growth in training: activations, gradients, workspace", "framework": "framework: Python and libraries",
    "total": "total of the process", "device": "on the device",
}  # fmt: skip
PLANNED = {"step": "arena", "total": "peak", "device": "peak"}  # what the plan calls a component, if not the same

Result = Mapping[str, Any]
Found = Sequence[tuple[StudyRun, Result]]
Rows = list[dict[str, Cell]]


def present(page: Page, runs: Sequence[StudyRun]) -> None:
    """Totals, operations and memory of all machines beside the published; accuracy against iteration."""
    for data in runs[0].setting.data:
        results = [(run, run.results[f"training-{data}"]) for run in runs if f"training-{data}" in run.results]
        lead, swept = sweeps.lead(data, runs), sweeps.swept(data, runs)
        values = _values(results, lead) | {
            "data": data,
            "swept": swept[-1][0].gpu or swept[-1][0].cpu if swept else None,
        }
        shown, leader = sweeps.panels(swept)
        values |= {"finding": TEMPLATE.words("finding", values), "leader": leader, "same": _same(results)}
        operation_rows, operation_heads = by_operation.rows(results)
        speedups, speedup_heads = by_operation.speedups(results)
        memory, labels = _memory(results)
        content = Content(
            values,
            rows={f"totals-{data}": _totals(results),
                  f"operations-{data}": operation_rows, f"speedups-{data}": speedups,
                  f"sweep-{data}": sweeps.rows(swept), f"memory-{data}": memory},
            groups={f"operations-{data}": operation_heads, f"speedups-{data}": speedup_heads, f"memory-{data}": labels},
            panels={f"iterations-{data}": _iterations(results), f"sweep-{data}": shown},
            blocks={"refused": page.refused(*(result["out"] for _, result in results))},
            holds=_verdicts(values, results, lead),
        )  # fmt: skip
        page.extend(TEMPLATE.render(content))


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


def _forward_share(result: Result, name: str) -> float | None:
    """The forward pass's share of a step's operations one after the other; None if they were not timed."""
    seconds: dict[str, float] = {}
    for node in (result["nodes"].get(name) or {"nodes": ()})["nodes"]:
        if by_operation.operation(node) not in WITHOUT:
            seconds[node["phase"]] = seconds.get(node["phase"], 0.0) + Spread.of(node["seconds"]).median
    return seconds["forward"] / sum(seconds.values()) if seconds else None


def _products_shares(results: Found) -> dict[str, float]:
    """The matrix products' share of the operations of NumPy's step, by CPU."""
    shares = {}
    for run, result in results:
        if nodes := result["nodes"].get("numpy"):
            parts = {k: s.median for k, s in operations(nodes["nodes"]).items() if k not in WITHOUT}
            shares[run.cpu] = parts["matrix products"] / sum(parts.values())
    return shares


# Words and claims ---------------------------------------------------------------------------------


def _pair(results: Found) -> tuple[Result, str] | None:
    """The result in which NumPy and a GPU were measured side by side, and the GPU's best; None without."""
    for run, result in results:
        names = [n for n in result["rounds"] if run.where(n) != run.cpu]
        if names and "numpy" in result["rounds"]:
            best = "cupy" if "cupy" in names else min(names, key=lambda n: iteration(result, n).median)
            return result, best
    return None


def _values(results: Found, lead: sweeps.Lead | None) -> dict[str, Any]:
    """Values that the words and the claims name."""
    every = {run.label(name): iteration(result, name).median for run, result in results for name in result["rounds"]}
    shares = _products_shares(results)
    names = ("lead", "gpu", "gpu_s", "cpu_s", "forward_cpu", "forward_gpu", "gains", "cpu_mb", "gpu_mb", "first",
             "first_s", "last", "last_s", "only", "only_s", "share_cpu", "share")  # fmt: skip
    values: dict[str, Any] = {
        **dict.fromkeys(names), "some": "" if every else None, "none": None if every else "", "alone": "",
        "products": ", ".join(f"{share:.0%} on {cpu}" for cpu, share in shares.items()) or None,
        "with_samples": lead and lead.with_samples, "with_units": lead and lead.with_units,
    }  # fmt: skip
    if len(every) == 1:
        values["only"], values["only_s"] = next(iter(every.items()))
    elif every:
        first, last = min(every, key=lambda n: every[n]), max(every, key=lambda n: every[n])
        values |= {"first": first, "first_s": every[first], "last": last, "last_s": every[last]}
    if shares:
        values["share_cpu"], values["share"] = list(shares.items())[-1]
    if pair := _pair(results):
        result, gpu = pair
        slow, fast = iteration(result, "numpy").median, iteration(result, gpu).median
        values |= {
            "alone": None, "lead": slow / fast, "gpu": gpu, "gpu_s": fast, "cpu_s": slow,
            "forward_cpu": _forward_share(result, "numpy"), "forward_gpu": _forward_share(result, gpu),
            "gains": _gains(result, gpu) if "work" in result else None,
            "cpu_mb": result["account"]["numpy"]["peak_mb"], "gpu_mb": result["account"][gpu]["peak_mb"],
        }  # fmt: skip
    return values


def _gains(result: Result, gpu: str) -> str:
    slow, fast = (operations(result["nodes"][name]["nodes"]) for name in ("numpy", gpu))
    return ", ".join(f"{kind} {slow[kind].median / fast[kind].median:,.0f}" for kind in OPERATIONS_MS if kind in fast)


def _verdicts(values: Mapping[str, Any], results: Found, lead: sweeps.Lead | None) -> dict[str, bool]:
    """Verdicts on claims by our figures."""
    shares = list(_products_shares(results).values())
    forward_shares = ((values["forward_cpu"], 0.43), (values["forward_gpu"], 0.39))
    return {
        "lead": 2.8 / 1.5 < (values["lead"] or 0.0) < 2.8 * 1.5, "gains": False, "memory": False, "cnn": False,
        "forward": all(share is not None and abs(share - said) < 0.1 for share, said in forward_shares),
        "products": bool(shares) and min(shares) - 0.1 < 0.5 < max(shares) + 0.1,
        "data": bool(lead and lead.grows(model=False)), "model": bool(lead and lead.grows(model=True)),
    }  # fmt: skip


# Tables and figures -------------------------------------------------------------------------------


def _totals(results: Found) -> Rows:
    rows: Rows = []
    for run, result in results:
        base = iteration(result, "numpy").median if "numpy" in result["rounds"] else None
        for name, rounds in result["rounds"].items():
            whole, passed = iteration(result, name), forward(result, name)
            seen = whole.low > passed.high  # else what is left is the noise of both
            rows.append({
                "candidate": run.label(name), "iterations": rounds[-1]["iteration"],
                "total_s": sum(r["time_s"] for r in rounds), "first_s": rounds[0]["time_s"],
                "iteration_ms": whole.scaled(1e3), "forward_ms": passed.scaled(1e3),
                "backward_ms": 1e3 * (whole.median - passed.median) if seen else None,
                "speedup": base / whole.median if base else None, "accuracy": 100 * rounds[-1]["val_accuracy"],
            })  # fmt: skip
    for place, name in enumerate(("NumPy", "CuPy")):
        ms = {f"{key}_ms": values[place] for key, values in ITERATION_MS.items()}
        rows.append({"candidate": f"published: {name}", "iterations": PUBLISHED_ITERATIONS,
                     "total_s": TOTAL_S[place], **ms})  # fmt: skip
    return rows + [
        {"candidate": name, "iterations": PUBLISHED_ITERATIONS, "iteration_ms": milliseconds,
         "total_s": PUBLISHED_ITERATIONS * milliseconds / 1e3}
        for name, milliseconds in OWN_MS.items()
    ]  # fmt: skip


def _iterations(results: Found) -> list[Panel]:
    marks = [
        Mark(run.name(n), iteration(result, n), family(n), run.where(n))
        for run, result in results
        for n in result["rounds"]
    ]
    for name, ms in OWN_MS.items():
        what, _, where = name.rpartition(", ")
        marks.append(Mark(what, ms / 1e3, OWN, where))
    marks += [Mark(name, ITERATION_MS["iteration"][i] / 1e3, PUBLISHED, "published, on other machines")
              for i, name in enumerate(("NumPy", "CuPy"))]  # fmt: skip
    return figures.grouped(marks, "time of an iteration")


def _same(results: Found) -> str | None:
    """Spread of the held-out accuracies of a machine's candidates, and the highest, in a sentence."""
    last = [[100 * rows[-1]["val_accuracy"] for rows in result["rounds"].values()] for _, result in results]
    last = [accuracies for accuracies in last if accuracies]
    if not last:
        return None
    apart = max(max(accuracies) - min(accuracies) for accuracies in last)
    words = f"differ by at most {apart:.2f} points" if apart >= 0.005 else "are equal"
    return f"Held-out accuracies of all candidates of a machine {words}, up to {max(map(max, last)):.2f} %."


def _memory(results: Found) -> tuple[Rows, list[str]]:
    """Rows of the components, and the labels of the candidates."""
    plan: Mapping[str, int] = next((a["plan"] for _, r in results for a in r["account"].values() if "plan" in a), {})
    measured = {run.label(name): components_mb(a) for run, result in results for name, a in result["account"].items()}
    rows: Rows = []
    for key, text in COMPONENTS.items():
        planned = plan.get(PLANNED.get(key, key))
        published = MEMORY_MB.get(key, (None, None))
        row: dict[str, Cell] = {"component": text, "published_cpu": published[0], "published_gpu": published[1],
                                "plan": None if planned is None else planned / 1e6}  # fmt: skip
        rows.append(row | {name: parts.get(key) for name, parts in measured.items()})
    return rows, list(measured)
