"""Where data files are found, how they are read without trusting them, and how they are downloaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from minicnn.data.dataset import DataError
from minicnn.extras import install

T = TypeVar("T")
PathLike = str | os.PathLike[str]

ENVIRONMENT = "MINICNN_DATA"
MAX_BYTES = 2**30  # of one file, uncompressed
GZIP_RATIO = 1032  # deflate cannot compress more than this
CHUNK = 2**20


def fail(path: PathLike, rule: str, received: str, remedy: str) -> DataError:
    """The error for a file that breaks a rule of its format."""
    return DataError(f"{os.fspath(path)}: {rule}. Received: {received}. {remedy}")


def find(
    data_dir: PathLike | None, subfolders: Sequence[str], holds: Callable[[Path], T | None]
) -> tuple[T | None, list[Path]]:
    """Look for a data set in the user's folders.

    Args:
        data_dir: A folder given by the user; after it comes the one that MINICNN_DATA names.
        subfolders: Looked into before the folder itself.
        holds: Returns what it finds in a folder, or None.

    Returns:
        What was found in the first folder that holds it, or None; and the folders that were looked into.

    Raises:
        DataError: If a folder that was given does not exist.
    """
    looked = []
    for source, text in (("data_dir", data_dir), (ENVIRONMENT, os.environ.get(ENVIRONMENT))):
        if not text:
            continue
        base = Path(text).expanduser()
        if not base.is_dir():
            message = f"{source} names a folder that exists. Received: {base}. Create it or name another one."
            raise DataError(message)
        for folder in (*(base / name for name in subfolders), base):
            if folder.is_dir():
                looked.append(folder)
                found = holds(folder)
                if found is not None:
                    return found, looked
    return None, looked


def not_found(name: str, wanted: str, folders: Sequence[Path], remedy: str) -> DataError:
    """The error for a data set that is in none of the folders."""
    places = ", ".join(map(str, folders)) or f"no folder, as neither data_dir nor {ENVIRONMENT} is given"
    return DataError(f"{name} needs {wanted}. Looked in: {places}. {remedy}")


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


class BoundedReader:
    """Reads a stream forward, at most `limit` bytes of it, and reports damage as DataError."""

    def __init__(self, stream: Readable, path: PathLike, limit: int) -> None:
        self._stream, self._path, self._left, self._limit = stream, path, limit, limit

    def read(self, size: int) -> bytearray:
        """The next `size` bytes, or fewer at the end of the stream; memory grows with what is there."""
        import zlib

        result = bytearray()
        while len(result) < size:
            try:
                chunk = self._stream.read(min(size - len(result), CHUNK))
            except (OSError, EOFError, zlib.error) as error:
                raise fail(
                    self._path, "a gzip stream is complete and undamaged", str(error), "Fetch the file again."
                ) from error
            if not chunk:
                break
            self._left -= len(chunk)
            if self._left < 0:
                raise fail(
                    self._path,
                    f"a data file has at most {self._limit:,} bytes, uncompressed",
                    "more",
                    "Check that it is the right file.",
                )
            result += chunk
        return result


@contextmanager
def open_bounded(path: Path, limit: int | None = None) -> Iterator[tuple[BoundedReader, int]]:
    """Open a file, plain or gzip (told apart by its first bytes).

    Args:
        path: The file.
        limit: The most bytes, uncompressed, that may be read from it; MAX_BYTES if left out.

    Yields:
        The reader, and an upper bound of the number of bytes that it can give.

    Raises:
        DataError: If the file cannot be opened; by the reader, if it is damaged or too long.
    """
    import gzip

    limit = MAX_BYTES if limit is None else limit
    try:
        raw = path.open("rb")
    except OSError as error:
        raise fail(path, "a data file can be opened", str(error), "Check the path and its permissions.") from error
    with raw:
        size = os.fstat(raw.fileno()).st_size
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if compressed:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield BoundedReader(stream, path, limit), size * GZIP_RATIO
        else:
            yield BoundedReader(raw, path, limit), size


def sha256(path: Path, *, uncompressed: bool) -> str:
    """SHA-256 of a file, or of what it holds if it is gzip, as hexadecimal digits.

    Raises:
        DataError: If the file is damaged or too long.
    """
    import hashlib

    digest = hashlib.sha256()
    if uncompressed:
        with open_bounded(path) as (reader, _):
            while chunk := reader.read(CHUNK):
                digest.update(chunk)
    else:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
    return digest.hexdigest()


def download(
    folder: str, filename: str, urls: Sequence[str], known_sha256: str, *, uncompressed: bool, remedy: str
) -> Path:
    """Fetch a file into pooch's cache, unless it is there, from the first mirror that has it undamaged.

    Args:
        folder: Folder in the cache.
        filename: Name of the file there.
        urls: The file's addresses, in the order to try.
        known_sha256: SHA-256 that the file must have.
        uncompressed: Whether that is the hash of what the gzip file holds, as mirrors compress differently.
        remedy: What the user can do instead.

    Returns:
        Path of the file, verified.

    Raises:
        DataError: If no mirror gives the file.
        ImportError: If pooch is missing.
    """
    try:
        import pooch
    except ImportError as error:
        message = f"Downloading {filename} needs pooch: {install('cli')}. {remedy}"
        raise ImportError(message) from error

    def verify(fname: str, action: str, _: Any) -> str:
        path = Path(fname)
        try:
            received = sha256(path, uncompressed=uncompressed)
            if received != known_sha256:
                raise fail(path, f"the SHA-256 is {known_sha256}", received, "Fetch the file again.")
        except DataError:
            path.unlink(missing_ok=True)  # pooch keeps what it has fetched, and this is of no use
            raise
        return fname

    cache = Path(pooch.os_cache("minicnn")) / folder
    path = cache / filename
    failures = []
    if path.exists():
        try:
            return Path(verify(str(path), "fetch", None))
        except DataError as error:
            failures.append(str(error))
    for url in urls:
        try:
            with _progress(filename) as bar, _quiet(pooch.get_logger()):
                downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK // 16)
                pooch.retrieve(url, None, filename, cache, processor=verify, downloader=downloader)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors, DataError a ValueError
            failures.append(f"{url}: {error}")
        else:
            return path
    message = "\n  ".join([f"{filename} could not be downloaded:", *failures]) + f"\n{remedy}"
    raise DataError(message)


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from advising to write down the hash of what it has fetched."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


class _Bar:
    """A progress bar in the shape that pooch wants, drawn by rich."""

    total = 0

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show, self._done = show, 0

    def update(self, count: int) -> None:
        self._done = min(self._done + count, self.total)
        self._show(self._done, self.total)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


@contextmanager
def _progress(description: str) -> Iterator[_Bar | bool]:
    """A progress bar on a terminal, if rich is there; False elsewhere, as pooch wants it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    except ImportError:
        yield False
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield False
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description)
        yield _Bar(lambda done, total: progress.update(task, completed=done, total=total))
