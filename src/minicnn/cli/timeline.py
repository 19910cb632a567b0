"""`minicnn timeline`: what each process does when in a training step."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np

from minicnn import zoo
from minicnn.cli import processes as launching
from minicnn.cli.options import BACKEND, NETWORK, image_shape
from minicnn.jobs import job
from minicnn.jobs.settings import usual_batch
from minicnn.loop.tracing import PRECISIONS
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD


@click.command()
@click.argument("network", type=NETWORK)
@click.option(
    "--backend", type=BACKEND, metavar="NAME", envvar="MINICNN_BACKEND", default="numpy", show_default=True,
    show_envvar=True, help='Backend, with a device if wanted: "cupy:cuda:1".',
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples in the step.")
@click.option("--precision", type=click.Choice(list(PRECISIONS)), default="float32", show_default=True)
@click.option("--classes", type=click.IntRange(min=2), default=10, show_default=True, metavar="N", help="Classes.")
@click.option("--image", type=image_shape, metavar="H,W,C", help="Size of an image; by default the network's own.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("timeline.json"), show_default=True,
    metavar="FILE", help="File in Chrome's trace format.",
)  # fmt: skip
@launching.options
def timeline(
    network: str, backend: str, batch_size: int | None, precision: str, classes: int, image: tuple[int, ...] | None,
    out: Path, distribute: str | None, shards: int, timeout: float, processes: int | None,
) -> int | None:  # fmt: skip
    """Write what each process does when in a training step of NETWORK, for ui.perfetto.dev or chrome://tracing.

    On GPUs these are kernels, copies and collectives, on the CPU the parts of the step between which
    processes compute together. Images are random numbers; the optimizer is SGD with momentum.
    """
    if processes is not None:
        return launching.start(processes, sys.argv[1:])
    distribution = launching.distribution(distribute, shards, timeout)
    with nullcontext() if distribution is None else distribution.together():
        device = job.open_backend(backend, precision)
        model = zoo.get_model(network, num_classes=classes, input_shape=image, backend=device)
        loss = SparseCategoricalCrossentropy(from_logits=True)
        model.compile(SGD(0.01, momentum=0.9), loss, precision=precision, distribution=distribution)
        batch = batch_size or usual_batch(network)
        rng = np.random.default_rng(0)
        shape = [n or 1 for n in model.inputs[0].shape[1:]]
        x = rng.random((batch, *shape), dtype=np.float32)
        measured = model.timeline(x, rng.integers(0, classes, batch))
    if distribution is None or distribution.rank == 0:
        measured.write(out)
        click.echo(f"{measured}\n{out}")
    return None
