"""The gate's passes over the tests: what each has run, what is left to the next, and what none has run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PASSES = Path(__file__).parent.parent / ".ci/passes.py"
CASES = """
import os
import pytest

@pytest.mark.parametrize("library", ["os", "no_such_library"])
def test_library(library): pytest.importorskip(library)

@pytest.mark.skipif("MORE" not in os.environ, reason="needs more")
def test_more(): pass

@pytest.mark.environment
def test_environment(): pass

@pytest.mark.xfail
def test_fails(): raise AssertionError

def test_slow():
    from time import process_time
    end = process_time() + 0.6
    while process_time() < end: pass
"""
NONE_IS = "could not import 'no_such_library': No module named 'no_such_library'"


def passed(name: str, *options: str, **environment: str) -> dict[str, str]:
    """The record of a pass over the tests here."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COVERAGE", "MINICNN_EVERY"))}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "passes", "--record", name, "-q", *options],
        env={**inherited, "PYTHONPATH": str(PASSES.parent), **environment}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    record = json.loads(Path(name).read_text("utf-8"))
    assert {name for name in record["skips"] if "::" in name} == set(record["seconds"])
    skips: dict[str, str] = record["skips"]
    return skips


def compared(*arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of a comparison with the list `skipped`."""
    command = [sys.executable, str(PASSES), "--list", "skipped", "--slow", "slow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_by_day_cases_run_that_are_spread_over_all_and_none_of_the_night(tmp_path: Path) -> None:
    file = tmp_path / "test_sampled.py"
    file.write_text(
        "import pytest\n"
        "@pytest.mark.sampled(3)\n@pytest.mark.parametrize('n', range(7))\ndef test_n(n): pass\n"
        "@pytest.mark.sampled(3)\n@pytest.mark.parametrize('n', range(2))\ndef test_few(n): pass\n"
        "@pytest.mark.parametrize('n', range(4))\ndef test_all(n): pass\n"
        "@pytest.mark.night('test_sampled.py::test_all')\ndef test_at_night(): pass\n"
    )

    def collected(*names: str, **environment: str) -> list[str]:
        chosen = [f"{file}{name}" for name in names or ("",)]
        command = [sys.executable, "-m", "pytest", "-p", "conftest", "--collect-only", "-q", *chosen]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COVERAGE", "MINICNN"))}
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        return [line.partition("::")[2] for line in done.stdout.splitlines() if line.startswith(f"{file.name}::")]

    few, every = [f"test_few[{n}]" for n in range(2)], [f"test_all[{n}]" for n in range(4)]
    assert collected() == ["test_n[0]", "test_n[2]", "test_n[4]", *few, *every]
    assert collected(MINICNN_EVERY_CASE="1") == [
        *(f"test_n[{n}]" for n in range(7)), *few, *every, "test_at_night",
    ]  # fmt: skip
    assert collected("::test_n[5]") == ["test_n[5]"]
    assert sorted(collected("", "::test_at_night")) == sorted([*collected(), "test_at_night"]), (
        "others stay as they are"
    )


def test_what_runs_at_night_alone_names_what_runs_by_day() -> None:
    root = Path(__file__).parents[1]
    places = [
        place for path in sorted((root / "tests").rglob("*.py")) if path != Path(__file__)
        for place in re.findall(r'(?:night\(|BY_DAY = )"([^"]+)"', path.read_text("utf-8"))
    ]  # fmt: skip
    assert places
    for place in places:
        file, _, test = place.partition("::")
        assert re.search(rf"^def {test}\(", (root / file).read_text("utf-8"), re.M), place


def test_what_no_pass_runs_is_compared_with_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pytest.ini").write_text("[pytest]\nmarkers = environment\n")
    Path("test_cases.py").write_text(CASES)
    for name in ("one", "two"):  # the same reason, at the same line of a third file
        Path(f"test_{name}.py").write_text("import needed\ndef test(): pass\n")
    Path("needed.py").write_text("import pytest\npytest.importorskip('no_such_library')\n")
    Path("test_finished.py").write_text("from pathlib import Path\nPath('imported').touch()\ndef test(): pass\n")
    first = passed("first", "-n", "1")
    assert first == {
        "test_one.py": NONE_IS, "test_two.py": NONE_IS, "test_cases.py::test_library[os]": "",
        "test_cases.py::test_library[no_such_library]": NONE_IS, "test_cases.py::test_more": "needs more",
        "test_cases.py::test_environment": "", "test_cases.py::test_fails": "", "test_cases.py::test_slow": "",
        "test_finished.py::test": "",
    }  # fmt: skip
    Path("imported").unlink()
    second = passed("second", "--left-by", "first", MORE="1")
    ran = {name for name, why in second.items() if not why}
    assert ran == {"test_cases.py::test_more", "test_cases.py::test_environment"}
    assert not Path("imported").exists(), "a file that has nothing left"

    listed = [f"{name}: {NONE_IS}" for name in ("test_cases.py::test_library", "test_one.py", "test_two.py")]
    Path("skipped").write_text("\n".join(["# why", "", *listed]))
    Path("slow").write_text("")
    code, said = compared("first", "second")
    assert (code, said[-1]) == (0, "3 of 3 listed")
    assert [line.partition("s of a processor: ")[2] for line in said[:2]] == ["first", "second"]
    assert said[2].strip() == "1 s: test_cases.py::test_slow"
    assert compared("first")[1][-1] == "new: test_cases.py::test_more: needs more"
    code, said = compared("first", "second", "--repeated", "second")
    assert (code, said[-1]) == (0, "3 of 3 listed")
    skips = {**first, "test_cases.py::test_fails": "not on this Python"}
    Path("third").write_text(json.dumps({"skips": skips, "seconds": {}}))
    code, said = compared("first", "second", "--repeated", "third")
    assert (code, said[-1]) == (1, "new: test_cases.py::test_fails: not on this Python")
    never = "test_cases.py::test_fails: never"
    Path("skipped").write_text("\n".join([*listed, never]))
    rule = "skipped names the tests that no pass runs. Received:"
    code, said = compared("first", "second")
    assert (code, said[-3:]) == (1, ["3 of 4 listed", rule, f"vanished: {never}"])
    Path("skipped").write_text("\n".join([*listed, f"sometimes {never}"]))
    code, said = compared("first", "second")
    assert (code, said[-1]) == (0, "3 of 4 listed")


def test_a_test_that_takes_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("skipped").write_text("")
    Path("slow").write_text("# why\ntest_cases.py::test_known\n")
    cases = {f"test_cases.py::test_many[{n}]": 6.0 for n in range(3)}
    seconds = {"test_cases.py::test_known": 90.0, "test_cases.py::test_some": 14.0, **cases}
    Path("one").write_text(json.dumps({"skips": dict.fromkeys(seconds, ""), "seconds": seconds}))
    Path("two").write_text(json.dumps({"skips": {}, "seconds": {"test_cases.py::test_some": 14.0}}))  # another pass
    code, said = compared("one", "two")
    assert (code, said[-2:]) == (1, [
        "18 s: test_cases.py::test_many", "Make it cheaper, as CONTRIBUTING says, or name it there.",
    ])  # fmt: skip
    Path("slow").write_text("test_cases.py::test_known\ntest_cases.py::test_many\n")
    assert compared("one", "two")[0] == 0
