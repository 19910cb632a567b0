"""Several processes for one command: their options, and how they are started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from minicnn.distribution import DataParallel, ModelParallel
from minicnn.distribution.launchers import OPEN_MPI, mpiexec
from minicnn.extras import install

# Convolutions by data, dense layers by model.
HYBRID = {"kernel": (None, "model")}


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the options of a distributed training."""
    arguments = (
        click.option(
            "--distribute", type=click.Choice(["data", "model", "hybrid"]),
            help="Divide each batch among the processes that mpiexec or torchrun has started; a single process "
            "computes the parts one after the other. With model each process also holds only a part of every layer's "
            "weight matrix or filters, with hybrid a part of those of dense layers.",
        ),
        click.option(
            "--shards", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
            help="With --distribute: parts of each batch, at least as many as processes. The results depend on them, "
            "and not on the number of processes.",
        ),
        click.option(
            "--timeout", type=click.FloatRange(min=0, min_open=True), default=300.0, show_default=True, metavar="S",
            help="With --distribute: seconds that a process waits for the others before all end.",
        ),
        click.option(
            "--processes", type=click.IntRange(min=1), metavar="N",
            help="Start N processes on this machine by mpiexec, with --distribute data unless another is given.",
        ),
    )  # fmt: skip
    for option in reversed(arguments):
        function = option(function)
    return function


def distribution(distribute: str | None, shards: int, timeout: float) -> DataParallel | None:
    """The distribution that the options name; None where nothing is shared out."""
    if distribute in ("model", "hybrid"):
        return ModelParallel(shards, layout_map=None if distribute == "model" else HYBRID, timeout=timeout)
    return DataParallel(shards, timeout=timeout) if distribute else None


def start(processes: int, arguments: Sequence[str]) -> int:
    """Run the command on several processes; returns the exit code.

    Args:
        processes: How many.
        arguments: Arguments of the command, `--processes` among them.

    Raises:
        ImportError: If mpi4py or mpiexec is missing.
    """
    launcher = mpiexec()
    if launcher is None:
        message = f"--processes starts processes by mpiexec, which talk through mpi4py: {install('mpi')}."
        raise ImportError(message, name="mpi4py")
    command = [launcher, "-n", str(processes), sys.executable, "-P", "-m", "minicnn", *without_processes(arguments)]
    kind = [] if any(argument.split("=")[0] == "--distribute" for argument in arguments) else ["--distribute", "data"]
    return subprocess.run([*command, *kind], env={**OPEN_MPI, **os.environ}, check=False).returncode


def without_processes(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command without the option `--processes` and its value.

    Example:
        >>> without_processes(["train", "lenet5", "--processes", "4", "--shards", "8"])
        ['train', 'lenet5', '--shards', '8']
    """
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--processes":
            next(rest, None)
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
