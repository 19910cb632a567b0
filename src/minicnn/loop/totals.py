"""Totals: the sums of losses and metrics over an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicnn.backends.base import Array
from minicnn.states import host_dtype

HostArray = np.ndarray[Any, Any]
Fetch = Callable[[Array], HostArray]

# Float32 holds every integer up to this one; beyond it a sum of ones stands still.
EXACT = 2**24
# After so many additions in float32 a sum is still right to some 1e-6, and to read it costs less than 1/1000 of them.
STEPS = 1024


@dataclass(frozen=True)
class Totals:
    """Sums of losses and metrics over an epoch, by the names of their Program inputs.

    A step adds to arrays of its own floating-point type where it computes. Before these get inexact their numbers move
    to the host, into float64 and int64. When they do depends on the batches alone, so that the bits are the same for
    any number of ranks, of steps at once, and after a training is resumed.

    Attributes:
        arrays: Sums of the latest steps, on the backend.
        earlier: Sums of the steps before, on the host.
        steps: Steps that `arrays` sum up.
        counted: Most that one of their counts may be.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    earlier: Mapping[str, HostArray] = field(default_factory=dict)
    steps: int = 0
    counted: int = 0

    def room(self, counted: int) -> int:
        """Number of steps that may be added, each counting up to so many; after `moved` there is room for one."""
        left = min(STEPS - self.steps, (EXACT - self.counted) // counted)
        return left if self.steps else max(left, 1)

    def moved(self, to_numpy: Fetch) -> Totals:
        """The same sums, all of them on the host; waits for the device."""
        return Totals({}, self.read(to_numpy))

    def added(self, arrays: Mapping[str, Array], steps: int, counted: int) -> Totals:
        """The totals after so many more steps, whose sums the arrays hold as well."""
        return Totals(arrays, self.earlier, self.steps + steps, self.counted + steps * counted)

    def read(self, to_numpy: Fetch) -> dict[str, HostArray]:
        """All sums, on the host, by name; waits for the device."""
        sums = dict(self.earlier)
        for name, array in self.arrays.items():
            latest = to_numpy(array)
            sums[name] = np.asarray(sums.get(name, 0) + latest.astype(host_dtype(latest.dtype)))
        return sums

    def get_state(self, to_numpy: Fetch) -> dict[str, Any]:
        """All of it as plain data and NumPy arrays."""
        arrays = {name: np.array(to_numpy(array)) for name, array in self.arrays.items()}
        return {"arrays": arrays, "earlier": dict(self.earlier), "steps": self.steps, "counted": self.counted}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], asarray: Callable[[HostArray], Array]) -> Totals:
        """The totals that `get_state` gave."""
        arrays = {name: asarray(np.array(array)) for name, array in state["arrays"].items()}
        return cls(
            arrays, {name: np.array(a) for name, a in state["earlier"].items()}, state["steps"], state["counted"]
        )
