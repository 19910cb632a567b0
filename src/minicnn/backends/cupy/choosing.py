"""Choices by measurement: candidates are timed once, and what was found is kept on disk beside the compiled kernels."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from minicnn.backends import _code

MARGIN = 0.95  # the first candidate is the one to keep; another has to take less than this share of its time


def measured(key: Sequence[str], candidates: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Time of each candidate, from the disk if it was measured before.

    Args:
        key: All that the times depend on: the device, the versions, the work.
        candidates: Functions that measure microseconds, by name.
    """
    name = hashlib.sha256(chr(0).join(key).encode()).hexdigest()
    path = _code.place("cuda", f"{name}.json")
    with contextlib.suppress(ValueError):
        found = json.loads(_code.read(path) or b"")
        if isinstance(found, dict) and found.keys() == candidates.keys():
            return {name: float(us) for name, us in found.items()}
    times = {name: measure() for name, measure in candidates.items()}
    _code.write(path, json.dumps(times).encode())
    return times


def fastest(times: Mapping[str, float]) -> str:
    """The candidate to take: the first, unless another is clearly faster."""
    first, *_ = times
    best = min(times, key=lambda name: times[name])
    return best if times[best] < MARGIN * times[first] else first
