"""Data files: search for them, reading that does not trust them, and download."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from minicnn.data.dataset import DataError
from minicnn.extras import needing

T = TypeVar("T")
PathLike = str | os.PathLike[str]

ENVIRONMENT = "MINICNN_DATA"
MAX_MEMBERS = 10_000  # of one gzip file: bgzip makes one of every 64 kB
GZIP_RATIO = 1032  # deflate cannot compress more than this
CHUNK = 2**20  # bytes read at a time
PIECE = 2**14  # of a compressed file, where they may stand for a thousand times as many


def fail(path: PathLike, rule: str, received: str, remedy: str) -> DataError:
    """The error for a file that breaks a rule of its format."""
    return DataError(f"{os.fspath(path)}: {rule}. Received: {received}. {remedy}")


def find(
    data_dir: PathLike | None, subfolders: Sequence[str], holds: Callable[[Path], T | None]
) -> tuple[T | None, list[Path]]:
    """Look for a data set in the user's folders.

    Args:
        data_dir: A folder given by the user: then no other one is looked into. If it is None, MINICNN_DATA names one.
        subfolders: Looked into before the folder itself.
        holds: Returns what it finds in a folder, or None.

    Returns:
        What was found in the first folder that holds it, or None; and the folders that were looked into.

    Raises:
        DataError: If a folder that was given does not exist.
    """
    source, text = ("data_dir", data_dir) if data_dir is not None else (ENVIRONMENT, os.environ.get(ENVIRONMENT))
    if data_dir is None and not text:
        return None, []
    base = Path(text or "").expanduser()
    if not (text and base.is_dir()):
        raise DataError(f"{source} names a folder that exists. Received: {str(text)!r}. Create it or name another one.")
    looked = [folder for folder in (*(base / name for name in subfolders), base) if folder.is_dir()]
    return next((path for folder in looked if (path := holds(folder)) is not None), None), looked


def find_or_download(
    name: str,
    data_dir: PathLike | None,
    subfolders: Sequence[str],
    holds: Callable[[Path], T | None],
    wanted: str,
    source: str,
    fetch: Callable[[str], T] | None = None,
) -> T:
    """Look for a data set in the user's folders, and fetch it if the user named none that should hold it.

    Args:
        name: Name of the data set.
        data_dir: A folder given by the user; what it lacks is taken from nowhere else.
        subfolders: Looked into before the folder itself.
        holds: Returns what it finds in a folder, or None.
        wanted: What is looked for, in words.
        source: Where users can fetch it from, in words.
        fetch: Downloads it; called with what to say if that fails. None if it must not or cannot be downloaded.

    Returns:
        What was found or fetched.

    Raises:
        DataError: If it is not there.
    """
    path, looked = find(data_dir, subfolders, holds)
    if path is not None:
        return path
    places = ", ".join(map(str, looked)) or f"no folder, as neither data_dir nor {ENVIRONMENT} is given"
    remedy = f"Fetch {source} and name the folder by data_dir or {ENVIRONMENT}"
    # Whoever names a folder wants that one: a download in its place would be a surprise.
    if data_dir is not None:
        remedy += ", or leave data_dir out" + (": then it is downloaded" if fetch else "")
    message = f"{name} needs {wanted}. Looked in: {places}. {remedy}."
    if fetch is None or data_dir is not None:
        raise DataError(message)
    return fetch(message)


def entries(folder: Path) -> list[Path]:
    """Entries of a folder, in the order of the names.

    Raises:
        DataError: If that cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise fail(folder, "a folder can be read", str(error), "Check the path and its permissions.") from error


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


class Gunzip:
    """The content of a gzip file: one member, or several one after another.

    The gzip module of the standard library sets no limit to their number, and 2 million take half a minute.

    Args:
        raw: The file.
    """

    def __init__(self, raw: Readable) -> None:
        self._raw, self._inflate, self._members, self._ahead = raw, _inflater(), 1, b""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end.

        Raises:
            EOFError: If the file ends within a member.
            OSError: If there are too many members.
            zlib.error: If it is damaged.
        """
        while True:
            if not self._ahead:
                self._ahead = self._raw.read(PIECE)
            if not self._ahead and self._inflate.eof:
                return b""
            if not self._ahead:
                raise EOFError("the file ends before its end-of-stream marker")
            if self._inflate.eof:
                self._ahead = self._ahead.lstrip(b"\0")  # zeros may fill up the last block
                if not self._ahead:
                    continue
                self._inflate, self._members = _inflater(), self._members + 1
                if self._members > MAX_MEMBERS:
                    raise OSError(f"more than {MAX_MEMBERS:,} members")
            # Bounded: a few bytes may stand for gigabytes.
            data = self._inflate.decompress(self._ahead, size)
            self._ahead = self._inflate.unconsumed_tail or self._inflate.unused_data
            if data:
                return data


def _inflater() -> Any:
    import zlib

    return zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with the header and the checksum of gzip


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
                # In pieces, since a header may name any size: memory grows only with what is really there.
                chunk = self._stream.read(min(size - len(result), CHUNK))
            except (OSError, EOFError, zlib.error) as error:
                rule = "a gzip stream is complete and undamaged"
                raise fail(self._path, rule, str(error), "Fetch the file again.") from error
            if not chunk:
                break
            self._left -= len(chunk)
            if self._left < 0:
                rule = f"a data file has at most {self._limit:,} bytes, uncompressed"
                raise fail(self._path, rule, "more", "Check that it is the right file.")
            result += chunk
        return result

    def finish(self) -> None:
        """Read what is left and forget it: gzip's checksum comes last."""
        while self.read(CHUNK):
            pass


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; a named pipe or a device could keep its reader waiting for ever.

    Raises:
        DataError: If it is none, or cannot be opened.
    """
    rule, remedy = "a data file is a regular file that can be opened", "Check the path and its permissions."
    try:
        # Before it is opened, as opening a pipe waits for a writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError("it is a folder, a pipe or a device")
        stream = path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise fail(path, rule, str(error), remedy) from error
    with stream:
        yield stream


@contextmanager
def open_bounded(path: Path, limit: int) -> Iterator[tuple[BoundedReader, int]]:
    """Open a file, plain or gzip (told apart by its first bytes).

    Args:
        path: The file.
        limit: The most bytes, uncompressed, that may be read from it.

    Yields:
        The reader, and an upper bound of the number of bytes that it can give.

    Raises:
        DataError: If it is no regular file or cannot be opened; by the reader, if it is damaged or too long.
    """
    with open_regular(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        # By content, not by name: mirrors serve files under either name.
        yield BoundedReader(Gunzip(raw) if compressed else raw, path, limit), size * (GZIP_RATIO if compressed else 1)


def sha256(path: Path, limit: int, *, uncompressed: bool) -> str:
    """SHA-256 of a file, or of what it holds if it is gzip, of at most `limit` bytes, as hexadecimal digits.

    Raises:
        DataError: If the file is damaged or too long.
    """
    import hashlib

    digest = hashlib.sha256()
    if uncompressed:
        with open_bounded(path, limit) as (reader, _):
            while chunk := reader.read(CHUNK):
                digest.update(chunk)
    else:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
    return digest.hexdigest()


def download(
    folder: str, filename: str, urls: Sequence[str], known_sha256: str, size: int, *, uncompressed: bool, remedy: str
) -> Path:
    """Fetch a file into pooch's cache, unless it is there, from the first mirror that has it undamaged.

    Args:
        folder: Folder in the cache.
        filename: Name of the file there.
        urls: The file's addresses, in the order to try.
        known_sha256: SHA-256 that the file must have.
        size: Bytes that it has, or that it has uncompressed: no more is fetched than that and a sixteenth.
        uncompressed: Whether that is the hash of what the gzip file holds, as mirrors compress differently.
        remedy: What the user can do instead.

    Returns:
        Path of the file, verified.

    Raises:
        DataError: If no mirror gives the file.
        ImportError: If pooch is missing.
    """
    with needing(f"Downloading {filename} needs", "pooch", remedy):
        import pooch
    limit = size + size // 16

    def verify(fname: str, action: str, _: Any) -> str:
        path = Path(fname)
        try:
            received = sha256(path, limit, uncompressed=uncompressed)
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
    # Mirrors in order; each failure is kept, as the last one need not be the telling one.
    for url in urls:
        try:
            with _progress(filename) as bar, _quiet(pooch.get_logger()):
                fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK // 16)

                def bounded(url: str, output: str, owner: Any, fetch: Any = fetch) -> None:
                    with open(output, "wb") as stream:
                        fetch(url, _BoundedWriter(stream, limit), owner)

                pooch.retrieve(url, None, filename, cache, processor=verify, downloader=bounded)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors, DataError a ValueError
            failures.append(f"{url}: {error}")
        else:
            return path
    raise DataError("\n  ".join([f"{filename} could not be downloaded:", *failures]) + f"\n{remedy}")


class _BoundedWriter:
    """Ends a download that is longer than the file that was asked for."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._left, self._limit, self.flush = stream, limit, limit, stream.flush

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise DataError(f"the file has at most {self._limit:,} bytes. Received: more.")
        self._stream.write(data)


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    """Keep pooch from advising to write down the hash of what it has fetched."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


class _DownloadBar:
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
def _progress(description: str) -> Iterator[_DownloadBar | bool]:
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
        yield _DownloadBar(lambda done, total: progress.update(task, completed=done, total=total))
