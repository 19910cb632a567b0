"""The namespace passes array-api-tests, the standard's suite, but for the cases that docs/numba-cuda.md lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda")

from minicnn.backends.numba_cuda.shim import SIMULATED

ROOT = Path(__file__).parents[3]
SUITE = ROOT.parent / "shared/suites/array-api-tests"
# The suite takes a tenth of it where it compares element by element, and the first example is the simplest.
EXAMPLES = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 25
SPECIAL, ELEMENTWISE = "test_special_cases.py", "test_operators_and_elementwise_functions.py"

pytestmark = [
    pytest.mark.skipif(not SIMULATED, reason="on a GPU each of some thousand kernels would be compiled"),
    pytest.mark.skipif(not SUITE.is_dir(), reason="array-api-tests is not in ../shared/suites, beside the clone"),
]


def left_out() -> dict[str, str]:
    """Cases, by names with *, and why they do not pass, from the table of the documentation."""
    page = (ROOT / "docs/numba-cuda.md").read_text("utf-8")
    rows = re.findall(r"^\| (`test_.*`) \| (.*) \|$", page, re.M)
    return {name: reason for names, reason in rows for name in re.findall(r"`(.*?)`", names)}


def names(pattern: str, case: str) -> bool:
    """Whether a name with * stands for a case."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), case) is not None


@pytest.mark.night("tests/backends/numba_cuda/test_nbcuda_arrays.py::test_elementwise")
@pytest.mark.parametrize("part", ["special cases", "elementwise", "the rest"])
def test_the_suite_of_the_standard_passes(part: str, tmp_path: Path) -> None:
    """The parts are for processes side by side; examples are the same each time."""
    every = {file.name for file in (SUITE / "array_api_tests").glob("test_*.py")}
    files = {"special cases": {SPECIAL}, "elementwise": {ELEMENTWISE}}.get(part, every - {SPECIAL, ELEMENTWISE})
    report = tmp_path / "report.json"
    options = ["--max-examples", str(EXAMPLES), "--derandomize", "--disable-deadline", "--tb=short", "-q"]
    options += ["-p", "no:cacheprovider", "--disable-warnings", "--json-report", f"--json-report-file={report}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "ARRAY_API_TESTS_MODULE": "minicnn.backends.numba_cuda.namespace", "ARRAY_API_TESTS_VERSION": "2025.12",
        "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128", "NUMBA_ENABLE_CUDASIM": "1", "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"array_api_tests/{file}" for file in sorted(files))],
        cwd=SUITE, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = {case["nodeid"].removeprefix("array_api_tests/"): case for case in json.loads(report.read_text())["tests"]}
    rules = {rule: reason for rule, reason in left_out().items() if rule.partition("::")[0] in files}
    listed = {rule: {case for case in cases if names(rule, case)} for rule in rules}
    assert len(cases) > 150
    assert not [rule for rule, found in listed.items() if not found], "the suite has no such case any more"

    passed = {case for case, result in cases.items() if result["outcome"] == "passed"}
    unlisted = cases.keys() - passed - set().union(*listed.values())
    how = [f"{case}\n{cases[case].get('call', {}).get('longrepr')}" for case in sorted(unlisted)]
    assert not how, "cases that do not pass, and that docs/numba-cuda.md does not list: " + "\n".join(how)
    always = {case for rule, found in listed.items() if not rules[rule].startswith("sometimes") for case in found}
    assert not always & passed, f"docs/numba-cuda.md lists cases that pass: {always & passed}"
    skipped = {case for rule, found in listed.items() if rules[rule].startswith("skipped") for case in found}
    assert skipped == {case for case, result in cases.items() if result["outcome"] == "skipped"}
