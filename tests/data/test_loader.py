from __future__ import annotations

import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import Loader, augment, batch_indices, epoch_order


def samples(n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n * 12, dtype=np.uint8).reshape(n, 2, 3, 2), np.arange(n, dtype=np.int32)


def assert_same(first, second) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(i, j) for i, j in zip(a, b, strict=True))


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("minicnn-loader")]


def noise(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    time.sleep(rng.random() * 0.002)  # so that workers overtake each other
    return x + rng.integers(0, 256, x.shape, np.uint8)


@settings(deadline=None)
@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 20),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 99),
    last_batch=st.sampled_from(["keep", "pad"]),
    workers=st.integers(0, 2),
)
def test_batches_follow_the_order(n, batch_size, shuffle, seed, epoch, last_batch, workers):
    x, y = samples(n)
    loader = Loader(x, y, batch_size=batch_size, shuffle=shuffle, seed=seed, last_batch=last_batch, workers=workers)
    loader.set_epoch(epoch)
    order = epoch_order(n, shuffle=shuffle, seed=seed, epoch=epoch)
    expected = [(x[i], y[i]) for i in batch_indices(order, batch_size, last_batch)]
    assert len(loader) == len(expected)
    assert_same(list(loader), expected)


def test_tuples_have_as_many_arrays_as_were_given():
    x, y = samples()
    weight = np.linspace(0, 1, 50)
    assert [len(batch) for batch in Loader(x, batch_size=25)] == [1, 1]
    assert [len(batch) for batch in Loader(x, y, batch_size=25)] == [2, 2]
    for _, labels, weights in Loader(x, y, batch_size=25, sample_weight=weight):
        assert np.array_equal(weights, weight[labels])


def test_epochs_differ_and_repeat():
    loader = Loader(*samples(), batch_size=8)
    first, again = list(loader), list(loader)
    assert_same(first, again)
    loader.set_epoch(1)
    assert not np.array_equal(first[0][1], next(iter(loader))[1])
    loader.set_epoch(0)
    assert_same(first, list(loader))


def test_batches_are_new_arrays():
    x, y = samples()
    before = x.copy()
    for batch, labels in Loader(x, y, batch_size=50, shuffle=False):
        batch[:] = 0
        labels[:] = 0
    assert np.array_equal(x, before)
    assert np.array_equal(y, np.arange(50))


def test_drop():
    loader = Loader(*samples(), batch_size=20, last_batch="drop")
    assert len(loader) == 2
    assert [len(x) for x, _ in loader] == [20, 20]
    assert (loader.batch_size, loader.num_samples) == (20, 50)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [1, 8])
def test_workers_change_nothing(workers, prefetch):
    options = {"batch_size": 3, "seed": 5, "transform": noise}
    expected = list(Loader(*samples(), **options))
    assert_same(list(Loader(*samples(), workers=workers, prefetch=prefetch, **options)), expected)
    assert loader_threads() == []


def test_each_batch_has_random_numbers_of_its_own():
    def draw(x, rng):
        return rng.integers(0, 2**63, (len(x), 4))

    x = np.zeros((6, 1))
    seen = []
    for seed in (0, 1):
        loader = Loader(x, batch_size=2, seed=seed, transform=draw)
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            seen += [int(value) for (batch,) in loader for value in batch.ravel()]
    assert len(set(seen)) == len(seen) == 2 * 2 * 3 * 8


def test_transforms_see_the_samples_and_may_change_their_shape():
    loader = Loader(*samples(), batch_size=20, transform=lambda x, rng: x[:, :1].astype(np.float32) / 2)
    for x, y in loader:
        assert x.dtype == np.float32
        assert np.array_equal(x, samples()[0][y][:, :1] / np.float32(2))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_in_a_transform_name_the_batch(workers):
    def transform(x, rng):
        if 17 in x[:, 0]:
            raise KeyError("seventeen")
        return x

    x = np.arange(40)[:, None]
    loader = Loader(x, batch_size=4, shuffle=False, transform=transform, workers=workers)
    loader.set_epoch(3)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    with pytest.raises(RuntimeError, match="batch 4 of epoch 3: KeyError: 'seventeen'") as info:
        next(batches)
    assert isinstance(info.value.__cause__, KeyError)
    assert loader_threads() == []


@pytest.mark.parametrize(
    ("result", "match"),
    [([1, 2], "a list"), (np.zeros((1, 2)), r"shape \(1, 2\)"), (np.float32(1), "a float32")],
)
def test_results_of_a_transform_are_checked(result, match):
    loader = Loader(np.zeros((4, 2)), batch_size=2, transform=lambda x, rng: result)
    with pytest.raises(ValueError, match=f"as many samples as it gets, 2. Received on batch 0 of epoch 0: {match}"):
        list(loader)


@pytest.mark.parametrize("workers", [1, 3])
def test_abandoning_an_epoch_stops_the_threads(workers):
    loader = Loader(*samples(), batch_size=1, workers=workers, transform=noise)
    batches = iter(loader)
    next(batches)
    assert loader_threads() != []
    batches.close()
    assert loader_threads() == []
    for _ in loader:
        break
    assert loader_threads() == []


def test_prefetch_is_bounded():
    made = []

    def transform(x, rng):
        made.append(len(made))
        return x

    batches = iter(Loader(np.zeros((100, 1)), batch_size=1, workers=2, prefetch=3, transform=transform))
    next(batches)
    until = time.monotonic() + 60
    while len(made) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(made) == 4  # the one that was taken, and three ahead
    next(batches)
    batches.close()
    assert len(made) <= 5


def test_workers_work_at_the_same_time():
    barrier = threading.Barrier(3, timeout=60)

    def transform(x, rng):
        barrier.wait()  # breaks unless three batches are made at once
        return x

    assert len(list(Loader(np.zeros((6, 1)), batch_size=1, workers=3, transform=transform))) == 6


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"x": [1, 2]}, r"takes NumPy arrays.* x is \[1, 2\]"),
        ({"x": None}, "x is None"),
        ({"x": np.float32(1)}, "x is"),
        ({"x": np.array(3)}, "NumPy arrays of shape"),
        ({"y": [1]}, "y is"),
        ({"y": np.zeros(4)}, "'x': 5, 'y': 4"),
        ({"y": None, "sample_weight": np.ones(5)}, "needs y"),
        ({"sample_weight": np.ones(6)}, "'sample_weight': 6"),
        ({"workers": -1}, "workers=-1"),
        ({"workers": 1, "prefetch": 0}, "prefetch=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 9, "last_batch": "drop"}, "at least one batch"),
        ({"last_batch": "some"}, "'some'"),
        ({"seed": -1}, "from 0 to 2"),
    ],
)
def test_arguments_are_checked(arguments, match):
    given_arguments = {"x": np.zeros((5, 2)), "y": np.zeros(5)} | arguments
    with pytest.raises(ValueError, match=match):
        Loader(given_arguments.pop("x"), given_arguments.pop("y"), **given_arguments)


def test_a_bad_epoch_is_refused():
    loader = Loader(*samples(), shuffle=False)
    with pytest.raises(ValueError, match="Received: 0, -1"):
        loader.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_parts_of_batches_have_the_bits_of_the_whole(count, workers):
    """Of augment's transforms, which make the part alone, and of one that needs the whole batch to mix samples."""
    x, y = np.random.default_rng(0).integers(0, 255, (22, 6, 6, 2), np.uint8), np.arange(22)
    each = augment.compose(augment.random_flip(), augment.random_shift(2), augment.random_crop((4, 5)))
    seen = []

    def mixed(x, rng):
        seen.append(len(x))
        return x[rng.permutation(len(x))]

    for transform in (None, each, mixed, augment.compose(each, mixed)):
        loader = Loader(x, y, batch_size=10, transform=transform, workers=workers)
        whole, parts = list(loader), []
        for index in range(count):
            loader.set_shard(index, count)
            parts.append(list(loader))
        for number, batch in enumerate(whole):
            for at, array in enumerate(batch):
                np.testing.assert_array_equal(np.concatenate([part[number][at] for part in parts]), array)
    assert set(seen) == {10, 2}


@pytest.mark.parametrize("view", [lambda a: a[:, 1:], np.asfortranarray, lambda a: a[::-1]], ids=["part", "F", "back"])
def test_no_copy_is_taken_of_arrays_that_are_not_contiguous(view):
    x = view(np.arange(2_000_000, dtype=np.float64).reshape(2000, 1000))
    loader = Loader(x, batch_size=10, shuffle=False, transform=lambda batch, rng: batch)
    tracemalloc.start()
    (first,) = next(iter(loader))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(first, x[:10])
    assert peak < x.nbytes // 10
