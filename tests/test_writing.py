"""What happens where results cannot be written, and the mode of what is."""

from __future__ import annotations

import errno
import io
import os
import resource
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import minicnn.callbacks.records
import minicnn.files
from minicnn.callbacks import BackupAndRestore, CSVLogger, ModelCheckpoint
from minicnn.files import UNFINISHED, write_file
from support.killed import finish, start
from support.small_training import compiled, digits, network

FORM = r"Results are written to a place with permission and room\. Received: .+\. [A-Z].+\."


def with_callback(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda path: compiled().fit(*digits(), 6, 1, 0, [make(path)])


WRITERS: dict[str, Callable[[Path], Any]] = {
    "save": lambda path: network().save(path),
    "save_weights": lambda path: network().save_weights(path),
    "ModelCheckpoint": with_callback(ModelCheckpoint),
    "CSVLogger": with_callback(CSVLogger),
    "BackupAndRestore": with_callback(lambda path: BackupAndRestore(path.parent, 1)),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk with room for so many bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.fixture
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which nothing can be made, for root as well."""

    def refuse(name: Any, mode: str = "r", **options: Any) -> Any:
        if mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return io.open(name, mode, **options)  # noqa: UP020

    for module in (minicnn.files, minicnn.callbacks.records):
        monkeypatch.setattr(module, "open", refuse, raising=False)


def assert_told(caught: pytest.ExceptionInfo[OSError], path: Path, remedy: str) -> None:
    """The error names the place that the user knows, what is wrong and what mends it."""
    assert str(caught.value.filename).startswith(str(path))
    assert remedy in str(caught.value)
    assert UNFINISHED not in str(caught.value)


@writers
def test_a_missing_folder(write: Callable[[Path], Any], tmp_path: Path) -> None:
    if write is WRITERS["BackupAndRestore"]:  # whose folder is its own
        write(tmp_path / "a" / "b" / "m")
        return
    with pytest.raises(FileNotFoundError, match=FORM) as caught:
        write(tmp_path / "a" / "b" / "m")
    assert_told(caught, tmp_path / "a" / "b" / "m", "Make the folder first")
    assert not list(tmp_path.iterdir())


def test_folders_that_a_checkpoint_names_by_its_fields_are_made(tmp_path: Path) -> None:
    compiled().fit(*digits(), 6, 2, 0, [ModelCheckpoint(tmp_path / "epoch{epoch}" / "m")])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch1", "epoch2"]
    with pytest.raises(FileNotFoundError, match="Make the folder first"):
        compiled().fit(*digits(), 6, 1, 0, [ModelCheckpoint(tmp_path / "a" / "epoch{epoch}" / "m")])


@writers
def test_a_file_where_a_folder_should_be(write: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=FORM) as caught:
        write(tmp_path / "file" / "b" / "m")
    assert_told(caught, tmp_path / "file", "Name a folder where there is no file")


@writers
@pytest.mark.usefixtures("no_permission")
def test_a_folder_without_permission(write: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match=FORM) as caught:
        write(tmp_path / "m")
    assert_told(caught, tmp_path, "Ask for the permission")


@writers
def test_a_full_disk(write: Callable[[Path], Any], tmp_path: Path) -> None:
    with largest_file(30), pytest.raises(OSError, match=FORM) as caught:
        write(tmp_path / "m")
    assert_told(caught, tmp_path, "Make room")
    assert not [p for p in tmp_path.iterdir() if p.name != "m"]


def test_what_cannot_be_written_is_told_before_anything_is_computed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for callback in (CSVLogger, ModelCheckpoint):
        model = compiled()
        with pytest.raises(OSError, match=FORM):
            model.fit(*digits(), 6, 1, 0, [callback(tmp_path / "file" / "m")])
        assert model.steps_taken == 0


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=FORM) as caught:
        write_file(tmp_path, b"x")
    assert_told(caught, tmp_path, "Name a file, not a folder")
    assert not list(tmp_path.iterdir())


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m")
    (tmp_path / "link").symlink_to(tmp_path / "m")
    for path in (tmp_path / "m", tmp_path / "link"):
        with pytest.raises(OSError, match=FORM) as caught:
            network().save(path)
        assert_told(caught, path, "that is no regular file. Name a regular file, or one that is not there")
        assert stat.S_ISFIFO(path.stat().st_mode)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("old", [0o600, 0o640, 0o444, 0o755])
def test_the_mode_of_a_file_that_is_replaced_is_kept(old: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    network().save(path)
    path.chmod(old)
    seen: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (seen.append(stat.S_IMODE(os.fstat(file).st_mode)), fsync(file))[1])
    network().save(path)
    assert mode(path) == old
    assert seen[0] == old, "nobody reads what is being written who may not read what it replaces"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o007])
def test_a_new_file_follows_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        WRITERS["ModelCheckpoint"](tmp_path / "m")
        write_file(tmp_path / "text", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "m") == mode(tmp_path / "text") == 0o666 & ~mask


def test_what_a_killed_process_left_behind_goes_after_an_hour(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for _ in range(2):
        finish(start("save", "numpy", path, "write:1"), -signal.SIGKILL)
    old, new = tmp_path.iterdir()
    folder = tmp_path / f".run{UNFINISHED}"  # of a run, which sees to its own
    folder.mkdir()
    hour_ago = time.time() - 3700
    for left in (old, folder):
        os.utime(left, (hour_ago, hour_ago))
    network().save(path)
    assert set(tmp_path.iterdir()) == {path, new, folder}
