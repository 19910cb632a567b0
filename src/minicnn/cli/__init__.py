"""The command line: one module for each command, and what they share."""

import click

from minicnn import __version__
from minicnn.cli import (
    compare,
    conformance,
    demo,
    export,
    grade,
    info,
    plan,
    predict,
    predict_scaling,
    study,
    timeline,
    train,
)
from minicnn.cli.errors import Commands

__all__ = ["cli"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="minicnn")
def cli() -> None:
    """Train small convolutional networks on NumPy, Numba, CuPy, PyTorch or JAX arrays, and compare these.

    Errors are one line; MINICNN_DEBUG=1 shows where they come from. Exit codes: 0 done, 1 failed,
    2 wrong usage, 130 interrupted, 143 terminated.
    """


for command in (
    info.info, train.train, predict.predict, predict.evaluate, demo.demo, compare.compare, plan.plan,
    timeline.timeline, predict_scaling.predict_scaling, grade.grade, study.study,
    export.export, conformance.conformance,
):  # fmt: skip
    cli.add_command(command)
