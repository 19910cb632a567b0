"""Steps of ranks with a GPU each, whose sums the GPU takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minicnn.backends._gpu.rank_sums import sums_of
from minicnn.backends._gpu.runtime import Runtime
from minicnn.distribution.nccl import NcclCommunicator
from minicnn.distribution.running import RankStep
from minicnn.distribution.schedule import Arrays, Collective, RankSchedule

if TYPE_CHECKING:
    from minicnn.backends._gpu.backend import GpuBackend


class DeviceStep(RankStep):
    """A `RankStep` whose sums are Programs of the GPU, with their collectives.

    Args:
        schedule: See `RankStep`.
        backend: See `RankStep`.
        communicator: What connects the GPUs; None for one rank.
    """

    overlaps = False  # a GPU does what it is given in one order

    def __init__(self, schedule: RankSchedule, backend: GpuBackend, communicator: NcclCommunicator | None) -> None:
        super().__init__(schedule, backend)
        self._communicator, self._runtime = communicator, backend.runtime
        sums: list[Collective] = []
        if communicator is not None:
            communicator.captured(self)
            sums = [each for each in schedule.instructions if isinstance(each, Collective) and not each.exchanges]
        self._sums = self._compile_sums(sums)

    def _compile_sums(self, sums: Sequence[Collective]) -> dict[Any, Any]:
        """Executables of the sums over ranks, by the specs of their summands."""
        programs = {each.specs: sums_of(each) for each in sums}
        return dict(zip(programs, self._backend.compile_each(list(programs.values())), strict=True))

    def __call__(self, arrays: Mapping[str, Any]) -> Arrays:
        """See `RankStep`."""
        results = super().__call__(arrays)
        self._finish()
        return results

    def release(self) -> None:
        """See `Captured`."""
        for run in self._sums.values():
            run.release()

    def _finish(self) -> None:
        """Wait for the device, and with it for the other ranks."""
        with self._runtime.active():
            self._wait(self._mark())

    def _mark(self) -> Any:
        """Event that comes when the device has done what it was given so far; None on one rank."""
        return None if self._communicator is None else self._communicator.mark(self._runtime)

    def _wait(self, event: Any) -> None:
        if self._communicator is not None:
            self._communicator.wait(event, self._runtime)

    def _total(self, collective: Collective, arrays: list[Any]) -> Sequence[Any]:
        if self._communicator is None:
            return arrays
        results = self._call(self._sums[collective.specs], {str(i): a for i, a in enumerate(arrays)})
        return [results[str(i)] for i in range(len(arrays))]


def connect(communicator: NcclCommunicator, runtime: Runtime, *, beside: bool = False) -> None:
    """Connect the ranks before anything is captured; `beside`: see `NcclCommunicator.enqueue`."""
    with runtime.active():
        arrays = [runtime.empty((communicator.size,), "float32") for _ in range(2)]
        for array in arrays:
            runtime.clear(array)
        communicator.prepare(arrays, runtime, beside=beside)
        runtime.synchronize()  # one rank alone waits for nobody, and the arrays end here
