"""Names: a variable says what it holds, and a class has a name of its own."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import minicnn

HOME = Path(inspect.getfile(minicnn)).parent
NO_NOUNS = {"made", "found", "given", "own", "again", "onwards"}  # they say where a thing is from, not what it is
ELSEWHERE = ("backends/", "kernels/")
# Names of Keras that mean two things there.
SHARED = {"Model", "Sequential", "CosineSimilarity"}


@cache
def trees() -> list[tuple[str, list[ast.AST]]]:
    """The nodes of each module but those that students fill in, by its path."""
    paths = [path for path in sorted(HOME.rglob("*.py")) if "skeletons" not in path.parts]
    return [(path.relative_to(HOME).as_posix(), nodes_of(path.read_text("utf-8"))) for path in paths]


def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def bound(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Names of variables and arguments, each with its line."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno


def test_variables_are_named_for_what_they_hold() -> None:
    wrong = [f"{path}:{line} {name}" for path, nodes in trees() for name, line in bound(nodes) if name in NO_NOUNS]
    assert [place for place in wrong if not place.startswith(ELSEWHERE)] == []


def test_what_is_a_binding() -> None:
    text = "made = 1\nfor given in x: pass\ndef f(found): return lambda own: a.again\n"
    assert {name for name, _ in bound(nodes_of(text))} == {"made", "given", "found", "own"}


def test_a_class_has_a_name_of_its_own() -> None:
    """Twins of engines share theirs, as functions with one purpose on several machines do."""
    names = [
        node.name
        for path, nodes in trees() if not path.startswith(("backends/", "kernels/"))
        for node in nodes if isinstance(node, ast.ClassDef)
    ]  # fmt: skip
    assert {name for name in names if names.count(name) > 1} <= SHARED


def test_a_docstring_names_its_subject() -> None:
    wrong = []
    for path, nodes in trees():
        elsewhere = () if path.startswith(ELSEWHERE) else ("Where ", "When ", "Who ", "How ", "Whether ")
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                beginnings = ("What ", "That which ", "Whatever ", *elsewhere)
                wrong += [path] * (ast.get_docstring(node) or "").startswith(beginnings)
    assert wrong == []


def test_a_file_fits_into_one_reading() -> None:
    lengths = {path: path.read_text("utf-8").count("\n") for path in HOME.rglob("*.py")}
    assert [path.relative_to(HOME).as_posix() for path, length in lengths.items() if length > 400] == []
