"""Comparison of a result with the right one, and what its difference says of the mistake."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minicnn.exercises.exercise import Array, Example, WrongError
from minicnn.tolerance import tolerance

TERMS = 4096  # of the longest sum in an exercise, by which rounding is judged
SAME = 1e-6  # relative difference within which a hypothesis explains a result


def compare(what: str, result: Any, right: Any, case: Example, dtype: str = "float64") -> None:
    """Compare a result with the right one, part by part.

    Args:
        what: Its name for messages.
        result: The result.
        right: The right one.
        case: The arguments.
        dtype: Floating-point type of the arrays.

    Raises:
        WrongError: If it is more than rounding; says where, and which mistake explains it.
    """
    if isinstance(right, np.ndarray):
        _compare_arrays(what, result, right, case, dtype)
    elif isinstance(right, tuple | list):
        if not isinstance(result, tuple | list) or len(result) != len(right):
            raise WrongError(f"{what} should be {_kind(right)}. It is {_kind(result)}")
        for number, (ours, theirs) in enumerate(zip(result, right, strict=True)):
            compare(f"{what}[{number}]", ours, theirs, case, dtype)
    elif isinstance(right, dict):
        if not isinstance(result, dict) or set(result) != set(right):
            raise WrongError(f"{what} should have the keys {list(right)}. It is {_said(result)}")
        for key, value in right.items():
            compare(f"{what}[{key!r}]", result[key], value, case, dtype)
    elif isinstance(right, float):
        if isinstance(result, bool) or not isinstance(result, int | float | np.ndarray) or np.shape(result) != ():
            raise WrongError(f"{what} should be a number. It is {_kind(result)}")
        _compare_arrays(what, np.asarray(result, "float64"), np.asarray(right), case, dtype)
    else:
        value = result.item() if isinstance(result, np.ndarray) and result.shape == () else result
        if type(value) is not type(right) or value != right:
            raise WrongError(f"{what} is {_said(value)} and should be {_said(right)} ({case})")


def _compare_arrays(what: str, result: Any, right: Array, case: Example, dtype: str) -> None:
    if not isinstance(result, np.ndarray):
        raise WrongError(f"{what} should be an array. It is {_kind(result)}")
    kind = dtype if right.dtype == "float64" else str(right.dtype)
    if result.shape != right.shape:
        raise WrongError(f"{what} should have the shape {right.shape}. It has {result.shape}{swapped(result, right)}")
    if str(result.dtype) != kind:
        raise WrongError(f"{what} should be {kind}. It is {result.dtype}")
    if right.dtype.kind != "f":
        wrong = result != right
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(result.astype("float64") - right) / max(float(np.abs(right).max(initial=0.0)), 1e-300)
        wrong = ~(error <= tolerance(kind, TERMS)[0])
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f"{what}{list(place) if place else ''}"
        raise WrongError(
            f"{where} is {result[place]:.6g} and should be {right[place]:.6g} ({case}){clue(result, right, case)}"
        )


def clue(result: Array, right: Array, case: Example) -> str:
    """The mistake that explains a difference, in words after a colon; nothing if none is known."""
    if right.dtype.kind != "f":
        return ""
    with np.errstate(all="ignore"):
        hypotheses: Iterable[str] = itertools.chain(
            _invalid(result),
            _ratio(result, right, case),
            _axes(result, right),
            _offset(result, right),
            _border(result, right),
        )
        said = next(iter(hypotheses), "")
    return f": {said}" if said else ""


def close(a: Any, b: Any) -> bool:
    """True if two arrays agree within `SAME` of the largest element."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return False
    return bool(np.max(np.abs(a - b.astype("float64")), initial=0.0) <= SAME * max(np.abs(b).max(initial=0.0), 1e-300))


def swapped(result: Array, right: Array) -> str:
    """The order of axes in which a result would be right, in words."""
    if result.ndim == right.ndim <= 5:
        for order in itertools.permutations(range(result.ndim)):
            if order != tuple(range(result.ndim)) and close(np.transpose(result, order), right):
                return f": its axes are swapped, and transposed by {order} it is right"
    return ""


def _invalid(result: Array) -> Iterable[str]:
    if not np.isfinite(result).all():
        yield "it holds infinities or NaN, as of exp of a large number, 0 / 0 or log(0)"


def _ratio(result: Array, right: Array, case: Example) -> Iterable[str]:
    """One factor between all elements."""
    large = np.abs(right) > 1e-9 * np.abs(right).max(initial=0.0)
    if not large.any() or (result.size < 2 and not result.any()):
        return
    ratio = float(np.median(result[large] / right[large]))
    if not np.isfinite(ratio) or not close(result, ratio * right):
        return
    if ratio == 0:
        yield "it is zero"
    elif abs(ratio + 1) < SAME:
        yield "its sign is wrong"
    else:
        for name, n in _lengths(case):
            if abs(ratio * n - 1) < SAME * n:
                yield f"it is exactly 1/{n} of what it should be, as if divided by {name} once too often"
            if abs(ratio / n - 1) < SAME:
                yield f"it is exactly {n} times what it should be: you did not divide by {name}"
        if result.size > 1:
            yield f"all elements are {ratio:.6g} times what they should be"


def _lengths(case: Example) -> list[tuple[str, int]]:
    """Numbers by which results are divided, the batch first: axes, numbers of elements, and products of axes."""
    names: dict[int, str] = {}
    arrays = [(i, a) for i, a in enumerate(case.arguments) if isinstance(a, np.ndarray) and a.ndim]
    for i, a in arrays:
        names.setdefault(a.shape[0], f"the batch ({a.shape[0]}, the first axis of argument {i + 1})")
    for i, a in arrays:
        for axis, n in enumerate(a.shape):
            names.setdefault(n, f"{n}, the axis {axis} of argument {i + 1}")
        names.setdefault(a.size, f"{a.size}, the size of argument {i + 1}")
        names.setdefault(a.size // a.shape[-1], f"{a.size // a.shape[-1]}, all axes of argument {i + 1} but the last")
    return [(name, n) for n, name in names.items() if n > 1]


def _axes(result: Array, right: Array) -> Iterable[str]:
    """The same elements in another order."""
    axes = range(right.ndim)
    for count in range(1, min(right.ndim, 4) + 1):
        for flipped in itertools.combinations(axes, count):
            if close(np.flip(result, flipped), right):
                yield f"it is flipped along the axes {list(flipped)}"
    yield from filter(None, [swapped(result, right).removeprefix(": ")])


def _offset(result: Array, right: Array) -> Iterable[str]:
    """The same difference everywhere, or for each channel."""
    gap = right.astype("float64") - result
    size = SAME * max(float(np.abs(right).max(initial=0.0)), 1e-300)
    if gap.size > 1 and np.ptp(gap) <= size:
        yield f"{gap.flat[0]:.6g} is missing from each element"
    elif gap.ndim > 1 and gap.size > gap.shape[-1] and np.ptp(gap, axis=tuple(range(gap.ndim - 1))).max() <= size:
        yield "the same is missing from all elements of a channel, as a bias would be"


def _border(result: Array, right: Array) -> Iterable[str]:
    """Right but at the edges of images."""
    inner = np.s_[:, 2:-2, 2:-2]
    if right.ndim == 4 and right[inner].size and close(result[inner], right[inner]):
        yield "it is wrong at the edges of the image only: look at the padding"


def explained(
    result: Any, right: Any, case: Example, mistakes: Sequence[tuple[str, Any]], names: dict[str, Any]
) -> str:
    """Explanation of the known mistake that gives just this result; nothing if none does."""
    for said, wrong in mistakes:
        try:
            with np.errstate(all="ignore"):
                other = wrong(*case.arguments, **case.options, **names)
        except Exception:  # what a mistake does with odd arguments is no matter
            continue
        if _alike(result, other) and not _alike(other, right):
            return said
    return ""


def _alike(a: Any, b: Any) -> bool:
    if isinstance(b, tuple | list):
        return isinstance(a, tuple | list) and len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(b, dict):
        return isinstance(a, dict) and set(a) == set(b) and all(_alike(a[k], b[k]) for k in b)
    if isinstance(b, np.ndarray | float):
        return isinstance(a, np.ndarray | float | int) and close(a, b)
    return bool(type(a) is type(b) and a == b)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an array {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:116]} ..."
