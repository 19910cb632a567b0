"""What a user waits for before the first step, and memory: each in a process of its own."""

from __future__ import annotations

import sys
from typing import Any

from .common import BACKENDS, NETWORKS, backend_or_skip, network, samples


class Import:
    """Time of the import in a new interpreter, NumPy's included.

    asv hands the folders of the commit to this process only: the new one takes them over.
    """

    version = "folders of the commit"

    def timeraw_numpy(self) -> tuple[str, str]:
        """What the import takes without minicnn."""
        return "import numpy", f"import sys; sys.path[:] = {sys.path}"

    def timeraw_minicnn(self) -> tuple[str, str]:
        """Both."""
        return "import numpy, minicnn", f"import sys; sys.path[:] = {sys.path}"


class FirstStep:
    """Seconds from an uncompiled model to the end of its first training step; kernels that are kept on disk are."""

    params = (["platforms", "resnet18"], BACKENDS)
    param_names = ("network", "backend")
    unit = "s"
    timeout = 600

    def setup(self, name: str, backend: str) -> None:
        """Skip what is not there."""
        if name == "resnet18" and backend == "numpy":
            message = "takes minutes on NumPy"
            raise NotImplementedError(message)
        backend_or_skip(backend)

    def track_first_step(self, name: str, backend: str) -> float:
        """Seconds of building, compiling and one step."""
        import time

        x, y = samples(name)
        batch = NETWORKS[name][2]
        start = time.perf_counter()
        used = backend_or_skip(backend)
        network(name, used).fit(x[:batch], y[:batch], batch_size=batch, epochs=1, verbose=0)
        used.synchronize()
        return time.perf_counter() - start


class Memory:
    """Peak resident memory of a process that trains; the interpreter and its libraries included."""

    params = (["mlp", "platforms", "kernels", "resnet18"], BACKENDS)
    param_names = ("network", "backend")
    timeout = 600

    def setup(self, name: str, backend: str) -> None:
        """Skip what is not there."""
        FirstStep().setup(name, backend)

    def peakmem_training(self, name: str, backend: str, *_: Any) -> None:
        """A run of training."""
        x, y = samples(name)
        network(name, backend_or_skip(backend)).fit(x, y, batch_size=NETWORKS[name][2], epochs=1, verbose=0)
