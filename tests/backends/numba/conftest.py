"""Compiled kernels of the tests go to a folder of their own, unless one is given; kernels without compilation.

Compiling takes twice as long while lines are counted. The code that writes a kernel is the code that interprets it, so
tests of compiled kernels that are beside interpreted ones have the marker `no_cover`. Each geometry may be machine code
of its own, for a tenth of a second: by day a few are compiled, and the others run as Python.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import pytest

from support.campaign import NIGHT
from support.numba_check import without_jit

COMPILED = pytest.param("compiled", marks=pytest.mark.no_cover)


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Workers of one run share a folder: what one has compiled the others load.
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ.setdefault("MINICNN_CACHE", str(shared / "kernels"))
    if find_spec("numba"):  # here, because tests that are not measured would be the first to import it
        import_module("minicnn.backends.numba.rules")


@pytest.fixture(autouse=True)
def every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if threads handed work on at no cost: otherwise a test's small network would be computed by one of them."""
    if find_spec("numba"):
        target = import_module("minicnn.backends.numba.cpus").Target
        costs = target.costs.fget
        monkeypatch.setattr(target, "costs", property(lambda cpu: replace(costs(cpu), handoff=0.0)))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if NUMBA_DISABLE_JIT were set: kernels run as Python."""
    without_jit(monkeypatch)


@pytest.fixture
def jit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "compiled" or "interpreted", as the test's parameter of this name says."""
    if request.param == "interpreted":
        without_jit(monkeypatch)


@pytest.fixture(params=[COMPILED, "interpreted"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once compiled, once as Python."""
    if request.param == "interpreted":
        without_jit(monkeypatch)


@pytest.fixture(params=[*([COMPILED] if NIGHT else []), "interpreted"])
def either_at_night(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python, and at night compiled, too."""
    if request.param == "interpreted":
        without_jit(monkeypatch)
