"""`minicnn export`: a saved model as an ONNX file, or as a page that trains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from minicnn import data
from minicnn.cli.options import NameType
from minicnn.data.synthetic import synthetic_digits_dataset
from minicnn.interop.onnx.exporting import ExportKind
from minicnn.models import Model


@click.command()
@click.argument("model", type=click.Path(dir_okay=False))
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--kind", type=click.Choice(get_args(ExportKind)), default="predict", show_default=True,
    help="The prediction, loss and metrics, a whole training step, or the state that it begins with.",
)  # fmt: skip
@click.option("--inputs", is_flag=True, help="Weights are inputs of the prediction, and are not in the file.")
@click.option("--web", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Write a page that trains the model in a browser tab.")  # fmt: skip
@click.option("--data", "name", type=NameType("A data set", data.names), default="synthetic_digits", show_default=True,
              metavar="NAME", help="Data set of that page.")  # fmt: skip
@click.option("--data-dir", type=click.Path(exists=True), metavar="DIR", help="Folder of that data set.")
def export(model: str, path: Path | None, kind: Any, inputs: bool, web: Path | None, name: str, data_dir: Any) -> None:
    """Write the file MODEL, which `minicnn train` or Model.save wrote, as the ONNX file PATH.

    ONNX Runtime computes a step with it first, and the file is kept if NumPy agrees.
    """
    if (path is None) == (web is None):
        raise click.UsageError("An export has one aim. Received: PATH and --web, or neither. Give one of them.")
    loaded = Model.load(model, backend="numpy")
    if path is not None:
        loaded.export(path, kind, hold_weights=not inputs)
        click.echo(f"{path}: {kind}, {path.stat().st_size / 1e6:.1f} MB")
    if web is not None:
        from minicnn.interop.onnx.pages import TEST, TRAIN, export_page

        drawn = name == "synthetic_digits"
        samples = synthetic_digits_dataset(TRAIN, TEST) if drawn else data.load(name, data_dir)
        export_page(loaded, web, samples)
        click.echo(f'{web}: run "npm install" and "python3 -m http.server" in it, and open http://localhost:8000')
