"""The name of the distribution: on the package index the import name belongs to another project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from minicnn.extras import DISTRIBUTION, install

ROOT = Path(__file__).parent.parent
FOLDERS = (".ci", "asv_bench", "benchmarks", "docs", "examples", "src", "tests")
TEXTS = {".cfg", ".html", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}

# The name where it is neither a part of a path or of another name, nor the beginning of the distribution's.
STRANGER = r"(?<![\w./-])minicnn(?!-arrays\b)(?![\w/])"
INSTALLS = re.compile(rf"\b(?:(?:pip[x3]?|conda|mamba)\W{{1,6}}install|uv\W{{1,6}}add)\b[^\n`;&#]*?{STRANGER}")
REQUIRES = re.compile(rf"{STRANGER}(?:\[[a-z]|[=~<>!]=|[<>]\d| @ )")


def strangers(text: str) -> list[str]:
    """Parts of a text that could install another project's package."""
    joined = re.sub(r"""["'] *\n\s*[fr]?["']""", "", text)  # strings that Python joins
    return [m[0] for pattern in (INSTALLS, REQUIRES) for m in pattern.finditer(joined)]


@pytest.mark.parametrize(
    "text",
    ["pip install {}", "pip install {}.", 'pip install -U "{}[cli]"', "python -m pip install torch {}", "uv add {}",
     '["pip", "install", "{}"]', 'requires = ["{}[numba,cli]>=1"]', "pip install {}-core", "pipx install '{}'",
     "{}>=0.1", "{}==0.1", '"Install it: pip install "\n    f"{}."'],
)  # fmt: skip
def test_what_could_install_it_is_found(text: str) -> None:
    assert strangers(text.format("minicnn"))
    assert not strangers(text.format("minicnn-arrays").replace("-arrays-core", "-arrays"))


@pytest.mark.parametrize(
    "text",
    ['pip install -q ".[cli]" && .venv/bin/minicnn train mlp', '`pip install ".[cli]"` installs the command `minicnn`',
     "pip install .  # then minicnn info", "src/minicnn/ops", "import minicnn", 'versions["minicnn"]'],
)  # fmt: skip
def test_what_cannot_is_left_alone(text: str) -> None:
    assert not strangers(text)


def test_no_text_installs_another_projects_package() -> None:
    files = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    texts = [p for p in files if p.is_file() and p.suffix in TEXTS and not {"__pycache__", "_build"} & {*p.parts}]
    assert len(texts) > 300
    found = {str(p.relative_to(ROOT)): strangers(p.read_text("utf-8", errors="replace")) for p in texts}
    assert {path: parts for path, parts in found.items() if parts} == {}


def test_the_project_and_the_remedies_have_the_same_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == DISTRIBUTION
    assert project["scripts"].keys() == {"minicnn"}
    assert install("cli") == 'pip install "minicnn-arrays[cli]" (in a clone: pip install ".[cli]")'
