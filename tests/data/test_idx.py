from __future__ import annotations

import gzip
import hashlib
import struct
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import DataError, fashion_mnist, idx, mnist, read_idx
from support.datafiles import IDX_NAMES, SHARED, digits, idx_bytes, idx_files, named_pipe, write_idx
from support.tolerances import SUM

REAL = {
    "mnist": (
        mnist,
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        (0.13066, 0.30811),
    ),
    "fashion_mnist": (fashion_mnist, [6000] * 10, [1000] * 10, (0.28604, 0.35302)),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real files in ../shared/data")
def test_real_files(name):
    load, train_counts, test_counts, (mean, deviation) = REAL[name]
    dataset = load(SHARED, download=False)
    assert dataset.name == name
    assert dataset.x_train.shape == (60_000, 28, 28, 1)
    assert dataset.x_test.shape == (10_000, 28, 28, 1)
    assert np.bincount(dataset.y_train).tolist() == train_counts
    assert np.bincount(dataset.y_test).tolist() == test_counts
    counts = np.bincount(dataset.x_train.ravel(), minlength=256) / dataset.x_train.size
    levels = np.arange(256) / 255
    assert np.isclose(counts @ levels, mean, atol=SUM)
    assert np.isclose(np.sqrt(counts @ levels**2 - (counts @ levels) ** 2), deviation, atol=SUM)
    sums = {"mnist": idx.MNIST, "fashion_mnist": idx.FASHION_MNIST}[name].sha256
    for key in ("x_train", "y_train", "x_test", "y_test"):
        array = getattr(dataset, key)
        content = idx_bytes(array[..., 0] if array.ndim == 4 else array.astype(np.uint8))
        assert hashlib.sha256(content).hexdigest() == sums[key]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real files in ../shared/data")
def test_one_data_set_is_not_taken_for_the_other():
    with pytest.raises(DataError, match=r"labels are those of fashion_mnist.*those of mnist"):
        fashion_mnist(SHARED / "mnist")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("subfolder", ["", "mnist", "MNIST/raw"])
def test_files_are_found_plain_or_gzip_in_the_folder_or_below(tmp_path, suffix, subfolder):
    write_idx(tmp_path / subfolder, idx_files(), suffix)
    dataset = mnist(tmp_path, download=False)
    x, y = digits(7, seed=1)
    assert np.array_equal(dataset.x_train[..., 0], x)
    assert np.array_equal(dataset.y_train, y)
    assert dataset.y_train.dtype == np.int32
    assert dataset.input_shape == (3, 4, 1)
    assert dataset.x_train.flags.writeable  # PyTorch warns about arrays that are not


def test_names_with_a_dot_are_found(tmp_path):
    write_idx(tmp_path, idx_files())
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(mnist(tmp_path, download=False).x_test) == 5


def test_the_argument_goes_before_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path / "mine" / "fashion_mnist", idx_files(n_train=3))
    write_idx(tmp_path / "theirs" / "fashion_mnist", idx_files(n_train=4))
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "theirs"))
    assert len(fashion_mnist(tmp_path / "mine").x_train) == 3
    assert len(fashion_mnist().x_train) == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="fashion_mnist needs the files"):
        fashion_mnist(tmp_path / "empty")


def test_an_incomplete_folder_is_an_error(tmp_path):
    write_idx(tmp_path, idx_files())
    (tmp_path / IDX_NAMES["y_test"]).unlink()
    with pytest.raises(DataError, match="no t10k-labels-idx1-ubyte"):
        mnist(tmp_path)


@settings(deadline=None, max_examples=50)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 300)),
        st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12)),
    ),
    seed=st.integers(0, 2**32),
    compress=st.booleans(),
)
def test_round_trip(tmp_path_factory, shape, seed, compress):
    array = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(idx_bytes(array)) if compress else idx_bytes(array))
    result = read_idx(path, len(shape))
    assert result.dtype == np.uint8
    assert np.array_equal(result, array)


def images(count: int, rows: int, columns: int, size: int, magic: int = 0x803) -> bytes:
    return struct.pack(">4I", magic, count, rows, columns) + bytes(size)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "start with 16 bytes of header. Received: 0 bytes"),
        (images(2, 3, 4, 24)[:15], "Received: 15 bytes"),
        (images(2, 3, 4, 24, magic=0x801), "magic number 0x00000803. Received: 0x00000801"),
        (images(2, 3, 4, 23), r"shape \(2, 3, 4\) is followed by exactly 24 bytes"),
        (images(2, 3, 4, 25), "exactly 24 bytes"),
        (images(0, 3, 4, 0), r"at least one item.*\(0, 3, 4\)"),
        (images(2, 0, 4, 0), r"1 to 4096 pixels.*\(2, 0, 4\)"),
        (images(1, 5000, 1, 5000), r"1 to 4096 pixels.*\(1, 5000, 1\)"),
        (images(2**32 - 1, 4096, 4096, 24), "exactly 72,057,594,021,150,720 bytes"),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_bad_content(tmp_path, content, match, compress):
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(content) if compress else content)
    with pytest.raises(DataError, match=match) as info:
        read_idx(path, 3)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbage after"])
def test_damaged_gzip(tmp_path, damage):
    data = bytearray(gzip.compress(images(2, 3, 4, 24)))
    if damage == "truncated":
        del data[-9:]
    elif damage == "flipped":
        data[-6] ^= 1  # in the checksum
    else:
        data += b"garbage"
    path = tmp_path / "images.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match="gzip stream is complete and undamaged"):
        read_idx(path, 3)


def test_labels_are_checked_against_images_and_classes(tmp_path):
    content = idx_files()
    short = idx_bytes(np.zeros(6, np.uint8))
    with pytest.raises(DataError, match=r"one label for each image. Received: 6 labels, and 7 images in"):
        mnist(write_idx(tmp_path / "short", content | {"y_train": short}))
    wrong = idx_bytes(np.array([0, 1, 200, 3, 4], np.uint8))
    with pytest.raises(DataError, match=r"labels are from 0 to 9. Received: 200 at index 2"):
        mnist(write_idx(tmp_path / "wrong", content | {"y_test": wrong}))


def peak_memory(call) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_takes_neither_memory_nor_time(tmp_path):
    start = time.process_time()
    # 256 MB of zeros in 250 kB, behind a header that names few of them, too many, and more than there are.
    zeros = gzip.compress(bytes(2**24), 9)
    for count in (10, 2**32 - 1):
        bomb = tmp_path / f"bomb{count}.gz"
        bomb.write_bytes(gzip.compress(images(count, 28, 28, 0)) + zeros * 16)
        assert peak_memory(lambda bomb=bomb: read_idx(bomb, 3)) < 10e6
    bomb.write_bytes(gzip.compress(images(2**18, 28, 28, 0)) + zeros)
    assert peak_memory(lambda: read_idx(bomb, 3)) < 60e6  # no more than the 16 MB that are there, and copies
    assert time.process_time() - start < 20


def test_the_limit_holds_while_reading(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(images(100, 28, 28, 78400)))
    with pytest.raises(DataError, match=r"at most 50,000 bytes, uncompressed. Received: more"):
        read_idx(path, 3, max_bytes=50_000)


@pytest.mark.parametrize("padding", [0, 5, 100_000])
def test_a_gzip_file_of_several_members(tmp_path, padding):
    content = images(2, 3, 4, 24)
    path = tmp_path / "images.gz"
    parts = [gzip.compress(content[i : i + 9]) for i in range(0, len(content), 9)]
    path.write_bytes(bytes(padding).join(parts) + bytes(padding))
    assert read_idx(path, 3).tolist() == np.zeros((2, 3, 4)).tolist()
    path.write_bytes(bytes(padding).join(parts) + bytes(padding) + gzip.compress(b"more"))
    with pytest.raises(DataError, match="exactly 24 bytes"):
        read_idx(path, 3)
    path.write_bytes(gzip.compress(b"") * 10_000 + parts[0])
    with pytest.raises(DataError, match=r"undamaged\. Received: more than 10,000 members"):
        read_idx(path, 3)


def test_a_named_pipe_is_refused(tmp_path):
    named_pipe(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"a regular file that can be opened\. Received: it is a folder, a pipe"):
        read_idx(tmp_path / "pipe", 3)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(DataError, match="a data file is a regular file that can be opened"):
        read_idx(tmp_path, 1)
