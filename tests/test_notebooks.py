"""The steps: notebooks and pages are the same, run, print what they show, and point to what there is."""

from __future__ import annotations

import ast
import json
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import ROOT, script

PAGES = sorted((ROOT / "docs/steps").glob("*.md"))
LINK = re.compile(r"\[`(\w+)`\]\(([\w./-]+\.py)\)")

pytestmark = pytest.mark.no_cover
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return script("docs/notebooks.py")


def test_the_first_page_leads_to_them_in_order() -> None:
    assert re.findall(r"^\d+\. \[.*\]\((.*)\)", (ROOT / "docs/index.md").read_text("utf-8"), re.M) == [
        f"steps/{page.name}" for page in PAGES
    ]
    for page, following in pairwise(PAGES):
        assert page.read_text("utf-8").splitlines()[-1].endswith(f"]({following.name}).")


def test_the_notebooks_are_those_of_the_pages(maker: ModuleType) -> None:
    shown = {path.stem: path.read_text("utf-8") for path in maker.NOTEBOOKS.glob("*.ipynb")}
    assert shown == {page.stem: maker.notebook(page) for page in PAGES}, "python docs/notebooks.py writes them anew"


@each_page
def test_a_notebook_runs_and_prints_what_it_shows(
    page: Path, maker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)
    notebook = json.loads((maker.NOTEBOOKS / f"{page.stem}.ipynb").read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": page.stem}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        for package in cell["metadata"].get("needs", ()):
            pytest.importorskip(package)
        printed = maker.run(maker.Cell("".join(cell["source"])), namespace, page.name)
        expected = "".join(line for output in cell["outputs"] for line in output["text"])
        message = f"shown is\n{expected}\nprinted is\n{printed}\n`python docs/notebooks.py --run` writes it anew"
        assert maker.same(printed, expected, measured="measured" in cell["metadata"]), message


@each_page
def test_a_page_begins_with_its_answer_and_ends_in_the_code(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.splitlines()[2].startswith("**")
    assert len(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).split()) < 700  # of prose
    links = LINK.findall(text.partition("## In the code")[2])
    assert len(links) >= 2
    for name, target in links:
        path = (page.parent / target).resolve()
        assert name in defined(ast.parse(path.read_text("utf-8"))), f"{target} has no {name}"


def defined(tree: ast.Module) -> set[str]:
    """What a module defines at its top."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_links_of_pages_lead_to_the_same_places_from_notebooks(maker: ModuleType) -> None:
    for page in PAGES:
        notebook = json.loads(maker.notebook(page))
        text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (maker.NOTEBOOKS / target).exists(), f"{page.stem} links to {target}"


def test_a_notebook_installs_the_library_where_it_is_missing_and_makes_slides(maker: ModuleType) -> None:
    for page in PAGES:
        first, *others = json.loads(maker.notebook(page))["cells"]
        assert 'find_spec("minicnn") is None' in "".join(first["source"])
        assert first["metadata"]["slideshow"] == {"slide_type": "skip"}
        for cell in others:
            shown = cell["metadata"]["slideshow"]["slide_type"]
            assert shown == ("slide" if cell["cell_type"] == "markdown" else "-")
