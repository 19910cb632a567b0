"""Gradients of two branches that meet: how they are stored, which tiles make them, and what is fetched ahead."""

from __future__ import annotations

import re
from typing import Any

import pytest

from minicnn import Model, layers, plans
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD

BATCH = 96


def _convolved(x: Any, filters: int) -> Any:
    """Normalised 1x1 convolution."""
    return layers.BatchNormalization()(layers.Conv2D(filters, 1, use_bias=False)(x))


@pytest.fixture(scope="module")
def launches() -> list[plans.PlannedLaunch]:
    """Launches of a step with a residual block whose shortcut has a convolution, on an H100."""
    y = layers.ReLU()(_convolved(x := layers.Input((20, 20, 64)), 256))
    y = layers.ReLU()(layers.Add()([_convolved(y, 64), _convolved(y, 64)]))
    model = Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(y)))
    model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True), precision="mixed_bfloat16")
    return list(plans.plan(model.program("train", batch_size=BATCH), plans.GPUS["h100"]).launches)


def test_gradients_that_wait_for_those_of_another_branch_are_stored_in_16_bits(
    launches: list[plans.PlannedLaunch],
) -> None:
    groups = [g for launch in launches for g in launch.groups if g.anchor.op.name == "conv2d_input_gradient"]
    stored = [v.dtype for g in groups for v in g.stored if v.ndim == 4]
    assert stored == ["bfloat16"] * len(groups)


def test_the_second_gradient_adds_the_first_and_fetches_what_it_reads(launches: list[plans.PlannedLaunch]) -> None:
    texts = [launch.source.text for launch in launches if launch.source and "+add" in launch.source.title]
    fetched = [int(n) for text in texts for n in re.findall(r"pipelined_convolve<A, \d+, \d+, (\d+)>", text)]
    assert max(fetched) == 64  # elements of 128 bytes


def test_input_gradients_with_many_results_are_made_by_tiles_whose_operands_come_ahead(
    launches: list[plans.PlannedLaunch],
) -> None:
    groups = [g for launch in launches for g in launch.groups if g.anchor.op.name == "conv2d_input_gradient"]
    assert len(groups) == 2
    assert all(g.tile is not None and g.tile.stages for g in groups)
