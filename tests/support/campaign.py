"""How much tests do: those in tests/campaign a little by default, all of it with MINICNN_CAMPAIGN=full.

At night, with HYPOTHESIS_PROFILE=nightly, others compile or train what by day a smaller one stands for.

Two more variables are for random networks: MINICNN_BACKENDS names the backends, in the order in which they take their
turns, such as "cupy torch:cuda jax:cuda torch.compile:cuda numba_cuda", and MINICNN_SECONDS the time for all of them.
What is not done by then is skipped, and the skip says how much was.
"""

from __future__ import annotations

import os
import time

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EVERY_CASE = os.environ.get("MINICNN_EVERY_CASE") == "1"
FULL = os.environ.get("MINICNN_CAMPAIGN") == "full"
BACKENDS = ["numpy", "numba"] if FULL else ["numpy"]  # Numba compiles for seconds in each process
NAMED = os.environ.get("MINICNN_BACKENDS", "").split()
_END = time.monotonic() + float(os.environ.get("MINICNN_SECONDS", "inf"))


def size(full: int, small: int) -> int:
    """The count for a whole campaign, or that for each run of the tests."""
    return full if FULL else small


def seconds_left() -> float:
    """Of the time for random networks."""
    return _END - time.monotonic()
