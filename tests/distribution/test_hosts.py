"""Two hosts, which are network namespaces: what crosses the link between them, and what happens when it is cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from minicnn.distribution.prediction import Interconnect
from support import namespaces
from support.campaign import FULL
from support.launchers import MPIEXEC

WHY_NOT = namespaces.not_permitted()
pytestmark = [pytest.mark.no_cover, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
RANK = "support.rank_link"
NEEDS = {"mpi": "mpi4py", "torchrun": "torch", "jax": "jax"}
# The others start more processes, with larger libraries.
ENGINES = [
    pytest.param(engine, marks=() if engine == "mpi" or FULL else pytest.mark.skip("MINICNN_CAMPAIGN=full takes it"))
    for engine in NEEDS
]


def needed(engine: str) -> str:
    """The backend for an engine, if it is installed."""
    pytest.importorskip(NEEDS[engine])
    if engine == "mpi" and MPIEXEC is None:
        pytest.skip("mpi4py is installed, but there is no mpiexec")
    return "jax" if engine == "jax" else "numpy"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bytes_that_cross_the_link_are_those_of_the_program(engine: str, tmp_path: Path) -> None:
    backend = needed(engine)
    with namespaces.hosts() as hosts:
        made = namespaces.result(hosts.start(engine, RANK, backend, "400", "10", "60", FOLDER=str(tmp_path)))
    assert made["crossed"] == pytest.approx(made["sent"], rel=0.05)


def test_a_shaped_link_takes_as_long_as_predicted(tmp_path: Path) -> None:
    """At 100 Mbit/s, of which 1,448 of 1,514 bytes are payload: sums, and a whole step."""
    backend, sizes = needed("mpi"), ("500000", "1000000")
    with namespaces.hosts(100) as hosts:
        made = namespaces.result(hosts.start("mpi", RANK, backend, "400", "5", "60", *sizes, FOLDER=str(tmp_path)))
    link = Interconnect("shaped", 5e-5, 1e8 / 8 * 1448 / 1514)
    for size in sizes:
        assert link.all_reduce(float(size), 2, "fixed") == pytest.approx(made["all_reduce"][size], rel=0.15)
    predicted = made["alone"] + link.all_reduce(made["sent"], 2, "fixed")
    assert predicted == pytest.approx(made["step"], rel=0.15)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cut_link_is_an_error_within_the_deadline(engine: str, tmp_path: Path) -> None:
    backend = needed(engine)
    with namespaces.hosts() as hosts:
        started = hosts.start(engine, RANK, backend, "400", "1000000", "3", FOLDER=str(tmp_path))
        stdout = started[0].stdout
        assert stdout is not None
        while "begun" not in stdout.readline():
            assert started[0].poll() is None
        hosts.cut()
        cut = time.monotonic()
        own = started if engine != "torchrun" else started[:1]  # torchrun on the other host waits for minutes
        codes, _, errors = namespaces.ends(own, 60)
        taken = time.monotonic() - cut
        namespaces.stop(started)
    assert all(codes)
    assert "within timeout=3 seconds. Received by rank 0: no answer from rank 1" in errors
    assert taken < 3 + 20
