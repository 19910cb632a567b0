"""`minicnn predict` and `minicnn evaluate`: a saved model on images in files, and on labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from minicnn import data
from minicnn.cli import saved
from minicnn.cli.options import NameType
from minicnn.cli.runs import RunFolder, require
from minicnn.cli.tables import console, table
from minicnn.files import write_file
from minicnn.visual.report import probabilities

FILES = ("report.json", "confusion.svg", "mistakes.svg")
SAMPLES = 256  # in a step


@click.command()
@saved.model_options
@click.argument("images", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Classes to name.")
@click.option("--invert", is_flag=True, help="Dark for light, as for a digit in ink and a model of white digits.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(model: Path, images: tuple[Path, ...], backend: str, top: int, invert: bool, as_json: bool) -> None:
    """Say what MODEL takes IMAGES for. They are resized to the size that it was trained on.

    MODEL is the folder of a training, or a file that Model.save wrote.
    """
    require("PIL")
    network = saved.load(model, backend)
    names = saved.names(network)
    pixels = data.read_images(images, saved.image_shape(network))
    shares = probabilities(network.predict(saved.as_taken(network, 255 - pixels if invert else pixels), SAMPLES))
    order = (-shares).argsort(1, kind="stable")[:, :top]
    predictions: list[dict[str, Any]] = [
        {"image": str(path), "classes": [{"class": names[k], "probability": float(row[k])} for k in best]}
        for path, row, best in zip(images, shares, order, strict=True)
    ]
    if as_json:
        click.echo(json.dumps(predictions, indent=2))
        return
    said = [[f"{c['class']} {c['probability']:.1%}" for c in one["classes"]] for one in predictions]
    rows = [[one["image"], best, ", ".join(rest)] for one, (best, *rest) in zip(predictions, said, strict=True)]
    console().print(table("", ["image", "class", "or"], rows))


@click.command()
@saved.model_options
@click.option("--data", "name", type=NameType("A data set", data.names), required=True, metavar="NAME",
              help=f"Data set, whose test images are used: {', '.join(data.names())}.")  # fmt: skip
@click.option("--data-dir", type=click.Path(exists=True), metavar="DIR", help="Folder of the data set.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Use the first N test images.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write the table, the confusion matrix and the mistakes into a folder.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace those of an earlier evaluation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(
    model: Path, name: str, data_dir: str | None, samples: int | None, out: Path | None, overwrite: bool,
    backend: str, as_json: bool,
) -> None:  # fmt: skip
    """Say how well MODEL does on the test images of a data set, class by class.

    Of a folder of images without a test set the part is taken that `train` holds out.
    """
    network = saved.load(model, backend)
    H, W, C = saved.image_shape(network)
    sized: dict[str, Any] = {"size": (H, W), "channels": C} if name == "image_folder" else {}
    dataset = data.load(name, data_dir, **sized)
    x, y = dataset.x_test[:samples], dataset.y_test[:samples]
    if not len(x) or dataset.input_shape != (H, W, C):
        raise click.ClickException(
            f"A model is evaluated on test images of its own shape, {H}x{W}x{C}. Received: {len(x)} of "
            f"{'x'.join(map(str, dataset.input_shape))} in {name}."
        )
    if network.class_names is None and dataset.num_classes == len(saved.names(network)):
        network.class_names = dataset.class_names
    report = network.report(saved.as_taken(network, x), y, batch_size=SAMPLES)
    facts = {"accuracy": report.accuracy, "classes": report.table,
             "confusion_matrix": report.confusion_matrix.confusion_matrix.tolist()}  # fmt: skip
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(str(report))
    if out is not None:
        with RunFolder(out, FILES, overwrite=overwrite) as folder:
            write_file(folder / "report.json", (json.dumps(facts, indent=2) + "\n").encode())
            report.confusion_matrix.plot().save(folder / "confusion.svg")
            report.mistakes().save(folder / "mistakes.svg")
        click.echo(f"{out}: {', '.join(FILES)}", err=True)
