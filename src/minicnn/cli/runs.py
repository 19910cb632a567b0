"""Folders of results: complete or not there."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from minicnn.extras import install
from minicnn.files import UNFINISHED


class RunFolder:
    """Context manager: files are written into a hidden folder, and moved to their place when all are there.

    Args:
        folder: The folder of the results; made if missing.
        files: Names of the files of a finished run.
        overwrite: Whether to replace those of an earlier run.

    Raises:
        click.ClickException: On entering, if the folder holds such files and `overwrite` is not set.
        OSError: On entering, if the folder cannot be written.
    """

    _made: list[Path]

    def __init__(self, folder: Path, files: tuple[str, ...], *, overwrite: bool) -> None:
        self.folder, self._files, self._overwrite = folder, files, overwrite
        self._staging = Path()

    def __enter__(self) -> Path:
        there = [name for name in self._files if (self.folder / name).exists()]
        if there and not self._overwrite:
            message = (
                f"{self.folder} holds a finished run: {', '.join(there)}. Name another --out, or give --overwrite."
            )
            raise click.ClickException(message)
        self._made = [p for p in (self.folder, *self.folder.parents) if not p.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._staging = Path(tempfile.mkdtemp(UNFINISHED, ".", self.folder))
        return self._staging

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> Any:
        try:
            if kind is None:
                for path in sorted(self._staging.iterdir()):
                    os.replace(path, self.folder / path.name)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
            if kind is not None:
                for folder in self._made:  # made for this run, and empty again unless someone else has used it
                    try:
                        folder.rmdir()
                    except OSError:
                        break


def require(*modules: str) -> None:
    """Import modules of the extra `cli` before work begins that would be lost without them.

    Raises:
        ImportError: If one is missing; says what to install.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            message = f"This command needs {name}: {install('cli')}."
            raise ImportError(message, name=name) from error
