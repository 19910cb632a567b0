"""Ranks with a GPU each: sums as Programs on NumPy; steps with a made-up NCCL in the simulator, and with NCCL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.distribution import DataParallel, NcclCommunicator, OneProcess
from minicnn.distribution.on_device import fits, lower, summed
from minicnn.ops.collectives import all_reduce
from minicnn.ops.groups import Group
from minicnn.program.graph import Program
from support.distributed import data, dense, digest, normalized, plain
from support.ranks import ThreadRanks


@pytest.mark.parametrize(("shards", "ranks"), [(1, 1), (2, 2), (3, 3), (5, 5), (8, 4), (12, 3)])
def test_sums_by_moves_and_additions_have_the_bits_of_the_tree(shards: int, ranks: int) -> None:
    rng = np.random.default_rng(shards)
    given = [[(rng.standard_normal(s) * 10.0 ** rng.integers(-3, 4)).astype("float32") for s in ((3, 5), (), (7,))]
             for _ in range(ranks)]  # fmt: skip

    def work(communicator: Any) -> tuple[list[Any], list[Any]]:
        group = Group(shards, communicator.rank, ranks, communicator)
        program = Program("sums")
        values = [program.input(f"x{i}", a.shape, "float32") for i, a in enumerate(given[0])]
        program.outputs = {f"y{i}": v for i, v in enumerate(summed(values, group))}
        own = given[communicator.rank]
        made = get_backend("numpy").compile(program)({f"x{i}": a for i, a in enumerate(own)})
        return list(made.values()), list(all_reduce.reference(*own, group=group, xp=np))

    for made, expected in ThreadRanks(ranks).run(work):
        for a, b in zip(made, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_ranks_with_several_sums_take_them_on_the_host() -> None:
    assert not fits(Group(8, 0, 3))
    assert fits(Group(8, 0, 2))


def test_the_whole_step_of_a_rank_has_its_collective_inside() -> None:
    model = plain("numpy", DataParallel(1))
    program = model.program("train", batch_size=12)
    lower(program, Group(1, 0, 1, OneProcess(), deterministic=False))
    moved = [node for node in program.nodes if node.op.name == "all_reduce"]
    assert len(moved) == 1
    assert moved[0].inputs[0].ndim == 1


class MadeUp:
    """What nccl.core offers, for one rank."""

    SUM = "sum"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.Communicator = self.UniqueId = self

    def get_unique_id(self) -> bytes:
        return b"name"

    def init(self, size: int, rank: int, name: bytes) -> MadeUp:
        assert (size, rank, name) == (1, 0, b"name")
        return self

    def allreduce(self, given: Any, made: Any, op: str, stream: int) -> None:
        assert op == self.SUM
        self._copy("all_reduce", given, made)

    def allgather(self, given: Any, made: Any, stream: int) -> None:
        self._copy("all_gather", given, made)

    def alltoall(self, given: Any, made: Any, stream: int) -> None:
        self._copy("all_to_all", given, made)

    def _copy(self, name: str, given: Any, made: Any) -> None:
        assert (given.shape, given.dtype) == (made.shape, made.dtype)
        self.calls.append(name)
        made[...] = given


def same(backend: Any, nccl: Any, make: Callable[..., Any], shards: int, steps: int) -> None:
    """Check that steps with NCCL between one rank and itself leave the bits of those without, in both modes."""
    x, y = data()

    def weights(**about: Any) -> str:
        model = make(backend, DataParallel(shards, **about))
        model.fit(x[: 12 * steps], y[: 12 * steps], 12, verbose=0)
        return digest(model)

    alone = weights()
    for deterministic in (True, False):
        assert weights(communicator=NcclCommunicator(OneProcess(), nccl), deterministic=deterministic) == alone


@pytest.mark.parametrize("shards", [1, 4])
def test_steps_in_the_simulator(shards: int) -> None:
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    from minicnn.backends.numba_cuda.shim import SIMULATED

    if not SIMULATED:
        pytest.skip("for the simulator: NUMBA_ENABLE_CUDASIM=1")
    made_up = MadeUp()
    same("numba_cuda", made_up, dense, shards, 1)
    # One of each connects, and a step has one sum; a rank with one shard has that of the fast mode in the step itself.
    assert made_up.calls.count("all_gather") == 1
    assert made_up.calls.count("all_reduce") == 2 + 1


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", ["cupy", "numba_cuda"])
def test_steps_with_nccl_on_one_gpu(name: str, shards: int, graph: bool) -> None:
    """One rank: captured in CUDA graphs and not. Several GPUs have not been tried."""
    pytest.importorskip("nccl.core", reason="nccl4py is not installed: the extra nccl")
    from minicnn.backends._gpu.options import Options

    backend = type(get_backend(name))(options=Options(graph=graph))
    for make in (plain, normalized):
        same(backend, None, make, shards, 4)
