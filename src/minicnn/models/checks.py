"""Checks of the arguments of a model's methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from minicnn.data.forms import Batches, as_data
from minicnn.distribution import DataParallel, OneProcess
from minicnn.ops.checks import as_integer


def check_counts(least: int = 1, **arguments: Any) -> list[int]:
    """The arguments, in their order; a ValueError if one is no integer of at least `least`."""
    counts = []
    for name, value in arguments.items():
        count = as_integer(value)
        if count is None or count < least:
            raise ValueError(f"{name} is an integer of at least {least}. Received: {name}={value!r}.")
        counts.append(count)
    return counts


def check_optional(**arguments: Any) -> list[Any]:
    """The arguments, in their order, of which each is None or an integer of at least 1."""
    return [None if value is None else check_counts(**{name: value})[0] for name, value in arguments.items()]


def check_seed(seed: Any) -> int:
    """The seed; a ValueError if it is none."""
    number = as_integer(seed)
    if number is None or not 0 <= number < 2**64:
        raise ValueError(f"seed is an integer from 0 to 2**64 - 1. Received: seed={seed!r}.")
    return number


def check_distribution(distribution: Any, accumulate: Any) -> DataParallel | None:
    """The distribution that `compile` was asked for; None if nothing is cut."""
    (accumulate,) = check_counts(accumulate=accumulate)
    if distribution is None:
        return DataParallel(accumulate, communicator=OneProcess()) if accumulate > 1 else None
    if not isinstance(distribution, DataParallel):
        raise TypeError(f"distribution is a DataParallel. Received: {distribution!r:.60}.")
    if accumulate > 1:
        raise ValueError(
            f"A distribution cuts the batch into its own shards. Received: {distribution!r} and "
            f"accumulate={accumulate}. Leave accumulate out: a rank takes its shards one after the other."
        )
    return distribution


def validated(frequency: Any) -> Callable[[int], bool]:
    """True if an epoch, counted from 1, ends with a validation, by its number."""
    if isinstance(frequency, Collection) and not isinstance(frequency, str):
        epochs = set(frequency)
        return lambda epoch: epoch in epochs
    check_counts(validation_freq=frequency)
    return lambda epoch: epoch % frequency == 0


def with_labels(data: Any) -> tuple[Any, Any, Any]:
    """Inputs or a loader, labels and sample weights of `validation_data`."""
    data = as_data(data)
    if isinstance(data, Batches):
        return data, None, None
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise ValueError(
            f"validation_data is (x, y), (x, y, sample_weight) or a loader. Received: {type(data).__name__}."
        )
    x, y, weight = (*data, None)[:3]
    return x, y, weight


def as_asked(logs: dict[str, Any], return_dict: bool) -> Any:
    """Logs as Keras gives them: a number, a list, or a dictionary."""
    values = list(logs.values())
    return logs if return_dict else values if len(values) > 1 else values[0]


def in_order(inputs: Mapping[str, Any]) -> list[Any]:
    """Symbolic inputs that are given by name; a ValueError if one has another name, by which data would come."""
    for name, tensor in inputs.items():
        if getattr(tensor, "name", None) != name:
            raise ValueError(
                f"Inputs in a dictionary have their keys as names. Received: {tensor!r} as {name!r}. Make it by "
                f"Input(..., name={name!r})."
            )
    return list(inputs.values())
