"""How much the tests in tests/campaign do: a little by default, all of it with MINICNN_CAMPAIGN=full."""

from __future__ import annotations

import os

FULL = os.environ.get("MINICNN_CAMPAIGN") == "full"
BACKENDS = ["numpy", "numba"] if FULL else ["numpy"]  # Numba compiles for seconds in each process


def size(full: int, small: int) -> int:
    """The count for a whole campaign, or that for each run of the tests."""
    return full if FULL else small
