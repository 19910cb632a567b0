"""Checks of functions on arrays: values, gradients, inputs, parity of backends, speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import array_api_compat.numpy as array_api
import numpy as np

from minicnn import backends
from minicnn.bench.timing import interleaved, stopwatch
from minicnn.exercises.exercise import Check, WrongError
from minicnn.tolerance import tolerance

Array = np.ndarray[Any, Any]
Loss = Callable[[Array], float]

STEP, SLOPE_ERROR, DIRECTIONS = 1e-5, 1e-6, 4  # of difference quotients
BOUTS, ROUNDS, BUDGET_S, LEAST_S = 3, 7, 3.0, 0.002  # of the measurement of speed: times of a bout, and seconds


@dataclass(frozen=True)
class Case:
    """Arguments of a call.

    Attributes:
        arrays: Arrays, floating-point ones in float64.
        attrs: Keyword arguments.
        terms: Terms of the longest sum in it, by which rounding is judged.
        smooth: Whether there is a slope, and difference quotients tell it.
    """

    arrays: tuple[Array, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    terms: int = 1
    smooth: bool = True

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, a.shape)) or "a number" for a in self.arrays)
        return f"arrays {shapes}" + "".join(f", {k}={v}" for k, v in self.attrs.items())


@dataclass(frozen=True)
class Function:
    """A function that is asked for.

    Attributes:
        name: Its name.
        oracle: The library's own reference.
        cases: Calls on small arrays.
        large: A call that is timed.
        bar: It may take so many times as long as the oracle.
        losses: For a gradient: functions of one array whose slopes its results are, each with the array at which.
    """

    name: str
    oracle: Callable[..., Any]
    cases: tuple[Case, ...]
    large: Case
    bar: float
    losses: Callable[[Case], list[tuple[Loss, Array]]] | None = None


def array_checks(*functions: Function, values: int = 0, gradient: int = 0, inputs: int, parity: int, speed: int) -> Any:
    """The checks of some functions on arrays, with the points of each; speed comes last, as it may take long."""
    judges = (
        ("values", values, _values), ("gradient", gradient, _gradient), ("inputs", inputs, _inputs),
        ("parity", parity, _parity), ("speed", speed, _speed),
    )  # fmt: skip
    return tuple(Check(name, points, partial(judge, functions)) for name, points, judge in judges if points)


def _values(functions: Sequence[Function], given: ModuleType, names: Sequence[str] | None) -> str:
    """In float64 on NumPy's arrays the results are the library's."""
    errors = [_differ(function, case, _call(function, given, case)) for function, case in _calls(functions)]
    return f"{len(errors)} calls in float64: the largest difference from the library's own is {max(errors):.1g}"


def _gradient(functions: Sequence[Function], given: ModuleType, names: Sequence[str] | None) -> str:
    """The results are the slopes of losses, by difference quotients along random directions in float64."""
    rng, worst = np.random.default_rng(1), 0.0
    for function, case in _calls(functions):
        if function.losses is None or not case.smooth:
            continue
        found, losses = _results(_call(function, given, case)), function.losses(case)
        if len(found) != len(losses):
            raise WrongError(f"{function.name} returns {len(losses)} arrays. It returned {len(found)}")
        for number, (gradient, (loss, at)) in enumerate(zip(found, losses, strict=True)):
            _shaped(f"{function.name}, result {number}", gradient, at.shape, "float64")
            for _ in range(DIRECTIONS):
                way = rng.standard_normal(at.shape)
                way /= float(np.linalg.norm(way))
                slope = (loss(at + STEP * way) - loss(at - STEP * way)) / (2 * STEP)
                ours = float(np.sum(gradient * way))
                error = float(abs(ours - slope) / max(1.0, abs(slope)))
                if not error <= SLOPE_ERROR:
                    raise WrongError(
                        f"along a random direction the loss rises by {slope:.6g}, and by result {number} of "
                        f"{function.name} it would by {ours:.6g} ({case})"
                    )
                worst = max(worst, error)
    return f"slopes of the loss along random directions are those of finite differences, within {worst:.1g}"


def _inputs(functions: Sequence[Function], given: ModuleType, names: Sequence[str] | None) -> str:
    """No input is changed, and no result shares memory with one."""
    for function, case in _calls(functions):
        arrays = [a.copy() for a in case.arrays]
        made = _results(getattr(given, function.name)(*arrays, xp=array_api, **case.attrs))
        for number, result in enumerate(made or [None]):
            _array(f"{function.name}, result {number}", result)
            if any(np.may_share_memory(result, a) for a in arrays):
                raise WrongError(f"a result of {function.name} is a view of an input ({case}): copy it")
        if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(arrays, case.arrays, strict=True)):
            raise WrongError(f"{function.name} has changed an input ({case}): make a new array")
    return "no input is changed, and no result is a view of one"


def _parity(functions: Sequence[Function], given: ModuleType, names: Sequence[str] | None) -> str:
    """In float32 on the arrays of every backend the results are the library's in float64, but for rounding."""
    tried, worst = [], 0.0
    for name in backends.names() if names is None else names:
        try:
            backend = backends.get_backend(name)
        except Exception as error:  # a library may be there and broken in any way
            if names is None:
                continue
            raise WrongError(f"{name} cannot be used: {error}") from error
        tried.append(name)
        for function, case in _calls(functions):
            arrays = [backend.asarray(a, "float32" if a.dtype.kind == "f" else None) for a in case.arrays]
            try:
                with backend.active():
                    made = getattr(given, function.name)(*arrays, xp=backend.xp, **case.attrs)
                found = [backend.to_numpy(result) for result in _results(made)]
                worst = max(worst, _differ(function, case, found, "float32"))
            except Exception as error:
                error.add_note(f"(on {name}'s arrays)")
                raise
    return f"the same in float32 on {', '.join(tried)}, within {worst:.1g}"


def _speed(functions: Sequence[Function], given: ModuleType, names: Sequence[str] | None) -> str:
    """The time on a larger case is at most so many times the library's own."""
    said = []
    for function in functions:
        arrays = [a.astype("float32") if a.dtype.kind == "f" else a for a in function.large.arrays]
        call = partial(getattr(given, function.name), *arrays, xp=array_api, **function.large.attrs)
        own = partial(function.oracle, *arrays, xp=array_api, **function.large.attrs)
        _differ(function, function.large, call(), "float32")  # a time counts only if the results are right
        said.append(faster(function.name, call, function.bar, "the library", own))
    return "; ".join(said)


def faster(name: str, call: Callable[[], Any], bar: float, whose: str, other: Callable[[], Any]) -> str:
    """Measure a call and another one interleaved, and compare the least times; the result in words.

    Whatever disturbs the machine lengthens times, so where the bar is missed both are measured again, and the least of
    all times count.

    Raises:
        WrongError: If it takes more than `bar` times as long as the other.
    """
    calls = {"call": partial(stopwatch, call, least_s=LEAST_S), "other": partial(stopwatch, other, least_s=LEAST_S)}
    ours, theirs = [], []
    for _ in range(BOUTS):
        times = interleaved(calls, rounds=ROUNDS, budget_s=BUDGET_S)
        ours += times["call"]
        theirs += times["other"]
        ratio = min(ours) / min(theirs)
        said = f"{name} takes {ratio:.2g} times as long as {whose}, of at most {bar:g}"
        if ratio <= bar:
            return said
    raise WrongError(said)


def _calls(functions: Sequence[Function]) -> list[tuple[Function, Case]]:
    return [(function, case) for function in functions for case in function.cases]


def _call(function: Function, given: ModuleType, case: Case) -> Any:
    """Results in float64, from copies, so that what changes its inputs loses the points of that check only."""
    return getattr(given, function.name)(*(a.copy() for a in case.arrays), xp=array_api, **case.attrs)


def _results(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


def _array(what: str, found: Any) -> None:
    if not hasattr(found, "shape"):
        raise WrongError(f"{what}: an array is asked for. It is {type(found).__name__}")


def _shaped(what: str, found: Any, shape: tuple[int, ...], dtype: str) -> None:
    _array(what, found)
    if tuple(found.shape) != shape or str(np.asarray(found).dtype) != dtype:
        raise WrongError(
            f"{what}: shape {shape} and {dtype} are asked for. It is {tuple(found.shape)} and {found.dtype}"
        )


def _differ(function: Function, case: Case, made: Any, dtype: str = "float64") -> float:
    """Largest difference from the oracle in float64, relative to the largest element.

    Raises:
        WrongError: If it is more than rounding in `dtype` explains.
    """
    found, right = _results(made), _results(function.oracle(*case.arrays, xp=array_api, **case.attrs))
    if len(found) != len(right):
        raise WrongError(f"{function.name} returns {len(right)} arrays. It returned {len(found)}")
    worst, allowed = 0.0, tolerance(dtype, case.terms)[0]
    for number, (ours, theirs) in enumerate(zip(found, right, strict=True)):
        _shaped(f"{function.name}, result {number}", ours, theirs.shape, dtype)
        error = np.abs(np.asarray(ours, "float64") - theirs) / max(float(np.abs(theirs).max(initial=0.0)), 1e-300)
        if not float(error.max(initial=0.0)) <= allowed:
            place = np.unravel_index(int(np.nanargmax(np.where(np.isnan(error), np.inf, error))), error.shape)
            where = tuple(int(i) for i in place)
            raise WrongError(
                f"element {where} of {function.name}'s result is {float(ours[place]):.6g} and should be "
                f"{float(theirs[place]):.6g} ({case})"
            )
        worst = max(worst, float(error.max(initial=0.0)))
    return worst
