"""Plans of steps whose kernels take small sums over ranks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minicnn import zoo
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.joined_plan import JoinedPlan
from minicnn.backends._gpu.peer_nodes import GIVE, SUM, late_waits
from minicnn.backends._gpu.rank_sums import Sum
from minicnn.distribution import DataParallel, passes
from minicnn.distribution.passes import FINITE
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program
from minicnn.program.graph import Node, Spec
from support.distributed import CLASSES, chain, data, nn, normalized, unsynchronized
from support.rank_plans import planned
from support.streams import read_before_it_is_there


def lenet(backend: Any, distribution: DataParallel) -> Any:
    model = zoo.get_model("platforms", backend=backend)
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), distribution=distribution)
    return model


def mixed(backend: Any, distribution: DataParallel) -> Any:
    return normalized(backend, distribution, precision="mixed_bfloat16")


def plans(runs: list[Any]) -> list[Plan]:
    return [run._plan for run in runs if not isinstance(run, Sum)]


def titles(runs: list[Any]) -> list[str]:
    return [title for run in runs for title in (["sum"] if isinstance(run, Sum) else run.titles)]


def test_a_step_with_small_sums_alone_is_one_program() -> None:
    """As long as the step of one GPU: gradients are summed where they are made, and updates follow."""
    x, y = np.zeros((512, 28, 28, 1), "float32"), np.zeros(512, "int32")
    together, apart = (planned(lenet, 512, x, y, ranks=4, exchanges=exchanges) for exchanges in (True, False))
    assert [type(plan) for plan in plans(together)] == [JoinedPlan]
    assert len(titles(together)) < 10 < len(titles(apart))
    (plan,) = plans(together)
    updates = plan.launches[-1]
    assert sum(u.nodes[-1].op.name == "momentum_update" for u in updates) == 8
    # All threads that wait for what the same launch of others gives are on the device at a time.
    assert 50_000 < sum(u.meeting for u in updates) <= plan.most_meeting(updates) < 140_000


def test_what_waits_for_a_sum_goes_on_without_another_launch() -> None:
    runs = planned(mixed, 12, *data(), ranks=2)
    assert len([run for run in runs if isinstance(run, Sum)]) == 0
    waiting = [source for run in runs for source in run._sources if "sum_over_ranks" in source.title]
    # Mean and mean square of the forward pass: what comes of them follows in the same launch.
    assert sum("sum_over_ranks+sum_over_ranks+" in source.title and "sqrt" in source.title for source in waiting) == 2
    for source in waiting:
        assert '#include "rank_sums.cuh"' in source.text
        assert "let_next_begin" not in source.text
    # Each sum has addresses of its own, and a step one round, which the first of its launches with a sum begins.
    nodes = [n for plan in plans(runs) for n in plan.program.nodes if n.op is SUM]
    assert len({n.inputs[1].name for n in nodes}) == len(nodes) > 10
    assert [plan.program.updates.keys() >= {"round of sums"} for plan in plans(runs)].count(True) == 1


def test_products_are_added_as_without_sums() -> None:
    """Moving averages are launches of their own: of two products the compiler rounds one, by what else there is."""
    groups = [(plan, u) for plan in plans(planned(mixed, 12, *data(), ranks=2)) for u in plan.groups]
    averages, products = 0, {"multiply", "square"}
    for plan, group in groups:
        inside = plan.virtual | {id(v) for n in group.nodes for v in n.outputs}
        for node in group.nodes:
            makers = [v.node.op.name for v in node.inputs if v.node is not None and id(v) in inside]
            both = node.op.name in ("add", "subtract") and len(makers) == 2 and products.issuperset(makers)
            averages += both
            assert not (both and group.waits)
    assert averages == 4  # means and variances of two layers


def test_a_step_tells_of_sums_up_to_that_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in gradients alone is no reason of a loss that is none, and they are many bytes to read."""
    monkeypatch.setattr(passes, "BUCKET", 100)  # bytes, so that the loss does not wait for all gradients
    told = [
        plan.program.outputs[FINITE]
        for plan in plans(planned(mixed, 12, *data(), ranks=2))
        if FINITE in plan.program.outputs
    ]
    # The loss; what this rank adds to means and mean squares of two normalisations, and to three sums of its level.
    assert [value.size for value in told] == [8]


@pytest.mark.parametrize("make", [normalized, unsynchronized, mixed])
def test_functions_read_no_variables_of_a_thread(make: Any) -> None:
    """They are defined ahead of these, and are of any place; what a wait loads ahead is such a variable."""
    runs = [run for run in planned(make, 12, *data(), ranks=2) if not isinstance(run, Sum)]
    lines = [line for run in runs for source in run._sources for line in source.text.splitlines()]
    functions = [line for line in lines if re.search(r"auto x\d+ = ", line)]
    assert len(functions) > 50
    assert [line for line in functions if re.search(r"\bv\d+\b", line)] == []


def test_rounds_are_counted_before_anything_is_given() -> None:
    """Also where the first launch has a sum: its images are normalised as they come."""

    def make(backend: Any, distribution: DataParallel) -> Any:
        layers = [nn.BatchNormalization(synchronized=False), nn.Flatten(), nn.Dense(CLASSES, activation="softmax")]
        return chain(layers, SGD(0.1), backend, distribution)

    joined = plans(planned(make, 12, *data(), ranks=2))
    assert "give_to_ranks" in {n.op.name for plan in joined for u in plan.launches[1] for n in u.nodes}
    assert [pair for plan in joined for pair in read_before_it_is_there(plan)] == []


def test_ranks_whose_shards_differ_take_sums_by_launches() -> None:
    runs = planned(mixed, 11, *data(), ranks=4)
    assert any(isinstance(run, Sum) for run in runs)
    assert not any("sum_over_ranks" in title for title in titles(runs))


def test_all_is_given_before_any_of_it_is_waited_for() -> None:
    program = Program("some")
    x, places = program.input("x", (4,)), program.input("places", (6,), "uint64")
    token, total = Spec((4,), "uint32"), Spec((4,), "float32")

    def summed(value: Any) -> tuple[Node, Node]:
        give = program.append(GIVE, [value, places], [token], {})
        return give, program.append(SUM, [give.outputs[0], places], [total], {})

    first = summed(x)
    double, other = x + x, x * x
    second = summed(double)
    square = program.append(SUM, [first[1].outputs[0], places], [total], {})  # what follows a sum comes after it
    third = summed(square.outputs[0])
    order = late_waits(program.nodes, lambda node: node.inputs)
    assert order == [first[0], double.node, second[0], first[1], second[1], square, *third, other.node]
