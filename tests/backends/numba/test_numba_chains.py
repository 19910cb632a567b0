"""Chains of kernels that go through the batch block by block: their bits, and where they are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, ops
from minicnn.backends import backend_class
from minicnn.layers import Conv2D, Dense, DepthwiseConv2D, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.program import Program
from support.strategies import normal

pytest.importorskip("numba")
from minicnn.backends.numba import chains

Cache = Callable[[int], None]  # gives the last-level cache so many bytes
AMPLE = 1 << 30


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    def of(nbytes: int) -> None:
        monkeypatch.setattr(chains, "last_level_cache", lambda: (nbytes, 1))

    return of


def network(threads: int, kernel: str | None = None, *, side: int = 4) -> Sequential:
    """Convolutions and dense layers, on larger images with another convolution."""
    backend: Any = backend_class("numba")(strict=True, threads=threads, convolution_kernel=kernel)  # type: ignore[call-arg]
    layers = [Input((side, side, 1), dtype="uint8"), Rescaling(1 / 255), Conv2D(2, 3, activation="relu")]
    if side > 4:
        layers += [DepthwiseConv2D(3, activation="relu"), MaxPooling2D(4)]
    model = Sequential([*layers, Flatten(), Dense(9, activation="relu"), Dense(3)], backend=backend, seed=0)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    return model


def trained(samples: int, threads: int, kernel: str | None, side: int) -> list[Any]:
    """What a step and a prediction leave."""
    model = network(threads, kernel, side=side)
    x = np.random.default_rng(0).integers(0, 256, (samples, side, side, 1), np.uint8)
    loss = model.train_on_batch(x, np.arange(samples, dtype="int32") % 3)
    return [np.asarray(loss), *model.get_weights().values(), model.predict(x, batch_size=samples)]


def chained(samples: int, threads: int) -> list[Any]:
    from minicnn.backends.numba.rules import lower

    tasks = lower(network(threads).program("train", batch_size=samples), threads).tasks
    return [task for task in tasks if isinstance(task, chains.Chain)]


def tight(samples: int, threads: int) -> int:
    """Bytes of a cache that holds a block of a step, but not all blocks of a thread."""
    with pytest.MonkeyPatch.context() as patch:
        for nbytes in range(4_000, 100_000, 4_000):
            patch.setattr(chains, "last_level_cache", lambda n=nbytes: (n, 1))
            if chained(samples, threads):
                return nbytes
    raise AssertionError("a chain is chosen for some size of the cache")


@pytest.mark.parametrize(
    ("samples", "threads", "kernel", "side", "blocks", "jit"),
    [
        (62, 2, "direct", 4, 1, "interpreted"),
        pytest.param(144, 3, "winograd", 18, 2, "compiled", marks=pytest.mark.no_cover),
    ],
    indirect=["jit"],
)
@pytest.mark.usefixtures("jit")
def test_block_by_block_gives_the_same_bits(
    samples: int, threads: int, kernel: str, side: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(samples, threads, kernel, side)
    lengths = list[int]()

    def best(_: Any, tasks: list[Any]) -> int:
        lengths.append(len(tasks))
        return blocks

    monkeypatch.setattr(chains._Model, "best", best)
    for result, other in zip(trained(samples, threads, kernel, side), expected, strict=True):
        np.testing.assert_array_equal(result, other)
    assert max(lengths) >= 6


def test_chosen_where_a_block_stays_in_the_cache_and_all_blocks_do_not(cache: Cache) -> None:
    cache(tight(96, 2))
    (chain,) = chained(96, 2)
    assert len(chain.tasks) >= 12, "forward, backward, and sums over the batch"
    assert not chained(80, 2), "five blocks cannot be shared evenly"
    assert not chained(32, 2), "a block for each thread"
    cache(AMPLE)
    assert not chained(96, 2)
    cache(1000)
    assert not chained(96, 2)


def test_explain_names_the_samples_of_a_turn(cache: Cache) -> None:
    cache(tight(96, 2))
    program = network(2).program("train", batch_size=96)
    how = [text for _, text in network(2).backend.explain(program)]
    assert "kernel: conv2d + bias + relu, 16 samples at a time" in how
    assert not any("sgd" in text and "at a time" in text for text in how)


@pytest.mark.usefixtures("interpreted")
def test_rows_of_what_a_chain_makes_are_gathered_after_it(cache: Cache) -> None:
    program = Program()
    x, index = program.input("x", (64, 40)), program.input("index", (64,), "int32")
    doubled = ops.relu(x + x)
    program.outputs["y"] = ops.relu(ops.take(doubled, index)) + doubled
    cache(64 * 40 * 4 * 2)
    x_, order = normal((64, 40), 0).astype("float32"), np.arange(63, -1, -1, dtype="int32")
    backend: Any = backend_class("numba")(strict=True, threads=2)  # type: ignore[call-arg]
    y = backend.compile(program)({"x": x_, "index": order})["y"]
    expected = np.maximum(2 * x_, 0)
    np.testing.assert_array_equal(y, expected[order] + expected)
