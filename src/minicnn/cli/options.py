"""The arguments that all commands which train share, as one object of plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from minicnn import backends, data, zoo
from minicnn.jobs.settings import DEFAULT, RECIPES
from minicnn.loop.tracing import PRECISIONS
from minicnn.names import meant


class NameType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """One of some names; a wrong one gets the nearest as a proposal."""

    name = "name"

    def __init__(
        self, what: str, known: Callable[[], Sequence[str]], part: str = "", remedy: Callable[[str], str] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._what, self._known, self._part, self._remedy = what, known, part, remedy
        self._aliases = aliases  # which are taken, and not listed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType.convert`."""
        text = str(value)
        name = text.partition(self._part)[0] if self._part else text
        known = self._known()
        if name not in known and name not in self._aliases:
            proposal = (self._remedy or partial(meant, known=[*known, *self._aliases]))(name)
            self.fail(f"{self._what} is one of {', '.join(known)}. Received: {text!r}.{proposal}", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """See `click.ParamType.shell_complete`."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self._known() if name.startswith(incomplete)]


class NumberType(click.FloatRange):
    """A finite number in a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See `click.ParamType.convert`."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def image_shape(value: Any) -> tuple[int, ...]:
    """Height, width and channels."""
    parts = value if isinstance(value, tuple) else str(value).split(",")
    if len(parts) != 3 or not all(str(part).strip().isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"An image is H,W,C in positive numbers, such as 32,32,3. Received: {value!r}.")
    return tuple(int(part) for part in parts)


def image_size(value: Any) -> tuple[int, int]:
    """Height and width, or both as one number."""
    parts = value if isinstance(value, tuple) else [part.strip() for part in str(value).split(",")]
    if len(parts) not in (1, 2) or not all(str(p).isascii() and str(p).isdecimal() and int(p) for p in parts):
        raise click.BadParameter(f"A size is N or H,W in pixels, such as 64 or 48,64. Received: {value!r}.")
    return int(parts[0]), int(parts[-1])


def several(what: str, known: Callable[[], Sequence[str]]) -> Callable[[Any], tuple[str, ...]]:
    """Function that reads some of some names, between commas."""
    one = NameType(what, known)

    def names(value: Any) -> tuple[str, ...]:
        parts = value if isinstance(value, tuple) else str(value).split(",")
        return tuple(dict.fromkeys(one.convert(part.strip(), None, None) for part in parts if part.strip()))

    return names


NETWORK = NameType("A network", zoo.names, aliases=list(zoo.ALIASES))
BACKEND = NameType("A backend", backends.names, part=":", remedy=backends.remedy)

_OPTIONS = (
    click.argument("network", type=NETWORK),
    click.option(
        "--data", type=NameType("A data set", data.names), default="synthetic_digits", show_default=True,
        metavar="NAME", help=f"Data set: {', '.join(data.names())}.",
    ),
    click.option(
        "--data-dir", type=click.Path(exists=True), metavar="DIR",
        help="Folder of the data set, which must be there. Without it the folder that MINICNN_DATA names is searched, "
        "and what can be downloaded is.",
    ),
    click.option(
        "--size", type=image_size, metavar="N|H,W",
        help="Resize the images of a folder (image_folder, tiny_imagenet), which may have several sizes.",
    ),
    click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Epochs."),
    click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples in a step."),
    click.option("--lr", "learning_rate", type=NumberType(min=0), metavar="X", help="Learning rate."),
    click.option("--momentum", type=NumberType(min=0, max=1, max_open=True), metavar="X", help="Momentum of SGD."),
    click.option(
        "--precision", type=click.Choice(list(PRECISIONS)), default="float32", show_default=True,
        help="Number formats: one everywhere, or mixed: products and images in 16 bits.",
    ),
    click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, metavar="N",
        help="Seed of first weights, shuffles and random layers.",
    ),
    click.option(
        "--samples", type=click.IntRange(min=1), metavar="N",
        help="Use at most N samples of the training set, drawn by the seed, and N of the test set.",
    ),
    click.option(
        "--hold-out", type=click.IntRange(min=0), metavar="N",
        help="Validate on N of the training samples, drawn by the seed and then not trained on; 0: on the test set.",
    ),
    click.option("--overwrite", is_flag=True, help="Replace the results of an earlier run in the same folder."),
)  # fmt: skip

EPILOG = (
    "Defaults: "
    + "; ".join(
        f"{name}: batch {r.batch_size or 'all'}, lr {r.learning_rate}, momentum {r.momentum}, epochs {r.epochs}"
        + (f", hold-out {r.hold_out}" if r.hold_out else "")
        for name, r in [*list(RECIPES.items())[:3], ("other networks", DEFAULT)]
    )
    + ". The roofline study's networks (resnet18, resnet50, mobilenet_v2, squeezenet1_1) train for one epoch, with "
    "batches of 128, 64 for squeezenet1_1."
)


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the argument NETWORK and the options of a training."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def named_backends(ctx: click.Context, text: str) -> list[str]:
    """The backends that an option --backends names, between commas."""
    parameter = next(p for p in ctx.command.params if p.name == "backends")
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        message = "--backends names at least one backend. Received: none."
        raise click.UsageError(message, ctx)
    return [BACKEND.convert(name, parameter, ctx) for name in names]


def run_folder(out: str | None, *parts: str) -> Path:
    """The folder that is named, or else one in `runs` made of parts."""
    return Path(out).expanduser() if out else Path("runs") / "-".join(part.replace(":", "_") for part in parts)
