"""Tables of planned steps: launches, or their sums by layer or operation, of one GPU or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minicnn.cli.tables import console, table

BY = ("launch", "layer", "operation")
OTHERS = "others"

# All columns of the table of one GPU, and those that it has unless others are asked for: they fit 80 columns.
COLUMNS = {
    "launches": "launches", "blocks": "blocks", "threads": "threads", "static": "static", "dynamic": "dynamic",
    "registers": "registers", "MB": "MB", "MFLOP": "MFLOP", "modelled": "modelled us", "roof": "roof us",
    "share": "share", "operations": "operations",
}  # fmt: skip
USUAL = {
    "launch": ("modelled", "roof", "MB", "MFLOP", "operations"),
    "layer": ("launches", "modelled", "roof", "share", "MB", "MFLOP"),
    "operation": ("launches", "modelled", "roof", "share", "MB", "MFLOP"),
}
SUMMED = ("launches", "MB", "MFLOP", "modelled", "roof", "share")  # what sums of launches have

Launch = Mapping[str, Any]
Facts = Mapping[str, Any]


def _kind(gpu: Facts) -> str:
    capability = ".".join(map(str, gpu["capability"]))
    return f"compute capability {capability}" if any(gpu["capability"]) else "through WebGPU, within its guarantees"


def show(plans: Sequence[Facts], by: str, top: int | None, columns: Sequence[str] = ()) -> None:
    """Print plans of one step for one GPU, or for several beside each other.

    Args:
        plans: What is known of the step on each.
        by: What a row is: a launch, a layer or an operation.
        top: Rows of the longest modelled times, and one for all others; all rows in their order if None.
        columns: Columns of the table of one GPU; those that fit a terminal if there are none.
    """
    out = console()
    for facts in plans:
        gpu = facts["device"]
        out.print(f"{facts['title']}, on {gpu['name']} ({_kind(gpu)})")
        if len(plans) == 1:
            out.print(_limits(gpu))
        for note in facts["notes"]:
            out.print(f"Note: {note}")
    out.print()
    if len(plans) == 1:
        _one(out, plans[0], by, top, columns or USUAL[by])
    else:
        _several(out, plans, by, top)
    for facts in plans:
        totals, memory, name = facts["totals"], facts["memory_bytes"], facts["device"]["name"]
        out.print()
        out.print(
            f"{f'{name}: ' * (len(plans) > 1)}{totals['launches']} launches, {totals['flops'] / 1e9:,.3f} GFLOP, "
            f"{totals['bytes'] / 1e6:,.1f} MB moved: {totals['modelled_s'] * 1e6:,.0f} us by the model, "
            f"{totals['roof_s'] * 1e6:,.0f} us by the roof"
        )
        out.print(
            f"Memory: {memory['total'] / 1e6:,.1f} MB: weights and state {memory['weights_and_state'] / 1e6:,.1f}, "
            f"batch {memory['batch'] / 1e6:,.1f}, within a step {memory['within_a_step'] / 1e6:,.1f}"
        )


def _limits(gpu: Facts) -> str:
    return (
        f"Limits of a block: {gpu['shared_block']:,} bytes of shared memory, {gpu['threads_block']:,} threads, "
        f"{gpu['registers_thread']} registers a thread, {gpu['registers']:,} in all; {gpu['multiprocessors']} "
        f"multiprocessors; {gpu['bandwidth'] / 1e9:,.0f} GB/s; {gpu['memory'] / 1e9:,.0f} GB"
    )


def _one(out: Any, facts: Facts, by: str, top: int | None, columns: Sequence[str]) -> None:
    whole = facts["totals"]["modelled_s"]
    kept, rest = _cut(_grouped(facts["launches"], by), top)
    shown = [c for c in columns if by == "launch" or c in SUMMED]
    rows = [[name, *(_cell(c, launches, whole) for c in shown)] for name, launches in kept.items()]
    if rest:
        rows.append([OTHERS, *(_cell(c, rest, whole) if c in SUMMED else "" for c in shown)])
    texts = {COLUMNS["operations"]} if by == "launch" else {by}
    heads = [by, *(COLUMNS[c] for c in shown)]
    out.print(table("The longest" if top else "", heads, rows, numbers=True, texts=texts))


def _several(out: Any, plans: Sequence[Facts], by: str, top: int | None) -> None:
    names = [facts["device"]["name"] for facts in plans]
    groups = [_grouped(facts["launches"], by) for facts in plans]
    kept, rest = _cut(groups[0], top)
    order = list(kept) + [name for other in groups[1:] for name in other if top is None and name not in kept]
    rows = []
    for name in dict.fromkeys(order):
        times = [_time(group.get(name, ())) for group in groups]
        rows.append([name, *(f"{t * 1e6:,.1f}" for t in times), *_ratios(times)])
    if rest:
        times = [_time([x for name, g in group.items() if name not in kept for x in g]) for group in groups]
        rows.append([OTHERS, *(f"{t * 1e6:,.1f}" for t in times), *_ratios(times)])
    totals = [facts["totals"]["modelled_s"] for facts in plans]
    rows.append(["step", *(f"{t * 1e6:,.1f}" for t in totals), *_ratios(totals)])
    heads = [by, *(f"{name} us" for name in names), *(f"{name} takes" for name in names[1:])]
    out.print(table("Modelled times", heads, rows, numbers=True, texts={by}))


def _ratios(times: Sequence[float]) -> list[str]:
    return [f"{t / times[0]:.2f} times" if times[0] else "" for t in times[1:]]


def _grouped(launches: Sequence[Launch], by: str) -> dict[str, list[Launch]]:
    groups: dict[str, list[Launch]] = {}
    for number, launch in enumerate(launches):
        groups.setdefault(str(number) if by == "launch" else launch[by] or OTHERS, []).append(launch)
    return groups


def _cut(groups: dict[str, list[Launch]], top: int | None) -> tuple[dict[str, list[Launch]], list[Launch]]:
    """The groups that take longest, and the launches of all others."""
    if top is None:
        return groups, []
    order = sorted(groups, key=lambda name: -_time(groups[name]))
    return {name: groups[name] for name in order[:top]}, [x for name in order[top:] for x in groups[name]]


def _time(launches: Sequence[Launch]) -> float:
    return sum(launch["modelled_s"] for launch in launches)


def _cell(column: str, launches: Sequence[Launch], whole: float) -> str:
    total = {key: sum(launch[key] for launch in launches) for key in ("bytes", "flops", "modelled_s", "roof_s")}
    match column:
        case "launches":
            return str(len(launches))
        case "MB":
            return f"{total['bytes'] / 1e6:,.2f}"
        case "MFLOP":
            return f"{total['flops'] / 1e6:,.2f}"
        case "modelled":
            return f"{total['modelled_s'] * 1e6:,.1f}"
        case "roof":
            return f"{total['roof_s'] * 1e6:,.1f}"
        case "share":
            return f"{total['modelled_s'] / (whole or 1):.1%}"
    (launch,) = launches
    match column:
        case "operations":
            return _operations(launch)
        case "registers":
            return "-" if launch["registers"] is None else str(launch["registers"])
        case "static" | "dynamic":
            return f"{launch[f'{column}_shared_bytes']:,}"
    return f"{launch[column]:,}"


def _operations(launch: Launch) -> str:
    names = list(dict.fromkeys(launch["nodes"]))
    text = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    text = f"beside: {text}" if launch["goes_on_beside"] else text
    text += "" if launch["fits"] else " (does not fit)"
    return text if launch["reference"] is None else f"{text} (reference: {launch['reference']})"
