"""The ranks of a job, through jax.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minicnn.distribution.communicators import Host, RankError, StoreRanks
from minicnn.distribution.launchers import launched
from minicnn.distribution.worker import SideThread
from minicnn.extras import install

AXIS = "rank"  # of the mesh of all processes, of which each has one device
_EXACT = 1 << 16  # bytes; less is filled up, so that few lengths are compiled


class JaxCommunicator(StoreRanks):
    """Ranks that jax.distributed connects: collectives of XLA, on CPUs by gloo.

    They meet at the address in the environment variable JAX_COORDINATOR_ADDRESS, or at port 29501 of MASTER_ADDR, or of
    this machine. Make it before JAX has computed anything. With the backend `jax`, steps have their collectives inside
    the jit where that is possible. What fails is told through JAX's coordination service, in the
    process of rank 0: when that one dies, JAX may end the others with a message of its own.

    Args:
        timeout: Seconds after which a rank that waits asks the others, and ends the job.

    Raises:
        ImportError: If JAX is missing.
        RuntimeError: If the ranks do not meet within the time.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        try:
            import jax
            from jax.sharding import Mesh, NamedSharding, PartitionSpec
        except ImportError as error:
            message = f"jax.distributed is part of JAX: {install('jax')}. {error}"
            raise ImportError(message, name="jax") from error
        _, rank, size = launched()
        super().__init__(rank, size, timeout)
        if not jax.distributed.is_initialized():
            self._meet(jax, rank, size)
        from jax._src.distributed import global_state  # JAX has no public name for its store

        self._jax, self._store = jax, global_state.client
        # One device a process: a rank is one, as with every other communicator.
        devices = [next(d for d in jax.devices() if d.process_index == r) for r in range(size)]
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.cut, self.same = (NamedSharding(self.mesh, PartitionSpec(*axes)) for axes in ((AXIS,), ()))
        self._worker = SideThread()
        self._gather = self._compiled(lambda x: jax.lax.all_gather(x[0], AXIS)[None])
        self._sum = self._compiled(lambda x: jax.lax.psum(x, AXIS))
        self._exchange = self._compiled(lambda x: jax.lax.all_to_all(x[0], AXIS, 0, 0)[None])

    def _meet(self, jax: Any, rank: int, size: int) -> None:
        place = os.environ.get("JAX_COORDINATOR_ADDRESS", f"{os.environ.get('MASTER_ADDR', '127.0.0.1')}:29501")
        seconds = max(1, int(self.timeout))
        try:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            # Its own deadlines only come after ours, which name who is missing.
            jax.distributed.initialize(
                place, size, rank, local_device_ids=[0] if jax.config.jax_platforms == "cpu" else None,
                initialization_timeout=seconds, heartbeat_timeout_seconds=2 * seconds + 60,
                shutdown_timeout_seconds=seconds,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"All ranks meet at {place} within timeout={self.timeout:g} seconds, before JAX computes. Received: "
                f"{str(error)[:300]}. Set JAX_COORDINATOR_ADDRESS to a name and a free port of the machine of rank 0, "
                "and make the communicator before the first array."
            ) from error

    def _compiled(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        spec = self.cut.spec
        return self._jax.jit(self._jax.shard_map(function, mesh=self.mesh, in_specs=spec, out_specs=spec))

    def spread(self, array: Any, *, cut: bool) -> Any:
        """An array of this process as a part of one of all processes: its rows, or the same everywhere."""
        shape = (array.shape[0] * self.size, *array.shape[1:]) if cut else array.shape
        sharding = self.cut if cut else self.same
        return self._jax.make_array_from_single_device_arrays(shape, sharding, [array])

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function with collectives in it, within the deadline."""
        # In a thread, as JAX waits without a deadline.
        done = self._worker.begin(lambda: self._jax.block_until_ready(function(*arguments)))
        self.wait(done.done)
        try:
            return done.result()
        except RankError:
            raise
        except (RuntimeError, ValueError) as error:  # a connection that another has closed
            raise self.lost() from error

    def _moved(self, function: Callable[[Any], Any], block: Host) -> Host:
        device = self.mesh.devices.flat[self.rank]
        spread_block = self.spread(self._jax.device_put(block[None], device), cut=True)
        return np.asarray(self.run(function, spread_block).addressable_data(0))[0]

    def _longest(self, nbytes: int) -> int:
        """The most bytes that any rank gives another: XLA moves pieces of one length."""
        longest = int(self._moved(self._gather, np.array([nbytes], np.int32)).max())
        # JAX compiles for each length: small ones are rounded up to powers of two.
        return longest if longest > _EXACT else 1 << max(6, (longest - 1).bit_length())

    def exchange(self, outgoing: Sequence[Host], incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        block = np.zeros((self.size, self._longest(max(a.nbytes for a in (*outgoing, *incoming)))), np.uint8)
        for row, array in zip(block, outgoing, strict=True):
            row[: array.nbytes] = array.view(np.uint8)
        others = [a[:0] if a is g else a for a, g in zip(incoming, outgoing, strict=True)]
        self._take(self._moved(self._exchange, block), others)

    def gather(self, outgoing: Host, incoming: Sequence[Host]) -> None:
        """See `Communicator`."""
        block = np.zeros(self._longest(max(a.nbytes for a in incoming)), np.uint8)
        block[: outgoing.nbytes] = outgoing.view(np.uint8)
        self._take(self._moved(self._gather, block), incoming)

    def add(self, array: Host) -> None:
        """See `Communicator`."""
        array[...] = self._moved(self._sum, array)

    def _take(self, block: Host, taken: Sequence[Host]) -> None:
        for row, array in zip(block, taken, strict=True):
            if array.size:  # nothing of what stays here, which may be an array of JAX's that is read-only
                array.view(np.uint8)[...] = row[: array.nbytes]

    def send(self, array: Host, rank: int, tag: int) -> None:
        """Raise a RuntimeError: XLA's collectives are of all ranks together."""
        raise RuntimeError(
            "Pipeline sends arrays from one rank to another. Received: ranks that jax.distributed connects, which "
            "compute all together. Let them talk through MPI or torch.distributed: leave JAX_COORDINATOR_ADDRESS out."
        )

    def receive(self, array: Host, rank: int, tag: int) -> None:
        """See `send`."""
        self.send(array, rank, tag)

    def _set(self, key: str, value: bytes) -> None:
        self._store.key_value_set_bytes(f"minicnn/{key}", value, allow_overwrite=True)

    def _get(self, key: str) -> bytes | None:
        with suppress(RuntimeError):  # which it raises where there is nothing
            return bytes(self._store.key_value_try_get_bytes(f"minicnn/{key}"))
        return None
