from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.data import batch_indices, epoch_order, shard_rows
from minicnn.data.order import num_batches


@given(n=st.integers(0, 200), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000))
def test_a_shuffled_order_is_a_permutation_by_philox(n, seed, epoch):
    order = epoch_order(n, shuffle=True, seed=seed, epoch=epoch)
    assert order.dtype == np.int32
    assert np.array_equal(np.sort(order), np.arange(n))
    key = np.array([seed, epoch], np.uint64)
    assert np.array_equal(order, np.random.Generator(np.random.Philox(key=key)).permutation(n))


def test_the_order_is_fixed_for_good():
    assert epoch_order(10, shuffle=True, seed=0, epoch=0).tolist() == [0, 7, 8, 6, 9, 5, 1, 3, 2, 4]
    assert epoch_order(10, shuffle=True, seed=0, epoch=1).tolist() == [9, 4, 2, 1, 0, 7, 8, 5, 3, 6]
    assert epoch_order(10, shuffle=True, seed=1, epoch=0).tolist() == [6, 0, 7, 9, 4, 1, 8, 5, 2, 3]


def test_no_shuffle():
    order = epoch_order(5, shuffle=False, seed=3, epoch=7)
    assert order.dtype == np.int32
    assert order.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [{"n": -1}, {"n": 2**31}, {"seed": -1}, {"seed": 2**64}, {"epoch": -1}])
def test_order_arguments_are_checked(options):
    arguments = {"n": 5, "seed": 0, "epoch": 0} | options
    with pytest.raises(ValueError, match=rf"from 0 to .* Received: .*{next(iter(options.values()))}"):
        epoch_order(arguments["n"], shuffle=True, seed=arguments["seed"], epoch=arguments["epoch"])


@given(n=st.integers(1, 100), batch_size=st.integers(1, 40), last_batch=st.sampled_from(["keep", "drop", "pad"]))
def test_batches(n, batch_size, last_batch):
    order = epoch_order(n, shuffle=True, seed=1, epoch=2)
    if last_batch == "drop" and n < batch_size:
        with pytest.raises(ValueError, match="at least one batch"):
            batch_indices(order, batch_size, last_batch)
        return
    batches = batch_indices(order, batch_size, last_batch)
    assert len(batches) == num_batches(n, batch_size, last_batch)
    assert all(batch.dtype == np.int32 for batch in batches)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    joined = np.concatenate(batches)
    if last_batch == "keep":
        assert np.array_equal(joined, order)
    elif last_batch == "drop":
        assert len(joined) == n - n % batch_size
        assert np.array_equal(joined, order[: len(joined)])
    else:
        assert len(batches[-1]) == batch_size
        assert len(joined) - n < batch_size
        assert np.array_equal(joined, np.tile(order, batch_size + 1)[: len(joined)])


@pytest.mark.parametrize(
    ("n", "batch_size", "last_batch", "match"),
    [
        (5, 0, "keep", "batch_size=0"),
        (5, 2, "wrap", "'keep', 'drop' or 'pad'. Received: 'wrap'"),
        (0, 2, "keep", "at least one batch. Received: 0 samples"),
        (0, 2, "pad", "at least one batch"),
        (3, 4, "drop", "3 samples, batch_size=4, last_batch='drop'"),
    ],
)
def test_batch_arguments_are_checked(n, batch_size, last_batch, match):
    with pytest.raises(ValueError, match=match):
        batch_indices(np.arange(n, dtype=np.int32), batch_size, last_batch)


def test_a_part_of_a_batch_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"from 0 to below the number of parts\. Received: 2 of 2\."):
        shard_rows(5, 2, 2)
