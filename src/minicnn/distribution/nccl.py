"""Ranks with a GPU each, through NCCL, which takes arrays where they are."""

from __future__ import annotations

import atexit
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from minicnn.distribution.communicators import PART, RankError, Ranks
from minicnn.distribution.worker import SideThread
from minicnn.extras import install
from minicnn.ops.groups import Communicator

if TYPE_CHECKING:
    from minicnn.backends._gpu.peer_sums import PeerSums
    from minicnn.backends._gpu.runtime import Event, Launch, Runtime
    from minicnn.distribution.schedule import Arrays
    from minicnn.program.graph import Spec

Array = Any


class Captured(Protocol):
    """Holder of graphs with collectives in them."""

    def release(self) -> None:
        """Let them go; they are captured again when they are needed."""


class NcclCommunicator:
    """Ranks of the backends `cupy` and `numba_cuda`: NCCL for arrays on the GPU, another communicator for all else.

    Collectives go into the stream that computes, so that CUDA graphs capture them. Sums are kernels that write into the
    memory of the other GPUs, where these are reached. The ranks find each other through the other communicator, which
    also tells what fails.

    Args:
        host: The other communicator, such as that of MPI. Its number of ranks may be one.
        nccl: The package `nccl` of nccl4py, or one like it.
        blocks: Multiprocessors that NCCL's sums may take from what is computed beside; None leaves that to NCCL.
        peers: Whether sums go through the memory of the other GPUs, where these are reached.

    Raises:
        ImportError: If nccl4py or NCCL is missing.
    """

    def __init__(self, host: Communicator, nccl: Any = None, blocks: int | None = None, *, peers: bool = True) -> None:
        try:
            if nccl is None:
                import nccl.core  # type: ignore[import-not-found,no-redef]
                from nccl.bindings import nccl as _  # type: ignore[import-not-found]  # noqa: F401  # an attribute from now on
            if nccl.core.get_version().libnccl is None:  # which is looked for when it is first needed
                missing = "there is no libnccl"
                raise RuntimeError(missing)
        except (ImportError, RuntimeError) as error:
            message = (
                f"GPUs of several processes compute together through nccl4py and NCCL: {install('nccl')}. Received: "
                f"{error}."
            )
            raise ImportError(message, name="nccl") from error
        self.host, self.rank, self.size = host, host.rank, host.size
        # Arrays of the host are the other's business.
        self.exchange, self.gather, self.add, self.share = host.exchange, host.gather, host.add, host.share
        self.send, self.receive, self.fail = host.send, host.receive, host.fail
        self._nccl, self._blocks = nccl, blocks
        self._connected: dict[bool, Any] = {}  # by whether it is for what goes on beside
        self._graphs: weakref.WeakSet[Captured] = weakref.WeakSet()
        self._peers: PeerSums | None = None
        self._left: PeerSums | None = None  # which was connected before
        self._reaches = peers

    def enqueue(self, collective: str, source: Array, target: Array, runtime: Runtime, *, beside: bool = False) -> None:
        """Put a collective into the stream that computes; can be captured.

        Args:
            collective: "all_reduce", which is NCCL's own sum or one in the peers' memory, "all_gather" along the first
                axis, or "all_to_all", which gives each rank a row.
            source: Contiguous array on the device.
            target: Likewise, for the result.
            runtime: The device.
            beside: Whether it goes on beside others, which do not wait for it: one connection does all in one order.
        """
        connected, peers = self._connection(runtime, beside=beside), self._peers
        if collective == "all_reduce" and peers is not None and self.in_peers(str(source.dtype)):
            launch = peers.launch(source, target, beside=beside)
            if launch is not None:
                return launch()
        return self._enqueue(connected, collective, source, target, runtime)

    def in_peers(self, dtype: str) -> bool:
        """True if such numbers are summed in the peers' memory, in the order of the tree; once it is connected."""
        return self._peers is not None and self._peers.takes(dtype)

    def in_shares(self, nbytes: int, dtype: str) -> bool:
        """True if that is done by shares, of arrays in memory of `shared`: see `launches_of_shares`."""
        return self._peers is not None and self.in_peers(dtype) and self._peers.in_shares(nbytes)

    def shared(self, nbytes: int, runtime: Runtime) -> Array:
        """An array of at least so many bytes in memory that all ranks reach, each of which asks for as many.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        self._connection(runtime)
        return self._peers.share(nbytes)  # type: ignore[union-attr]

    def within_kernels(self, sums: Sequence[Spec], runtime: Runtime) -> Arrays:
        """Arrays that kernels need to take some sums themselves, of which each rank asks for the same.

        Raises:
            MemoryError: If a rank has too little memory; on all ranks.
        """
        self._connection(runtime)
        return self._peers.within_kernels(sums)  # type: ignore[union-attr]

    def launches_of_shares(
        self, flat: Array, taken: Array, total: Array, runtime: Runtime, *, beside: bool
    ) -> tuple[list[Launch], list[Launch]]:
        """Launches that bring each rank its share of all others' arrays, and those that bring its sum to all.

        Args:
            flat: This rank's array, in memory of `shared`.
            taken: For its share of all arrays, one after the other; its own stays in `flat`.
            total: For the sum, likewise in memory of `shared`; the ranks' shares follow each other.
            runtime: The device.
            beside: See `enqueue`.
        """
        self._connection(runtime, beside=beside)
        peers: PeerSums = self._peers  # type: ignore[assignment]
        return peers.bring_shares(flat, taken, beside=beside), peers.give_share(total, beside=beside)

    def _enqueue(self, connected: Any, collective: str, source: Array, target: Array, runtime: Runtime) -> None:
        """Put a collective of NCCL into the stream."""
        # By addresses: nccl4py's own methods ask the driver for the device of an array, which may answer another, and
        # not every library exports an array without waiting for the device.
        bindings = self._nccl.bindings.nccl
        dtype = int(self._nccl.core.NcclDataType.from_numpy_dtype(source.dtype))
        buffers = runtime.address(source), runtime.address(target)
        to = bindings.Comm(connected.ptr), runtime.current()
        if collective == "all_reduce":
            bindings.all_reduce(*buffers, source.size, dtype, int(self._nccl.core.SUM), *to)
        elif collective == "all_gather":
            bindings.all_gather(*buffers, source.size, dtype, *to)
        else:
            bindings.allto_all(*buffers, source.size // self.size, dtype, *to)

    def prepare(self, arrays: Sequence[Array], runtime: Runtime, *, beside: bool = False) -> None:
        """Connect the ranks, which cannot be captured: sum something small between two arrays.

        Args:
            arrays: Two arrays of as many elements as there are ranks.
            runtime: The device.
            beside: See `enqueue`.
        """
        connected = self._connection(runtime, beside=beside)
        for collective in ("all_reduce", "all_to_all"):
            self._enqueue(connected, collective, arrays[0], arrays[1], runtime)
        self.finish(runtime)

    def _connection(self, runtime: Runtime, *, beside: bool = False) -> Any:
        """NCCL's communicator; the first time all ranks wait for each other, within the deadline."""
        if beside not in self._connected:
            self._check_devices(runtime)
            # The ranks know each other by another way already; NCCL needs a name in common.
            first = self.share(bytes(self._nccl.core.get_unique_id()) if self.rank == 0 else b"")[0]
            name = self._nccl.core.UniqueId.from_bytes(first)

            def connect() -> Any:
                config = None if self._blocks is None else self._nccl.core.NCCLConfig(max_ctas=self._blocks)
                with runtime.active():
                    return self._nccl.core.Communicator.init(self.size, self.rank, name, config)

            begun = SideThread().begin(connect)
            if isinstance(self.host, Ranks):
                self.host.wait(begun.done)
            try:
                connected = begun.result()
            except Exception as error:
                raise RuntimeError(
                    f"NCCL connects ranks that have a GPU each, with some memory left on it. Received by rank "
                    f"{self.rank}: {' '.join(str(error).split())[:300]}. Look at nvidia-smi for who else has memory "
                    "there; NCCL_DEBUG=WARN tells more."
                ) from error
            if not self._connected:
                atexit.register(_at_exit, weakref.ref(self), runtime)
                if self._left is not None:  # by all, before they connected again
                    self._left.free()
                with runtime.active():
                    self._peers = runtime.reach(self.host) if self._reaches else None
            self._connected[beside] = connected
        return self._connected[beside]

    def _check_devices(self, runtime: Runtime) -> None:
        """Refuse ranks of which two have one GPU, or GPUs of different kinds, whose kernels have other bits.

        Raises:
            ValueError: If there are such; on all ranks.
        """
        kind = "" if runtime.gpu is None else runtime.gpu.name
        told = [each.decode() for each in self.share("\n".join([kind, socket.gethostname(), runtime.bus]).encode())]
        ranks_of: dict[str, list[int]] = {}
        for rank, place in enumerate(told):
            ranks_of.setdefault(place, []).append(rank)
        doubled = [ranks for place, ranks in ranks_of.items() if len(ranks) > 1 and runtime.bus]
        if doubled:
            raise ValueError(
                f"Each rank has a GPU of its own. Received: ranks {', '.join(map(str, doubled[0]))} on one. Start as "
                "many processes as there are GPUs, and let each see its own (CUDA_VISIBLE_DEVICES) or all."
            )
        kinds = list(dict.fromkeys(place.partition("\n")[0] for place in told))
        if len(kinds) > 1:
            raise ValueError(
                f"All ranks have GPUs of one kind, since bits differ between kinds. Received: {', '.join(kinds)}. "
                "Leave the others out (CUDA_VISIBLE_DEVICES)."
            )

    def captured(self, by: Captured) -> None:
        """Take note of what keeps graphs with collectives in them."""
        self._graphs.add(by)

    def close(self, runtime: Runtime) -> None:
        """Part from the other ranks, which do likewise; nothing is waited for after an error, or for long."""
        connected, self._connected = self._connected, {}
        if not connected or (isinstance(self.host, Ranks) and self.host.ending):
            return
        for each in list(self._graphs):  # NCCL waits for the last of them
            each.release()

        peers = self._left = self._peers
        self._peers = None

        def part() -> None:
            with runtime.active():
                runtime.synchronize()
                if peers is not None:
                    peers.close()
                for each in connected.values():
                    each.destroy()

        with suppress(TimeoutError):
            SideThread().begin(part).result(PART)

    def finish(self, runtime: Runtime) -> None:
        """Wait for the device, but not beyond the deadline: then the collectives under way are given up."""
        self.wait(self.mark(runtime), runtime)

    def mark(self, runtime: Runtime) -> Event:
        """An event that comes when the device has done what it was given so far."""
        event = runtime.event()
        runtime.record(event)
        return event

    def wait(self, event: Event, runtime: Runtime) -> None:
        """Wait for an event as `finish` does."""
        if not isinstance(self.host, Ranks):
            return
        # Waiting for an event can be given up; waiting for the device cannot.
        try:
            self.host.wait(lambda: runtime.done(event))
        except RankError:
            if self._peers is not None:
                self._peers.end()
            for each in self._connected.values():
                each.abort()
            raise


def _at_exit(communicator: weakref.ref[NcclCommunicator], runtime: Runtime) -> None:
    known = communicator()
    if known is not None:
        known.close(runtime)
