"""Docstrings of classes that share arguments: what a base class says of one need not stand again."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

SECTIONS = ("Args", "Input shape", "Output shape", "Raises", "Example")


def complete(kind: type[Any], arguments: Iterable[str], given: dict[str, str] | None = None) -> None:
    """Add to a class's docstring what it leaves out: arguments of its constructor, and shapes, as its bases have them.

    Args:
        kind: The class; where Python strips docstrings nothing is done.
        arguments: Names of the arguments, in their order.
        given: Sections where no class has them; under "Args" what all say.
    """
    if not kind.__doc__:
        return
    documented = [_parts(base.__doc__) for base in kind.__mro__ if base.__module__.startswith("minicnn.")]
    summary, own = documented[0]
    sections = dict(given or {})
    entries: dict[str, str] = {}
    for found in (*(sections for _, sections in reversed(documented)), sections):  # the class itself after its bases
        entries |= {text.split(":")[0].strip(): text for text in re.split(r"\n(?=    \w)", found.get("Args", ""))}
    for _, found in reversed(documented):
        sections |= {name: found[name] for name in ("Input shape", "Output shape") if name in found}
    sections |= own | {"Args": "\n".join(entries[name] for name in arguments if name in entries)}
    texts = [f"{name}:\n{sections[name]}" for name in SECTIONS if sections.get(name)]
    kind.__doc__ = "\n\n".join([summary, *texts])


def _parts(docstring: str | None) -> tuple[str, dict[str, str]]:
    """What comes before the sections of a docstring, and the sections by title."""
    summary, *rest = re.split(rf"\n+({'|'.join(SECTIONS)}):\n", inspect.cleandoc(docstring or ""))
    return summary, dict(zip(rest[::2], rest[1::2], strict=True))
