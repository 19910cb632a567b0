from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import tarfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import DataError, cifar10
from support.datafiles import cifar_binary, cifar_python2, photos, planes, write_tar

WRITERS = {"bin": (cifar_binary, ".bin"), "py": (cifar_python2, "")}


def batches(version: str, sizes=(3, 2), test: int = 4) -> dict[str, bytes]:
    write, suffix = WRITERS[version]
    result = {f"data_batch_{i}{suffix}": write(*photos(n, seed=i)) for i, n in enumerate(sizes, 1)}
    return result | {f"test_batch{suffix}": write(*photos(test, seed=99))}


def write_all(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in members.items():
        (folder / name).write_bytes(content)
    return folder


def check(dataset, sizes=(3, 2), test=4):
    train = [photos(n, seed=i) for i, n in enumerate(sizes, 1)]
    assert np.array_equal(dataset.x_train, np.concatenate([x for x, _ in train]))
    assert np.array_equal(dataset.y_train, np.concatenate([y for _, y in train]))
    assert np.array_equal(dataset.x_test, photos(test, seed=99)[0])
    assert np.array_equal(dataset.y_test, photos(test, seed=99)[1])
    assert dataset.class_names[0] == "airplane"
    assert dataset.x_train.flags.writeable
    assert dataset.x_test.flags.writeable


@pytest.mark.parametrize("version", WRITERS)
@pytest.mark.parametrize("subfolder", ["", "cifar10", "cifar-10-batches-{}", "cifar10/cifar-10-batches-{}"])
def test_folders(tmp_path, version, subfolder):
    write_all(tmp_path / subfolder.format(version), batches(version))
    check(cifar10(tmp_path, download=False))


@pytest.mark.parametrize("version", WRITERS)
def test_archives(tmp_path, version, monkeypatch):
    name = {"bin": "cifar-10-binary.tar.gz", "py": "cifar-10-python.tar.gz"}[version]
    members = {f"cifar-10-batches-{version}/{key}": value for key, value in batches(version).items()}
    members |= {
        f"cifar-10-batches-{version}/readme.html": b"<html>",
        "/etc/passwd": b"x",
        "../../escaped": b"x",
    }
    (tmp_path / "cifar10").mkdir()
    archive = write_tar(tmp_path / "cifar10" / name, members)
    check(cifar10(tmp_path, download=False))
    check(cifar10(archive))
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path))
    check(cifar10())
    assert {path.name for path in tmp_path.rglob("*")} == {"cifar10", name}  # nothing was unpacked


@settings(deadline=None, max_examples=15)
@given(
    version=st.sampled_from(sorted(WRITERS)),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    test=st.integers(1, 4),
)
def test_round_trip(tmp_path_factory, version, sizes, test):
    folder = write_all(tmp_path_factory.mktemp("cifar"), batches(version, sizes, test))
    check(cifar10(folder, download=False), sizes, test)


def test_the_python2_pickle_of_these_tests_is_a_real_one():
    x, y = photos(5)
    with warnings.catch_warnings(action="ignore"):  # numpy.core has moved
        batch = pickle.loads(cifar_python2(x, y), encoding="latin1")
    assert np.array_equal(batch["data"], planes(x))
    assert batch["labels"] == y.tolist()
    assert batch["filenames"][4] == "some_picture_s_000004.png"


@pytest.mark.parametrize("protocol", [3, 4])
def test_pickles_of_python3(tmp_path, protocol):
    folder = write_all(tmp_path, batches("py"))
    x, y = photos(3, seed=1)
    batch = {b"labels": y.tolist(), b"data": planes(x), "filenames": ["é.png"] * 3, "batch_label": b"1"}
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol))
    check(cifar10(folder))


def test_a_pickle_of_real_size_is_quick(tmp_path):
    x, y = photos(10_000)
    write_all(tmp_path, {"data_batch_1": cifar_python2(x, y), "test_batch": cifar_python2(x[:1], y[:1])})
    start = time.process_time()
    dataset = cifar10(tmp_path)
    assert time.process_time() - start < 3
    assert np.array_equal(dataset.x_train, x)
    assert np.array_equal(dataset.y_train, y)


class Attack:
    """Unpickled, it would call a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["data", "labels", "filenames"])
def test_pickles_are_not_carried_out(tmp_path, protocol, place):
    witness = tmp_path / "witness"
    x, y = photos(2)
    batch = {"labels": y.tolist(), "data": planes(x)} | {place: Attack(os.system, f"touch {witness}")}
    folder = write_all(tmp_path, batches("py") | {"data_batch_1": pickle.dumps(batch, protocol)})
    with contextlib.suppress(DataError):  # what stands beside labels and data is not looked at
        cifar10(folder)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"test_batch.bin": None},
            "without a gap, and test_batch. Received: data_batch_1, data_batch_2. Fetch",
        ),
        ({"data_batch_1.bin": None}, r"Received: test_batch, data_batch_2"),
        ({"data_batch_1.bin": None, "data_batch_2.bin": None}, r"Received: test_batch. Fetch"),
        ({"data_batch_2": cifar_python2(*photos(2))}, "each batch is there once"),
        ({"test_batch": cifar_python2(*photos(2))}, "each batch is there once"),
        ({"data_batch_2.bin": b""}, "records of 3073 bytes. Received: 0 bytes"),
        ({"data_batch_2.bin": bytes(3073 + 3)}, "3,076 bytes, that is 1.001 records"),
        (
            {"data_batch_2.bin": bytes(3073) + b"\x0a" + bytes(3072)},
            "labels are from 0 to 9. Received: 10 in record 1",
        ),
    ],
)
def test_bad_batches(tmp_path, changes, match):
    members = {key: value for key, value in (batches("bin") | changes).items() if value is not None}
    with pytest.raises(DataError, match=match):
        cifar10(write_all(tmp_path, members))


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        ({"labels": [1, 2]}, "no array of bytes"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}, "Received: 2 labels and 6,142 bytes"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "Received: 0 labels"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "Received: 0 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "Received: 1 labels and 6,144 bytes"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 10]}, "2 labels up to 10"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, True]}, "1 labels and"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["1", "2"]}, "Received: 0 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": (1, 2)}, "Received: 0 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2], "more": b"labels"}, "Received: 0 labels"),
        ({"data": np.zeros((2, 3072), np.float32), "labels": [1, 2]}, "no array of bytes in row-major order"),
        ({"data": np.zeros((2, 3072), np.uint8, order="F"), "labels": [1, 2]}, "row-major"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2], "more": b"x" * 4000}, "or several"),
        ({"other": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}, "no array of bytes"),
        ({"data": bytes(6144), "labels": [1, 2]}, "no array of bytes"),
        ([1, 2], "Received: 0 labels"),
    ],
)
@pytest.mark.parametrize("protocol", [3, 4])
def test_bad_pickled_batches(tmp_path, batch, match, protocol):
    folder = write_all(tmp_path, batches("py"))
    (folder / "data_batch_2").write_bytes(pickle.dumps(batch, protocol))
    with pytest.raises(DataError, match=match) as info:
        cifar10(folder)
    assert "data_batch_2" in str(info.value)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "pickle exhausted"),
        (b".", "Received: 0 labels"),
        (b"}", "exhausted before seeing STOP"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.", "bytes"),
        (b"T\xff\xff\xff\x7f.", "bytes"),
        (b"U\x06labels.", "Received: 0 labels"),
        (b"U\x06labels].", "Received: 0 labels"),
        (b"not a pickle", "Fetch the file again from the data set's own page, or cifar-10-binary.tar.gz"),
    ],
)
def test_bad_pickles(tmp_path, data, match):
    folder = write_all(tmp_path, batches("py") | {"data_batch_2": data})
    with pytest.raises(DataError, match=match):
        cifar10(folder)


def tar_with(path: Path, info: tarfile.TarInfo, content: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in batches("bin").items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_passed_over(tmp_path, kind):
    info = tarfile.TarInfo("data_batch_3.bin")
    info.type, info.linkname = kind, "/etc/passwd"
    check(cifar10(tar_with(tmp_path / "a.tar.gz", info)))


def test_members_that_claim_too_much(tmp_path):
    info = tarfile.TarInfo("data_batch_3.bin")
    info.size = 2**40
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with gzip.open(archive, "wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(20_000))
    with pytest.raises(DataError, match=r"at most 33,554,432 bytes. Received: 1,099,511,627,776"):
        cifar10(archive)
    info.size = 3073 * 100
    with gzip.open(archive, "wb") as stream:
        stream.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(20_000))
    with pytest.raises(DataError):
        cifar10(archive)


def test_sparse_members_are_refused(tmp_path):
    info = tarfile.TarInfo("data_batch_1.bin")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"  # its size, unpacked: 8 GiB of zeros
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(gzip.compress(bytes(header) + bytes(20_000)))
    with tarfile.open(archive) as members:
        assert members.next().issparse()
    with pytest.raises(DataError, match=r"without a gap, and test_batch\. Received: none"):
        cifar10(archive)


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", gzip.compress(b"", mtime=0), gzip.compress(b"x" * 2000, mtime=0)]
)
def test_archives_that_are_none(tmp_path, content):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"archive|without a gap"):
        cifar10(archive)


def test_truncated_archive(tmp_path):
    archive = write_tar(tmp_path / "a.tar.gz", batches("bin"))
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="undamaged"):
        cifar10(archive)


def test_the_checksum_of_an_archive_is_looked_at(tmp_path):
    archive = write_tar(tmp_path / "a.tar.gz", batches("bin"))
    data = bytearray(archive.read_bytes())
    data[-8] ^= 1
    archive.write_bytes(data)
    with pytest.raises(DataError, match="undamaged"):
        cifar10(archive)


def test_an_archive_that_ends_between_its_members_is_truncated(tmp_path):
    archive = tmp_path / "a.tar"
    members = {"test_batch.bin": cifar_binary(*photos(4)), **batches("bin")}
    whole = gzip.decompress(write_tar(archive, members).read_bytes())
    batch = 512 + -(-2 * 3073 // 512) * 512  # the last member, data_batch_2.bin
    archive.write_bytes(whole[: whole.rindex(b"data_batch_2.bin")])
    assert len(whole) - len(archive.read_bytes()) > batch
    with pytest.raises(DataError, match="complete and undamaged"):
        cifar10(archive)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_other_programs(tmp_path, form):
    """Folders, long names, extended headers with times and comments are passed over."""
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz", format=form, pax_headers={"comment": "é" * 600}) as members:
        folder = tarfile.TarInfo("cifar-10-batches-bin")
        folder.type = tarfile.DIRTYPE
        members.addfile(folder)
        if form != tarfile.USTAR_FORMAT:
            members.addfile(tarfile.TarInfo("x" * 300))
        for name, data in batches("bin").items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size, member.mtime = len(data), 1.5 if form == tarfile.PAX_FORMAT else 1
            members.addfile(member, io.BytesIO(data))
    check(cifar10(archive))
