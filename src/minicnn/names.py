"""Names: of what can be asked for by name, and of classes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def look_up(what: str, table: Mapping[str, T], identifier: Any, otherwise: str) -> T:
    """The entry of a table by its name, as in Keras in snake_case or CamelCase.

    Args:
        what: What the table holds, for the error message.
        table: Entries by name.
        identifier: The name.
        otherwise: What may be given instead, for the error message.

    Raises:
        ValueError: If the table has no such name.
    """
    if isinstance(identifier, str):
        wanted = _plain(identifier)
        for name, entry in table.items():
            if _plain(name) == wanted:
                return entry
    raise ValueError(
        f"{what} is one of {', '.join(table)}, or {otherwise}. Received: {identifier!r}.{meant(identifier, table)}"
    )


def stood_for(identifier: Any) -> Any:
    """The name that a function of `minicnn.keras` stands for, "relu" for `activations.relu`; else the identifier."""
    return getattr(identifier, "stands_for", identifier)


def known_name(what: str, name: Any, known: Iterable[str]) -> str:
    """A name, if it is one of those known.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}. Received: {name!r}.{meant(name, known)}")
    return name


def is_name(received: Any, known: Iterable[Any]) -> bool:
    """True if a string is one of the names, as `look_up` takes them."""
    return isinstance(received, str) and _plain(received) in {_plain(name) for name in known if isinstance(name, str)}


def meant(received: Any, known: Iterable[str]) -> str:
    """A sentence that proposes the nearest of the known names, with a space before it; empty where none is near."""
    names = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(received), names, 1) if isinstance(received, str) else []
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """Class name as Keras writes it for layers, losses and metrics: Conv2DTranspose is conv2d_transpose, ReLU re_lu."""
    return re.sub(r"(?<=[^_])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
