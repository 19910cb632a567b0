"""A convolution on 1 to all cores, and with filters and batches around the widths of vectors and of warps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minicnn.machine import cores
from minicnn.measure import Panel, Spread, StudyRun, Worker, figures
from minicnn.measure.candidates import on_gpu
from minicnn.measure.page import Cell
from minicnn.measure.worker import together
from minicnn.ops.strategies import Problem
from minicnn.studies.convolution.sweeps import CHANNELS_FIRST, OWN, VENDOR, Convolver, point_of

WAYS = ("unrolled", VENDOR, CHANNELS_FIRST, OWN)
# Variables that say how many threads a library takes: OpenMP and BLAS, and the backend `numba`.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MINICNN_THREADS")
VARIED = {"filters": "filters", "batch": "images in a batch"}
WARP, VECTOR = 32, 16  # lanes of float32 on a GPU, and on a CPU at most
NEAR = 0.8  # of n times as fast on n cores, or as long as 64 tasks, from which that is said to hold


def core_counts() -> tuple[int, ...]:
    """Powers of two, and all cores."""
    return tuple(sorted({*(2**k for k in range(cores().bit_length()) if 2**k <= cores()), cores()}))


def measure_cores(
    names: Sequence[str], problem: Problem, counts: Sequence[int], rounds: int, budget_s: float
) -> dict[str, Any]:
    """The problem on each number of cores, each in processes of its own, interleaved."""
    waiting = {
        f"{name} / {n}": Worker(name, Convolver, name, WAYS, environment=dict.fromkeys(THREADS, str(n)))
        for name in names
        for n in counts
    }
    with together(waiting) as (workers, out):
        return {"points": [point_of(workers, problem, rounds, budget_s)], "out": out}


def measure_lanes(
    names: Sequence[str], problem: Problem, counts: Sequence[int], rounds: int, budget_s: float
) -> dict[str, Any]:
    """The problem with these numbers of filters, and with these of images."""
    with together({name: Worker(name, Convolver, name, WAYS) for name in names}) as (workers, out):
        problems = [replace(problem, filters=n) for n in counts] + [replace(problem, batch=n) for n in counts]
        return {"points": [point_of(workers, p, rounds, budget_s) for p in problems], "out": out}


def fastest(point: Mapping[str, Any]) -> tuple[str, Spread] | None:
    """The fastest way of a candidate at a point in the forward pass, and its seconds; None without any."""
    ways = {way: Spread.of(times["forward"]) for way, times in point["times"].items() if times.get("forward")}
    return min(ways.items(), key=lambda item: item[1].median, default=None)


def on_cores(run: StudyRun) -> dict[str, dict[int, tuple[str, Spread]]]:
    """Fastest way and seconds by candidate and number of cores."""
    by_name: dict[str, dict[int, tuple[str, Spread]]] = {}
    for point in run.results.get("cores", {"points": ()})["points"]:
        for key, kept in point["candidates"].items():
            if best := fastest(kept):
                name, _, count = key.partition(" / ")
                by_name.setdefault(name, {})[int(count)] = best
    return by_name


def on_lanes(run: StudyRun, what: str) -> dict[str, dict[int, tuple[str, Spread]]]:
    """Fastest way and seconds by candidate and number of filters, or of images."""
    by_name: dict[str, dict[int, tuple[str, Spread]]] = {}
    points = run.results.get("lanes", {"points": ()})["points"]
    half = len(points) // 2  # filters come first
    for point in points[:half] if what == "filters" else points[half:]:
        for name, kept in point["candidates"].items():
            if best := fastest(kept):
                by_name.setdefault(name, {})[int(point["problem"][what])] = best
    return by_name


def gains(runs: Sequence[StudyRun]) -> Iterator[tuple[str, int, float]]:
    """Label of a candidate, the number of all cores, and how many times as fast as on one it is there."""
    for run in runs:
        for name, times in on_cores(run).items():
            most = max(times)
            if 1 in times and most > 1:
                yield f"{name}, {run.cpu}", most, times[1][1].median / times[most][1].median


def one_more(runs: Sequence[StudyRun]) -> Iterator[tuple[StudyRun, str, float, float]]:
    """Of candidates with the time of 33 filters: where, which, and how many times as long as 64 and 32 it is."""
    for run in runs:
        for name, times in on_lanes(run, "filters").items():
            if {WARP, WARP + 1, 2 * WARP} <= times.keys():
                one, more, two = (times[n][1].median for n in (WARP, WARP + 1, 2 * WARP))
                yield run, name, more / two, more / one


def values(runs: Sequence[StudyRun]) -> dict[str, Any]:
    """Values that the claims on cores and lanes name."""
    cores_said = [f"{label}: {times:.1f} times on {n}" for label, n, times in gains(runs)]
    lanes_said = [
        f"{run.label(name)}: {of_64:.2f} times as long as 64 filters, {of_32:.2f} times as long as 32"
        for run, name, of_64, of_32 in _shown(runs)
    ]
    jumps = [
        100 * (times[n + 1][1].median / times[n][1].median - 1)
        for run in runs
        for what in VARIED
        for times in on_lanes(run, what).values()
        for n in times
        if n % VECTOR == 0 and n + 1 in times
    ]
    return {"cores": cores_said, "lanes": lanes_said, "vector": VECTOR, "jump": max(jumps, default=None)}


def verdicts(runs: Sequence[StudyRun]) -> dict[str, bool]:
    """Verdicts on claims about cores and lanes by our figures."""
    grown, shown = list(gains(runs)), _shown(runs)
    return {"cores": bool(grown) and all(times > NEAR * n for _, n, times in grown),
            "lanes": bool(shown) and all(of_64 > NEAR for *_, of_64, _ in shown)}  # fmt: skip


def _shown(runs: Sequence[StudyRun]) -> list[tuple[StudyRun, str, float, float]]:
    """Times of 33 filters on GPUs, or else on CPUs."""
    more = list(one_more(runs))
    return [entry for entry in more if on_gpu(entry[1])] or more


def cores_rows(runs: Sequence[StudyRun]) -> list[dict[str, Cell]]:
    """Times on 1 to all cores."""
    rows: list[dict[str, Cell]] = []
    for run in runs:
        for name, times in on_cores(run).items():
            for n, (way, spread) in sorted(times.items()):
                gain = times[1][1].median / spread.median if 1 in times else None
                rows.append({
                    "candidate": f"{name}, {run.cpu}", "way": way, "cores": n, "ms": spread.scaled(1e3), "gain": gain,
                    "share": 100 * gain / n if gain else None,
                })  # fmt: skip
    return rows


def around(runs: Sequence[StudyRun]) -> tuple[list[dict[str, Cell]], list[Panel]]:
    """Times around the widths of vectors and warps, as rows and as panels."""
    rows: list[dict[str, Cell]] = []
    panels: list[Panel] = []
    for run in runs:
        lines: dict[bool, dict[tuple[str, str], dict[str, Any]]] = {False: {}, True: {}}  # on a CPU, on a GPU
        for what, label in VARIED.items():
            for name, times in on_lanes(run, what).items():
                title = f"{label}, {run.label(name).rpartition(', ')[2]}"
                lines[on_gpu(name)].setdefault((title, label), {})[run.label(name)] = (
                    list(times), [s.median / n for n, (_, s) in times.items()],
                    figures.FAMILIES[figures.family(name)],
                )  # fmt: skip
                for n, (way, spread) in times.items():
                    below = times.get(n - 1)
                    rows.append({
                        "varied": label, "n": n, "candidate": run.label(name), "way": way, "us": spread.scaled(1e6),
                        "each": 1e6 * spread.median / n,
                        "more": 100 * (spread.median / below[1].median - 1) if below else None,
                    })  # fmt: skip
        whole = [n for n in run.setting.sizes.lanes if n % VECTOR == 0]
        for there in filter(None, lines.values()):
            panels += figures.multiples(there, "time for each", log="y", say=figures.duration, ticks=whole)
    return rows, panels
