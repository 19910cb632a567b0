"""The performance history: measure commits with the libraries that are installed here, and compare two of them.

    python asv_bench/history.py run --machine NAME [--bench REGEX ...] [--attribute NAME=VALUE ...] COMMIT ...
    python asv_bench/history.py compare [--machine NAME] [--bench REGEX] [--factor 1.1] OLD NEW

`run` measures the benchmarks that docs/history.md shows, or those that are named. It checks each commit out into a
folder of its own and runs today's benchmarks on it by asv, so that commits of before a benchmark have it, too; it works
on a machine with a GPU, where asv cannot build an environment. It names the benchmarks that fail, and ends with exit
code 1 if there are any; those whose backend is not there are skipped. `compare` prints the ratios of two commits that
have been run, and ends with exit code 1 if the newer one is slower, or takes more memory, by more than the factor in
any benchmark, or if one that the older has failed or is missing there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
# Benchmarks that docs/history.md shows: some three minutes a commit on two cores.
SHOWN = [
    r"SmallNetworks\.time_training\('(mlp|platforms|kernels|stride2|single)', '(numba|cupy|numba_cuda)'\)",
    r"SmallNetworks\.time_training\('platforms', 'numpy'\)",
    r"DeepNetworks\.time_training\('resnet18', '(numba|cupy|numba_cuda)'\)",
    r"Import\.",
]


def main(arguments: list[str] | None = None) -> int:
    """Carry out a command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="measure commits")
    run.add_argument("commits", nargs="+", metavar="COMMIT")
    run.add_argument("--machine", required=True, help="name under which the results are stored")
    text = "regular expression of benchmarks, with parameters; those of docs/history.md if none is given, all with ."
    run.add_argument("--bench", action="append", help=text)
    run.add_argument("--attribute", action="append", default=[], help="of the benchmarks, such as rounds=1: see asv")
    run.set_defaults(command=lambda given: measure(given.commits, given.machine, given.bench or SHOWN, given.attribute))
    comparison = commands.add_parser("compare", help="ratios of two commits")
    comparison.add_argument("old")
    comparison.add_argument("new")
    comparison.add_argument("--machine", help="machine; the only one that there is, if not named")
    comparison.add_argument("--bench", default="", help="regular expression of benchmarks, with parameters")
    comparison.add_argument("--factor", type=float, default=1.1, help="ratio beyond which a change counts")
    comparison.set_defaults(command=lambda g: compare(g.old, g.new, g.machine, g.factor, chosen=g.bench))
    given = parser.parse_args(arguments)
    return int(given.command(given))


# Measuring ----------------------------------------------------------------------------------------


def measure(commits: list[str], machine: str, benchmarks: list[str], attributes: list[str]) -> int:
    """Run benchmarks on commits with the interpreter and the libraries of this program."""
    asv = [sys.executable, "-m", "asv"]
    described = [part for name, value in facts(machine).items() for part in (f"--{name}", value)]
    subprocess.run([*asv, "machine", "--yes", *described], cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    chosen = [part for pattern in benchmarks for part in ("--bench", pattern)]
    chosen += [part for attribute in attributes for part in ("--attribute", attribute)]
    broken: list[str] = []
    for commit in commits:
        name = git("rev-parse", commit)
        with tempfile.TemporaryDirectory(prefix="minicnn-history-") as folder:
            git("worktree", "add", "--quiet", "--detach", folder, name)
            try:
                print(git("log", "-1", "--format=%h %s", name), flush=True)
                known = RESULTS / machine / f"{name[:8]}-existing.json"
                if known.exists():  # asv adds to what it finds
                    cpu, here = json.loads(known.read_text("utf-8"))["params"].get("cpu"), facts(machine)["cpu"]
                    if cpu != here:
                        print(f"The results of a commit are of one CPU. Received: {here}, for those of {name[:8]} on "
                              f"{cpu}. Give another --machine, or remove {known}.", file=sys.stderr)  # fmt: skip
                        return 2
                    known.rename(known.with_name(f"{name[:8]}-{environment_name()}.json"))
                # asv takes PYTHONPATH away, and gives the benchmarks this instead.
                places = [f"{folder}/src", *filter(None, [os.environ.get("PYTHONPATH")])]
                environment = {**os.environ, "ASV_PYTHONPATH": os.pathsep.join(places)}
                began = 1000 * time.time()
                done = subprocess.run(
                    [*asv, "run", "--environment", f"existing:{sys.executable}", "--set-commit-hash", name,
                     "--launch-method", "spawn", "--machine", machine, *chosen],
                    cwd=HERE, env=environment, check=False,
                )  # fmt: skip
            finally:
                git("worktree", "remove", "--force", folder)
                tidy(RESULTS / machine, facts(machine))
        if done.returncode not in (0, 2):  # 2: some benchmarks failed, as of what a commit does not have
            return done.returncode
        failed = [n for n, v in values(RESULTS / machine, name, since=began).items() if v is None]
        broken += [f"{name[:8]}: {n}" for n in failed or (["asv"] if done.returncode else [])]
    if broken:
        print("Benchmarks run, or are skipped for want of a backend. Failed:", *broken, sep="\n  ", file=sys.stderr)
    return int(bool(broken))


def environment_name() -> str:
    """What asv calls the environment of this interpreter, in the names of its files."""
    from asv.environment import get_env_name

    name: str = get_env_name("existing", os.path.abspath(sys.executable).replace(os.path.sep, "_"), {}, {})
    return name


def facts(machine: str) -> dict[str, str]:
    """What asv stores of this machine, which is less than it asks for: no name of its own, no version of its kernel."""
    known = {"arch": platform.machine(), "num_cpu": str(os.cpu_count()), "os": platform.system()}
    found = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in found.splitlines())}
    flags = lines.get("flags", "").split()  # machines of one name differ by what decides the speed of kernels most
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    gpu = ""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().replace("\n", ", ")
    return {
        "machine": machine,
        **known,
        "cpu": ", ".join(filter(None, (gpu, lines.get("model name"), "" if gpu else vectors))),
    }


def git(*arguments: str) -> str:
    """What git says."""
    done = subprocess.run(["git", "-C", str(HERE), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def tidy(folder: Path, known: dict[str, str]) -> None:
    """Take the path of the interpreter off results, and have them name the machine as `facts` does, whatever asv found.

    asv draws results apart whose machines are not described alike.
    """
    described = folder / "machine.json"
    if described.exists():
        version = json.loads(described.read_text("utf-8")).get("version", 1)
        described.write_text(json.dumps({**known, "version": version}, indent=4, sort_keys=True) + "\n", "utf-8")
    for path in folder.glob("*-existing-py_*.json"):
        value = json.loads(path.read_text("utf-8"))
        value["env_name"], value["python"] = "existing", ""
        value["params"] = {**known, "python": platform.python_version()}
        path.unlink()
        path.with_name(f"{path.name.partition('-')[0]}-existing.json").write_text(json.dumps(value) + "\n", "utf-8")


# Comparing ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A benchmark of two commits.

    Attributes:
        name: Name with parameters.
        old: Median before.
        new: Median after.
    """

    name: str
    old: float
    new: float

    @property
    def ratio(self) -> float:
        """How many times as long, or as much, it takes now."""
        return self.new / self.old


def compare(
    old: str, new: str, machine: str | None, factor: float, results: Path = RESULTS, *, chosen: str = ""
) -> int:
    """Print the ratios of two commits, the worst first, and what the newer one lacks.

    Args:
        old: A commit.
        new: Another.
        machine: Machine on which they were run; None for the only one.
        factor: Ratio beyond which a change counts.
        results: Folder of the machines.
        chosen: Regular expression of the benchmarks that are compared.

    Returns:
        0, or 1 if a ratio is beyond the factor, or a benchmark has failed or is missing; 2 without results.
    """
    machines = sorted(p.parent.name for p in results.glob("*/machine.json"))
    if machine is None and len(machines) == 1:
        machine = machines[0]
    if machine not in machines:
        print(f"--machine is one of {', '.join(machines)}. Received: {machine}.", file=sys.stderr)
        return 2
    found = [values(results / machine, git("rev-parse", commit)) for commit in (old, new)]
    for commit, read in zip((old, new), found, strict=True):
        if not read:
            print(f"Commits that are compared have been run. Received: {commit}, which has no results of {machine}. "
                  f"Run it: history.py run --machine {machine} {commit}", file=sys.stderr)  # fmt: skip
            return 2
    before, after = ({k: v for k, v in read.items() if re.search(chosen, k)} for read in found)
    pairs = [(name, value, after.get(name)) for name, value in sorted(before.items()) if value is not None]
    changes = [Change(name, value, now) for name, value, now in pairs if now is not None]
    changes.sort(key=lambda c: -c.ratio)
    failed = [name for name, value in sorted(after.items()) if value is None and before.get(name, 0) is not None]
    missing = [name for name, _, _ in pairs if name not in after]
    for change in changes:
        verdict = "SLOWER" if change.ratio > factor else "faster" if change.ratio < 1 / factor else ""
        print(f"{change.ratio:8.2f}  {change.old:10.4g}  {change.new:10.4g}  {verdict:6}  {change.name}")
    for verdict, names in (("FAILED", failed), ("MISSING", missing)):
        for name in names:
            print(f"{verdict:>38}  {name}")
    worse = [c for c in changes if c.ratio > factor]
    counts = f"{len(worse)} beyond {factor} times, {len(failed)} failed, {len(missing)} missing"
    print(f"{len(changes)} benchmarks, {counts}; ratio, {old}, {new}")
    return int(bool(worse or failed or missing))


def values(folder: Path, commit: str, since: float = 0.0) -> dict[str, float | None]:
    """The results of a commit by name of the benchmark with its parameters; None where it failed.

    Args:
        folder: Folder of the machine.
        commit: The commit.
        since: Results of before are left out; milliseconds, as asv writes them.
    """
    found: dict[str, float | None] = {}
    for path in sorted(folder.glob(f"{commit[:8]}-*.json")):
        value = json.loads(path.read_text("utf-8"))
        columns = value["result_columns"]
        for name, row in value["results"].items():
            entry = dict(zip(columns, row, strict=False))
            if (entry.get("started_at") or since) >= since:
                found |= dict(_each(name, entry))
    return found


def _each(name: str, entry: dict[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Numbers of one benchmark, one a combination of its parameters; none where it was skipped, or not chosen."""
    combinations = list(product(*entry.get("params") or []))
    for number, combination in zip(entry.get("result") or [None] * len(combinations), combinations, strict=False):
        if number is None or number == number:  # NaN: skipped
            yield f"{name}({', '.join(combination)})" if combination else name, number


if __name__ == "__main__":
    sys.exit(main())
