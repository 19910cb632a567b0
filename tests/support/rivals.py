"""Candidates of pretended measurements, made and called in processes of their own."""

from __future__ import annotations

import os
import time

import numpy as np

from minicnn.measure import Probe


class Rival:
    """A candidate that does what its name says: "wrong" has a wrong gradient, "mad" a wrong loss, "broken" nothing.

    "kinked" has a wrong element in the gradient of one batch.
    """

    def __init__(self, name: str, pause: float = 0.0) -> None:
        if name == "absent":
            raise ImportError("Rivals have a library. Received: none. Install it.")
        self._name, self._pause = name, pause

    def probe(self, epoch: int) -> Probe:
        if self._name == "broken":
            raise RuntimeError("Rivals compute. Received: nothing.")
        kernel = np.array([1.0, 2.0, -3.0])
        if self._name == "wrong" or (self._name == "kinked" and epoch == 0):
            kernel[1] *= 1.001
        if self._name == "nan":
            kernel[1] = np.nan
        return Probe(2.5 if self._name == "mad" else 2.3, {"dense/kernel": kernel, "dense/bias": np.zeros(2)}, {})

    def time_once(self) -> float:
        start = time.perf_counter()
        time.sleep(self._pause)
        if self._name == "leaver":
            self.leave()
        return time.perf_counter() - start

    def add(self, a: int, b: int = 1) -> int:
        return a + b

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def leave(self) -> None:
        print("the last words", flush=True)
        os._exit(3)

    def process(self) -> int:
        return os.getpid()
