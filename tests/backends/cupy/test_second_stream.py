"""Launches that only updates wait for go on beside others: which they are, and that none disturbs another."""

from __future__ import annotations

from typing import Any

import pytest

from backends.cupy.emulated import EmulatedBackend
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.planning import tiles_of, tiles_on
from minicnn.backends._gpu.second_stream import TOGETHER
from minicnn.backends.cupy.generation import generate
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.cases import network as case_network
from minicnn.optimizers import SGD
from minicnn.zoo import get_model
from support.plans import plan_of
from support.streams import conflicts, read_before_it_is_there

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


def _plan(model: Any, batch: int, options: Options | None = None) -> Plan:
    program = model.program("train", batch_size=batch)
    return plan_of(program, tiles_of(program, tiles_on(H200, options or Options())))


def _resnet(precision: str = "mixed_bfloat16") -> Any:
    model = get_model("resnet18", num_classes=10, input_shape=(64, 64, 3), backend=EmulatedBackend())
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), precision=precision)
    return model


def _operations(plan: Plan, launch: int) -> set[str]:
    return {n.op.name.removesuffix("_partial_sums") for group in plan.launches[launch] for n in group.every}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weight_gradients_go_on_beside_the_gradients_of_images(precision: str) -> None:
    plan = _plan(_resnet(precision), 32)
    gradients = [k for k in range(len(plan.launches)) if "conv2d_weight_gradient" in _operations(plan, k)]
    assert len(gradients) >= 15
    alone = [k for k in gradients if k not in plan.beside]
    assert len(alone) <= 1  # at the end nothing goes on that it could be beside
    # No convolution or gradient of an image waits for them, or for what is launched with them.
    for aside in set(gradients) - set(alone):
        assert not _operations(plan, aside) & {"conv2d", "conv2d_input_gradient"}
    assert conflicts(plan) == []
    assert read_before_it_is_there(plan) == []
    assert place(plan).copies == []  # no weight that is still read is overwritten


def test_without_a_second_stream_or_graphs_launches_follow_each_other() -> None:
    for options in (Options(second_stream=False), Options(graph=False)):
        assert _plan(_resnet(), 32, options).beside == {}


def test_what_is_aside_is_waited_for_before_much_more_is() -> None:
    """What it reads is kept until then: images, and gradients of images."""
    plan = _plan(_resnet(), 32)
    for launch in (k for k in range(len(plan.launches)) if k not in plan.beside):
        assert sum(aside < launch < waiting for aside, waiting in plan.beside.items()) <= 2 * TOGETHER
    without = _plan(_resnet(), 32, Options(second_stream=False))
    assert place(plan).nbytes <= 1.5 * place(without).nbytes


def test_launches_aside_and_those_that_wait_for_them_are_not_in_place_early() -> None:
    """Their place in a graph has several launches ahead of them, of which only one could be waited for so."""
    plan = _plan(_resnet(), 32)
    apart = plan.beside.keys() | set(plan.beside.values())
    assert 2 * TOGETHER < len(apart) < len(plan.launches)
    assert [generate(plan, launch, set()).overlaps for launch in plan.launches] == [
        k not in apart for k in range(len(plan.launches))
    ]


def test_what_only_later_launches_wait_for_holds_no_other_up() -> None:
    """A sum that something else waits for is not launched with what is aside."""
    model = case_network("kernels", None, EmulatedBackend())
    model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True))
    plan = _plan(model, 64)
    assert plan.beside
    readers = {id(v): k for k, launch in enumerate(plan.launches) for group in launch for v in plan.reads(group)}
    for aside, waiting in plan.beside.items():
        for value in (v for group in plan.launches[aside] for v in group.stored):
            assert readers.get(id(value), len(plan.launches)) >= waiting


def test_conflicts_and_early_reads_are_found() -> None:
    plan = _plan(_resnet(), 32)
    beside = plan.beside
    plan.beside = {}
    one_by_one = place(plan)
    plan.beside = beside
    assert conflicts(plan, one_by_one) != []
    plan = _plan(_resnet("mixed_float16"), 32)  # whose updates wait for all gradients
    beside = plan.beside
    plan.beside = dict.fromkeys(beside, len(plan.launches))
    assert {writer for writer, _ in read_before_it_is_there(plan)} & beside.keys()
