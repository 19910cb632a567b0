"""The README's table is that of the stored results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_results", ROOT / "docs" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_what_is_stored(results: ModuleType) -> None:
    shown = results.between("comparison").findall((ROOT / "README.md").read_text("utf-8"))
    stored = [folder / "results" / results.STUDY for folder in results.FOLDERS]
    tables = [results.table(folder) for folder in stored if folder.is_dir()]
    assert shown == ["\n\n".join(tables) + "\n"], "write it anew: python docs/results.py"


def test_only_what_lies_between_the_marks_is_replaced(results: ModuleType, tmp_path: Path) -> None:
    text = "before\n<!-- one:begin -->\n{}\n<!-- one:end -->\n<!-- two:begin -->\nold\n<!-- two:end -->\n"
    page = tmp_path / "page.md"
    page.write_text(text.format("old\nold"))
    results.write(page, "one", "new \\1")
    assert page.read_text() == text.format("new \\1")
