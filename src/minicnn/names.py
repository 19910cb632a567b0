"""Names: of what can be asked for by name, and of classes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def look_up(what: str, table: Mapping[str, T], given: Any, otherwise: str) -> T:
    """The entry of a table by its name, as in Keras in snake_case or CamelCase.

    Args:
        what: What the table holds, for the error message.
        table: Entries by name.
        given: The name.
        otherwise: What may be given instead, for the error message.

    Raises:
        ValueError: If the table has no such name.
    """
    if isinstance(given, str):
        wanted = _plain(given)
        for name, entry in table.items():
            if _plain(name) == wanted:
                return entry
    raise ValueError(f"{what} is one of {', '.join(table)}, or {otherwise}. Received: {given!r}.{meant(given, table)}")


def stood_for(given: Any) -> Any:
    """The name that a function of `minicnn.keras` stands for, "relu" for `activations.relu`; else what is given."""
    return getattr(given, "stands_for", given)


def known_name(what: str, given: Any, known: Iterable[str]) -> str:
    """A name, if it is one of those known.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(given, str) or given not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}. Received: {given!r}.{meant(given, known)}")
    return given


def meant(given: Any, known: Iterable[str]) -> str:
    """A sentence that proposes the nearest of the known names, with a space before it; empty where none is near."""
    names = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(given), names, 1) if isinstance(given, str) else []
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """Class name as Keras writes it for layers, losses and metrics: Conv2DTranspose is conv2d_transpose, ReLU re_lu."""
    return re.sub(r"(?<=[^_])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
