"""`minicnn compare`: one network on every backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from minicnn import backends as known_backends
from minicnn import machine
from minicnn.cli import figures
from minicnn.cli.errors import one_line
from minicnn.cli.options import EPILOG, named_backends, run_folder, training_options
from minicnn.cli.runs import RunFolder, require
from minicnn.cli.tables import console, table
from minicnn.data.order import num_batches
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.machine import is_terminal
from minicnn.measure.candidates import SLOW
from minicnn.measure.comparison import REFERENCE, Comparison
from minicnn.measure.parity import Check, checks
from minicnn.measure.spread import Spread, disturbed
from minicnn.measure.torch_peer import takes_part
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import gradient_tolerance, trainer
from minicnn.measure.utilisation import Others, disturbance

FILES = ("compare.json", "compare.csv", "compare.png")
PEER = "torch.nn"
TURNS = 10  # in which candidates train their epochs, at most; after each they say how far they are

Row = dict[str, Any]


@dataclass
class Result:
    """Result of a candidate.

    Attributes:
        name: Backend, with its device if named, or the peer.
        history: Rows of its epochs; none if it failed or was refused.
        facts: What it took of the machine: see `Trainer.facts`.
        test: Loss and accuracy on the test set.
        failure: Why it failed or was refused, if so.
        checks: Comparisons with the reference; none for that itself.
    """

    name: str
    history: list[Row] = field(default_factory=list)
    facts: Row = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """True if all comparisons have passed."""
        return all(check.passed for check in self.checks)

    def spread(self, column: str) -> Spread:
        """A column of the epochs after the first that were not disturbed; of the first if there is no other."""
        return Spread.after_first([row[column] for row in self.history], rate=column == "samples_per_s")


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

    Each runs in a process of its own, and they train in turns. Those that do not compute the loss and
    the gradients of the first one (numpy, if it takes part) are refused, not timed; those that end
    elsewhere are marked. In both cases the exit code is 1. Where only a few elements of the gradients
    differ, as at the kink of a ReLU, other batches decide, and all train from another seed.
    """
    require("matplotlib", "psutil")
    settings = Settings.resolve(**options)
    if backends is None:
        names, notes = usable_backends(settings)
    else:
        names, notes = named_backends(ctx, backends), []
    names += peers(names, settings) if with_peer else []
    for note in (*notes, *machine.warnings()):
        click.echo(f"note: {note}", err=True)
    place = run_folder(out, "compare", settings.network, settings.data)
    with RunFolder(place, FILES, overwrite=overwrite) as folder:
        samples = job.load_samples(settings)
        settings = job.concrete(settings, samples)
        title = f"{settings.network} on {settings.data}, {settings.precision}, batch {settings.batch_size}"
        click.echo(f"{title}: {samples}; {', '.join(names)}")
        others = Others()
        results, settings = measured(names, settings, samples)
        busy = others.busy()
        fine = [r for r in results if not r.failure]
        if not fine:
            raise click.ClickException("; ".join(f"{r.name}: {r.failure}" for r in results))
        reference = _reference(fine)
        _check(fine, reference, settings, samples)
        rows = [_row(r, reference, fine) for r in fine]
        _write(folder, title, settings, results, rows, reference, busy)
    _show(results, rows, reference, place, disturbance(busy))
    bad = [r.name for r in results if r.failure or not r.agrees]
    if bad:
        raise click.ClickException(
            f"Every candidate computes the same. Received: {', '.join(bad)} failed or differed; see above."
        )


def usable_backends(settings: Settings) -> tuple[list[str], list[str]]:
    """The backends that can run, NumPy first, and for each of the others why it cannot."""
    names, notes = [], []
    for name in sorted(known_backends.names(), key=lambda n: (n != REFERENCE, n)):
        if name in SLOW:
            continue
        try:
            kind = known_backends.backend_class(name)
            if "cpu" not in kind.devices:
                kind()  # says if there is no device
        except Exception as error:  # a library may be there and broken in any way
            notes.append(f"{name} is left out: {one_line(str(error))}")
            continue
        if settings.precision not in kind.precisions:
            notes.append(f"{name} is left out: it computes in {' or '.join(kind.precisions)}")
            continue
        names.append(name)
    return names, notes


def peers(names: Sequence[str], settings: Settings) -> list[str]:
    """The peers of the PyTorch backends among the names, each on its device; none where there is no such network."""
    if not takes_part(settings):
        return []
    parts = [name.partition(":") for name in names]
    return [f"{PEER}{colon}{device}" for base, colon, device in parts if base == "torch"]


def measured(
    names: Sequence[str], settings: Settings, samples: job.Samples, *, seeds: int = 2
) -> tuple[list[Result], Settings]:
    """Train all candidates in turns, once their gradients were compared.

    Args:
        names: The candidates.
        settings: What to train and how.
        samples: Its samples; candidates load theirs.
        seeds: From how many seeds at most: where one has a ReLU at its kink, the trainings part by chance.

    Returns:
        How each fared, and the settings with the seed that was taken.
    """
    results = {name: Result(name) for name in names}
    first = next((name for name in names if name.partition(":")[0] == REFERENCE), None)
    with _Display(names, settings) as display, Comparison(names, trainer, settings, reference=first) as comparison:
        comparison.check(gradient_tolerance(settings, Work(load=lambda _: samples)))
        kinked = sorted(comparison.kinked) if seeds > 1 else []
        if not kinked:
            _train(comparison, results, settings, display, held_out=samples.held_out)
    if kinked:
        other = replace(settings, seed=settings.seed + 1)
        few = "a few elements differ, which may be chance"
        click.echo(f"note: {', '.join(kinked)}: {few}; all train from seed {other.seed}", err=True)
        return measured(names, other, samples, seeds=seeds - 1)
    return list(results.values()), settings


def _train(
    comparison: Comparison, results: dict[str, Result], settings: Settings, display: _Display, *, held_out: bool
) -> None:
    turn = -(-settings.epochs // TURNS)
    for done in range(0, settings.epochs, turn):
        for name, rows in comparison.call("train", min(turn, settings.epochs - done)).items():
            results[name].history += rows
            display.show(name, rows[-1])
    for name, facts in comparison.call("facts").items():
        last = results[name].history[-1]
        results[name].facts = facts
        results[name].test = {"loss": last["val_loss"], "accuracy": last["val_accuracy"]}
    for name, test in comparison.call("evaluate", "test").items() if held_out else ():
        results[name].test = {key: test[key] for key in ("loss", "accuracy")}
    for name, why in comparison.out.items():
        results[name] = Result(name, failure=why.removeprefix("failed: "))
        display.failed(results[name])


# Results ------------------------------------------------------------------------------------------


def _reference(fine: Sequence[Result]) -> Result:
    """NumPy, else the first."""
    return next((r for r in fine if r.name.partition(":")[0] == REFERENCE), fine[0])


def _check(fine: Sequence[Result], reference: Result, settings: Settings, samples: job.Samples) -> None:
    """Compare each training with the reference's."""
    per_epoch = num_batches(len(samples["x_train"]), settings.batch_size or 1, settings.last_batch)
    drift = gradient_tolerance(settings, Work(load=lambda _: samples), per_epoch * settings.epochs)
    for result in fine:
        if result is not reference:
            both = result.test["accuracy"], reference.test["accuracy"]
            tests = len(samples["x_test"])
            result.checks = checks(result.history, reference.history, both, drift=drift, tests=tests)


def _row(result: Result, reference: Result, fine: Sequence[Result]) -> Row:
    """The row of a candidate in the table."""
    times = {r.name: r.spread("time_s").median for r in fine}
    base = times[reference.name] if reference.name.startswith(REFERENCE) else max(times.values())
    return {
        "backend": result.name, "time_s": times[result.name], "first_time_s": result.history[0]["time_s"],
        "samples_per_s": result.spread("samples_per_s").median, "speedup": base / times[result.name],
        "test_accuracy": result.test["accuracy"], "memory_mb": result.facts["memory_mb"],
        "difference": next((c.difference for c in result.checks if c.what == "loss"), 0.0), "agrees": result.agrees,
    }  # fmt: skip


def _write(
    folder: Path, title: str, settings: Settings, results: Sequence[Result], rows: list[Row], reference: Result,
    busy: float | None,
) -> None:  # fmt: skip
    by_name = {row["backend"]: row for row in rows}
    entries = [
        {
            "name": r.name, "failure": r.failure, "others": busy, **r.facts, "history": r.history, "test": r.test,
            **by_name.get(r.name, {}), "checks": [{**asdict(c), "passed": c.passed} for c in r.checks],
        }
        for r in results
    ]  # fmt: skip
    record = {
        "settings": asdict(settings), "machine": machine.facts(), "reference": reference.name, "results": entries,
    }  # fmt: skip
    (folder / "compare.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    job.write_rows(folder / "compare.csv", rows)
    figures.comparison(folder / "compare.png", [e for e in entries if not e["failure"]], title, reference.name)


def _show(results: Sequence[Result], rows: Sequence[Row], reference: Result, place: Path, beside: str | None) -> None:
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
    base = REFERENCE if reference.name.startswith(REFERENCE) else "the slowest"
    out.print(
        f"Time per epoch: median without the first. Speed-up: over {base}. Memory: growth of the process while it "
        "trains, beyond libraries and data; on a GPU what is allocated there. Largest difference: of an epoch's loss "
        f"from {reference.name}'s, relative."
    )
    if beside:
        out.print(f"{beside[0].upper()}{beside[1:]}: times may be too long.")
    for result in results:
        if result.failure:
            refused = result.failure.startswith("refused")
            out.print(f"{result.name} {'DISAGREES' if refused else 'FAILED'}: {result.failure}")
            continue
        if said := disturbed([row["time_s"] for row in result.history]):
            out.print(f"{result.name}: {said}.")
        if result.checks:
            verdict = "agrees" if result.agrees else "DISAGREES"
            out.print(f"{result.name} {verdict}: {', '.join(map(str, result.checks))}")
    out.print(f"{place}: {', '.join(FILES)}")


class _Display:
    """Context manager: bars on a terminal, lines elsewhere."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self._width, self._epochs = max(map(len, names), default=0), settings.epochs
        self._progress: AbstractContextManager[Any] = nullcontext()
        self._update: dict[str, Callable[..., None]] = {}
        if is_terminal(sys.stdout):
            from rich.progress import BarColumn, Progress

            self._progress = progress = Progress("{task.description}", BarColumn(20), "{task.fields[text]}")
            for name in names:
                task = progress.add_task(name, total=self._epochs, text="")
                self._update[name] = partial(progress.update, task)

    def __enter__(self) -> _Display:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def show(self, name: str, row: Row) -> None:
        """Show the last epoch that a candidate has trained."""
        epoch, accuracy = row["epoch"], f"{row['val_accuracy']:.2%}"
        time, loss = f"{row['time_s']:.3g} s", f"loss {row['loss']:.4f}"
        if self._update:
            text = f"{epoch}/{self._epochs}  {time}  {loss}  {accuracy}"
            self._update[name](completed=epoch, text=text)
        else:
            rate = f"{row['samples_per_s']:,.0f} samples/s"
            text = f"epoch {epoch}/{self._epochs}: {time}, {rate}, {loss}, validation accuracy {accuracy}"
            click.echo(f"{name:<{self._width}}  {text}")

    def failed(self, result: Result) -> None:
        """Show that a candidate has failed, or was refused."""
        if self._update:
            self._update[result.name](text="failed")
        else:
            click.echo(f"{result.name} failed: {result.failure}")
