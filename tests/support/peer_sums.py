"""Sums in the memory of several GPUs, as each of several processes takes them, beside sums of NumPy in the tree."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn.backends._gpu.device_step import connect
from minicnn.backends._gpu.peer_sums import THREADS
from minicnn.backends._gpu.rank_sums import Sum, addition
from minicnn.backends._gpu.runtime import Launch, one_by_one
from minicnn.distribution import NcclCommunicator
from minicnn.distribution.communicators import RankError, Ranks
from minicnn.ops.groups import Group
from minicnn.program.graph import Spec

DEADLINE = 3.0  # seconds that a rank waits for one that does not come


def checked(backend: Any, communicator: NcclCommunicator, rounds: int) -> dict[str, Any]:
    """Whether sums of several sizes go through the peers' memory, and how many of all have other bits than the tree.

    Some are of arrays in memory that all ranks reach, which are summed in shares. They are captured, in both streams,
    and run so often, each rank now and then late.
    """
    if backend.name == "emulated":  # slowly: blocks one after the other, the threads of each in turn
        backend.runtime.gpu = replace(backend.runtime.gpu, multiprocessors=2)
    runtime, rank, ranks, rng = backend.runtime, communicator.rank, communicator.size, np.random.default_rng(3)
    with runtime.active():
        connect(communicator, runtime)
        connect(communicator, runtime, beside=True)
        channels = runtime.gpu.multiprocessors
        shares = [1, 700] if backend.name == "emulated" else [1, 700, 1 << 17]
        sizes = [1, THREADS - 1, 5 * THREADS + 3, THREADS * channels + 7, 2 * THREADS * channels + THREADS]
        cases = [(size, dtype) for dtype in ("float32", "float64") for size in sizes]
        cases = [case for case in cases if _at_once(communicator, *case)]
        at_once = len(cases)
        if cases:
            cases += [(4 * ranks * count, dtype) for dtype in ("float32", "float64") for count in shares]
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
        launches: list[Launch] = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            beside = number % 3 == 2
            one = _sum(backend, communicator, source, target, beside=beside, shares=number >= at_once)
            launches += runtime.beside(one, kind="sums") if beside else one
        run = runtime.capture(launches) if backend.captures else partial(one_by_one, launches)
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
        one = _sum(backend, communicator, array, total, beside=False, shares=how == "shares")
        one_by_one(one)
        communicator.finish(runtime)  # from here on nobody compiles or connects any more
        if communicator.rank == communicator.size - 1:
            time.sleep(10 * host.timeout)  # or until the launcher ends it
            return []
        host.timeout = DEADLINE
        one_by_one(one)
        try:
            communicator.finish(runtime)
        except RankError as error:
            runtime.synchronize()
            communicator.fail(error)
            return [str(error), True]
    return []


def _sum(
    backend: Any, communicator: NcclCommunicator, source: Any, target: Any, *, beside: bool, shares: bool
) -> list[Launch]:
    """Launches of a sum of arrays, in shares whatever their size or at once."""
    runtime, group = backend.runtime, Group(communicator.size, communicator.rank, communicator.size, communicator)
    spec, peers = Spec(tuple(source.shape), str(source.dtype)), communicator._peers
    with pytest.MonkeyPatch.context() as changed:
        if shares and peers is not None:
            changed.setattr(peers, "in_shares", lambda nbytes: True)
        program = addition(group, spec, runtime.gpu)
        whole = Sum(group, spec, None if program is None else backend.compile(program), runtime)
    outputs = {name: runtime.empty(each.shape, each.dtype) for name, each in whole.outputs.items()}
    return whole.bind({"flat": source}, outputs | {"sum": target}, beside=beside)


def _at_once(communicator: NcclCommunicator, size: int, dtype: str) -> bool:
    nbytes = size * np.dtype(dtype).itemsize
    return communicator.in_peers(dtype) and not communicator.in_shares(nbytes, dtype)
