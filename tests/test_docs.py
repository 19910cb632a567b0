"""The pages tell the truth: their code runs and prints what they show, and what they name exists.

Those of the steps run as notebooks: see tests/test_notebooks.py.

A `python` block runs after the blocks above it on the same page, in an empty folder. A `text` block right below it is
what it prints; "..." there stands for anything. `<!-- needs: torch -->` above a block skips the rest of the page
where that library is missing.
"""

from __future__ import annotations

import doctest
import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import minicnn
from minicnn import backends, callbacks, data, layers, losses, metrics, optimizers, schedules, zoo
from minicnn.cli import cli
from minicnn.exercises.table import EXERCISES
from support.scripts import ROOT, script

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in PAGES if not {"_build", "notes"} & set(page.parts)]  # notes are put into pages

FENCE = re.compile(r"^(?:<!-- needs: (\w+) -->\n)?```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `prints` is the text block below it, if any."""

    language: str
    code: str
    line: int
    needs: str | None
    prints: str | None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in FENCE.finditer(text):
        needs, language, code, prints = match.groups()
        yield Block(language, code, text.count("\n", 0, match.start(3)), needs, prints)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(b.language == language for b in blocks(page))]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("page", [p for p in pages_with("python") if p.parent.name != "steps"], ids=name_of)
def test_python_blocks_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language != "python":
            continue
        if block.needs:
            pytest.importorskip(block.needs)
        exec(compile("\n" * block.line + block.code, page, "exec"), namespace)
        printed = capsys.readouterr().out
        if block.prints is not None:
            assert_prints(printed, block.prints, f"{name_of(page)}:{block.line}")


SOURCES = Path(minicnn.__file__).parent
WITH_EXAMPLES = [
    ".".join(("minicnn", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCES.rglob("*.py")) if "skeletons" not in path.parts and ">>> " in path.read_text("utf-8")
]  # fmt: skip


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_of_docstrings_print_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    for library in re.findall(r">>> import (\w+)", inspect.getsource(module)):
        pytest.importorskip(library)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def assert_prints(printed: str, expected: str, where: str) -> None:
    got, want = ("\n".join(line.rstrip() for line in text.splitlines()) + "\n" for text in (printed, expected))
    same = doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)
    assert same, f"{where} shows\n{want}\nbut its code prints\n{got}"


@pytest.mark.parametrize("page", pages_with("sh"), ids=name_of)
def test_commands_can_be_parsed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "flowers", "images"):
        (tmp_path / folder).mkdir()
    text = "".join(block.code for block in blocks(page) if block.language == "sh")
    for line in re.findall(r"\bminicnn((?: [\w./,:-]+)+)$", text, re.M):
        name, *arguments = line.split()
        if name in ("predict", "evaluate", "demo"):  # their arguments are there
            for path in map(Path, arguments):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.parts[0] in ("runs", "mine"):
                    path.mkdir(exist_ok=True)
                    (path / "model.safetensors").touch()
                elif path.suffix:
                    path.touch()
        parent = click.Context(cli, **cli.context_settings)  # a command remembers by which names help is asked for
        refused = ""
        try:
            cli.commands[name].make_context(name, arguments, parent)
        except click.UsageError as error:
            refused = error.format_message()
        except click.exceptions.Exit as done:  # as after --help, and --list
            refused = f"exit code {done.exit_code}" if done.exit_code else ""
        assert not refused, f"minicnn{line}: {refused}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not re.match(r"https?:|mailto:", target):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_repository_paths_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|tests|docs|examples|\.ci)/[\w./-]+)`", page.read_text("utf-8")):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tests_exist(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8")):
        found = re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.M)
        assert found, f"{name_of(page)} names {path}::{name}"


def test_every_promise_names_a_test() -> None:
    page, _, _ = (ROOT / "docs/promises.md").read_text("utf-8").partition("## What was run")
    rows = re.findall(r"^\| (.*) \| (.*) \|$", page, re.M)
    promises = [row for row in rows if row not in (("promise", "kept by"), ("---", "---"))]
    assert len(promises) > 20
    assert [promise for promise, kept in promises if not re.search(r"`tests/[\w/]+\.py", kept)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_extras_exist(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"(?:minicnn|\.)\[([\w,-]+)\]", page.read_text("utf-8")):
        assert set(names.split(",")) <= set(extras), f"{name_of(page)} names [{names}]"


def classes_of(names: dict[str, Any]) -> list[str]:
    return [c.__name__ for c in names.values()]


SCHEDULES = [
    name for name, kind in vars(schedules).items()
    if isinstance(kind, type) and issubclass(kind, schedules.Schedule) and name not in ("Schedule", "_Falling")
]  # fmt: skip
NAMED = {
    "docs/layers.md": [
        *layers.__all__, *classes_of(losses.LOSSES), *classes_of(metrics.METRICS), *classes_of(optimizers.OPTIMIZERS),
        *SCHEDULES,
        *(n for n in callbacks.__all__ if n not in ("Callbacks", "progress")),
    ],
    "docs/data.md": data.names(),
    "docs/backends.md": backends.names(),
    "docs/getting-started.md": zoo.names(),
    "docs/exercises.md": list(EXERCISES),
}  # fmt: skip


@pytest.mark.parametrize("page", NAMED)
def test_a_page_names_all_that_there_is(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    missing = [name for name in NAMED[page] if not re.search(rf"`{name}\b", text)]
    assert missing == []


@pytest.mark.parametrize(
    "package", ["layers", "losses", "metrics", "optimizers", "callbacks", "ops", "interop", "data"]
)
def test_every_public_name_is_on_a_page_of_the_reference(package: str) -> None:
    named = [
        found[1].split()
        for page in (ROOT / "docs/api").glob("*.md")
        for found in re.finditer(rf"^\.\. api:: minicnn\.{package}\b(.*)$", page.read_text("utf-8"), re.M)
    ]
    module = import_module(f"minicnn.{package}")
    things = [getattr(module, name) for name in module.__all__]
    homes = {
        thing.__module__ for thing in things if callable(thing) and thing.__module__.startswith(f"minicnn.{package}.")
    }
    if not any(modules == [] for modules in named):  # then it is all of the package
        assert homes == {f"minicnn.{package}.{name}" for modules in named for name in modules}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/api").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_the_reference_begins_with_a_table(page: Path) -> None:
    first, *_ = re.findall(r"^\.\. (\w+)::", page.read_text("utf-8"), re.M)
    assert first in ("api", "autosummary"), "`api` writes a table and then the entries"


def test_the_figure_of_launches_is_what_the_plan_says() -> None:
    figure = script("docs/step_figure.py")
    said = CliRunner().invoke(cli, figure.COMMAND, catch_exceptions=False).stdout
    assert figure.draw(json.loads(said)) == figure.FIGURE.read_text("utf-8"), "python docs/step_figure.py draws it anew"


def test_the_change_log_knows_this_version() -> None:
    assert f"## [{minicnn.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
