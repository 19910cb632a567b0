"""Machine code on disk: one folder for all backends, whose code is run only if nobody else can have written it.

The folder is MINICNN_CACHE, else the user's cache folder. A file is written whole under another name and then renamed,
so processes may share the folder. What cannot be read or written is done without.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import warnings
from pathlib import Path

_REFUSED: set[str] = set()  # what has been warned of


def place(*parts: str) -> Path | None:
    """Path of a file of machine code; None if the user has no folder, or one that others can write to."""
    cache = os.environ.get("MINICNN_CACHE")
    try:
        root = Path(cache) if cache else _user_cache() / "minicnn"
    except RuntimeError:  # neither a home nor an entry in passwd
        return None
    path = root.joinpath(*parts)
    for folder in (root, *(f for f in reversed(path.parents) if root in f.parents)):
        with contextlib.suppress(OSError):
            if _refused(folder, os.stat(folder)):
                return None
    return path


def read(path: Path | None) -> bytes | None:
    """Read a file of machine code; None if there is none, or others can have written it."""
    try:
        if path is None:
            return None
        with path.open("rb") as file:
            return None if _refused(path, os.fstat(file.fileno())) else file.read()
    except OSError:
        return None


def write(path: Path | None, code: bytes) -> None:
    """Write a file so that another process sees all of it or nothing; nothing happens where that is not possible."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(code)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _refused(path: Path, about: os.stat_result) -> bool:
    """True if others can have written a file or folder; says so once for each."""
    if sys.platform == "win32":
        return False
    mode = about.st_mode
    # In a folder of a group the owner of each file tells who wrote it; in a sticky one nobody replaces others' files.
    shared = bool(mode & stat.S_IWOTH and not mode & stat.S_ISVTX) if stat.S_ISDIR(mode) else bool(mode & 0o022)
    if not shared and about.st_uid in (0, os.geteuid()):
        return False
    if str(path) not in _REFUSED:
        _REFUSED.add(str(path))
        message = (
            f"Compiled kernels are code: they are kept where nobody else can write. Received: {path}, of user "
            f"{about.st_uid} with mode {mode & 0o7777:o}. Kernels compile in every process; name a folder of your own "
            "in MINICNN_CACHE, or remove this one."
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return True
