"""The table of docs/conformance.md: `python docs/conformance.py [LIBRARY ...]` checks libraries and writes it anew.

A library that is not named keeps the row that it has in docs/conformance.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from minicnn.conformance.report import KINDS

HERE = Path(__file__).parent
SHIMS, RESULTS, PAGE = HERE.parent / "examples/conformance", HERE / "conformance.json", HERE / "conformance.md"
BEGIN, END = "<!-- rows: python docs/conformance.py -->\n", "<!-- end of rows -->\n"

# The namespace of each library; a shim is a file of its name.
NAMESPACES = {
    "array_api_strict": "array_api_strict", "torch": "array_api_compat.torch", "jax": "jax.numpy", "mlx": "mlx.core",
    "dask": "array_api_compat.dask.array", "dpnp": "dpnp", "ndonnx": "ndonnx", "sparse": "sparse",
    "cubed": "cubed.array_api",
}  # fmt: skip


def check(library: str) -> dict[str, Any]:
    """What `minicnn conformance` says of a library."""
    shim = SHIMS / f"{library}_shim.py"
    options = ["--shim", str(shim)] if shim.exists() else []
    command = [
        sys.executable,
        "-m",
        "minicnn",
        "conformance",
        NAMESPACES[library],
        "--json",
        "--limit",
        "600",
        *options,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report | {"shim": statements(shim) if options else 0}


def statements(path: Path) -> int:
    """Lines of code, without comments, docstrings and imports."""
    import ast

    tree = ast.parse(path.read_text("utf-8"))
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not isinstance(n, ast.Import | ast.ImportFrom)]
    return len({n.lineno for n in nodes if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))})


def rows(results: dict[str, Any]) -> str:
    """The table's lines."""
    heads = (
        "namespace",
        "version",
        "lines of shim",
        "primitives",
        "gradients",
        "trainings",
        "a step (NumPy 1)",
        "missing",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for library in sorted(results, key=lambda name: [-results[name]["passed"][k] for k in ("training", "primitive")]):
        report = results[library]
        counts = [f"{report['passed'][kind]} of {report['total'][kind]}" for kind in KINDS]
        here, there = (sum(times[i] for times in report["seconds"].values()) for i in (0, 1))
        ratio = f"{here / there:.1f}" if there else "-"
        missing = ", ".join(f"`{name}`" for name in report["missing"]) or "-"
        cells = [f"`{report['namespace']}`", report["version"], str(report["shim"]), *counts, ratio, missing]
        lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def known() -> dict[str, Any]:
    """The reports of libraries that were checked."""
    reports: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    return reports


def main(libraries: list[str]) -> None:
    """Check libraries, and write what is known of all."""
    for library in libraries:
        row = {library: check(library)}  # others may be checked meanwhile
        RESULTS.write_text(json.dumps(known() | row, indent=1, sort_keys=True) + "\n", "utf-8")
    results = known()
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{rows(results)}{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
