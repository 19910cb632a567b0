"""`minicnn train`: one network on one backend."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from minicnn import machine
from minicnn.cli import figures
from minicnn.cli.options import BACKEND, EPILOG, run_folder, training_options
from minicnn.cli.runs import RunFolder, require
from minicnn.jobs import job
from minicnn.jobs.settings import Settings

FILES = ("model.safetensors", "history.csv", "curves.png", "run.json")


@click.command(epilog=EPILOG)
@training_options
@click.option(
    "--backend", type=BACKEND, metavar="NAME", envvar="MINICNN_BACKEND", default="numpy", show_default=True,
    show_envvar=True, help='Backend, with a device if wanted: "torch:cuda".',
)  # fmt: skip
@click.option(
    "--out", type=click.Path(file_okay=False), metavar="DIR",
    help="Folder of the results. Default: runs/NETWORK-DATA-BACKEND.",
)  # fmt: skip
def train(backend: str, out: str | None, overwrite: bool, **options: Any) -> None:
    """Train NETWORK, by its name in the zoo.

    Writes the model, the history of the epochs (losses in nats, accuracies as shares of 1, times in
    seconds), its curves, and the settings with the machine that they ran on.
    """
    require("matplotlib", "safetensors")  # rather now than after the training
    settings = Settings.resolve(**options)
    device = job.open_backend(backend, settings.precision)
    for note in machine.warnings():
        click.echo(f"note: {note}", err=True)
    place = run_folder(out, settings.network, settings.data, backend)
    with RunFolder(place, FILES, overwrite=overwrite) as folder:
        samples = job.load_samples(settings)
        settings = job.concrete(settings, samples)
        model = job.make_model(settings, samples, device)
        click.echo(
            f"{settings.network}, {model.count_params():,} weights, on {settings.data}: {samples}; "
            f"{device.name}:{device.device}, {settings.precision}, batch {settings.batch_size}, "
            f"lr {settings.learning_rate:g}, momentum {settings.momentum:g}"
        )
        rows = job.fit(model, settings, samples)
        test = job.judge(model, settings, samples, rows)
        model.save(folder / "model.safetensors")
        job.write_history(folder / "history.csv", rows)
        title = f"{settings.network} on {settings.data}, {backend}, {settings.precision}"
        figures.curves(folder / "curves.png", rows, title, validation="held out" if samples.held_out else "test")
        record = {"settings": asdict(settings), "backend": backend, "test": test, "machine": machine.facts()}
        (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")
    click.echo(f"test accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}; {place}: {', '.join(FILES)}")
