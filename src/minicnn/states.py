"""Checking states that come from a file: each part is what it should be before any is taken up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Rule = Callable[[Any], bool]


def check_state(owner: object, state: Any, **rules: Rule) -> None:
    """Raise a ValueError unless a state has exactly these parts, and each keeps its rule.

    Args:
        owner: Whose state it is.
        state: Plain data and NumPy arrays.
        rules: For each part its rule, one of those below.
    """
    if not isinstance(state, Mapping) or set(state) != set(rules):
        received = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        wrong = f"{received!s:.80}"
    else:
        parts = [part for part, rule in rules.items() if not rule(state[part])]
        if not parts:
            return
        wrong = f"{parts[0]} = {state[parts[0]]!r:.80}"
    raise ValueError(
        f"A state of {type(owner).__name__} has {', '.join(rules)}, each as training leaves it. Received: {wrong}. "
        "Use a back-up that this program has written."
    )


def anything(value: Any) -> bool:
    """No rule."""
    return True


def text(value: Any) -> bool:
    """A string."""
    return isinstance(value, str)


def flag(value: Any) -> bool:
    """True or False."""
    return isinstance(value, bool)


def count(value: Any) -> bool:
    """An integer from 0 to 2**63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def number(value: Any) -> bool:
    """A float, also an infinite one or NaN, or an integer that is one."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023)


def duration(value: Any) -> bool:
    """A finite number of at least 0."""
    return number(value) and 0 <= value < math.inf


def host_dtype(dtype: Any) -> np.dtype[Any]:
    """The widest type of a kind, in which sums are kept on the host."""
    return np.dtype(np.int64 if np.dtype(dtype).kind in "iu" else np.float64)


def beyond(array: np.ndarray[Any, Any], dtype: str) -> float | None:
    """The largest finite number of an array, if a floating-point type does not hold it but would make it infinite."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= np.dtype(dtype).itemsize:
        return None
    largest = float(np.abs(array[np.isfinite(array)]).max(initial=0))
    return largest if largest > float(np.finfo(dtype).max) else None


def check_range(array: np.ndarray[Any, Any], dtype: str, name: str) -> None:
    """Raise a ValueError if a finite number of a weight would become infinite in its type."""
    if (largest := beyond(array, dtype)) is not None:
        raise ValueError(
            f"Weights are numbers that {dtype} holds, up to {np.finfo(dtype).max:.4g}. Received: {largest:.4g} in "
            f"{name!r}. Scale the numbers, or compile the model with precision='float64'."
        )


def optional(rule: Rule) -> Rule:
    """None, or what the rule says."""
    return lambda value: value is None or rule(value)


def list_of(rule: Rule) -> Rule:
    """A list whose elements keep a rule."""
    return lambda value: isinstance(value, list) and all(map(rule, value))


def dict_of(rule: Rule) -> Rule:
    """A dictionary whose values keep a rule."""
    return lambda value: isinstance(value, Mapping) and all(map(rule, value.values()))


def record(**rules: Rule) -> Rule:
    """A dictionary of exactly these parts, each of which keeps its rule."""
    return lambda value: (
        isinstance(value, Mapping)
        and value.keys() == rules.keys()
        and all(rule(value[part]) for part, rule in rules.items())
    )


def arrays_like(
    expected: Mapping[str, tuple[tuple[int, ...], Any]], least: frozenset[str] | None = None, *, more: bool = False
) -> Rule:
    """Arrays of these names, shapes and dtypes.

    Args:
        expected: Shape and dtype of each array by name.
        least: Names that must be there; all if None.
        more: Whether there may be others, of any shape.
    """
    needed = frozenset(expected) if least is None else least
    wanted = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in expected.items()}

    def rule(value: Any) -> bool:
        return (
            isinstance(value, Mapping)
            and needed <= set(value)
            and (more or set(value) <= set(expected))
            and all(isinstance(n, str) and isinstance(array, np.ndarray) for n, array in value.items())
            and all((array.shape, array.dtype) == wanted[n] for n, array in value.items() if n in wanted)
            and all(array.dtype.kind in "fi" for array in value.values())
        )

    return rule
