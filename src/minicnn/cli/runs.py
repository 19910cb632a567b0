"""Folders of results: of one run, whatever ends it."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import click

from minicnn.extras import needing
from minicnn.files import NO_ROOM, UNFINISHED, writing

# End of the names of folders that hold all files of a run, which are being moved to their place.
FINISHED = ".minicnn.done"


class RunFolder:
    """Context manager: files are written into a hidden folder, and moved to their place when all are there.

    Whatever ends the process, the folder never shows files of two runs. Renaming the hidden folder is the moment from
    which the new run counts: files of the old one are then deleted, and the new ones moved. Entering finishes such a
    move that was broken off, and removes what killed runs have left behind.

    Args:
        folder: The folder of the results; made if missing.
        files: Names of the files of a finished run.
        overwrite: Whether to replace those of an earlier run.

    Raises:
        click.ClickException: If the folder holds such files and `overwrite` is not set; on leaving, if they have come
            meanwhile. The new ones are then in a folder of their own in it, which the error names.
        OSError: If the folder cannot be written; names it and a remedy.
    """

    _new_folders: list[Path]

    def __init__(self, folder: Path, files: tuple[str, ...], *, overwrite: bool) -> None:
        self.folder, self._files, self._overwrite = folder, files, overwrite
        self._staging = Path()
        self._lock: int | None = None

    def __enter__(self) -> Path:
        self._new_folders = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _tidy(self.folder)
            if there := self._there():
                raise click.ClickException(
                    f"{self.folder} holds a finished run: {there}. Name another --out, or give --overwrite."
                )
            self._staging = Path(tempfile.mkdtemp(UNFINISHED, ".", self.folder))
            self._lock = _hold(self._staging)
        return self._staging

    def _there(self) -> str:
        """Names of the files of a finished run that are not to be replaced."""
        return "" if self._overwrite else ", ".join(name for name in self._files if (self.folder / name).exists())

    def _put_aside(self, there: str) -> NoReturn:
        """Make the hidden folder one beside the files that are there, because another run has finished first."""
        shutil.copymode(self.folder, self._staging)  # the hidden folder is this user's only
        for number in count(2):
            aside = self.folder / f"run-{number}"
            try:
                self._staging.rename(aside)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):  # as where it is there
                    raise
        raise click.ClickException(
            f"{self.folder} holds a run that has finished meanwhile: {there}. This one is in {aside}. Give each run "
            "an --out of its own."
        )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> Any:
        try:
            if kind is None:
                with writing(self.folder):
                    if there := self._there():
                        self._put_aside(there)
                    _settle(self._staging.replace(self._staging.with_suffix(".done")))
            elif isinstance(error, OSError) and (error.errno in NO_ROOM or str(self._staging) in str(error.filename)):
                with writing(self.folder):  # not the name of the hidden folder
                    raise error
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
            if kind is not None:
                for folder in self._new_folders:  # made for this run, and empty again unless someone else has used it
                    try:
                        folder.rmdir()
                    except OSError:
                        break


def _settle(finished: Path) -> None:
    """Move the files of a finished run to their place, once no file of an older run is left there."""
    new = sorted(finished.iterdir())
    for path in new:
        (finished.parent / path.name).unlink(missing_ok=True)
    for path in new:
        path.rename(finished.parent / path.name)
    finished.rmdir()


def _tidy(folder: Path) -> None:
    """Finish the moves of runs that were killed, and remove what others have left; not those of a running process."""
    finished = sorted(folder.glob(f".*{FINISHED}"), key=lambda path: path.stat().st_mtime)
    for path in [*finished, *folder.glob(f".*{UNFINISHED}")]:
        lock = _hold(path) if path.is_dir() else None
        if lock is None:
            continue
        if path.name.endswith(FINISHED):
            _settle(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _hold(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed or the process ends; None if it is locked, or cannot be."""
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # as on Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def require(*modules: str) -> None:
    """Import modules of the extra `cli` before work begins that would be lost without them.

    Raises:
        ImportError: If one is missing; says what to install.
    """
    for name in modules:
        with needing("This command needs", name):
            importlib.import_module(name)
