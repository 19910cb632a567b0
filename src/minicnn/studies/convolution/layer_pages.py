"""Tables, figures and words of the study `convolution`: what the layers of whole networks cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minicnn.bench import Column, Page, Panel, Spread, figures
from minicnn.bench.page import Cell
from minicnn.studies.convolution.breakdown import PARTS, PHASES

PUBLISHED_SHARE = 94  # per cent of the time: the most that convolution took


def layers(
    page: Page, batch: int, images: Mapping[str, int], results: Mapping[str, Mapping[str, Any]], *, quick: bool,
    left_out: Sequence[str],
) -> None:  # fmt: skip
    """Time by kind of layer, forward and backward, as shares and in milliseconds."""
    page.section("What the layers of whole networks cost")
    sizes = ", ".join(f"`{name}` {side}x{side}" for name, side in images.items())
    smaller = "Quick form: smaller images than the networks' own. " if quick else ""
    page.words(
        f"{smaller}Training steps of {batch} images ({sizes}) with 1,000 classes, without dropout, plain SGD, "
        "synthetic images, float32. minicnn's backends are timed node by node, the device idle before and after each; "
        "PyTorch's modules by its profiler. Where a backend merges nodes into kernels and tells their times, a kernel "
        "counts as its largest node; where it does not tell, each node is compiled and timed by itself, and whole "
        "steps take less than the sum. An activation counts by itself, a bias with its layer. All compute the same "
        "loss from the same weights."
    )
    for result in results.values():
        page.refused(result["refused"])
    candidates = list(dict.fromkeys(c for result in results.values() for c in result["seconds"]))
    columns = [Column("network", "network"), Column("candidate", "candidate"), Column("phase", "phase")]
    columns += [Column("ms", "time (ms)", "{:.3g}"), *(Column(part, f"{part} (%)", "{:.1f}") for part in PARTS)]
    rows: list[dict[str, Cell]] = []
    for name, result in results.items():
        for candidate, seconds in result["seconds"].items():
            for phase in PHASES:
                total, shares = _shares(seconds[phase])
                row: dict[str, Cell] = {"network": f"`{name}`", "candidate": f"`{candidate}`", "phase": phase}
                rows.append({**row, "ms": total, **shares})
    out = "; ".join(f"`{c}`: {why}" for c, why in results[next(iter(results))]["out"].items())
    note = "Medians over the iterations." + (f" Not timed by layers: {out}." if out else "")
    for how, text in (("merged", "Kernels of merged nodes"), ("apart", "Each node by itself")):
        timed = list(dict.fromkeys(c for result in results.values() for c in result.get(how, ())))
        note += f" {text}: {', '.join(f'`{c}`' for c in timed)}." if timed else ""
    if left_out:
        note += f" Left out in this form of the study, being slow: {', '.join(f'`{c}`' for c in left_out)}."
    page.table("layers", "Time by kind of layer", columns, rows, note)
    for candidate in candidates:
        panels = [
            Panel(f"{phase}, {candidate}", _stacks(results, candidate, phase)) for phase in ("forward", "backward")
        ]
        name = f"layers-{candidate}".replace(":", "-").replace(".", "-")
        page.figure(name, f"Where the time of a step goes on {candidate}", panels, "Shares of each phase, without the "
                    "optimizer's update.")  # fmt: skip
    _share_table(page, results, candidates)


def _shares(parts: Mapping[str, Sequence[float]]) -> tuple[Spread, dict[str, float]]:
    """Milliseconds of a phase, and each part's per cent of their median."""
    totals = [sum(times) for times in zip(*parts.values(), strict=True)]
    medians = {part: Spread.of(times).median for part, times in parts.items()}
    whole = sum(medians.values()) or 1.0
    return Spread.of(totals, 1e3), {part: 100 * m / whole for part, m in medians.items()}


def _stacks(results: Mapping[str, Mapping[str, Any]], candidate: str, phase: str) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        found = {name: result["seconds"].get(candidate) for name, result in results.items()}
        bars = {name: _shares(seconds[phase])[1] for name, seconds in found.items() if seconds}
        figures.stacked(axes, bars, "share of the time (%)", "")

    return draw


def _share_table(page: Page, results: Mapping[str, Mapping[str, Any]], candidates: Sequence[str]) -> None:
    columns = [Column("network", "network"), *(Column(c, f"`{c}` (%)", "{:.1f}") for c in candidates)]
    columns.append(Column("published", "published: at most (%)"))
    rows: list[dict[str, Cell]] = []
    shares: list[tuple[float, str, str]] = []
    for name, result in results.items():
        row: dict[str, Cell] = {"network": f"`{name}`", "published": PUBLISHED_SHARE}
        for candidate, seconds in result["seconds"].items():
            whole = {
                p: [a + b for a, b in zip(seconds["forward"][p], seconds["backward"][p], strict=True)] for p in PARTS
            }
            row[candidate] = share = _shares(whole)[1]["convolution"]
            shares.append((share, name, candidate))
        rows.append(row)
    note = (
        "The published figure is of the four networks at batches of GPU size, where dense layers are cheap: their "
        "weights are read once a batch. In smaller batches of smaller images they weigh more."
    )
    page.table("shares", "Share of convolution in forward and backward together", columns, rows, note)
    if shares:
        (most, network, candidate), (least, other, where) = max(shares), min(shares)
        page.words(
            f"Convolution takes between {least:.0f} % (`{other}` on `{where}`) and {most:.0f} % (`{network}` on "
            f"`{candidate}`) of forward and backward; published were up to {PUBLISHED_SHARE} %."
        )
