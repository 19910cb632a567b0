"""Sums over GPUs by themselves: in the peers' memory, at once and in shares, and by NCCL.

    torchrun --nproc-per-node N benchmarks/rank_sums.py [--backend cupy] [--bytes "4 4096 1048576"] [--sums N]
        [--rounds N]

Of each size so many sums are a CUDA graph; the first rank prints medians of the microseconds of a sum: at once, by
copies of shares, and for NCCL of its own sum and of what the tree sends: all to all, then all gather.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

from minicnn.backends import get_backend
from minicnn.backends._gpu.device_step import connect
from minicnn.backends._gpu.rank_sums import Sum, addition
from minicnn.distribution import NcclCommunicator, TorchCommunicator
from minicnn.ops.groups import Group
from minicnn.program.graph import Spec
from minicnn.program.memory import ALIGNMENT

AT_ONCE = 1 << 21  # bytes up to which sums are taken at once, too


def main() -> None:
    """Time all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cupy")
    parser.add_argument("--bytes", default="4 1024 16384 65536 262144 524288 1048576 8388608 33554432 67108864")
    parser.add_argument("--sums", type=int, default=50, help="of a graph, of 2 MB or less")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    host = TorchCommunicator(120.0)
    backend: Any = get_backend(given.backend)
    runtime, ranks = backend.runtime, host.size
    sizes, group = [int(n) for n in given.bytes.split()], Group(ranks, host.rank, ranks, host)
    reaching, nccl = NcclCommunicator(host), NcclCommunicator(host, peers=False)
    with runtime.active():
        for communicator in (reaching, nccl):
            connect(communicator, runtime)
        peers: Any = reaching._peers
        if peers is None:
            raise SystemExit("These GPUs do not reach each other's memory.")
        multiple = ALIGNMENT * ranks  # bytes, of which shares begin where arrays may
        whole = -(-max(sizes) // multiple) * multiple
        shared, apart = reaching.shared(2 * whole, runtime), runtime.empty((2 * whole,), "uint8")
        for memory in (shared, apart):
            runtime.clear(memory)

        def pair(memory: Any, nbytes: int) -> list[Any]:
            return [runtime.view(memory, start, (-(-nbytes // 4),), "float32") for start in (0, whole)]

        def once(communicator: NcclCommunicator, collective: str, source: Any, target: Any) -> Any:
            return partial(communicator.enqueue, collective, source, target, runtime)

        def time(size: int, *launches: Any) -> str:
            count = max(5, min(given.sums, int(given.sums * AT_ONCE / size)))
            run, seconds = runtime.capture([*launches] * count), []
            for _ in range(given.rounds + 1):
                host.share(b"")
                start, end = runtime.event(timed=True), runtime.event(timed=True)
                runtime.record(start)
                run()
                runtime.record(end)
                reaching.finish(runtime)
                seconds.append(runtime.seconds(start, end))
            return f"{1e6 * statistics.median(seconds[1:]) / count:12.2f}"

        def say(*columns: str) -> None:
            if host.rank == 0:
                print(*(f"{column:>12}" for column in columns), flush=True)

        def in_shares(source: Any, target: Any) -> list[Any]:
            spec, together = Spec(source.shape, "float32"), replace(group, communicator=reaching)
            whole = Sum(together, spec, backend.compile(addition(together, spec, runtime.gpu)), runtime)
            outputs = {name: runtime.empty(each.shape, each.dtype) for name, each in whole.outputs.items()}
            return whole.bind({"flat": source}, outputs | {"sum": target})

        say("bytes", "at once", "in shares", "NCCL", "NCCL's tree")
        for size in sizes:
            columns, rounded = ["-"], -(-size // multiple) * multiple
            peers.in_shares = lambda nbytes: nbytes > AT_ONCE
            if size <= AT_ONCE:
                columns = [time(size, once(reaching, "all_reduce", *pair(apart, size)))]
            peers.in_shares = lambda nbytes: True
            columns.append(time(size, *in_shares(*pair(shared, rounded))))
            source, target = pair(apart, rounded)
            part = runtime.view(source, 0, (source.size // ranks,), "float32")
            columns.append(time(size, once(nccl, "all_reduce", source, target)))
            tree = once(nccl, "all_to_all", source, target), once(nccl, "all_gather", part, target)
            say(f"{size:,}", *columns, time(size, *tree))


if __name__ == "__main__":
    main()
