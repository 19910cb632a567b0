"""Every dependency has bounds, a version that the gate is run with, and a licence on the page."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minicnn.extras import DISTRIBUTION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
GROUPS = {
    "building": PROJECT["build-system"]["requires"],
    "core": PROJECT["project"]["dependencies"],
    **PROJECT["project"]["optional-dependencies"],
}
REQUIREMENTS = [(group, Requirement(text)) for group, texts in GROUPS.items() for text in texts]
OTHERS = [(group, r) for group, r in REQUIREMENTS if r.name != DISTRIBUTION]
CONSTRAINTS = {
    canonicalize_name(r.name): r.specifier
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for r in [Requirement(line)]
}
PAGE = (ROOT / "docs/dependencies.md").read_text("utf-8")
ROWS = {
    name: (licence, groups.split(", "))
    for name, licence, groups in re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    if name not in ("package", "---")
}


@pytest.mark.parametrize(("group", "requirement"), OTHERS, ids=str)
def test_a_dependency_has_two_bounds_and_the_version_of_the_gate_between_them(
    group: str, requirement: Requirement
) -> None:
    assert {s.operator for s in requirement.specifier} == {">=", "<"}
    (pinned,) = CONSTRAINTS[canonicalize_name(requirement.name)]
    assert pinned.operator == "=="
    assert requirement.specifier.contains(pinned.version, prereleases=True)


def test_the_page_names_each_dependency_and_what_it_comes_with() -> None:
    expected: dict[str, list[str]] = {}
    for group, requirement in OTHERS:
        name = group if group in ("building", "core") else f"`{group}`"
        expected.setdefault(requirement.name, []).append(name)
    assert {name: groups for name, (_, groups) in ROWS.items()} == expected


def test_the_page_names_all_that_is_installed_with_them() -> None:
    assert {name for name in CONSTRAINTS if not re.search(rf"(?<![\w-]){name}(?![\w-])", PAGE)} == set()


@pytest.mark.environment
def test_the_licences_are_what_the_packages_say() -> None:
    said = {d.name.lower().replace("_", "-"): d.metadata.get("License-Expression") for d in distributions()}
    wrong = {name: said[name] for name, (licence, _) in ROWS.items() if said.get(name) not in (None, licence)}
    assert wrong == {}
    assert any(said.values())  # packages of today say it


def test_the_gate_runs_the_readme_s_commands_before_it_installs_frameworks() -> None:
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert len(commands) == 2
    assert not re.search("torch|jax", " ".join(commands))
    steps = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    assert steps.index('readme "$oldest" "$counted"') < steps.index("frameworks")


def test_the_lowest_versions_are_those_of_the_bounds() -> None:
    def lowest(*extras: str) -> set[str]:
        command = [sys.executable, str(ROOT / ".ci/lowest.py"), *extras]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())

    bounds = {
        (group, r.name, str(s)) for group, r in OTHERS if group != "building" for s in r.specifier if s.operator == ">="
    }
    groups = {group for group, *_ in bounds}
    assert lowest(*groups - {"core"}) == {f"{name}{bound.replace('>=', '==')}" for _, name, bound in bounds}
    assert {line.partition("==")[0] for line in lowest("torch")} == {"array-api-compat", "numpy", "torch"}


def test_the_oldest_python_that_is_named_is_the_one_that_is_asked_for() -> None:
    oldest, *_ = (c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if "Python :: 3." in c)
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


def test_no_folder_of_tests_is_taken_for_a_library() -> None:
    """They are in Python's path: where Keras was not installed, a folder tests/keras was imported in its place."""
    libraries = {
        "keras",
        "sklearn",
        "torch",
        "jax",
        "onnx",
        "onnxruntime",
        "mlx",
        "numba",
        "numba_cuda",
        "cupy",
        "h5py",
    }
    assert not libraries & {path.stem for path in Path(__file__).parent.iterdir()}
