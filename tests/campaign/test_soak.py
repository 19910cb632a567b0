"""A process that goes on for long does not grow."""

from __future__ import annotations

import pytest

from support.campaign import BACKENDS, size
from support.killed import finish, start

# Rounds to warm up, rounds in all, and bytes that a whole campaign may grow by.
SOAKS = {
    "steps": (size(2000, 100), size(20_000, 600)),
    "models": (size(100, 5), size(1000, 25)),
    "batch_sizes": (size(50, 20), size(300, 40)),
}
MOST = 16 << 20


@pytest.mark.no_cover
@pytest.mark.parametrize("what", SOAKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_does_not_grow(what: str, backend: str) -> None:
    pytest.importorskip("psutil")
    assert int(finish(start(what, backend, *SOAKS[what], module="support.soak"))) < MOST
