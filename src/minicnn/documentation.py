"""Classes that share arguments: what a base class says of one stands once, and is seen where it is used."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

SECTIONS = ("Args", "Input shape", "Output shape", "Raises", "Example")


class WrittenOut:
    """The signature of a class whose constructor hands on `**options`: the arguments by name that its base class takes.

    A metaclass has one as its `__signature__`. Of `**limits` of the base class only those that the class names are
    among them: see `Layer._limited`.
    """

    def __get__(self, kind: type[Any], meta: type[Any]) -> inspect.Signature:
        signature, *bases = (inspect.signature(vars(c)["__init__"]) for c in kind.__mro__ if "__init__" in vars(c))
        if not bases:  # that of object, which takes anything
            return inspect.Signature()
        parameters = list(signature.parameters.values())[1:]
        if parameters and parameters[-1].name == "options":
            named = {parameter.name: parameter for parameter in parameters[:-1]}
            base = next(b.parameters for b in bases if "options" not in b.parameters)
            options = [p for p in base.values() if p.name not in named]
            if not getattr(kind, "_limited", ()):
                options = [p for p in options if p.kind is not p.VAR_KEYWORD]
            by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
            parameters = [*named.values(), *(p for p in options if p.kind in by_name)]
        return signature.replace(parameters=parameters)


def complete(kind: type[Any], arguments: Iterable[str] | None = None, **own_texts: str) -> None:
    """Add to a class's docstring what it leaves out: arguments of its constructor, and shapes, as its bases have them.

    Args:
        kind: The class; where Python strips docstrings nothing is done.
        arguments: Names of the arguments, in their order; those of the signature if None.
        own_texts: Sections where no class has them, their titles with `_`; `limits` is what is said of that argument.
    """
    if not kind.__doc__:
        return
    documented = [_parts(base.__doc__) for base in kind.__mro__ if base.__module__.startswith("minicnn.")]
    summary, own_sections, _ = documented[0]
    sections = {name.replace("_", " "): f"    {text}" for name, text in own_texts.items()}
    entries: dict[str, str] = {}
    for _, inherited, described in reversed(documented):  # the class itself comes last, and has its way
        entries |= described
        sections |= {name: inherited[name] for name in ("Input shape", "Output shape") if name in inherited}
    if "limits" in own_texts:
        entries["limits"] = f"    limits: {own_texts['limits']}"
    names = inspect.signature(kind).parameters if arguments is None else arguments
    sections |= own_sections | {"Args": "\n".join(entries[name] for name in names if name in entries)}
    texts = [f"{name}:\n{sections[name]}" for name in SECTIONS if sections.get(name)]
    kind.__doc__ = "\n\n".join([summary, *texts])


@cache
def _parts(docstring: str | None) -> tuple[str, dict[str, str], dict[str, str]]:
    """Parts of a docstring: the text before its sections, the sections by title, and each argument's entry."""
    summary, *rest = re.split(rf"\n+({'|'.join(SECTIONS)}):\n", inspect.cleandoc(docstring or ""))
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    entries = re.split(r"\n(?=    \w)", sections.get("Args", ""))
    return summary, sections, {entry.split(":")[0].strip(): entry for entry in entries}
