"""Memory for what lives within a step."""

from __future__ import annotations

import threading

from minicnn.backends._gpu.runtime import Runtime
from minicnn.backends.base import Array


class Arena:
    """One memory for all executables of a backend, as large as the largest needs: one of them runs at a time.

    It is held by them alone, and goes with the last.

    Attributes:
        lock: Held from a step's first launch until its outputs are copied.
        memory: The memory.
        nbytes: Its size.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.lock = threading.RLock()
        self.memory: Array = None
        self.nbytes = -1
        self._runtime, self._allocations = runtime, 0

    def reserve(self, nbytes: int) -> int:
        """Have at least so many bytes.

        Returns:
            A number that is another one whenever the memory is another: graphs that were captured before are void.
        """
        with self.lock:
            if nbytes > self.nbytes:
                self.memory, self.nbytes = None, -1  # what is given back may be part of what comes
                self.memory = self._runtime.empty((max(nbytes, 1),), "uint8")
                self.nbytes, self._allocations = nbytes, self._allocations + 1
            return self._allocations
