"""Configured: what plain data describe by its class and the arguments of its constructor, and the one encoder for it.

A layer, a loss, an optimizer ... is {"class": name, "config": its get_config()}. Classes are looked up by name among
minicnn's own and the caller's `custom_objects`: reading data never imports or runs anything else.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np

from minicnn import html
from minicnn.arguments import PlainArguments
from minicnn.names import is_name, meant

Config = dict[str, Any]
CustomObjects = Mapping[str, Any] | None

# What plain data may name; each package enters its own: see `register`.
CLASSES: dict[str, type[Any]] = {}
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # activations


def register(*kinds: type[Any]) -> None:
    """Enter classes of minicnn's own that plain data may name."""
    CLASSES.update({_name(kind): kind for kind in kinds})


class Configured(metaclass=PlainArguments):
    """Base class of what keeps each argument of its constructor as an attribute of the same name."""

    _of_the_run: tuple[str, ...] = ()  # arguments that are not saved
    # What the constructor was given: how many arguments by their place, and the names of the others.
    _constructed_with: tuple[int, tuple[str, ...]] = (0, ())

    @classmethod
    def _saved_as(cls) -> str:
        """The name of the class in plain data.

        Raises:
            ValueError: If it is that of one of minicnn's own classes, which would be taken for it.
        """
        name = _name(cls)
        if CLASSES.get(name, cls) is not cls:
            raise ValueError(
                "A class that is saved has a name that none of minicnn's own has, because files name classes. "
                f"Received: {name!r} of {cls.__module__}. Rename it."
            )
        return name

    def get_config(self) -> Config:
        """Arguments of the constructor as plain data: the attributes that bear the arguments' names.

        Those that it takes as `**kwargs` are those of them that were given.

        Raises:
            TypeError: If one is not kept or no plain data, or was taken as `*args`, so that it has no name.
        """
        parameters = inspect.signature(type(self)).parameters.values()
        placed = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        count, names = self._constructed_with
        if count > placed:
            raise TypeError(
                "What is saved has each argument of its constructor by name. Received: "
                f"{type(self).__name__} with {count - placed} in *args. Give them by name, or override get_config."
            )
        named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        config = {}
        for name in dict.fromkeys(name for name in [*named, *names] if name not in self._of_the_run):
            if not hasattr(self, _kept_as(self, name)):
                raise TypeError(
                    "What is saved keeps each argument of its constructor as an attribute of the same name. "
                    f"Received: {type(self).__name__} without {name!r}. Set self.{name}, or override get_config."
                )
            config[name] = encode(getattr(self, _kept_as(self, name)), f"{name} of {type(self).__name__}")
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: CustomObjects = None) -> Self:
        """One with the arguments that `get_config` gave.

        Args:
            config: The arguments; tuples may have become lists.
            custom_objects: Classes that are not minicnn's own, by name.

        Raises:
            ValueError: If a class is unknown.
        """
        new: Self = construct(cls, {name: decode(value, custom_objects) for name, value in config.items()})
        return new

    def _encoded(self) -> Config:
        """Class and arguments: see `encode`."""
        return {"class": self._saved_as(), "config": encode(self.get_config(), f"an argument of {type(self).__name__}")}

    @classmethod
    def _decoded(cls, config: Config, custom_objects: CustomObjects) -> Self:
        """One with encoded arguments: see `decode`."""
        return cls.from_config(config, custom_objects)

    def _arguments(self) -> list[tuple[inspect.Parameter, Any]]:
        """Arguments that are kept, and their values."""
        parameters = inspect.signature(type(self)).parameters.values()
        kept = [(p, _kept_as(self, p.name)) for p in parameters]
        return [(p, getattr(self, name)) for p, name in kept if hasattr(self, name)]

    def _repr_html_(self) -> str:
        rows = [(parameter.name, value) for parameter, value in self._arguments() if value is not None]
        return html.block(type(self).__name__, html.table(("argument", "value"), rows) if rows else "")

    def __repr__(self) -> str:
        """The call that makes one like it."""
        texts = []
        for parameter, value in self._arguments():
            if not _alike(value, parameter.default):
                needed = parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
                texts.append(f"{'' if needed else f'{parameter.name}='}{_text(value):.200}")
        return f"{type(self).__name__}({', '.join(texts)})"


def _name(kind: type[Any]) -> str:
    """Name of a class in plain data: its `_plain_name`, where another one of minicnn's own has the same name."""
    name: str = vars(kind).get("_plain_name", kind.__name__)
    return name


def _kept_as(thing: Configured, argument: str) -> str:
    """Name of the attribute that keeps an argument; a layer's `name` says more than what was given."""
    private = f"_{argument}"
    return private if argument in ("name", "trainable") and private in vars(thing) else argument


def _short(value: Any) -> Any:
    """Equal numbers for several axes as one: (3, 3) as 3."""
    if isinstance(value, tuple | list) and len(value) > 1 and all(_alike(v, value[0]) for v in value):
        first = _short(value[0])
        return first if isinstance(first, int) else value
    return value


def _text(value: Any) -> str:
    return value.__name__ if inspect.isroutine(value) else repr(_short(value))


def _alike(a: Any, b: Any) -> bool:
    """True if two arguments are known to mean the same."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is b
    return bool(_short(a) == _short(b))


def encode(value: Any, what: str = "the value") -> Any:
    """Plain data for an argument.

    Args:
        value: None, a number, a string, a list, a dict with string keys, a layer, an initializer or anything else that
            is configured, a built-in activation, or nested ones.
        what: What it is, for the error message.

    Raises:
        TypeError: If it is something else, such as a function.
        ValueError: If a class of the caller has the name of one of minicnn's own.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [encode(v, what) for v in value]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: encode(v, what) for k, v in value.items()}
    if isinstance(value, Configured):
        return value._encoded()
    for name, function in FUNCTIONS.items():
        if function is value:
            return name
    if callable(value):
        raise TypeError(
            f"Functions cannot be saved, because a file holds data only. Received: {value!r} as {what}. Use "
            "a name that minicnn knows, or write a class for it (a Layer, Loss ...) and load with custom_objects."
        )
    raise TypeError(
        f"What is saved is plain data, layers and initializers. Received: {type(value).__name__} as {what}."
    )


def decode(value: Any, custom_objects: CustomObjects = None) -> Any:
    """The value of which `encode` made plain data: dicts that name a class become its objects, all else stays.

    Raises:
        ValueError: If a class is unknown, or does not take the arguments.
    """
    if isinstance(value, list | tuple):
        return [decode(v, custom_objects) for v in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"class", "config"}:
        return {k: decode(v, custom_objects) for k, v in value.items()}
    return rebuild(value, custom_objects)


def rebuild(encoded: Mapping[str, Any], custom_objects: CustomObjects = None) -> Any:
    """The object whose class and arguments plain data name: see `decode`."""
    classes = {**CLASSES, **(custom_objects or {})}
    name, config = encoded["class"], encoded["config"]
    kind = classes.get(name) if isinstance(name, str) else None
    if not isinstance(kind, type):
        raise ValueError(
            f"The classes in a saved model are minicnn's own or given by the caller. Received: {name!r}. "
            f"Pass the class as custom_objects={{{name!r}: {name}}}.{meant(name, classes)}"
        )
    try:
        if issubclass(kind, Configured):
            return kind._decoded(dict(config), custom_objects)
        return construct(kind, decode(config, custom_objects))
    except TypeError as error:
        end = "" if str(error).endswith((".", "?")) else "."
        raise ValueError(
            f"Saved arguments are those that the class takes. Received for {kind.__name__}: {error}{end}"
        ) from error


def construct(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    """An object of saved arguments; those of minicnn's own classes are of the types that the constructor names.

    Raises:
        ValueError: If one is of another type.
        TypeError: If the class does not take one.
    """
    hints = get_type_hints(kind.__init__) if CLASSES.get(_name(kind)) is kind else {}
    for name, value in arguments.items():
        if name in hints and not _fits(value, hints[name]):
            wanted = getattr(hints[name], "__name__", hints[name])
            raise ValueError(
                f"Saved arguments are of the types that the class takes. Received for {kind.__name__}: "
                f"{name}={value!r:.60}, which is no {str(wanted).replace('typing.', '')}."
            )
    return kind(**arguments)


def _fits(value: Any, wanted: Any) -> bool:
    """True if a value that was plain data, in which tuples are lists, is of an annotated type."""
    parts = get_args(wanted)
    match get_origin(wanted) or wanted:
        case typing.Any:
            return True
        case typing.Union | types.UnionType:
            return any(_fits(value, part) for part in parts)
        case typing.Literal:
            return value in parts or is_name(value, parts)
        case builtins.bool:
            return isinstance(value, bool | int | None) and value in (False, True, None)
        case builtins.int:
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64
        case builtins.float:
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**1023
        case abc.Callable:
            return callable(value)
        case abc.Sequence | builtins.tuple if isinstance(value, list | tuple):
            several = parts * len(value) if len(parts) == 1 else parts[:1] * len(value) if ... in parts else parts
            return len(several) == len(value) and all(map(_fits, value, several))
        case builtins.type() as kind:
            return isinstance(value, kind) and not (isinstance(value, str) and kind is abc.Sequence)
    return True
