"""Passes of the gate over the tests: the tests that each has run, those that are left, and those that none has run.

As a plugin of pytest (`-p passes`, with this folder in PYTHONPATH) it has two options:

    --record FILE     write what became of each test: JSON of the reason for which it was skipped, or "", of its
                      processor time in seconds, that of its processes included, and of the files with the marker
                      `environment`
    --left-by FILE    leave out the tests that have run by this record, but for those with the marker `environment`; by
                      day a file all of whose tests have run is not even imported

As a program it says which tests take longest, and compares the tests that none of the passes has run with a list. Where
they differ it fails, and where a test took more than LONG processor seconds in all its cases that no other list names:

    python passes.py --list FILE [--slow FILE] [--repeated RECORD] RECORD ...

A repeated pass has the conditions of the first record, so that a test that it skips and the first has run counts as one
that none has run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SOMETIMES = "sometimes "  # begins a line for what some machines have
SLOWEST = 20  # tests that are named
# Processor seconds for which a test needs a line of its own in the list. The list has tests from half of it on: beside
# other programs, which share caches and memory, the same work takes up to 1.6 times as long.
LONG = 15
EVERY_CASE = os.environ.get("MINICNN_EVERY_CASE") == "1"  # as at night
SECONDS = "processor seconds"
BEGUN = pytest.StashKey[float]()
Skips = dict[str, str]  # name of a test, or of a module that skips itself: the reason, "" if it has run


# Plugin -------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("passes")
    group.addoption("--record", metavar="FILE", help="write which tests have run, and why the others were skipped")
    group.addoption("--left-by", metavar="FILE", action="append", default=[], help="leave out what has run by a record")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the record."""
    if config.getoption("record"):
        config.pluginmanager.register(Recorder(config))


class Recorder:
    """Collects the skips. Under pytest-xdist each worker tells which modules skip themselves when it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._skips, self._seconds = config, Skips(), dict[str, float]()
        self._environment = set[str]()  # files

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """See pytest."""
        if report.skipped:
            self._skips[report.nodeid] = reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See pytest."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skips[report.nodeid] = reason(report)
        elif report.when == "call":
            self._skips[report.nodeid] = ""
        elif report.when == "teardown":
            if "environment" in report.keywords:
                self._environment.add(report.nodeid.partition("::")[0])
            self._seconds[report.nodeid] = dict(report.user_properties).get(SECONDS, 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """See pytest."""
        item.stash[BEGUN] = processor_seconds()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """See pytest."""
        if call.when == "teardown":
            item.user_properties.append((SECONDS, processor_seconds() - item.stash[BEGUN]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """See pytest-xdist."""
        self._skips.update(getattr(node, "workeroutput", {}).get("modules", {}))

    def pytest_sessionfinish(self) -> None:
        """Write the record, or tell it."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["modules"] = {n: why for n, why in self._skips.items() if "::" not in n}
        else:
            record = {"skips": self._skips, "seconds": self._seconds, "environment": sorted(self._environment)}
            Path(self._config.getoption("record")).write_text(json.dumps(record, indent=0), "utf-8")


def processor_seconds() -> float:
    """Processor time of this process and of those that it has waited for, which other programs hardly change."""
    return sum(os.times()[:4])


def reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Why a test or a module was skipped, in one line."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over a file that has nothing left."""
    if collection_path.suffix != ".py" or EVERY_CASE:
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    return any(file in finished(record) for record in config.getoption("left_by")) or None


@cache
def finished(record: str) -> set[str]:
    """Files all of whose tests have run by a record, none of them with the marker `environment`."""
    left = {name.partition("::")[0] for name, why in read(record).items() if why}
    left |= set(json.loads(Path(record).read_text("utf-8"))["environment"])
    return {name.partition("::")[0] for name in read(record)} - left


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has run."""
    ran = {name for file in config.getoption("left_by") for name, why in read(file).items() if not why}
    kept = [i for i in items if i.nodeid not in ran or i.get_closest_marker("environment")]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[i for i in items if i not in set(kept)])
        items[:] = kept


# Comparison ---------------------------------------------------------------------------------------


def read(file: str) -> Skips:
    """What a record says of each test."""
    skips: Skips = json.loads(Path(file).read_text("utf-8"))["skips"]
    return skips


def processor_times(files: list[str]) -> tuple[dict[str, float], Counter[str]]:
    """Processor seconds of each pass, and of each test in the pass in which it took most, all its cases together."""
    passes, tests = dict[str, float](), Counter[str]()
    for file in files:
        seconds, here = json.loads(Path(file).read_text("utf-8"))["seconds"], Counter[str]()
        for name, taken in seconds.items():
            here[name.partition("[")[0]] += taken
        passes[Path(file).stem] = sum(seconds.values())
        tests |= here
    return passes, tests


def listed(file: str) -> list[str]:
    """Lines of a list."""
    return [line for line in Path(file).read_text("utf-8").splitlines() if line and not line.startswith("#")]


def never_run(records: list[Skips], repeated: Skips) -> set[str]:
    """Tests without their parameters, each with the reason of the last pass that skipped it."""
    ran = {name for record in records for name, why in record.items() if not why}
    modules = {name.partition("::")[0] for name in ran}
    skipped = {n: why for r in records for n, why in r.items() if why and n not in ran and n not in modules}
    skipped |= {name: why for name, why in repeated.items() if why and records[0].get(name) == ""}
    return {f"{name.partition('[')[0]}: {why}" for name, why in skipped.items()}


def main() -> None:
    """Compare, and end with 1 and a line for each difference if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", required=True)
    parser.add_argument("--slow")
    parser.add_argument("--repeated")
    parser.add_argument("records", nargs="+")
    given = parser.parse_args()
    passes, tests = processor_times([*given.records, *filter(None, [given.repeated])])
    for name, taken in passes.items():
        print(f"{taken:6.0f} s of a processor: {name}")
    for name, taken in tests.most_common(SLOWEST):
        print(f"{taken:6.0f} s: {name}")
    wrong = []
    known = set(listed(given.slow)) if given.slow else set(tests)
    if slow := sorted(name for name, taken in tests.items() if taken > LONG and name not in known):
        wrong += [f"{given.slow} names the tests that take more than {LONG} processor seconds. Received:"]
        wrong += [f"{tests[name]:.0f} s: {name}" for name in slow]
        wrong += ["Make it cheaper, as CONTRIBUTING says, or name it there."]
    found = never_run([read(file) for file in given.records], read(given.repeated) if given.repeated else {})
    lines = listed(given.list)
    names = {line.removeprefix(SOMETIMES) for line in lines}
    print(f"{len(found & names)} of {len(names)} listed")
    differing = [f"new: {line}" for line in sorted(found - names)]
    differing += [f"vanished: {line}" for line in lines if not line.startswith(SOMETIMES) and line not in found]
    if differing:
        wrong += [f"{given.list} names the tests that no pass runs. Received:", *differing]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
