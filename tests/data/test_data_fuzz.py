"""Whatever is in a file, reading it gives data or a DataError: no other error and no hang."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import DataError, Dataset, cifar10, image_folder, kaggle_digits, mnist, tiny_imagenet
from support.datafiles import (
    IDX_NAMES,
    cifar_binary,
    cifar_python2,
    csv_text,
    digits,
    idx_files,
    photos,
    write_idx,
    write_tar,
)

fuzz = settings(deadline=timedelta(seconds=5), max_examples=100)


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes like `good` but for some damage; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        # Half of the damage is near the start, where headers are.
        most = draw(st.sampled_from([min(64, len(data)), len(data)]))
        place = draw(st.integers(0, most))
        match draw(st.sampled_from(["cut", "flip", "set", "insert", "remove", "repeat"])):
            case "cut":
                del data[place:]
            case "flip" if place < len(data):
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "set":
                value = draw(st.binary(max_size=8) | st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f" + b"\xff" * 7]))
                data[place : place + len(value)] = value
            case "insert":
                data[place:place] = draw(st.binary(max_size=20))
            case "remove":
                del data[place : place + draw(st.integers(1, 40))]
            case "repeat":
                data += data[place:]
    return bytes(data)


def survives(read: Callable[[], Dataset]) -> None:
    try:
        dataset = read()
    except DataError:
        return
    assert isinstance(dataset, Dataset)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@fuzz
@given(
    key=st.sampled_from(sorted(IDX_NAMES)),
    compress=st.sampled_from(["no", "damaged", "after damage"]),
    data=st.data(),
)
def test_idx(folder, key, compress, data):
    files = idx_files()
    if compress == "damaged":
        files[key] = data.draw(damaged(gzip.compress(files[key], mtime=0)))
    else:
        content = data.draw(damaged(files[key]))
        files[key] = content if compress == "no" else gzip.compress(content)
    write_idx(folder / "idx", files)
    survives(lambda: mnist(folder / "idx", download=False))


BATCHES = {
    "bin": {"data_batch_1.bin": cifar_binary(*photos(3)), "test_batch.bin": cifar_binary(*photos(2))},
    "py": {"data_batch_1": cifar_python2(*photos(3)), "test_batch": cifar_python2(*photos(2))},
}


@pytest.mark.parametrize("version", BATCHES)
@fuzz
@given(data=st.data())
def test_cifar10(folder, version, data):
    place = folder / version
    place.mkdir(exist_ok=True)
    for name, content in BATCHES[version].items():
        (place / name).write_bytes(content)
    (place / name).write_bytes(data.draw(damaged(content)))
    survives(lambda: cifar10(place, download=False))


OPCODES = b"(.012FGIJKLMNPQRSTUVXabcdeghijloqrstpu]})\x80\x81\x85\x86\x87\x88\x89\x8c\x8d\x8e\x90\x93\x94\x95\x96"


@settings(fuzz, max_examples=300)
@given(
    st.lists(
        st.sampled_from([bytes([code]) for code in OPCODES])
        | st.sampled_from([b"U\x01a", b"K\x02", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"q\x01", b"h\x01"])
        | st.binary(max_size=3),
        max_size=40,
    )
)
def test_pickled_programs(folder, opcodes):
    place = folder / "programs"
    place.mkdir(exist_ok=True)
    (place / "test_batch").write_bytes(b"".join(opcodes) + b".")
    survives(lambda: cifar10(place, download=False))


@pytest.mark.parametrize("version", BATCHES)
@fuzz
@given(compressed=st.booleans(), data=st.data())
def test_cifar10_archives(folder, version, compressed, data):
    archive = folder / "cifar-10-binary.tar.gz"
    good = write_tar(archive, BATCHES[version] | {"readme.html": b"<html>"}).read_bytes()
    bad = data.draw(damaged(good)) if compressed else gzip.compress(data.draw(damaged(gzip.decompress(good))))
    archive.write_bytes(bad)
    survives(lambda: cifar10(archive))


@fuzz
@given(data=st.data())
def test_kaggle_digits(folder, data):
    good = csv_text(*digits(3, 28, 28)).encode()
    (folder / "train.csv").write_bytes(data.draw(damaged(good)))
    survives(lambda: kaggle_digits(folder / "train.csv", test_samples=0))


def encoded(suffix: str) -> bytes:
    image_module = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    image_module.fromarray(pixels).save(stream, {"jpg": "jpeg", "tif": "tiff"}.get(suffix, suffix))
    return stream.getvalue()


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "ppm", "tif", "webp"])
@fuzz
@given(data=st.data())
def test_image_folder(folder, suffix, data):
    place = folder / suffix / "some"
    place.mkdir(parents=True, exist_ok=True)
    good = encoded(suffix)
    (place / f"0.{suffix}").write_bytes(good)
    (place / f"1.{suffix}").write_bytes(data.draw(damaged(good)))
    survives(lambda: image_folder(folder / suffix, size=8))


@fuzz
@given(name=st.sampled_from(["words.txt", "val/val_annotations.txt"]), data=st.data())
def test_tiny_imagenet(folder, name, data):
    root = folder / "tiny"
    for place in ("train/n01/images/0.JPEG", "train/n02/images/0.JPEG", "val/images/0.JPEG"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(encoded("jpg"))
    tables = {"words.txt": b"n01\tfish\nn02\ttoad\n", "val/val_annotations.txt": b"0.JPEG\tn02\t0\t0\t7\t7\n"}
    tables[name] = data.draw(damaged(tables[name]))
    for table, content in tables.items():
        (root / table).write_bytes(content)
    survives(lambda: tiny_imagenet(root))
