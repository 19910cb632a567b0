"""Setting: what is described by its class and the arguments of its constructor, such as an optimizer or a loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from minicnn import html
from minicnn.arguments import PlainArguments

# The classes that plain data may name: `minicnn.layers` enters its own, `minicnn.saving` what models are compiled with.
CLASSES: dict[str, type[Any]] = {}


def saved_name(kind: type[Any]) -> str:
    """The name of a class in plain data.

    Raises:
        ValueError: If it is that of one of minicnn's own classes, which would be taken for it.
    """
    if CLASSES.get(kind.__name__, kind) is not kind:
        raise ValueError(
            "A class that is saved has a name that none of minicnn's own has, because files name classes. "
            f"Received: {kind.__name__!r} of {kind.__module__}. Rename it."
        )
    return kind.__name__


class Setting(metaclass=PlainArguments):
    """Base class of what keeps each argument of its constructor as an attribute of the same name."""

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor; a setting among them as {"class": name, "config": its arguments}.

        Raises:
            TypeError: If one is not kept.
        """
        config = {}
        for name in inspect.signature(type(self)).parameters:
            if not hasattr(self, name):
                raise TypeError(
                    "What is saved keeps each argument of its constructor as an attribute of the same name. "
                    f"Received: {type(self).__name__} without {name!r}. Set self.{name}."
                )
            config[name] = _plain(getattr(self, name))
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, type[Any]] | None = None) -> Self:
        """One with the arguments that `get_config` gave.

        Args:
            config: The arguments.
            custom_objects: Classes of settings among them that are not minicnn's own, by name.

        Raises:
            ValueError: If a class is unknown.
        """
        classes = {**{c.__name__: c for c in _below(Setting)}, **(custom_objects or {})}
        return cls(**{name: _restored(value, classes) for name, value in config.items()})

    def _arguments(self) -> dict[str, Any]:
        """Arguments that are kept and not None, for a reader."""
        kept = {name: getattr(self, name, None) for name in inspect.signature(type(self)).parameters}
        return {name: value for name, value in kept.items() if value is not None}

    def _repr_html_(self) -> str:
        rows = list(self._arguments().items())
        return html.block(type(self).__name__, html.table(("argument", "value"), rows) if rows else "")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._arguments().items())})"


def _plain(value: Any) -> Any:
    if isinstance(value, Setting):
        return {"class": saved_name(type(value)), "config": value.get_config()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _restored(value: Any, classes: Mapping[str, type[Any]]) -> Any:
    if not isinstance(value, Mapping) or set(value) != {"class", "config"}:
        return value
    if value["class"] not in classes:
        raise ValueError(
            f"A class in a config is minicnn's own or given by the caller. Received: {value['class']!r}. Pass it as "
            f"custom_objects={{{value['class']!r}: ...}}."
        )
    return classes[value["class"]].from_config(value["config"], classes)


def _below(kind: type[Any]) -> list[type[Any]]:
    """All classes of minicnn that derive from one, as far as they are imported."""
    subclasses = [c for c in kind.__subclasses__() if c.__module__.startswith("minicnn.")]
    return [*subclasses, *(c for below in subclasses for c in _below(below))]
