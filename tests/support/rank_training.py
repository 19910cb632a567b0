"""Run by a launcher on each rank: a training that ends well, or as its first argument says."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from minicnn.backends import get_backend
from minicnn.backends._gpu.peer_sums import PeerSums
from minicnn.callbacks import BackupAndRestore, LambdaCallback
from minicnn.distribution import DataParallel, ModelParallel, NcclCommunicator, Pipeline, passes
from minicnn.distribution.launchers import launched
from minicnn.machine import local_rank
from support import peer_sums
from support.distributed import STAGES, data, digest, normalized, trained
from support.random_networks import on_ranks


def without_graphs(name: str) -> Any:
    """A backend of GPUs whose steps are launched one by one."""
    from minicnn.backends._gpu.options import Options

    return type(get_backend(name))(options=Options(graph=False))  # type: ignore[call-arg]


def emulated() -> Any:
    """A GPU that is emulated, whose NCCL goes through what connects the processes."""
    from backends.cupy.emulated import EmulatedBackend
    from support.made_up_nccl import Between

    class Connected(EmulatedBackend):
        def connected(self, communicator: Any) -> Any:
            return NcclCommunicator(communicator, Between(self.runtime, communicator))

    return Connected()


def connected(name: str, communicator: Any) -> tuple[Any, NcclCommunicator]:
    """A backend by name, "emulated" among them, and what connects its GPUs; "-messages" is without peers' memory.

    With "-shares" all sums but the smallest are taken in shares; with "-apart" each sum is a launch.
    """
    library, _, how = name.partition("-")
    backend: Any = emulated() if library == "emulated" else get_backend(library)
    made = backend.connected(communicator)
    if how == "messages":
        made = NcclCommunicator(communicator, made._nccl, peers=False)
    if how == "shares":
        PeerSums.in_shares = lambda self, nbytes: nbytes > 400  # type: ignore[method-assign]
    if how == "apart":
        backend.exchanges = False
    return backend, made


def main(how: str, *arguments: str) -> None:
    shards, timeout = int(os.environ.get("SHARDS", "8")), float(os.environ.get("TIMEOUT", "60"))
    passes.BUCKET = int(os.environ.get("BUCKET", passes.BUCKET))
    if how == "absent" and launched()[1] == 1:
        time.sleep(30)
    distribution = DataParallel(shards, timeout=timeout)
    if how == "many":
        print(sum(DataParallel(shards).ranks for _ in range(1100)))
        return
    if how in ("sums", "waiting"):
        device, communicator = connected(arguments[0], distribution.communicator)
        if how == "sums":
            found: Any = peer_sums.checked(device, communicator, int(arguments[1]))
        else:
            found = peer_sums.left_alone(device, communicator, arguments[1])
        if distribution.rank == 0:
            print(json.dumps([distribution.ranks, found]))
        return
    if how == "alone" and distribution.rank == 0:
        DataParallel(shards, timeout=timeout)
    if how == "alone":
        time.sleep(30)
    if how == "train":
        backend, epochs, *names = arguments
        given = {  # names of models that have these
            "split": lambda: ModelParallel(4), "staged": lambda: Pipeline(STAGES, shards=4),
            "hybrid": lambda: ModelParallel(4, layout_map={"kernel": (None, "model")}),
            "fast": lambda: DataParallel(distribution.ranks, deterministic=False),
        }  # fmt: skip
        if backend.endswith(("-messages", "-shares", "-apart")):
            backend, communicator = connected(backend, distribution.communicator)
            distribution = DataParallel(shards, communicator=communicator)
        elif backend == "emulated":
            backend = emulated()
        elif backend.endswith("-eager"):
            backend = without_graphs(backend.removesuffix("-eager"))
        elif backend.endswith("-numbered"):  # which makes no device current
            backend = f"{backend.removesuffix('-numbered')}:cuda:{local_rank()}"
        made = {name: trained(name, backend, given.get(name, lambda: distribution)(), int(epochs)) for name in names}
        if distribution.rank == 0:
            print(json.dumps([distribution.ranks, made]))
        return
    if how == "random":  # networks of so many seeds
        backend, communicator = connected(arguments[0], distribution.communicator)
        seeds = range(int(arguments[1]), int(arguments[1]) + int(arguments[2]))
        digests = {seed: digest(on_ranks(seed, backend, communicator, True, shards)()) for seed in seeds}
        if distribution.rank == 0:
            print(json.dumps([distribution.ranks, digests]))
        return
    if how == "part":  # each rank takes what it gives, of another length
        own = np.zeros(1 + distribution.rank)
        distribution.communicator.gather(own, [own.copy() for _ in range(distribution.ranks)])
        return
    step, backup = int(arguments[0]), arguments[1:]
    if how == "time":  # killed at any moment: which rank, and after how many milliseconds of a training with slow steps
        rank, backup = int(arguments[1]), arguments[2:]
        if distribution.rank == rank:
            threading.Timer(step / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def fail(batch: int, logs: Any) -> None:
        if how == "time":
            time.sleep(0.02)
        elif model.steps_taken != step or distribution.rank != distribution.ranks - 1 or restarted:
            pass
        elif how == "raise":
            raise OSError("the disk is gone")
        elif how == "hang":
            time.sleep(600)
        elif how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    model = normalized("numpy", distribution)
    callbacks = [LambdaCallback(on_train_batch_end=fail), *(BackupAndRestore(b, save_freq=1) for b in backup)]
    x, y = data()
    if how == "nan":  # in the samples of the last rank
        x[12 * step + 11] = math.nan
    model.fit(x, y, 12, 3, verbose=0, shuffle=how != "nan", callbacks=callbacks)
    if model.distribution.rank == 0:
        print(digest(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
