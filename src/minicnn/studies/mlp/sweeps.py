"""The sweeps of the study `mlp`: an iteration against hidden units and against samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn.measure import Panel, Spread, StudyRun, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.page import Cell

SAME = 0.1  # a lead that is larger by less has not grown

Point = tuple[int, int]  # hidden units, samples
Found = Mapping[Point, Mapping[str, Spread]]


def sweep_name(data: str, units: int, count: int) -> str:
    """Name of the measurement of a point."""
    return f"sweep-{data}-{units}-units-{count}-samples"


def points(sizes: Any) -> list[Point]:
    """Hidden units and samples of each point of the sweeps, which meet in one."""
    counts = sorted({min(n, sizes.samples or n) for n in sizes.counts})
    return [*((units, counts[-1]) for units in sizes.hidden), *((sizes.hidden[0], n) for n in counts[:-1])]


@dataclass(frozen=True)
class Lead:
    """Speed-up over NumPy of a candidate on a GPU, at the ends of the sweeps.

    Attributes:
        candidate: The candidate.
        least: With the fewest samples and hidden units.
        middle: With the most samples, and the fewest hidden units.
        most: With the most of both.
    """

    candidate: str
    least: float
    middle: float
    most: float

    @property
    def with_samples(self) -> str:
        """Change of it with the data."""
        ends = f"{self.least:,.0f} times at the fewest samples, {self.middle:,.0f} at all"
        return f"`{self.candidate}` leads NumPy {ends}"

    @property
    def with_units(self) -> str:
        """Change of it with the model."""
        return f"{self.middle:,.0f} times with the fewest hidden units, {self.most:,.0f} with the most"

    def grows(self, model: bool) -> bool:
        """True if it grows with the model, or else with the data."""
        before, after = (self.middle, self.most) if model else (self.least, self.middle)
        return after > (1 + SAME) * before


def measured(data: str, run: StudyRun) -> dict[Point, dict[str, Spread]]:
    """Seconds of an iteration by point and candidate, as far as they were measured."""
    by_point = {at: run.results.get(sweep_name(data, *at)) for at in points(run.setting.sizes)}
    return {at: {n: Spread.of(s) for n, s in kept["seconds"].items()} for at, kept in by_point.items() if kept}


def lead(data: str, runs: Sequence[StudyRun]) -> Lead | None:
    """The lead of the fastest candidate on a GPU; None where NumPy and a GPU were not swept side by side."""
    for run in runs:
        by_point, every = measured(data, run), points(run.setting.sizes)
        ends = min(every), min(every, key=lambda at: (at[0], -at[1])), max(every, key=lambda at: (at[1], at[0]))
        everywhere = set.intersection(*(set(by_point.get(at, {})) for at in ends))
        there = [name for name in everywhere if on_gpu(name)]
        if there and "numpy" in everywhere:
            best = min(there, key=lambda name: by_point[ends[-1]][name].median)
            return Lead(best, *(by_point[at]["numpy"].median / by_point[at][best].median for at in ends))
    return None


def swept(data: str, runs: Sequence[StudyRun]) -> list[tuple[StudyRun, Found]]:
    """The machines that were swept, each with what was measured."""
    return [(run, by_point) for run in runs if (by_point := measured(data, run))]


def rows(every: Sequence[tuple[StudyRun, Found]]) -> list[dict[str, Cell]]:
    """Time of an iteration at each point, and how many times as fast as NumPy it is."""
    return [
        {"machine": run.gpu or run.cpu, "units": units, "samples": count, "candidate": run.label(name),
         "ms": spread.scaled(1e3),
         "speedup": times["numpy"].median / spread.median if "numpy" in times else None}
        for run, by_point in every
        for (units, count), times in by_point.items()
        for name, spread in times.items()
    ]  # fmt: skip


def panels(every: Sequence[tuple[StudyRun, Found]]) -> tuple[list[Panel], str | None]:
    """Time against hidden units and against samples, on the last machine; and which candidate leads."""
    if not every:
        return [], None
    run, by_point = every[-1]
    most, least = max(count for _, count in by_point), min(units for units, _ in by_point)
    lines: dict[tuple[str, str], figures.Series] = {}
    for title, label, axis in ((f"{most:,} samples", "hidden units", 0), (f"{least:,} hidden units", "samples", 1)):
        along = sorted(at for at in by_point if at[1 - axis] == (most, least)[axis])
        if len(along) > 1:
            lines[title, label] = {
                run.label(name): (
                    [at[axis] for at in along if name in by_point[at]],
                    [by_point[at][name].median for at in along if name in by_point[at]],
                    figures.FAMILIES[figures.family(name)],
                )
                for name in by_point[along[-1]]
            }
    if not lines:
        return [], None
    return figures.multiples(lines, "time of an iteration", log="xy", say=figures.duration), figures.leader(
        lines.values()
    )
