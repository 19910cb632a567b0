"""Names: of what can be asked for by name, and of classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    raise ValueError(f"{what} is one of {', '.join(table)}, or {otherwise}. Received: {given!r}.")


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """Class name as Keras writes it for layers, losses and metrics: Conv2DTranspose is conv2d_transpose, ReLU re_lu."""
    return re.sub(r"(?<=[^_])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", name).lower()
