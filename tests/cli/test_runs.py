"""Folders of results when the process is killed, the disk is full, or two write at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from minicnn.cli.runs import RunFolder
from support.command_line import error_of, minicnn

# Other tests may have loaded libraries with threads, which warn of forks; the children here use none of them.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

FILES = ("a.txt", "b.txt", "c.txt")
STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir")


def write(folder: Path, run: str, *, overwrite: bool = True) -> None:
    with RunFolder(folder, FILES, overwrite=overwrite) as staging:
        for name in FILES:
            (staging / name).write_text(run)


def shown(folder: Path) -> dict[str, str]:
    """What a user sees in the folder."""
    return {p.name: p.read_text() for p in folder.iterdir() if p.name in FILES}


def killed_at(step: int, action: Callable[[], Any]) -> bool:
    """Do something in a process that is killed before its so-many-th change of a folder; whether it was."""
    child = os.fork()
    if not child:
        left = step

        def counting(call: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return call(*args, **options)

            return counted

        for name in STEPS:
            setattr(os, name, counting(getattr(os, name)))
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("notes", [False, True])
def test_a_kill_at_any_step_never_mixes_two_runs(notes: bool, tmp_path: Path) -> None:
    seen = set()
    for step in range(100):
        folder = tmp_path / f"{step}"
        write(folder, "old")
        if notes:
            (folder / "notes").write_text("mine")
        was_killed = killed_at(step, lambda folder=folder: write(folder, "new"))  # type: ignore[misc]
        assert len(set(shown(folder).values())) <= 1, step
        with pytest.raises(click.ClickException, match="holds a finished run"):  # the next start
            write(folder, "third", overwrite=False)
        after = shown(folder)
        assert set(after) == set(FILES), step
        assert len(set(after.values())) == 1, step
        seen |= set(after.values())
        assert {p.name for p in folder.iterdir()} == {*FILES, *(["notes"] if notes else [])}, step
        if not was_killed:
            break
    assert step > 2 * len(FILES)
    assert seen == {"old", "new"}
    assert after == dict.fromkeys(FILES, "new")


def test_a_kill_while_it_trains_leaves_the_old_run_and_its_leftovers_go(tmp_path: Path) -> None:
    write(tmp_path, "old")
    child = os.fork()
    if not child:
        with RunFolder(tmp_path, FILES, overwrite=True) as staging:
            (staging / "a.txt").write_text("half")
            os._exit(9)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == len(FILES) + 1
    assert set(shown(tmp_path).values()) == {"old"}
    write(tmp_path, "new")
    assert {p.name for p in tmp_path.iterdir()} == set(FILES)
    assert set(shown(tmp_path).values()) == {"new"}


def test_a_run_that_goes_on_keeps_its_hidden_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path, FILES, overwrite=True) as staging:
        (staging / "a.txt").write_text("first")
        write(tmp_path, "second")
        assert (staging / "a.txt").exists()
        for name in FILES:
            (staging / name).write_text("first")
    assert shown(tmp_path) == dict.fromkeys(FILES, "first")


def test_a_run_that_has_finished_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    for run in ("second", "third"):
        for path in tmp_path.glob("*.txt"):
            path.unlink()
        folder = RunFolder(tmp_path, FILES, overwrite=False)
        staging = folder.__enter__()
        write(tmp_path, "first", overwrite=False)
        for name in FILES:
            (staging / name).write_text(run)
        said = (
            r"a run that has finished meanwhile: a.txt, b.txt, c.txt. This one is in .*run-\d. Give each run an --out"
        )
        with pytest.raises(click.ClickException, match=said):
            folder.__exit__(None, None, None)
        assert shown(tmp_path) == dict.fromkeys(FILES, "first")
    assert shown(tmp_path / "run-2") == dict.fromkeys(FILES, "second")
    assert shown(tmp_path / "run-3") == dict.fromkeys(FILES, "third")
    assert {p.name for p in tmp_path.iterdir()} == {*FILES, "run-2", "run-3"}
    assert (tmp_path / "run-2").stat().st_mode == tmp_path.stat().st_mode


def test_the_working_folder_can_be_the_one() -> None:
    for run in ("old", "new"):
        write(Path(), run)
        assert shown(Path()) == dict.fromkeys(FILES, run)


def test_what_fails_names_the_folder_and_not_the_hidden_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicnn.jobs import job

    def full(path: Path, rows: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(job, "write_rows", full)
    line = error_of(minicnn("train", "mlp", "--samples", "40", "--epochs", "1", "--out", "a/b"), 1)
    assert line.startswith("a/b: Results are written to a place with permission and room. Received: No space left")
    assert line.endswith("Make room, or name a place on another disk.")
    assert not Path("a").exists()
    Path("file").touch()
    line = error_of(minicnn("train", "mlp", "--samples", "40", "--epochs", "1", "--out", "file/b"), 1)
    assert line.startswith("file/b: Results are written")
    assert "Name a folder where there is no file" in line
