"""Processes that compile beside this one: each takes the next kernel, and none is lost where one ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minicnn.backends import _helpers

PATIENCE_S = 60
HELPER = """
import os
from pathlib import Path
from minicnn.backends._helpers import work_with

def compile_one(job):
    {action}

def work():
    {start}
    work_with(compile_one)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    return [str(tmp_path / f"{k}") for k in range(8)]


def helper(monkeypatch: pytest.MonkeyPatch, folder: Path, action: str, start: str = "pass") -> None:
    """A module that another process imports."""
    (folder / "compiling_helper.py").write_text(HELPER.format(action=action, start=start), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(_helpers.__file__).parents[2])]))


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_other_process_takes_what_this_one_has_no_time_for(
    jobs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(monkeypatch, tmp_path, "print('words'); Path(job).touch()")
    here: list[str] = []
    left: list[int] = []

    def compile_one(job: str) -> None:
        here.append(job)
        until(lambda: all(Path(other).exists() for other in jobs if other not in here))

    def told(job: str, count: int) -> None:
        left.append(count)

    _helpers.compile_side_by_side(jobs, compile_one, "compiling_helper", processes=2, told=told)
    assert here == jobs[:1]
    assert left == [7]
    assert all(Path(job).exists() for job in jobs[1:])


@pytest.mark.parametrize(("action", "start"), [("os._exit(1)", "pass"), ("pass", "os._exit(1)")])
def test_this_process_goes_on_where_the_other_ends(
    action: str, start: str, jobs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(monkeypatch, tmp_path, action, start)
    here: list[Any] = []
    _helpers.compile_side_by_side(jobs, here.append, "compiling_helper", processes=2)
    assert len(here) >= len(jobs) - 1  # what the other had begun is compiled where it is loaded


def test_few_kernels_are_compiled_here(jobs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_helpers.subprocess, "Popen", None)
    here: list[str] = []
    _helpers.compile_side_by_side(jobs[:5], here.append, "no_module", processes=2)
    _helpers.compile_side_by_side(jobs, here.append, "no_module", processes=1)
    assert here == [*jobs[:5], *jobs]
