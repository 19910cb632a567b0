"""`minicnn train`: one network on one backend."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from minicnn import machine
from minicnn.cli import figures
from minicnn.cli import processes as launching
from minicnn.cli.options import BACKEND, EPILOG, NameType, run_folder, several, training_options
from minicnn.cli.runs import RunFolder, require
from minicnn.distribution import DataParallel
from minicnn.jobs import job
from minicnn.jobs.settings import Settings
from minicnn.optimizers import OPTIMIZERS

LONG = 10.0  # seconds from which on one is told how many it will take
FILES = ("model.safetensors", "history.csv", "curves.png", "run.json")


@click.command(epilog=EPILOG)
@training_options
@click.option(
    "--backend", type=BACKEND, metavar="NAME", envvar="MINICNN_BACKEND", default="numpy", show_default=True,
    show_envvar=True, help='Backend, with a device if wanted: "torch:cuda".',
)  # fmt: skip
@click.option(
    "--optimizer", type=NameType("An optimizer", lambda: list(OPTIMIZERS)), default="sgd", show_default=True,
    metavar="NAME", help=f"Optimizer: {', '.join(OPTIMIZERS)}; all but sgd with a learning rate of its own.",
)  # fmt: skip
@click.option(
    "--augment", type=several("An augmentation", lambda: list(job.AUGMENTATIONS)), default=(), metavar="A,B,..",
    help=f"Change training images at random: {', '.join(job.AUGMENTATIONS)}, in the order given.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False), metavar="DIR",
    help="Folder of the results. Default: runs/NETWORK-DATA-BACKEND.",
)  # fmt: skip
@launching.options
def train(
    backend: str, out: str | None, overwrite: bool, distribute: str | None, shards: int, timeout: float,
    processes: int | None, **options: Any,
) -> int | None:  # fmt: skip
    """Train NETWORK, by its name in the zoo.

    Writes the model, the history of the epochs (losses in nats, accuracies as shares of 1, times in
    seconds), its curves, and the settings with the machine that they ran on.
    """
    if processes is not None:
        return launching.start(processes, sys.argv[1:])
    require("matplotlib", "safetensors")  # rather now than after the training
    settings = Settings.resolve(**options)
    distribution = launching.distribution(distribute, shards, timeout)
    with nullcontext() if distribution is None else distribution.together():
        _train(settings, backend, run_folder(out, settings.network, settings.data, backend), overwrite, distribution)
    return None


def _train(settings: Settings, backend: str, place: Path, overwrite: bool, distribution: DataParallel | None) -> None:
    chief = distribution is None or distribution.rank == 0
    device = job.open_backend(backend, settings.precision)
    for note in machine.warnings() if chief else ():
        click.echo(f"note: {note}", err=True)
    with RunFolder(place, FILES, overwrite=overwrite) if chief else nullcontext(place) as folder:
        samples = job.load_samples(settings)
        settings = job.concrete(settings, samples)
        model = job.make_model(settings, samples, device, distribution=distribution)
        if chief:
            rule = f"{settings.optimizer}, lr {settings.learning_rate:g}"
            rule += f", momentum {settings.momentum:g}" if settings.optimizer == "sgd" else ""
            rule += f", augmented by {', '.join(settings.augment)}" if settings.augment else ""
            shared = f", {distribution.shards} shards on {distribution.ranks} rank(s)" if distribution else ""
            click.echo(
                f"{settings.network}, {model.count_params():,} weights, on {settings.data}: {samples}; "
                f"{device.name}:{device.device}, {settings.precision}, batch {settings.batch_size}, "
                f"{rule}{shared}"
            )
            if distribution is None and (seconds := job.estimated(model, settings, samples)) >= LONG:
                click.echo(f"takes some {_duration(seconds)}, as two steps did")
        rows = job.fit(model, settings, samples)
        test = job.judge(model, settings, samples, rows)
        model.join()  # what is split between ranks takes all of them
        if not chief:
            return
        model.save(folder / "model.safetensors")
        job.write_rows(folder / "history.csv", rows)
        title = f"{settings.network} on {settings.data}, {backend}, {settings.precision}"
        figures.curves(folder / "curves.png", rows, title, validation="held out" if samples.held_out else "test")
        record = {"settings": asdict(settings), "backend": backend, "test": test, "machine": machine.facts()}
        if distribution is not None:
            record["distribution"] = {"shards": distribution.shards, "processes": distribution.ranks}
        (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    click.echo(f"test accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}; {place}: {', '.join(FILES)}")


def _duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 100 * 60 else f"{seconds / 3600:.1f} hours"
