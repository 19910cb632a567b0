"""`minicnn conformance`: how far an array library carries a training, for the CI of that library."""

from __future__ import annotations

import json
from typing import Any

import click

from minicnn.cli.errors import FAILURE
from minicnn.cli.tables import console, table
from minicnn.conformance import conformance as checked
from minicnn.conformance.report import KINDS, LIMIT_S


@click.command()
@click.argument("namespace")
@click.option(
    "--shim", metavar="MODULE",
    help="Module, or file of Python, whose names stand in place of the namespace's.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--limit", type=click.FloatRange(min=0, min_open=True), default=LIMIT_S, show_default=True, metavar="S",
    help="Seconds that one check may take.",
)  # fmt: skip
@click.pass_context
def conformance(context: click.Context, namespace: str, shim: str | None, as_json: bool, limit: float) -> None:
    """Check an Array API namespace, such as dask.array, by what a training needs.

    Every primitive's reference and gradient, and three training steps of three networks, are compared with NumPy;
    training steps are timed beside it, primitive by primitive. The exit code is 1 if anything differs or is missing.
    """
    report = checked(namespace, shim, limit_s=limit)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _show(report)
    if report["failures"]:
        context.exit(FAILURE)


def _show(report: dict[str, Any]) -> None:
    out = console()
    out.print(f"{report['namespace']} {report['version']}" + (f", shim {report['shim']}" if report["shim"] else ""))
    out.print(", ".join(f"{kind}: {report['passed'][kind]} of {report['total'][kind]}" for kind in KINDS))
    if report["missing"]:
        out.print(f"Missing: {', '.join(report['missing'])}")
    if report["failures"]:
        out.print()
        out.print(table("What differs", ["check", "error"], [[k, v] for k, v in report["failures"].items()]))
    if report["seconds"]:
        rows = sorted(report["seconds"].items(), key=lambda item: -item[1][0])
        cells = [[op, f"{1e3 * a:.3f}", f"{1e3 * b:.3f}", f"{a / b:.1f}"] for op, (a, b) in rows if a and b]
        sums = [sum(times[i] for _, times in rows) for i in (0, 1)]
        cells.append(["all", *(f"{1e3 * s:.3f}" for s in sums), f"{sums[0] / sums[1]:.1f}"])
        out.print()
        title = "A training step of platforms, computed node by node, in ms"
        out.print(table(title, ["primitive", "here", "NumPy", "ratio"], cells, numbers=True))
