"""Layers as plain data: their classes by name, and the arguments of their constructors.

Classes are looked up by name in a dict of minicnn's own and in the caller's `custom_objects`: reading data never
imports or runs anything else. A layer is {"class": name, "config": its get_config()}.
"""

from __future__ import annotations

import builtins
import inspect
import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np

from minicnn.arguments import PlainArguments
from minicnn.constraints import CONSTRAINTS
from minicnn.initializers import INITIALIZER_CLASSES
from minicnn.layers.activations import ACTIVATIONS
from minicnn.names import meant
from minicnn.regularizers import REGULARIZERS
from minicnn.setting import CLASSES, Setting, saved_name

Config = dict[str, Any]
CustomObjects = Mapping[str, Any] | None

# What the first layer of a Sequential may be told in place of an Input before it; the Input is what is saved.
STARTS = ("input_shape", "input_dim", "batch_input_shape")

CLASSES.update({c.__name__: c for c in (*INITIALIZER_CLASSES.values(), *REGULARIZERS.values(), *CONSTRAINTS.values())})


class Configured(metaclass=PlainArguments):
    """What plain data describe by its class and the arguments of its constructor: a layer."""

    trainable: bool
    _trainable: bool
    # Weights with a regularizer and a constraint, each with the word that the names of these arguments begin with.
    limited: tuple[tuple[str, str], ...] = ()
    # What the constructor was given: how many arguments by their place, and the names of the others.
    _constructed_with: tuple[int, tuple[str, ...]] = (0, ())

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Remember what is given, because a constructor may take it as `**kwargs` and hand it on."""
        made = super().__new__(cls)
        made._constructed_with = len(args), tuple(options)
        return made

    @classmethod
    def limit_names(cls) -> list[str]:
        """Names of the arguments for regularizers and constraints: "kernel_regularizer" ..."""
        return [f"{word}_{kind}" for _, word in cls.limited for kind in ("regularizer", "constraint")]

    @classmethod
    def saved_as(cls) -> str:
        """The name of the class in plain data.

        Raises:
            ValueError: If one of minicnn's own classes has it.
        """
        return saved_name(cls)

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor as plain data: the attributes that bear the arguments' names.

        Those that it takes as `**kwargs` are those of them that were given.

        Raises:
            AttributeError: If one is not kept.
            TypeError: If one is no plain data, or was taken as `*args`, so that it has no name.
        """
        config = {}
        parameters = inspect.signature(type(self)).parameters.values()
        own = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        placed = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
        count, names = self._constructed_with
        if count > placed:
            raise TypeError(
                "What is saved has each argument of its constructor by name. Received: "
                f"{type(self).__name__} with {count - placed} in *args. Give them by name, or override get_config."
            )
        for name in dict.fromkeys([*own, *(name for name in names if name not in STARTS)]):
            if name == "trainable":
                continue
            kept = "_name" if name == "name" else name  # what was given
            if not hasattr(self, kept):
                raise AttributeError(
                    "A layer keeps each argument as an attribute of the same name, so that a model can be "
                    f"saved. Received: {type(self).__name__} without {name!r}. Set self.{name} or override "
                    "get_config."
                )
            config[name] = encode(getattr(self, kept), f"{name} of {type(self).__name__}")
        limits = {name: getattr(self, name, None) for name in self.limit_names()}
        config |= {k: encode(v, f"{k} of {type(self).__name__}") for k, v in limits.items() if v is not None}
        return config if self.trainable else config | {"trainable": False}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        """A layer with the arguments that `get_config` gave.

        Args:
            config: The arguments; tuples may have become lists.
            custom_objects: Classes that are not minicnn's own, by name.
        """
        given = {name: decode(value, custom_objects) for name, value in config.items()}
        trainable = given.pop("trainable", True)  # which a constructor need not take
        layer: Self = construct(cls, given)
        layer._trainable = checked_bool(trainable)
        return layer


def encode(value: Any, what: str = "the value") -> Any:
    """Plain data for an argument of a layer.

    Args:
        value: None, a number, a string, a list, a dict with string keys, a layer, an initializer, regularizer or
            constraint, a built-in activation, or nested ones.
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
        return layer_to_config(value)
    if isinstance(value, Setting):
        return {"class": saved_name(type(value)), "config": encode(value.get_config(), what)}
    for name, function in ACTIVATIONS.items():
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
    """What `encode` made plain: dicts that name a class become its objects, all else stays."""
    if isinstance(value, list | tuple):
        return [decode(v, custom_objects) for v in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"class", "config"}:
        return {k: decode(v, custom_objects) for k, v in value.items()}
    chosen = _class(value["class"], custom_objects)
    if issubclass(chosen, Configured):
        return layer_from_config(value, custom_objects)
    return _build(chosen, lambda: construct(chosen, decode(value["config"], custom_objects)))


def layer_to_config(layer: Configured) -> Config:
    """The layer's class and arguments as plain data.

    Raises:
        TypeError: If an argument cannot be saved, such as a function.
        ValueError: If the class is the caller's and has the name of one of minicnn's own.
    """
    name = layer.saved_as()
    config = encode(layer.get_config(), f"an argument of {name}")
    return {"class": name, "config": config if layer.trainable else {**config, "trainable": False}}


def layer_from_config(config: Mapping[str, Any], custom_objects: CustomObjects = None) -> Any:
    """The layer that `layer_to_config` described, without weights.

    Args:
        config: Class and arguments.
        custom_objects: Classes that are not minicnn's own, by name.

    Raises:
        ValueError: If the class is unknown, or does not take the arguments.
    """
    chosen = _class(config["class"], custom_objects)
    given = dict(config["config"])
    frozen = given.pop("trainable", True) is False
    layer = _build(chosen, lambda: chosen.from_config(given, custom_objects))
    layer._trainable = layer._trainable and not frozen  # of this layer: those within have their own
    return layer


def _class(name: str, custom_objects: CustomObjects) -> type[Any]:
    classes = {**CLASSES, **(custom_objects or {})}
    found = classes.get(name) if isinstance(name, str) else None
    if not isinstance(found, type):
        raise ValueError(
            f"The classes in a saved model are minicnn's own or given by the caller. Received: {name!r}. "
            f"Pass the class as custom_objects={{{name!r}: {name}}}.{meant(name, classes)}"
        )
    return found


def construct(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An object of saved arguments; those of minicnn's own classes are of the types that the constructor names.

    Raises:
        ValueError: If one is of another type.
        TypeError: If the class does not take one.
    """
    hints = get_type_hints(kind.__init__) if CLASSES.get(kind.__name__) is kind else {}
    for name, value in given.items():
        if name in hints and not _fits(value, hints[name]):
            wanted = getattr(hints[name], "__name__", hints[name])
            raise ValueError(
                f"Saved arguments are of the types that the class takes. Received for {kind.__name__}: "
                f"{name}={value!r:.60}, which is no {str(wanted).replace('typing.', '')}."
            )
    return kind(**given)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value that was plain data, in which tuples are lists, is of an annotated type."""
    parts = get_args(wanted)
    match get_origin(wanted) or wanted:
        case typing.Any:
            return True
        case typing.Union | types.UnionType:
            return any(_fits(value, part) for part in parts)
        case typing.Literal:
            return value in parts
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


def _build(chosen: type[Any], make: Any) -> Any:
    try:
        return make()
    except TypeError as error:
        end = "" if str(error).endswith((".", "?")) else "."
        raise ValueError(
            f"Saved arguments are those that the class takes. Received for {chosen.__name__}: {error}{end}"
        ) from error


def checked_bool(trainable: bool) -> bool:
    """Raise a ValueError unless it is a bool; returns it."""
    if not isinstance(trainable, bool):
        raise ValueError(f"trainable is True or False. Received: trainable={trainable!r}.")
    return trainable
