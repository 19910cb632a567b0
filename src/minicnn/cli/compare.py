"""`minicnn compare`: one network on every backend."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from minicnn import machine
from minicnn.cli import agreement, candidates, figures
from minicnn.cli.candidates import Result
from minicnn.cli.options import EPILOG, named_backends, run_folder, training_options
from minicnn.cli.runs import RunFolder, require
from minicnn.cli.tables import console, table
from minicnn.data.order import num_batches
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.machine import is_terminal

FILES = ("compare.json", "compare.csv", "compare.png")
LINES = 10  # of progress for a candidate, where the output is no terminal


@click.command(epilog=EPILOG)
@training_options
@click.option("--backends", metavar="A,B,..", help='Backends, such as "numpy,torch:cuda". Default: all that are found.')
@click.option(
    "--peer/--no-peer", "with_peer", default=True, help="Add PyTorch's own modules (mlp, lenet_3x3, two_convs)."
)
@click.option(
    "--out", type=click.Path(file_okay=False), metavar="DIR",
    help="Folder of the results. Default: runs/compare-NETWORK-DATA.",
)  # fmt: skip
@click.pass_context
def compare(
    ctx: click.Context, /, backends: str | None, with_peer: bool, out: str | None, overwrite: bool, **options: Any
) -> None:
    """Train NETWORK on every backend, from the same weights and on the same batches.

    Each runs in a process of its own, one after the other. Those that do not compute what the first
    one does (numpy, if it takes part) are marked, and the exit code is 1. Where only a few elements
    of the gradients differ, as at the kink of a ReLU, a second training from another seed decides.
    """
    require("matplotlib")
    settings = Settings.resolve(**options)
    if backends is None:
        names, notes = candidates.found(settings, with_peer=with_peer)
    else:
        names, notes = named_backends(ctx, backends), []
        names += candidates.peers(names, settings) if with_peer else []
    for note in (*notes, *machine.warnings()):
        click.echo(f"note: {note}", err=True)
    place = run_folder(out, "compare", settings.network, settings.data)
    with RunFolder(place, FILES, overwrite=overwrite) as folder:
        samples = job.load_samples(settings)
        settings = job.concrete(settings, samples)
        title = f"{settings.network} on {settings.data}, {settings.precision}, batch {settings.batch_size}"
        click.echo(f"{title}: {samples}; {', '.join(names)}")
        results = _run(names, settings, samples)
        checks, reference = _check(results, settings, samples)
        checks |= _second_look(checks, reference.name, settings, samples)
        rows = _rows(results, checks, reference)
        _write(folder, title, settings, results, checks, rows, reference)
    _show(results, checks, rows, reference, place)
    bad = [r.name for r in results if r.failure or not all(c.passed for c in checks[r.name])]
    if bad:
        raise click.ClickException(
            f"Every candidate computes the same. Received: {', '.join(bad)} failed or differed; see above."
        )


def _run(names: list[str], settings: Settings, samples: job.Samples) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="minicnn-") as text, _Display(names, settings) as display:
        folder = Path(text)
        candidates.write_samples(samples, folder)
        for name in names:
            results.append(candidates.run(name, settings, samples, folder, partial(display.show, name)))
            display.end(results[-1])
    if all(r.failure for r in results):
        raise click.ClickException("; ".join(f"{r.name}: {r.failure}" for r in results))
    return results


# Results ------------------------------------------------------------------------------------------


def _check(
    results: list[Result], settings: Settings, samples: job.Samples
) -> tuple[dict[str, list[agreement.Check]], Result]:
    """Compare each with the reference: NumPy, else the first that has not failed."""
    fine = [r for r in results if not r.failure]
    reference = next((r for r in fine if r.name.partition(":")[0] == candidates.REFERENCE), fine[0])
    per_epoch = num_batches(len(samples["x_train"]), settings.batch_size or 1, settings.last_batch)
    checks: dict[str, list[agreement.Check]] = {r.name: [] for r in results}
    for result in fine:
        if result is not reference:
            checks[result.name] = agreement.compare(
                result, reference, precision=settings.precision, reduction=reference.facts["reduction"] or 1,
                steps=per_epoch * settings.epochs, tests=len(samples["x_test"]),
            )  # fmt: skip
    return checks, reference


def _second_look(
    checks: Mapping[str, list[agreement.Check]], reference: str, settings: Settings, samples: job.Samples
) -> dict[str, list[agreement.Check]]:
    """Checks of those whose difference may be chance, from another seed, beside the first update of the first one."""
    names = [name for name, found in checks.items() if found and agreement.doubtful(found)]
    if not names:
        return {}
    other = replace(settings, seed=settings.seed + 1)
    click.echo(
        f"note: {', '.join(names)}: a few elements differ, which may be chance; again from seed {other.seed}", err=True
    )
    again, base = _check(_run([reference, *names], other, samples), other, samples)
    if base.name != reference:
        return {}
    first = {
        n: replace(c, what=f"first update from seed {settings.seed}", allowed=None)
        for n in names
        for c in checks[n]
        if c.what == "first update"
    }
    return {name: [*again[name], first[name]] for name in names if again[name]}


def _rows(results: list[Result], checks: dict[str, list[agreement.Check]], reference: Result) -> list[dict[str, Any]]:
    """The table: one row for each candidate that did not fail."""
    fine = [r for r in results if not r.failure]
    base = reference.time if reference.name.startswith(candidates.REFERENCE) else max(r.time for r in fine)
    return [
        {
            "backend": r.name,
            "time_s": r.time,
            "first_time_s": r.times[0],
            "samples_per_s": r.rate,
            "speedup": base / r.time,
            "test_accuracy": r.facts["test"]["accuracy"],
            "memory_mb": r.facts["memory_mb"],
            "difference": next((c.difference for c in checks[r.name] if c.what == "loss"), 0.0),
            "agrees": all(c.passed for c in checks[r.name]),
        }
        for r in fine
    ]


def _write(
    folder: Path,
    title: str,
    settings: Settings,
    results: list[Result],
    checks: dict[str, list[agreement.Check]],
    rows: list[dict[str, Any]],
    reference: Result,
) -> None:
    by_name = {row["backend"]: row for row in rows}
    entries = []
    for r in results:
        compared = [{**asdict(c), "passed": c.passed} for c in checks[r.name]]
        facts = {k: v for k, v in r.facts.items() if k not in ("event", "reduction")}
        known = {"name": r.name, "failure": r.failure, "others": r.others}
        entries.append({**known, **facts, **by_name.get(r.name, {}), "checks": compared})
    record = {
        "settings": asdict(settings), "machine": machine.facts(), "reference": reference.name, "results": entries,
    }  # fmt: skip
    (folder / "compare.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    job.write_rows(folder / "compare.csv", rows)
    figures.comparison(folder / "compare.png", [e for e in entries if not e["failure"]], title, reference.name)


def _show(
    results: list[Result],
    checks: dict[str, list[agreement.Check]],
    rows: list[dict[str, Any]],
    reference: Result,
    place: Path,
) -> None:
    heads = [
        "backend", "time per epoch (s)", "first epoch (s)", "samples per s", "speed-up", "test accuracy", "memory (MB)",
        "largest difference",
    ]  # fmt: skip
    cells = [
        [
            row["backend"], f"{row['time_s']:.3g}", f"{row['first_time_s']:.3g}", f"{row['samples_per_s']:,.0f}",
            f"{row['speedup']:.2f}", f"{row['test_accuracy']:.2%}", f"{row['memory_mb']:,.0f}",
            "reference" if row["backend"] == reference.name
            else f"{row['difference']:.1e}" + ("" if row["agrees"] else " DISAGREES"),
        ]
        for row in rows
    ]  # fmt: skip
    out = console()
    out.print()
    out.print(table("", heads, cells, numbers=True))
    out.print()
    base = candidates.REFERENCE if reference.name.startswith(candidates.REFERENCE) else "the slowest"
    out.print(
        f"Time per epoch: median without the first. Speed-up: over {base}. Memory: growth of the process while it "
        "trains, beyond libraries and data; on a GPU what is allocated there. Largest difference: of an epoch's loss "
        f"from {reference.name}'s, relative."
    )
    for result in results:
        for text in () if result.failure else result.disturbed:
            out.print(f"{result.name}: {text}.")
        if result.failure:
            out.print(f"{result.name} FAILED: {result.failure}")
        elif not all(c.passed for c in checks[result.name]):
            out.print(f"{result.name} DISAGREES: {', '.join(map(str, checks[result.name]))}")
        elif checks[result.name]:
            out.print(f"{result.name} agrees: {', '.join(map(str, checks[result.name]))}")
    out.print(f"{place}: {', '.join(FILES)}")


class _Display:
    """Context manager: bars on a terminal, lines elsewhere."""

    def __init__(self, names: list[str], settings: Settings) -> None:
        self._names, self._epochs = names, settings.epochs
        self._progress: AbstractContextManager[Any] = nullcontext()
        self._tasks: dict[str, Any] = {}
        if is_terminal(sys.stdout):
            from rich.progress import BarColumn, Progress

            self._progress = progress = Progress("{task.description}", BarColumn(20), "{task.fields[text]}")
            for name in names:
                self._tasks[name] = progress.add_task(name, total=self._epochs, text="", start=False)

    def __enter__(self) -> _Display:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def show(self, name: str, event: dict[str, Any]) -> None:
        """Show an event of a worker."""
        progress: Any = self._progress
        if self._tasks and event["event"] == "step":
            progress.start_task(self._tasks[name])
            progress.update(self._tasks[name], completed=event["done"])
        if event["event"] != "epoch":
            return
        epoch, accuracy = event["epoch"], f"{event['val_accuracy']:.2%}"
        time, loss = f"{event['time_s']:.3g} s", f"loss {event['loss']:.4f}"
        if self._tasks:
            text = f"{epoch}/{self._epochs}  {time}  {loss}  {accuracy}"
            progress.start_task(self._tasks[name])
            progress.update(self._tasks[name], completed=epoch, text=text)
        elif epoch == self._epochs or epoch % -(-self._epochs // LINES) == 0:
            rate = f"{event['samples_per_s']:,.0f} samples/s"
            text = f"epoch {epoch}/{self._epochs}: {time}, {rate}, {loss}, validation accuracy {accuracy}"
            click.echo(f"{name:<{max(map(len, self._names))}}  {text}")

    def end(self, result: Result) -> None:
        """Show that a worker has ended."""
        progress: Any = self._progress
        if result.failure:
            if self._tasks:
                progress.update(self._tasks[result.name], text="failed")
            else:
                click.echo(f"{result.name} failed: {result.failure}")
        elif self._tasks:
            progress.stop_task(self._tasks[result.name])
