"""Write the pages of the studies, and the README's tables, from the stored results; or compare two runs of the studies.

    python docs/results.py
    python docs/results.py compare FOLDER FOLDER

The results of two cores of a CPU are in docs/studies/results; those of a machine with a GPU are in a folder of its name
beside that, such as docs/studies/h200/results. `compare` takes two folders of results, such as docs/studies/results: it
prints how far the ratios of candidates that were measured interleaved differ between the two runs, and ends with exit
code 1 if any does by more than 5 %.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from minicnn import studies
from minicnn.measure import Spread, StudyRun
from minicnn.measure.figures import duration
from minicnn.measure.report import command
from minicnn.measure.store import ResultStore
from minicnn.measure.study import recall, recall_all
from minicnn.studies import get_study
from minicnn.studies.mlp.pages import iteration
from minicnn.studies.platforms.pages import EPOCH, epoch, seen, times

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "docs" / "studies"
# Of all machines: that without a GPU first.
FOLDERS = sorted((found.parent for found in STUDIES.glob("**/results")), key=lambda f: (len(f.parts), f.name))
STUDY, DATA = "platforms", "mnist"
ON_GPU = ("cupy", "numba_cuda", "jax.lax:gpu", "torch.nn:cuda")  # what the README shows of a machine with a GPU
ON_CPU = ("numba", "torch.nn:cpu", "torch.nn-loader:cpu", "numpy")  # and of one without
MARKS = ("<!-- {}:begin -->", "<!-- {}:end -->")
REPEATABLE = 0.05  # how far the ratio of two candidates may differ between two runs
STEADY = 0.02  # how far apart the quartiles of a time are at most, as multiple of the median, where a device limits it


def main() -> None:
    """Write everything."""
    names = [name for name in studies.names() if any(holds(folder, name) for folder in FOLDERS)]
    for name in names:
        first, *others = [folder for folder in FOLDERS if holds(folder, name)]
        beside = [part for folder in others for part in ("--beside", str(folder))]
        options = ["--stored", "--out", str(first), *beside, "--docs", str(STUDIES)]
        subprocess.run([sys.executable, "-m", "minicnn", "study", name, *options], check=True)
    prune()
    write(ROOT / "README.md", "comparison", summary())
    toctree = ["```{toctree}", ":hidden:", "", *(f"{name}.md" for name in names), "```"]
    write(STUDIES / "index.md", "pages", "\n".join(toctree))


def prune() -> None:
    """Remove the figures and tables that no page shows: those of candidates that take part no more."""
    shown = "".join(page.read_text("utf-8") for page in STUDIES.glob("*.md"))
    for kind in ("figures", "tables"):
        for file in (STUDIES / kind).glob("*"):
            if f"{kind}/{file.name}" not in shown:
                file.unlink()


def holds(folder: Path, name: str) -> bool:
    """Whether a folder holds results of a study; says so if they cannot be read."""
    if not (folder / "results" / name).is_dir():
        return False
    try:
        recall(get_study(name), ResultStore(folder / "results" / name, {}))
    except ValueError as error:
        print(f"{folder}: {name} is left out: {error}")
        return False
    return True


def summary() -> str:
    """The README's table, in Markdown, with what it was measured on."""
    study = get_study(STUDY)
    stores = [ResultStore(folder / "results" / STUDY, {}) for folder in FOLDERS if holds(folder, STUDY)]
    runs = [run for run in recall_all(study, stores) if f"training-{DATA}" in run.results]
    rows = []
    for run in runs:
        history = run.results[f"training-{DATA}"]["history"]
        chosen = [name for name in history if name in (ON_GPU if run.gpu else ON_CPU)]
        rows += [(epoch(history[name]), run.label(name)) for name in chosen]
    slowest = max(spread.median for spread, _ in rows)
    lines = [
        "| candidate | time of an epoch | samples per s | times as fast as the slowest |",
        "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for spread, label in sorted(rows, key=lambda row: row[0].median):
        lines.append(
            f"| {label} | {duration(spread.median)} | {EPOCH / spread.median:,.0f} | {slowest / spread.median:,.1f} |"
        )
    return "\n".join([*lines, "", "  \n".join(words(run) for run in runs)])


def words(run: StudyRun) -> str:
    """What a machine's rows are."""
    machine, epochs = run.machine, next(iter(run.results[f"training-{DATA}"]["history"].values()))
    samples = seen(epochs)
    cpu = f"{machine['cores']} cores of a CPU ({machine['cpu']})"
    libraries = {"numpy": "NumPy", "numba": "Numba", "torch": "PyTorch", "jax": "JAX", "cupy-cuda13x": "CuPy"}
    versions = ", ".join(
        f"{text} {machine['versions'][k]}" for k, text in libraries.items() if k in machine["versions"]
    )
    return (
        f"`{command(STUDY, get_study(STUDY), run.setting)}` on {f'an NVIDIA {run.gpu} and ' if run.gpu else ''}{cpu}: "
        f"medians of {len(epochs)} epochs of {samples:,}\nsamples of MNIST but the first"
        + (f", scaled to {EPOCH:,}" if samples != EPOCH else "")
        + f"; {versions}."
    )


# Two runs -----------------------------------------------------------------------------------------


def spreads(result: Mapping[str, Any]) -> dict[str, dict[str, Spread]]:
    """What a measurement has timed interleaved: the times of each candidate, by what was timed."""
    if "history" in result:
        return {"epoch": {name: times(rows) for name, rows in result["history"].items()}}
    if "rounds" in result:
        return {"iteration": {name: iteration(result, name) for name in result["rounds"]}}
    found: dict[str, dict[str, Spread]] = {}
    for number, point in enumerate(result.get("points", ())):
        for name, candidate in point["candidates"].items():
            for way, directions in candidate["times"].items():
                for direction, samples in directions.items():
                    group = found.setdefault(f"point {number + 1}, {direction}", {})
                    group[f"{way} on {name}"] = Spread.of(samples)
    batches = result.get("steps")  # or how many there were, where none was timed
    for batch, steps in batches.items() if isinstance(batches, Mapping) else ():
        if isinstance(steps, Mapping):
            found[f"batch of {batch}"] = {name: Spread.of(samples) for name, samples in steps.items()}
    return found


@dataclass(frozen=True)
class Change:
    """The time of a candidate in a second run, as a multiple of that in the first.

    Attributes:
        median: Of the medians.
        low: The least that the quartiles of both runs allow.
        high: The most.
        steady: Whether the quartiles of both runs are close together, as they are where a GPU limits and no host.
    """

    median: float
    low: float
    high: float
    steady: bool

    @classmethod
    def of(cls, one: Spread, other: Spread) -> Change:
        """The change from one run to another."""
        steady = all(spread.high - spread.low <= STEADY * spread.median for spread in (one, other))
        return cls(other.median / one.median, other.low / one.high, other.high / one.low, steady)

    def off(self, peer: Change) -> float:
        """By how much the ratio to a peer differs between the runs."""
        return max(self.median, peer.median) / min(self.median, peer.median) - 1

    def overlaps(self, peer: Change) -> bool:
        """Whether the ratio to a peer may be the same in both runs, as far as the quartiles tell."""
        return self.low <= peer.high and peer.low <= self.high


def compare(first: Path, second: Path) -> int:
    """Print how far the ratios of candidates differ between two runs, the worst first; 1 if any is not repeatable."""
    lines: list[tuple[float, str]] = []
    every: list[bool] = []  # whether each ratio is repeatable
    within: dict[str, list[bool]] = {}  # the same by candidate
    overlapping: list[bool] = []  # of those that are not
    steady: list[bool] = []  # of steady times
    for path in sorted(first.glob("*/*.json")):
        study, name = path.parent.name, path.stem
        records = [ResultStore(folder / study, {}).read(name) for folder in (first, second)]
        one, other = ({} if isinstance(r, str) else spreads(r.result or {}) for r in records)
        for what in [what for what in one if what in other]:
            changes = {n: Change.of(one[what][n], other[what][n]) for n in one[what] if n in other[what]}
            offs = {(a, b): changes[a].off(changes[b]) for a, b in combinations(changes, 2)}
            every += [off <= REPEATABLE for off in offs.values()]
            for pair, off in offs.items():
                if all(changes[n].steady for n in pair):
                    steady.append(off <= REPEATABLE)
                for candidate in {n.rpartition(" on ")[2].partition(" / ")[0] for n in pair}:
                    within.setdefault(candidate, []).append(off <= REPEATABLE)
                if off > REPEATABLE:
                    overlapping.append(changes[pair[0]].overlaps(changes[pair[1]]))
            if offs:
                most, least = (pick(changes, key=lambda n: changes[n].median) for pick in (max, min))
                lines.append((max(offs.values()), f"{study}, {name}, {what}: {most} to {least}"))
    for off, text in sorted(lines, reverse=True):
        print(f"{100 * off:6.1f} %  {text}")
    near, narrow = f"within {100 * REPEATABLE:g} %", f"within {100 * STEADY:g} %"
    print(f"Above, the worst of each group. Ratios that are {near} of each other, by candidate:")
    for candidate, found in sorted(within.items(), key=lambda item: -sum(item[1]) / len(item[1])):
        print(f"{100 * sum(found) / len(found):6.1f} %  of {len(found)} with {candidate}")
    print(f"{sum(steady)} of {len(steady)} ratios of times whose quartiles are {narrow} in both runs are {near}")
    print(f"{sum(every)} of {len(every)} ratios are {near} of each other; "
          f"of the others {sum(overlapping)} are within the quartiles of both runs")  # fmt: skip
    return int(bool(overlapping) or not every)


# Pages --------------------------------------------------------------------------------------------


def between(name: str) -> re.Pattern[str]:
    """What is between the marks of a name."""
    begin, end = (re.escape(mark.format(name)) for mark in MARKS)
    return re.compile(f"(?<={begin}\n).*?(?={end})", re.DOTALL)


def write(path: Path, name: str, text: str) -> None:
    """Replace what is between the marks of a name."""
    path.write_text(between(name).sub(lambda _: f"{text}\n", path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    main()
