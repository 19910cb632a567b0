"""Times that can be compared: candidates are measured interleaved, and medians are reported with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from minicnn.backends.base import Backend
from minicnn.measure.spread import Spread

__all__ = ["Spread", "awaken", "interleaved", "stopwatch"]

LEAST_ROUNDS = 3
Key = TypeVar("Key")
Taken = TypeVar("Taken")
GPU_AWAKE_S, CPU_AWAKE_S = 0.05, 0.1


def stopwatch(
    call: Callable[[], object],
    synchronize: Callable[[], object] = lambda: None,
    *,
    least_s: float = 0.0,
    expected_s: float | None = None,
) -> float:
    """Seconds of one call, with the device idle before and after.

    Args:
        call: What is timed.
        synchronize: Waits for the device, such as `backend.synchronize`.
        least_s: The call is repeated until at least this many seconds have passed, and the mean is returned: a
            clock cannot time what takes microseconds.
        expected_s: What a call took before, if it is known: so many calls are made at once.
    """
    count = int(1.2 * least_s / expected_s) + 1 if expected_s else 1
    while True:
        synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        taken = time.perf_counter() - start
        if taken >= least_s:
            return taken / count
        count = max(2 * count, int(1.2 * count * least_s / max(taken, 1e-9)))


def awaken(backend: Backend, call: Callable[[], object] | None = None, least_s: float | None = None) -> None:
    """Keep a candidate busy for a moment before it is timed.

    While other candidates run the clocks of a GPU fall, and the threads of a CPU sleep: a scheduler may wake them on
    one core, and take some ten milliseconds to part them.

    Args:
        backend: Whose library does the work, and waits for it.
        call: The work, done at least once; a product of matrices if None.
        least_s: For how long; if None, `GPU_AWAKE_S` or `CPU_AWAKE_S`.
    """
    if call is None:
        side = backend.asarray(np.ones((512, 512), np.float32))
        call = partial(backend.xp.matmul, side, side)
    if least_s is None:
        least_s = CPU_AWAKE_S if backend.device == "cpu" else GPU_AWAKE_S
    start = time.perf_counter()
    with backend.active():
        while time.perf_counter() - start < least_s:
            call()
            backend.synchronize()


def interleaved(
    calls: Mapping[Key, Callable[[], Taken]], *, rounds: int, warmup: int = 1, budget_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Key, list[Taken]]:  # fmt: skip
    """Measure candidates interleaved, so that whatever disturbs the machine disturbs all of them.

    Args:
        calls: For each name what runs the candidate once and returns its seconds.
        rounds: How often each is measured.
        warmup: Rounds before these, which do not count.
        budget_s: No round starts after this many seconds, once each candidate has had three.
        clock: Seconds, by which the budget is spent; of processes that measure together the same in all.

    Returns:
        The seconds of each measurement by name. Each round begins with another candidate.
    """
    names = list(calls)
    samples: dict[Key, list[Taken]] = {name: [] for name in names}
    for _ in range(warmup):
        for name in names:
            calls[name]()
    start = clock()
    for number in range(rounds):
        spent = clock() - start
        if budget_s is not None and number >= LEAST_ROUNDS and spent * (number + 1) / number > budget_s:
            break
        first = number % max(len(names), 1)
        for name in names[first:] + names[:first]:
            samples[name].append(calls[name]())
    return samples
