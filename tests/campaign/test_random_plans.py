"""Random networks on a GPU that is not there: what goes on at the same time disturbs nothing."""

from __future__ import annotations

import pytest

from backends.cupy.emulated import EmulatedBackend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import tiles_of, tiles_on
from minicnn.optimizers import SGD, Adam
from support.campaign import size
from support.plans import plan_of
from support.random_networks import network
from support.streams import conflicts, read_before_it_is_there

NETWORKS = size(600, 20)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_a_second_stream(precision: str) -> None:
    beside = 0
    for seed in range(NETWORKS):
        model, draw = network(seed, EmulatedBackend())
        optimizer = draw.one(SGD(0.1), SGD(0.1, momentum=0.9), Adam(), SGD(0.1, global_clipnorm=1.0))
        model.compile(optimizer, "mse", precision=precision)
        program = model.program("train", batch_size=draw.one(1, 3, 8))
        plan = plan_of(program, tiles_of(program, tiles_on(H200, Options())))
        assert (seed, conflicts(plan)) == (seed, [])
        assert (seed, read_before_it_is_there(plan)) == (seed, [])
        # Nobody waits for one that goes on beside others but by what is in order.
        assert (seed, plan.beside.keys() & set(plan.beside.values())) == (seed, set())
        beside += len(plan.beside)
    assert beside > NETWORKS
