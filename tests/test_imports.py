"""Who imports whom: arrows point down only, also those within functions."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import minicnn
from minicnn import backends

HOME = Path(inspect.getfile(minicnn)).parent

# `Model.save` and `Model.load` are methods of what `saving` reads and makes: both are at the top, none is below. The
# package enters how layers are applied to arrays, which takes a Model.
TOGETHER = {
    frozenset(
        {
            "minicnn.models",
            "minicnn.models.arrays",
            "minicnn.models.model",
            "minicnn.models.sequential",
            "minicnn.models.storage",
            "minicnn.saving",
        }
    )
}

# From top to bottom; parts of one level may import each other.
LEVELS = (
    "cli, studies", "keras, sklearn", "interop", "exercises, demo, conformance", "measure", "jobs", "zoo",
    "models, saving, plans", "loop", "callbacks", "metrics", "losses", "trace", "backends",
    "visual, summary, utils, description", "kernels", "optimizers", "distribution", "layers", "data",
    "constraints, regularizers", "schedules", "ops, program, states", "tolerance, initializers",
    "configured, arguments",
    "pictures, html, machine, files, extras, documentation, names",
)  # fmt: skip
# A file of a model may name a layer of ONNX, a network of the zoo weights of PyTorch, and a model can be exported. A
# rank's step tells when its parts run; a prediction of step times asks the engines' planners.
UPWARDS = {
    ("models.storage", "interop.onnx.exporting"), ("saving", "interop.onnx.graph"), ("zoo", "interop"),
    ("distribution.running", "backends.base"), ("distribution.prediction.devices", "backends._gpu.costs"),
    ("distribution.prediction.devices", "backends._gpu.options"),
    ("distribution.prediction.devices", "backends._gpu.planning"),
    ("distribution.prediction.devices", "backends.cupy.generation"),
}  # fmt: skip


def modules() -> dict[str, Path]:
    found = {}
    for path in HOME.rglob("*.py"):
        parts = path.relative_to(HOME.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Modules that a tree imports at any depth, but for what only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else str(node.module)
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):  # expressions import nothing
            yield from imported(node, known)


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Modules that reach each other, by what each reaches."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set[str](), [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        reach[start] = seen
    return {frozenset(m for m in reach[start] if start in reach.get(m, ())) for start in graph if start in reach[start]}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def graph() -> dict[str, set[str]]:
    paths = modules()
    return {name: set(imported(parsed(path), set(paths))) for name, path in paths.items()}


def upwards(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Imports of a part that stands higher, without the name of the package."""
    level = {part: i for i, parts in enumerate(LEVELS) for part in parts.split(", ")}
    pairs = {(a.partition(".")[2], b.partition(".")[2]) for a, targets in graph.items() for b in targets}
    places = [(a, b, level.get(a.partition(".")[0]), level.get(b.partition(".")[0])) for a, b in pairs]
    return {(a, b) for a, b, high, low in places if high is not None and low is not None and high > low}


def test_imports_run_down() -> None:
    paths = modules()
    parts = {name.split(".")[1] for name in paths if "." in name} - {"__main__"}
    assert parts == {part for parts in LEVELS for part in parts.split(", ")}, "a new part has its level"
    assert upwards(graph()) == UPWARDS


def test_what_counts_as_upwards() -> None:
    arrows = {"minicnn.ops.a": {"minicnn.program.b", "minicnn.loop.c"}, "minicnn.loop.c": {"minicnn.ops.a"}}
    assert upwards(arrows) == {("ops.a", "loop.c")}


def compared(tree: ast.AST) -> set[str]:
    """Texts that something is compared with."""
    sides = (side for node in ast.walk(tree) if isinstance(node, ast.Compare) for side in ast.walk(node))
    return {side.value for side in sides if isinstance(side, ast.Constant) and isinstance(side.value, str)}


def test_the_core_knows_no_backend_by_name() -> None:
    """What differs between backends is a method of theirs; a communicator of PyTorch takes its arrays alone."""
    core = {part for parts in LEVELS[LEVELS.index("jobs") :] for part in parts.split(", ")} - {"backends"}
    for name, path in modules().items():
        if name.partition(".")[2].partition(".")[0] in core and name != "minicnn.distribution.gloo":
            # torch.utils.data's loaders are told by the package of their class
            allowed = {"torch"} if name == "minicnn.loop.adapters" else set()
            assert not compared(parsed(path)) & set(backends.names()) - allowed, name


def test_what_counts_as_compared() -> None:
    assert compared(ast.parse("a.name == 'jax' and b in ('numba', c) or f('torch')")) == {"jax", "numba"}


def test_no_circle_of_imports() -> None:
    assert "minicnn.program.graph" in graph()["minicnn.ops.primitive"]
    assert circles(graph()) == TOGETHER


def test_what_counts_as_a_circle() -> None:
    text = "def f():\n    from a.b import c\nif TYPE_CHECKING:\n    import d\nimport e, a.b.g"
    assert set(imported(ast.parse(text), {"a.b", "a.b.c", "a.b.g", "d"})) == {"a.b.c", "a.b.g"}
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d", "a"}, "e": {"a"}}
    assert circles(arrows) == {frozenset({"b", "c"}), frozenset({"d"})}


def test_no_test_imports_another() -> None:
    """What tests share is in modules of its own: a test file that another one needs could not be run or moved alone."""
    asking = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if any(part.startswith("test_") for name in names for part in name.split(".")):
                asking.append(f"{path.name}, line {node.lineno}")
    assert not asking
