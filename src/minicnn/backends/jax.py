"""JAX arrays: the namespace, and each Program jitted as the one pure function that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as xp
import numpy as np

from minicnn.backends.base import Array, Backend, Executable, node_by_node
from minicnn.program.graph import Program

if TYPE_CHECKING:
    from minicnn.distribution.schedule import RankSchedule


class JaxBackend(Backend):
    """Runs the references on JAX arrays, compiled by XLA."""

    name = "jax"
    xp = xp
    devices = ("cpu", "gpu", "cuda", "tpu")
    precisions = ("float32", "float64", "mixed_bfloat16")
    survives_fork = False

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        kind = jax.default_backend() if device is None else device
        super().__init__(kind, reference_only=reference_only, strict=strict)
        platform, _, index = self.device.partition(":")
        try:
            self._device = jax.local_devices(backend=platform)[int(index or 0)]
        except (RuntimeError, IndexError) as error:
            platforms = sorted({d.platform for d in jax.devices()} | {"cpu"})
            raise RuntimeError(
                f"JAX must see the device that is asked for. Received: {device!r}, found: {', '.join(platforms)}. "
                "Install the jax build for it, or use jax:cpu."
            ) from error

    def enable(self, precision: str) -> None:
        if precision == "float64":
            jax.config.update("jax_enable_x64", True)

    def asarray(self, data: Any, dtype: str | None = None) -> Array:
        wanted = np.dtype(dtype) if dtype else None  # JAX has taught NumPy the name bfloat16
        if wanted == np.float64 and not jax.config.jax_enable_x64:
            raise ValueError(
                "JAX computes in float64 only where its 64-bit mode is on. Received: float64 with the mode off. "
                "Use float32, or jax.config.update('jax_enable_x64', True) before the first array."
            )
        if isinstance(data, jax.Array):
            return data if wanted is None else data.astype(wanted)
        # A copy of its own, because on a CPU JAX may go on using the memory that it is given.
        return jax.device_put(np.array(data, dtype=wanted), self._device)

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        return np.asarray(array.astype(np.float32) if array.dtype == xp.bfloat16 else array)

    def owns(self, array: Any) -> bool:
        return isinstance(array, jax.Array)

    def synchronize(self) -> None:
        """Wait for all arrays that somebody still holds: JAX cannot be asked for others, so keep what is timed."""
        jax.block_until_ready(jax.live_arrays())

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`; carried arrays are donated, so that their memory is used again."""
        run = node_by_node(program, self.functions(program), self.asarray)
        carried = set(program.updates)

        def split(old: Mapping[str, Array], fixed: Mapping[str, Array]) -> dict[str, Array]:
            with jax.default_matmul_precision("highest"):  # on a GPU the default is TF32
                return run({**old, **fixed})

        jitted = jax.jit(split, donate_argnums=0)

        def call(arrays: Mapping[str, Array]) -> dict[str, Array]:
            result: dict[str, Array] = jitted(
                {k: v for k, v in arrays.items() if k in carried},
                {k: v for k, v in arrays.items() if k not in carried},
            )
            return result

        return call

    def rank_step(self, schedule: RankSchedule, run: Callable[[RankSchedule, Self], Executable]) -> Executable:
        """See `Backend.rank_step`; in one jit where that can be."""
        from minicnn.backends._jax_ranks import rank_step

        return rank_step(schedule, self)

    def memory(self) -> int | None:
        """See `Backend.memory`; the largest so far."""
        statistics = self._device.memory_stats()  # None on a CPU
        return int(statistics["peak_bytes_in_use"]) if statistics else None

    @classmethod
    def describe(cls) -> dict[str, str]:
        return {"jax": jax.__version__, "devices": ", ".join(str(d) for d in jax.devices())}
