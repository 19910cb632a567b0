"""Arguments: numbers of any array library become Python's, and unknown names get a proposal."""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from minicnn.documentation import WrittenOut
from minicnn.names import meant

F = TypeVar("F", bound=Callable[..., Any])


def plain(value: Any) -> Any:
    """A number of Python for one of NumPy or an array without axes, also in a list, tuple or dict; else the value."""
    if isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
        number = value.item()
        return float(number) if isinstance(number, np.floating) else number  # a long double is its own item
    if type(value) is dict:
        parts = {key: plain(part) for key, part in value.items()}
        return value if all(parts[key] is part for key, part in value.items()) else parts
    if type(value) in (list, tuple):
        items = [plain(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    return value


if TYPE_CHECKING:  # which are to see the constructors themselves
    PlainArguments = type
else:

    class PlainArguments(ABCMeta):
        """Metaclass of what users construct: constructors are given `plain` arguments, and refuse unknown ones."""

        __signature__ = WrittenOut()

        def __call__(cls, *args: Any, **named: Any) -> Any:
            """Construct one."""
            try:
                return super().__call__(*map(plain, args), **{name: plain(value) for name, value in named.items()})
            except TypeError:
                parameters = inspect.signature(cls).parameters.values()
                if any(p.kind is p.VAR_KEYWORD and p.name != "limits" for p in parameters):
                    raise
                known = _known(cls)
                for name in named:
                    if name not in known:
                        raise unknown_argument(cls, name, named[name]) from None
                raise


def plain_arguments(function: F) -> F:
    """Decorator: the function is given `plain` arguments."""

    @functools.wraps(function)
    def on_plain(*args: Any, **named: Any) -> Any:
        return function(*map(plain, args), **{name: plain(value) for name, value in named.items()})

    return cast(F, on_plain)


_WRITTEN_OUT = {"lr": "learning_rate"}  # words of Keras 2


def unknown_argument(kind: type[Any], name: str, value: Any) -> TypeError:
    """The error for an argument that a class does not take."""
    known = _known(kind)
    return TypeError(
        f"{kind.__name__} takes the arguments {', '.join(known) or '(none)'}. Received: {name}={value!r:.60}."
        f"{meant(_WRITTEN_OUT.get(name, name), known)}"
    )


def _known(kind: type[Any]) -> list[str]:
    """Names of the arguments of a class; see `Layer._limit_names`."""
    parameters = inspect.signature(kind).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return names + getattr(kind, "_limit_names", list)()
