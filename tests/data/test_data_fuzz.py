"""Whatever is in a file, reading it gives data or a DataError, within 5 seconds and 1 GB.

`MINICNN_FUZZ=1000000 pytest -n 2 tests/data/test_data_fuzz.py` reads as many damaged files; by default there are some
thousand, the same ones each time. A seed that is named in a failure gives its file again: `fuzzing.draw(reader, seed)`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from support import fuzzing

pytest.importorskip("PIL")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of time and memory are set as on Linux")
TESTS = Path(__file__).resolve().parents[1]
COUNT = int(os.environ.get("MINICNN_FUZZ", "3000")) // len(fuzzing.READERS)
TOGETHER = 5  # readers of one process, which takes longer to start than to read the files of one


def run(*args: object) -> str:
    """What the process with limits complains about."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-m", "support.fuzzing", *map(str, args)]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    return result.stdout or result.stderr * (result.returncode != 0)


def groups(readers: Iterable[str]) -> list[str]:
    names = list(readers)
    return [",".join(names[i : i + TOGETHER]) for i in range(0, len(names), TOGETHER)]


@pytest.mark.no_cover
@pytest.mark.parametrize("readers", groups(fuzzing.READERS))
def test_damaged_files(readers: str) -> None:
    assert run(readers, 0, COUNT) == ""


@pytest.mark.no_cover
@pytest.mark.parametrize("readers", groups(fuzzing.HOSTILE))
def test_hostile_files(readers: str) -> None:
    assert run(readers) == ""


@pytest.mark.parametrize("reader", fuzzing.READERS)
def test_the_files_that_are_damaged_are_valid_before(reader: str) -> None:
    assert {fuzzing.outcome(reader, content) for content in fuzzing.valid(reader)} == {"data"}


def test_damage_is_the_same_each_time_and_reaches_both_outcomes() -> None:
    files = [fuzzing.draw("idx", seed) for seed in range(40)]
    assert files == [fuzzing.draw("idx", seed) for seed in range(40)]
    assert {fuzzing.outcome("idx", content) for content in files} == {"data", "refused"}
