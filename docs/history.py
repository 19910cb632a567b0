"""Draw the performance history from its stored results, and write its table of jumps.

    python docs/history.py

It writes docs/figures/history-MACHINE.svg and, between marks, docs/history.md. Results are those of
`asv_bench/history.py run`, in asv_bench/results. A jump is a change by more than 10 % from one measured commit to the
next, and from the least of three commits to that of the next three, with quartiles that do not meet;
asv_bench/results/reasons.json says why it came about.
"""

from __future__ import annotations

import json
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

from minicnn.measure import Spread
from minicnn.measure.drawing import to_svg
from minicnn.measure.figures import GRID, INK, PALETTE, duration, paths
from minicnn.measure.page import Figure, Panel

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "asv_bench" / "results"
COMMON = runpy.run_path(str(RESULTS.parent / "benchmarks" / "common.py"))  # what the benchmarks share
JUMP = 1.1  # ratio from which a change counts
SPAN = 3  # commits whose least counts, on each side of a jump
LEAST = 5  # commits of a panel
MOST = 8  # lines of a panel
LABELS = 14  # of commits below an axis
MARKS = ("<!-- jumps:begin -->", "<!-- jumps:end -->")
# Benchmarks that are drawn, and what a panel of them shows.
TITLES = {
    "training.SmallNetworks.time_training": "{backend}, a step of small networks",
    "training.DeepNetworks.time_training": "{backend}, a step of deep networks",
    "starting.Import": "import, in a new interpreter",
}
MACHINES = {"two-cores": "two cores of a CPU", "h100": "H100", "h200": "H200"}

Key = tuple[str, str]  # title of the panel, name of the line


@dataclass(frozen=True)
class Commit:
    """Results of a commit on a machine.

    Attributes:
        name: First letters of its hash.
        cpu: The CPU, with its widest vectors.
        values: Seconds by panel and line.
    """

    name: str
    cpu: str
    values: Mapping[Key, Spread]


@dataclass(frozen=True)
class Jump:
    """A change of one line from a commit to the next that was measured.

    Attributes:
        key: Panel and line.
        place: Number of the newer commit.
        ratio: How many times as long it takes.
        back: Number of a later commit that takes as long as those before; None if there is none.
    """

    key: Key
    place: int
    ratio: float
    back: int | None


def commits(folder: Path, versions: Mapping[str, str]) -> list[Commit]:
    """Commits in order, those of one CPU together.

    Args:
        folder: Folder of the machine.
        versions: Version of each benchmark; results of another one do not compare.
    """
    found = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*-existing.json"))]
    command = ["git", "log", "--topo-order", "--format=%H"]
    log = subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False).stdout.split()
    places = {name: -place for place, name in enumerate(log)}  # where two are of the same second
    found.sort(key=lambda value: (int(value["date"]), places.get(value["commit_hash"], 0)))
    cpus = list(dict.fromkeys(value["params"]["cpu"] for value in found))
    found.sort(key=lambda value: cpus.index(value["params"]["cpu"]))
    return [Commit(value["commit_hash"][:7], value["params"]["cpu"], values(value, versions)) for value in found]


def values(stored: Mapping[str, Any], versions: Mapping[str, str]) -> dict[Key, Spread]:
    """Times of a file of asv's that are drawn."""
    times: dict[Key, Spread] = {}
    for benchmark, row in stored["results"].items():
        entry = dict(zip(stored["result_columns"], row, strict=False))
        title = TITLES.get(benchmark) or TITLES.get(benchmark.rpartition(".")[0])
        if title is None or entry["version"] != versions[benchmark]:
            continue
        combinations = list(product(*entry["params"]))
        numbers = [entry.get(column) or [None] * len(combinations) for column in ("result", "stats_q_25", "stats_q_75")]
        for combination, median, low, high in zip(combinations, *numbers, strict=True):
            if median is not None and median == median:  # failed, skipped
                line, backend = [text.strip("'") for text in combination] or [benchmark.rpartition("_")[2], ""]
                steps = COMMON["NETWORKS"][line][1] if backend else 1  # what is timed are several
                steps *= COMMON["ON_GPU"] if backend in COMMON["GPU_BACKENDS"] else 1
                spread = Spread(median, low, high, 1).scaled(1 / steps)
                times[title.format(backend=backend), line] = spread
    return times


def series(history: Sequence[Commit], key: Key) -> list[tuple[int, Spread]]:
    """Points of a line: numbers of commits, and times."""
    return [(i, commit.values[key]) for i, commit in enumerate(history) if key in commit.values]


def panels(history: Sequence[Commit]) -> dict[str, list[str]]:
    """Lines by panel, those with the most commits first if they are too many; panels of few commits are left out."""
    titles: dict[str, dict[str, int]] = {}
    for title, line in (key for commit in history for key in commit.values):
        titles.setdefault(title, {}).setdefault(line, len(series(history, (title, line))))
    order = [title.partition("}")[2] for title in TITLES.values()]
    kept = {
        title: sorted(lines, key=lambda line: -lines[line])[:MOST]
        for title, lines in titles.items()
        if max(lines.values()) >= LEAST
    }
    return dict(sorted(kept.items(), key=lambda item: [item[0].endswith(end) for end in order].index(True)))


def jumps(history: Sequence[Commit]) -> list[Jump]:
    """Changes between commits of one CPU that count, the oldest first."""
    found = []
    cpus = dict.fromkeys(commit.cpu for commit in history)
    for title, line in [(title, line) for title, lines in panels(history).items() for line in lines]:
        for cpu in cpus:
            points = [point for point in series(history, (title, line)) if history[point[0]].cpu == cpu]
            for i, ((_, old), (place, new)) in enumerate(pairwise(points), start=1):
                # What disturbs a machine adds to a time, so that the least of some counts.
                parts = points[max(i - SPAN, 0) : i], points[i : i + SPAN]
                before, after = (min(spread.median for _, spread in part) for part in parts)
                apart = new.low > old.high if after > before else new.high < old.low
                sign = 1 if after > before else -1
                ratios = after / before, new.median / old.median, new.median / before
                whole, step, beyond = (sign * math.log(ratio) for ratio in ratios)
                if apart and min(whole, step, beyond) > math.log(JUMP) and step > whole / 3:
                    later = [(place, spread.median / before) for place, spread in points[i + 1 :]]
                    back = [place for place, ratio in later if sign * math.log(ratio) < math.log(JUMP)]
                    found.append(Jump((title, line), place, math.exp(sign * min(whole, step)), next(iter(back), None)))
    return sorted(found, key=lambda jump: jump.place)


def headline(history: Sequence[Commit], title: str, lines: Sequence[str]) -> str:
    """Title of a panel: what has become of its lines on the CPU of the newest commit, from the first three on."""
    last = [i for i, commit in enumerate(history) if commit.cpu == history[-1].cpu]
    ratios = []
    for line in lines:
        points = [spread.median for i, spread in series(history, (title, line)) if i in last]
        if len(points) > 1:
            ratios.append(min(points[-SPAN:]) / min(points[:SPAN]))
    if not ratios:
        return title
    ratio = math.exp(sum(map(math.log, ratios)) / len(ratios))
    times = "as long as at first" if max(ratio, 1 / ratio) < JUMP else f"{ratio:.2f} times the first commit's time"
    return f"{title}: {times}" + (f" ({vectors(history[-1].cpu)})" if len(last) < len(history) else "")


def vectors(cpu: str) -> str:
    """The widest vectors of a CPU."""
    return cpu.rpartition(", ")[2]


def draw(axes: Any, history: Sequence[Commit], title: str, lines: Sequence[str]) -> None:
    """Draw a panel: lines over commits, which end where the CPU is another one; a stroke at each jump."""
    places = [i for i, commit in enumerate(history) if any((title, line) in commit.values for line in lines)]
    changes = accumulate(old != new for old, new in pairwise(history[i].cpu for i in [places[0], *places]))
    part = dict(zip(places, changes, strict=True))  # stretches of one CPU by number
    at = {i: place + part[i] for place, i in enumerate(places)}  # with a gap where a part begins
    ends = [(old, new) for old, new in pairwise(places) if part[old] != part[new]]
    named = {}
    for number, line in enumerate(lines):
        points = series(history, (title, line))
        xs, ys = [float(at[i]) for i, _ in points], [spread.median for _, spread in points]
        gaps = [place for place, (old, new) in enumerate(pairwise(points), 1) if part[old[0]] != part[new[0]]]
        for place in reversed(gaps):
            xs.insert(place, xs[place] - 1)
            ys.insert(place, math.nan)
        named[line] = (xs, ys, PALETTE[number % len(PALETTE)])
    finite = [y for _, ys, _ in named.values() for y in ys if y == y]
    room = max((max(finite) / min(finite)) ** 0.06, 1.02)
    paths(axes, named, "commit, the oldest first", "time (logarithmic)", log="y", say=duration,
          upward=(min(finite) / room, max(finite) * room ** (3 if ends else 1)), ticks=list(at.values()))  # fmt: skip
    for drawn in axes.lines:
        drawn.set(marker="o", markersize=3)
    shown = -(-len(places) // LABELS)  # every so many has its name
    names = ["" if number % shown else history[i].name for number, i in enumerate(places)]
    axes.set_xticks(list(at.values()), names, rotation=90, fontsize=9)
    for jump in jumps(history):
        if jump.key[0] == title and jump.key[1] in lines:
            axes.axvline(at[jump.place], color=GRID, linewidth=3, zorder=0)
    for old, new in ends:
        axes.axvline(at[new] - 1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        # The newest CPU is in the headline, since its stretch may be too short for a name.
        axes.annotate(vectors(history[old].cpu), (at[new] - 1, 0.92), (-4, 0), xycoords=("data", "axes fraction"),
                      textcoords="offset points", ha="right")  # fmt: skip


def figure(machine: str, history: Sequence[Commit]) -> Figure:
    """The figure of a machine."""
    parts = [
        Panel(headline(history, title, lines), partial(draw, history=history, title=title, lines=lines))
        for title, lines in panels(history).items()
    ]
    return Figure(f"history-{machine}", MACHINES.get(machine, machine), parts)


def table(machines: Mapping[str, Sequence[Commit]], reasons: Sequence[Mapping[str, str]]) -> str:
    """The jumps of all machines in Markdown, with their reasons."""
    lines = ["| machine | commit | what jumped: times as long | reason |", "| --- | --- | --- | --- |"]
    for machine, history in machines.items():
        rows: dict[tuple[str, str], list[str]] = {}
        found = jumps(history)
        for jump in found:
            commit, name = history[jump.place].name, short(jump.key)
            alike = [j for j in found if j.place == jump.place and (j.ratio > 1) == (jump.ratio > 1)]
            why = reason(reasons, machine, commit, name)
            if not why and any("numpy" in short(j.key) for j in alike):
                why = "the machine: NumPy alone did likewise, on which no commit has a bearing"
            if not why:
                gone = jump.back is not None and f"; as before at `{history[jump.back].name}`"
                why = f"not explained{gone or ' yet'}"
            rows.setdefault((commit, why), []).append(f"{name} {jump.ratio:.2f}")
        lines += [
            f"| {MACHINES.get(machine, machine)} | `{commit}` | {', '.join(parts)} | {why} |"
            for (commit, why), parts in rows.items()
        ]
    return "\n".join(lines)


def reason(reasons: Sequence[Mapping[str, str]], machine: str, commit: str, name: str) -> str:
    """Why a line jumped at a commit: the first reason whose pattern its name has; nothing where none is stored."""
    for known in reasons:
        if known["machine"] == machine and commit.startswith(known["commit"]) and re.search(known["lines"], name):
            return known["reason"]
    return ""


def short(key: Key) -> str:
    """Name of a line with what its panel begins with."""
    return f"{key[0].partition(',')[0]} {key[1]}"


def stored(results: Path = RESULTS) -> dict[str, list[Commit]]:
    """Commits by machine, as far as there is something to draw."""
    benchmarks = json.loads((results / "benchmarks.json").read_text("utf-8"))
    versions = {name: value["version"] for name, value in benchmarks.items() if isinstance(value, dict)}
    machines = {path.parent.name: commits(path.parent, versions) for path in sorted(results.glob("*/machine.json"))}
    return {name: history for name, history in machines.items() if panels(history)}


def page(text: str, results: Path = RESULTS) -> str:
    """The page with the table that the results give it."""
    reasons = json.loads((results / "reasons.json").read_text("utf-8"))
    begin, end = MARKS
    return f"{text.partition(begin)[0]}{begin}\n{table(stored(results), reasons)}\n{end}{text.partition(end)[2]}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    for machine, history in stored().items():
        (DOCS / "figures" / f"history-{machine}.svg").write_text(to_svg(figure(machine, history)), "utf-8")
    path = DOCS / "history.md"
    path.write_text(page(path.read_text("utf-8")), "utf-8")
