"""Checks that shape rules share; every message names the rule, what was received and the remedy."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from minicnn.arguments import plain
from minicnn.names import meant
from minicnn.program.graph import Spec


def one_of(name: str, choice: str, known: Collection[str]) -> str:
    """Check that an argument is one of the known names, and return it."""
    if not isinstance(choice, str) or choice not in known:
        proposal = meant(choice, known)
        raise ValueError(f"{name} is one of {', '.join(map(repr, known))}. Received: {name}={choice!r}.{proposal}")
    return choice


def as_integer(value: Any) -> int | None:
    """The value as an int, if it is an integer of Python or of an array library."""
    try:
        return None if isinstance(value := plain(value), bool) else operator.index(value)
    except TypeError:
        return None


def positive(name: str, value: Any) -> int:
    """The value, if it is an integer of at least 1."""
    n = as_integer(value)
    if n is None or n < 1:
        raise ValueError(f"{name} is an integer of at least 1. Received: {name}={value!r}.")
    return n


def same_dtype(name: str, *specs: Spec) -> str:
    """The dtype that all specs have in common."""
    dtype = specs[0].dtype
    if any(s.dtype != dtype for s in specs):
        raise TypeError(
            f"{name} takes arrays of one dtype. Received: {', '.join(map(str, specs))}. "
            "Convert first with ops.cast(x, dtype=...)."
        )
    return dtype


def require_float(name: str, x: Spec) -> Spec:
    """The spec itself, if it is floating-point."""
    if "float" not in x.dtype:
        raise TypeError(
            f"{name} takes floating-point arrays. Received: {x}. Convert first with ops.cast(x, dtype='float32')."
        )
    return x


def require_ndim(name: str, argument: str, x: Spec, ndim: int, axes: str) -> None:
    """Check the number of axes; `axes` says what they are."""
    if x.ndim != ndim:
        raise ValueError(
            f"{name} takes {argument} with {ndim} axes ({axes}). Received: {x}. Add or remove axes with ops.reshape."
        )


def broadcast_shape(name: str, *specs: Spec) -> tuple[int, ...]:
    """Shape of the results when the specs are broadcast against each other."""
    ndim = max(s.ndim for s in specs)
    shape = [1] * ndim
    for s in specs:
        for axis, n in enumerate(s.shape, ndim - s.ndim):
            if n != 1:
                if shape[axis] not in (1, n):
                    raise ValueError(
                        f"{name} takes shapes that broadcast: aligned at the last axis, lengths are equal or 1. "
                        f"Received: {', '.join(map(str, specs))}. Insert axes of length 1 with ops.reshape."
                    )
                shape[axis] = n
    return tuple(shape)


def normalize_axis(name: str, axis: int, ndim: int) -> int:
    """One axis as a non-negative integer."""
    if not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise ValueError(f"{name} takes one axis from {-ndim} to {ndim - 1}. Received: {axis}. Count axes from 0.")
    return axis % ndim


def normalize_axes(name: str, axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Axes as sorted non-negative integers; None means all."""
    if axes is None:
        return tuple(range(ndim))
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    result = tuple(sorted(a + ndim if a < 0 else a for a in named))
    if any(not 0 <= a < ndim for a in result) or len(set(result)) != len(result):
        raise ValueError(f"{name} takes distinct axes from {-ndim} to {ndim - 1}. Received: {axes}. Count axes from 0.")
    return result
