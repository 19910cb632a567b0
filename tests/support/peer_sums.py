"""Sums in the memory of several GPUs, as each of several processes takes them, beside sums of NumPy in the tree."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minicnn.backends._gpu.costs import costs_on
from minicnn.backends._gpu.device_step import connect
from minicnn.backends._gpu.peer_sums import THREADS
from minicnn.distribution import NcclCommunicator
from minicnn.distribution.communicators import RankError, Ranks
from minicnn.ops.groups import Group

DEADLINE = 3.0  # seconds that a rank waits for one that does not come


def checked(backend: Any, communicator: NcclCommunicator, rounds: int) -> dict[str, Any]:
    """Whether sums of several sizes go through the peers' memory, and how many of all have other bits than the tree.

    Some are of arrays in memory that all ranks reach, which are summed in shares. They are captured, in both lanes, and
    run so often, each rank now and then late.
    """
    if backend.name == "emulated":  # slowly: blocks one after the other, the threads of each in turn
        backend.runtime.gpu = replace(backend.runtime.gpu, multiprocessors=2)
    runtime, rank, ranks, rng = backend.runtime, communicator.rank, communicator.size, np.random.default_rng(3)
    with runtime.active():
        connect(communicator, runtime)
        connect(communicator, runtime, beside=True)
        channels = runtime.gpu.multiprocessors
        shares = [1, 700] if backend.name == "emulated" else [1, 700, 33 * costs_on(runtime.gpu).limits.threads]
        sizes = [1, THREADS - 1, 5 * THREADS + 3, THREADS * channels + 7, 2 * THREADS * channels + THREADS]
        cases = [(size, dtype) for dtype in ("float32", "float64") for size in sizes]
        cases = [case for case in cases if _at_once(communicator, *case)]
        at_once = len(cases)
        if cases:  # shares are of whole runs of 16 bytes
            cases += [(4 * ranks * runs, dtype) for dtype in ("float32", "float64") for runs in shares]
        scales = 10.0 ** rng.integers(-3, 4, (ranks, len(cases)))
        given = [
            [(rng.standard_normal(n) * scale).astype(t) for (n, t), scale in zip(cases, row, strict=True)]
            for row in scales
        ]
        sources = [backend.asarray(a) for a in given[rank]]
        targets = [runtime.empty(a.shape, str(a.dtype)) for a in given[rank]]
        if cases:
            shared, end = communicator.shared(2 * sum(a.nbytes for a in given[rank][at_once:]), runtime), 0
            for k, a in list(enumerate(given[rank]))[at_once:]:
                for arrays in (sources, targets):
                    arrays[k], end = runtime.view(shared, end, a.shape, str(a.dtype)), end + a.nbytes
        launches: list[Callable[[], None]] = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            one = partial(communicator.enqueue, "all_reduce", source, target, runtime, beside=number % 3 == 2)
            launches += runtime.beside([one]) if number % 3 == 2 else [one]
        run = runtime.capture(launches) if backend.captures else partial(_one_by_one, launches)
        wrong = 0
        for number in range(rounds):
            time.sleep(1e-3 * (number % ranks == rank))
            for k, source in enumerate(sources):  # new numbers, the same on all ranks
                runtime.copy(backend.asarray(given[rank][k] * (number + 1)), source)
            run()
            communicator.finish(runtime)
            for k, target in enumerate(targets):
                summands = {(r, r + 1): given[r][k] * (number + 1) for r in range(ranks)}
                wrong += int((backend.to_numpy(target) != Group(ranks).total(summands, np.add)).sum())
    return {"in peers' memory": len(cases), "wrong": wrong}


def left_alone(backend: Any, communicator: NcclCommunicator, how: str) -> list[Any]:
    """What a rank finds that waits for the last one, which does not come: the error, and whether its device is free.

    Sums are taken at once, or in shares.
    """
    runtime, host, size = backend.runtime, communicator.host, 64 * communicator.size
    assert isinstance(host, Ranks)
    with runtime.active():
        connect(communicator, runtime)
        shared = communicator.shared(8 * size, runtime) if how == "shares" else runtime.empty((8 * size,), "uint8")
        runtime.clear(shared)
        array, total = (runtime.view(shared, k * 4 * size, (size,), "float32") for k in (0, 1))
        communicator.enqueue("all_reduce", array, total, runtime)
        communicator.finish(runtime)  # from here on nobody compiles or connects any more
        if communicator.rank == communicator.size - 1:
            time.sleep(10 * host.timeout)  # or until the launcher ends it
            return []
        host.timeout = DEADLINE
        communicator.enqueue("all_reduce", array, total, runtime)
        try:
            communicator.finish(runtime)
        except RankError as error:
            runtime.synchronize()
            communicator.fail(error)
            return [str(error), True]
    return []


def _at_once(communicator: NcclCommunicator, size: int, dtype: str) -> bool:
    nbytes = size * np.dtype(dtype).itemsize
    return communicator.in_peers(nbytes, dtype) and not communicator.in_shares(nbytes, dtype)


def _one_by_one(launches: list[Callable[[], None]]) -> None:
    for launch in launches:
        launch()
