"""Small sums over ranks that kernels take in each other's memory: on emulated GPUs, and on several GPUs."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from backends.cupy.emulated import EmulatedBackend, SharedMemory
from backends.cupy.emulator import needs_gxx
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.peer_nodes import ROUND, ROUNDS, places_name
from minicnn.backends._gpu.peer_sums import PeerSums, window
from minicnn.backends._gpu.rank_joining import Joined, SumBetween
from minicnn.backends._gpu.rank_sums import addition, in_peers
from minicnn.distribution.schedule import updated
from minicnn.kernels.peers import addresses
from minicnn.ops.groups import Group
from minicnn.program.graph import Spec
from support.campaign import NIGHT, size
from support.launchers import MPIEXEC, PATIENT, gpus, mpiexec, patience, results, torchrun
from support.peer_sums import DEADLINE

HAS_MPI = MPIEXEC is not None and importlib.util.find_spec("mpi4py") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
EMULATED = {"SHARDS": "4", "BUCKET": "200", "TIMEOUT": "120"}


@needs_gxx
@pytest.mark.parametrize("ranks", [2, 3])
@needs_mpi
def test_sums_in_the_memory_of_emulated_gpus(ranks: int) -> None:
    found = results(mpiexec(ranks, "sums", "emulated", "2", **EMULATED), ranks)
    assert found == {"in peers' memory": 14, "wrong": 0}


@needs_gxx
@needs_mpi
def test_sums_of_emulated_gpus_by_messages_and_in_shares() -> None:
    """Where the GPUs' memory is not reached, or is not asked for, and of gradients that lie in it: the same bits."""
    assert results(mpiexec(2, "sums", "emulated-messages", "1", **EMULATED), 2) == {"in peers' memory": 0, "wrong": 0}
    one, two, four, shares = (results(mpiexec(n, "train", f"emulated{how}", "1", "dense", **EMULATED), n) for n, how in
                              ((1, ""), (2, "-messages"), (4, ""), (2, "-shares")))  # fmt: skip
    assert two == one
    assert four == one, (
        "of ranks with a shard each, whose kernels take sums themselves; the last batch has fewer shards"
    )
    assert shares == one


@needs_gxx
@needs_mpi
def test_sums_within_kernels_of_emulated_gpus() -> None:
    """Between normalisations and what comes of them, beside gradients in shares: the bits of sums by launches."""
    two = EMULATED | {"SHARDS": "2"}
    networks = ("single", *["unsynchronized"] * NIGHT)
    within, apart = (results(mpiexec(2, "train", name, "1", *networks, **two), 2) for name in
                     ("emulated-shares", "emulated-apart"))  # fmt: skip
    assert within == apart


@needs_gxx
@needs_mpi
@pytest.mark.night("tests/distribution/test_peer_sums.py::test_sums_within_kernels_of_emulated_gpus")
def test_random_networks_of_emulated_gpus() -> None:
    """With sums within kernels, and of all shards on one; the first network begins with a normalisation."""
    about = EMULATED | {"SHARDS": "2"}
    two, one = (results(mpiexec(ranks, "random", "emulated", "21", "3", **about), ranks) for ranks in (2, 1))
    assert two == one


def within_a_kernel(backend: EmulatedBackend, spec: Spec) -> Any:
    """A step of a kernel that takes a sum of two ranks."""
    program = Joined("sum")
    inputs = {"x": spec, places_name(0): Spec((addresses(2),), "uint64"), ROUND: ROUNDS}
    program.given = {name: program.input(name, s.shape, s.dtype, kind="statistic") for name, s in inputs.items()}
    program.pieces = [SumBetween("x", "total", spec, 0)]
    program.outputs, program.updates = {"total": program.given["x"]}, {ROUND: program.given[ROUND]}
    program.slots = {"total": "total", ROUND: updated(ROUND)}
    return backend.compile(program)


@needs_gxx
def test_sums_in_peers_memory_wait_for_nobody_when_they_are_told_so() -> None:
    """Kernels that have been told so end without the others, at once and in shares, and within other kernels."""
    backend, host = EmulatedBackend(), cast("Any", SimpleNamespace(rank=0, size=2, share=lambda data: [data, data]))
    runtime = backend.runtime
    memory = SharedMemory(runtime.do)
    address, _ = memory.allocate(2 * window(H200, 2))
    # Of the other, a place to write to.
    sums = PeerSums(runtime, memory, H200, host, [address, address + window(H200, 2)])
    shared = sums.share(64)
    source, target = (runtime.view(shared, start, (8,), "float32") for start in (0, 32))
    step, arrays = within_a_kernel(backend, Spec((300,), "float64")), sums.within_kernels([Spec((300,), "float64")])
    within = step.bind(arrays | {"x": backend.asarray(np.ones(300))}, {"total": runtime.empty((300,), "float64")})
    sums.end()
    at_once = sums.launch(backend.asarray(np.ones(3, "float32")), runtime.empty((3,), "float32"), beside=False)
    taken = runtime.empty((8,), "float32")
    shares = [*sums.bring_shares(source, taken, beside=False), *sums.give_share(target, beside=False)]
    assert at_once is not None
    for launch in (at_once, *shares, *within):
        launch()
        runtime.synchronize()
    with pytest.raises(ValueError, match="memory of `share`"):
        sums.bring_shares(taken, taken, beside=False)
    assert sums.launch(backend.asarray(np.ones(1 << 21, "float32")), shared, beside=False) is None, "NCCL's"


def test_what_sums_in_peers_memory() -> None:
    """By what links the GPUs, and by the bytes; never where the memory cannot be reached, and in the tree's order."""
    sums = [PeerSums.__new__(PeerSums) for _ in range(2)]
    for each, gpu in zip(sums, (KNOWN["h100"], KNOWN["rtx4090"]), strict=True):
        each._gpu, each._ranks = gpu, 4
    assert [sums[0].takes(dtype) for dtype in ("float32", "float64", "uint16")] == [True, True, False]
    assert [sums[0].in_shares(nbytes) for nbytes in (4, 4096, 1 << 22)] == [False, False, True]
    assert not any(sums[1].in_shares(nbytes) for nbytes in (4, 1 << 22))
    reached: Any = SimpleNamespace(in_peers=lambda dtype: True, in_shares=lambda nbytes, dtype: nbytes > 99)
    assert in_peers(Group(8, 0, 4, reached), Spec((3,), "float32"))
    assert not in_peers(Group(8, 0, 6, reached), Spec((3,), "float32"))  # whose tree joins others first
    # Kernels that sum at once add by themselves; of shares the programs of all ranks do.
    assert addition(Group(8, 0, 4, reached), Spec((4,), "float32"), KNOWN["h100"]) is None
    program = addition(Group(4, 0, 4, reached, False), Spec((32,), "float32"), KNOWN["h100"])
    assert program is not None
    assert program.outputs["sum"].shape == (8,)


def several(name: str, ranks: int) -> None:
    """Skip where a backend has not so many GPUs."""
    if gpus() < ranks:
        pytest.skip(f"needs several GPUs, found {gpus()}")
    for library in (name, "nccl.core", "torch"):
        pytest.importorskip(library, reason=f"{library} is not installed")


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_sums_in_the_memory_of_several_gpus(name: str, ranks: int) -> None:
    several(name, ranks)
    found = results(torchrun(ranks, "sums", name, "300", TIMEOUT=PATIENT), ranks)
    assert found["in peers' memory"] > 5
    assert found["wrong"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_sums_within_kernels_of_several_gpus(ranks: int) -> None:
    """The bits of sums by launches, of ranks with a shard each."""
    several("cupy", ranks)
    about, networks = {"SHARDS": str(ranks), "TIMEOUT": PATIENT}, ("normalized", "unsynchronized", "mixed", "single")
    within, apart = (results(torchrun(ranks, "train", name, "3", *networks, **about), ranks)
                     for name in ("cupy", "cupy-apart"))  # fmt: skip
    assert within == apart


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4])
def test_random_networks_on_several_gpus(ranks: int) -> None:
    """With sums within kernels, with launches of their own, and of all shards on one."""
    several("cupy", ranks)
    about = {"SHARDS": str(ranks), "TIMEOUT": PATIENT}
    ways = (ranks, "cupy"), (ranks, "cupy-apart"), (1, "cupy")
    within, apart, one = (results(torchrun(count, "random", name, str(20 * ranks), str(size(20, 3)), **about), count)
                          for count, name in ways)  # fmt: skip
    assert within == apart
    assert within == one


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "how"), [("cupy", "at once"), ("cupy", "shares"), ("numba_cuda", "at once")])
def test_a_kernel_that_waits_for_a_rank_ends_within_the_deadline(name: str, how: str) -> None:
    """Of seconds; what is compiled and connected before has another."""
    several(name, 2)
    done = torchrun(2, "waiting", name, how, TIMEOUT=str(patience(60)))
    assert done.returncode != 0
    (printed,) = [line for line in done.stdout.splitlines() if line.startswith("[2, [")]
    told, free = json.loads(printed)[1]
    assert f"within timeout={DEADLINE:g} seconds" in told
    assert "no answer from rank 1" in told
    assert free


@pytest.mark.gpu
@pytest.mark.parametrize("start", [mpiexec, torchrun])
def test_all_jobs_of_several_gpus_end_well(start: Any) -> None:
    several("cupy", 2)
    if start is mpiexec and not HAS_MPI:
        pytest.skip("needs mpi4py and mpiexec")
    ranks, wait = min(4, gpus()), {"SHARDS": "4", "TIMEOUT": PATIENT}
    ends = [start(ranks, "train", "cupy", "1", "dense", **wait) for _ in range(size(50, 3))]
    assert [each.stderr for each in ends if each.returncode] == []
