"""Files of tensors: safetensors with a JSON description and a checksum, written atomically and read within bounds."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np

from minicnn.extras import needing

Tensors = dict[str, np.ndarray[Any, Any]]
Path = str | os.PathLike[str]

# End of the names of what is being written; one is left behind only by a process that was killed. One to which nobody
# has written for so many seconds is taken for such.
UNFINISHED, ABANDONED = ".minicnn.tmp", 3600
# Bounds of what is read as JSON: bytes, and brackets within brackets. A network of 10,000 layers takes some 4 MB.
MOST_TEXT, MOST_DEPTH = 1 << 24, 200
# A file of more bytes than this, of which the disk holds less than a hundredth, is a hole and no model.
LEAST_HOLE = 1 << 30

_NO_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[^][{}"]++', re.DOTALL)  # strings, and what is between
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDIES = {
    **dict.fromkeys(NO_ROOM, "Make room, or name a place on another disk"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Ask for the permission, or name another folder"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "Name a folder where there is no file"),
    errno.ENOENT: "Make the folder first, or name one that is there",
    errno.EISDIR: "Name a file, not a folder",
    errno.EINVAL: "Name a regular file, or one that is not there",
    errno.ENAMETOOLONG: "Give a shorter name",
}


_OTHER_FORMATS = {
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "Keras"), ".onnx": "ONNX", ".pb": "TensorFlow", ".tflite": "LiteRT",
    **dict.fromkeys((".pt", ".pth"), "PyTorch"), **dict.fromkeys((".npy", ".npz"), "NumPy"),
    **dict.fromkeys((".pkl", ".pickle"), "pickle"),
}  # fmt: skip


class SavedModelError(ValueError):
    """A file that cannot be read as what it should be: names the file, what is wrong, and the remedy."""

    def __init__(self, path: Path, wrong: str, remedy: str = "Save it again, or use another copy") -> None:
        super().__init__(
            "A file that is read is whole, unchanged and of the kind that is expected. "
            f"Received: {os.fspath(path)!r}: {wrong}. {remedy}."
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager: an OSError within becomes one of the same kind that names this path and a remedy."""
    try:
        yield
    except OSError as error:
        first = error.__cause__ if isinstance(error.__cause__, OSError) else error  # of a context manager within
        remedy = _REMEDIES.get(first.errno or 0, "Name another place")
        message = (
            f"Results are written to a place with permission and room. Received: {first.strerror or first}. {remedy}."
        )
        raise OSError(first.errno or errno.EIO, message, os.fspath(path)) from first


def check_folder(path: Path) -> None:
    """Check that the folder of a file that is to be written is there.

    Raises:
        OSError: If it is not; names the path and a remedy.
    """
    # Where a link leads: the file is replaced there, and the link stays.
    folder = os.path.dirname(os.path.realpath(path))
    with writing(path):
        if not os.path.isdir(folder):
            above = pathlib.PurePath(folder, "x").parents  # the folder and all that it is in
            code = errno.ENOTDIR if any(map(os.path.isfile, above)) else errno.ENOENT
            raise OSError(code, f"there is no folder {folder!r}" if code == errno.ENOENT else os.strerror(code))


def write_named(path: Path, what: str, ending: str, data: bytes) -> None:
    """Write a file whose name says what it holds: see `write_file`.

    Raises:
        ValueError: If its name has another ending.
        OSError: If it cannot be written.
    """
    name = os.fspath(path)
    if not name.endswith(f".{ending}"):
        raise ValueError(
            f"{what} is written as {ending.upper()}. Received: {name!r}. Name a file that ends in .{ending}."
        )
    write_file(path, data)


def write_file(path: Path, data: bytes, *, folders: bool = False) -> None:
    """Write a file so that at any moment, whatever interrupts it, the old one or the new one is there, whole.

    The mode is that of the file that is replaced; a new one follows the umask. What processes that were killed while
    they wrote have left behind in the folder is removed after an hour.

    Args:
        path: The file.
        data: What it is to hold.
        folders: Make the folders that are missing.

    Raises:
        OSError: If it cannot be written; names the path and a remedy.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    # In the same folder, as a file is moved in one step only within a disk.
    unfinished = os.path.join(folder, f".{os.urandom(8).hex()}{UNFINISHED}")
    with writing(path):
        if folders:
            os.makedirs(folder, exist_ok=True)
        check_folder(path)
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(target) and not os.path.isfile(target):  # a device, which would be replaced
            raise OSError(errno.EINVAL, "there is something of that name that is no regular file")
        old = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else None
        try:
            with open(unfinished, "xb") as file:
                if old is not None:  # before there is anything to read
                    os.chmod(unfinished, old)
                file.write(data)
                file.flush()
                # Before it is moved: after a power failure the name must not lead to an empty file.
                os.fsync(file.fileno())
            os.replace(unfinished, target)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        # Killed processes leave files behind, which would fill the disk over many runs.
        _remove_abandoned(target)
        sync_folder(folder)


def _remove_abandoned(written: str) -> None:
    """Remove what others did not finish in the folder of a file, long before it was written by the same clock."""
    with suppress(OSError), os.scandir(os.path.dirname(written)) as entries:
        last = os.stat(written).st_mtime - ABANDONED
        for entry in entries:
            left = entry.name.endswith(UNFINISHED) and entry.is_file(follow_symlinks=False)
            if left and entry.stat(follow_symlinks=False).st_mtime < last:
                os.unlink(entry)


def check_ending(path: Path) -> None:
    """Raise a ValueError if a name promises another format than safetensors."""
    stem, ending = os.path.splitext(os.fspath(path))
    if ending.lower() in _OTHER_FORMATS:
        raise ValueError(
            f"Models and weights are saved as safetensors, under a name that promises no other format. Received: "
            f"{os.fspath(path)!r}, the ending of {_OTHER_FORMATS[ending.lower()]}. Use {stem + '.safetensors'!r}."
        )


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, Any]) -> None:
    """Write a file of tensors as `write_file` does.

    Args:
        path: File to write.
        tensors: Arrays by name.
        about: Plain data that describes them: finite numbers, strings, None, lists, dicts with string keys.

    Raises:
        OSError: If it cannot be written.
        ValueError: If `about` holds something else, or more than can be read again; or if the name is for another
            format.
        ImportError: If safetensors is missing.
    """
    check_ending(path)
    write_file(path, pack_tensors(tensors, about))


def pack_tensors(tensors: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, Any]) -> bytes:
    """The content of the file that `write_tensors` writes.

    Raises:
        ValueError: If `about` holds something else than plain data, or more than can be read again.
        ImportError: If safetensors is missing.
    """
    save = _safetensors().save
    # safetensors writes memory as it is: in the machine's byte order, row-major.
    arrays = {n: np.asarray(a, a.dtype.newbyteorder("="), order="C") for n, a in tensors.items()}
    try:
        text = json.dumps({"sha256": _checksum(arrays, about), **about}, allow_nan=False)
        _check_bounds(text.encode(), MOST_TEXT)
        _check_characters(text.encode(), about)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"What describes a file is plain data with finite numbers. Received: {error}.") from error
    packed: bytes = save(arrays, {"minicnn": text})  # one entry, because safetensors keeps no order of them
    return packed


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read a file of tensors and its description.

    Nothing in it is run or imported, and memory is claimed only for what the file really holds.

    Raises:
        OSError: If it cannot be read, e.g. because it is not there.
        SavedModelError: If it is damaged, of another kind, or larger than the memory.
        ImportError: If safetensors is missing.
    """
    # Once, as a whole: a file that changes between two reads would pass the checks of one and not of the other.
    return unpack_tensors(_content(path), path)


def unpack_tensors(data: bytes, path: Path = "bytes") -> tuple[Tensors, dict[str, Any]]:
    """Tensors and their description from the content of a file; see `read_tensors`.

    Args:
        data: The content.
        path: Where it comes from, for errors.
    """
    tensors, header = _unpacked(data, path)
    metadata = header.get("__metadata__") or {}
    if "minicnn" not in metadata:
        raise SavedModelError(path, "it holds tensors, but no description by minicnn")
    about = _object(path, metadata["minicnn"].encode())
    # Flipped bits in weights are no error of the format, and would train on unnoticed.
    if about.pop("sha256", None) != _checksum(tensors, about):
        raise SavedModelError(path, "its content has changed since it was written")
    return tensors, about


def read_arrays(path: Path) -> Tensors:
    """The tensors of a safetensors file of any library; errors and bounds are those of `read_tensors`."""
    return _unpacked(_content(path), path)[0]


def _unpacked(data: bytes, path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and header of a safetensors file."""
    load = _safetensors().load
    _check_header(path, data[:8], len(data))
    header = _object(path, data[8 : 8 + int.from_bytes(data[:8], "little")])
    try:
        tensors: Tensors = load(data)
    except MemoryError as error:
        raise _too_large(path, len(data)) from error
    except Exception as error:  # safetensors raises its own error, but also KeyError, ValueError ...
        wrong = f"it is damaged, or no safetensors file of NumPy's dtypes ({error})"
        raise SavedModelError(path, wrong) from error
    return tensors, header


def read_json(path: Path) -> Any:
    """Plain data from a file of JSON, within bounds of length and depth.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no JSON, is longer or nests deeper than what minicnn writes, or has names twice or
            numbers that are not finite.
    """
    with open(path, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        return parse_json(file.read(MOST_TEXT + 1))


def parse_json(text: bytes, most: int = MOST_TEXT) -> Any:
    """Plain data from JSON of at most so many bytes; see `read_json`."""
    _check_bounds(text, most)
    value = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_refuse)
    _check_characters(text, value)
    return value


def _content(path: Path) -> bytes:
    """The bytes of a safetensors file, after what can be told from its length and its header."""
    size, blocks = (status := os.stat(path)).st_size, getattr(status, "st_blocks", None)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise SavedModelError(path, "it is no regular file", "Copy it to one")
    with open(path, "rb") as file:
        start = file.read(8)
        _check_header(path, start, size)
        # A hole reads as zeros, and would take all memory before anybody notices.
        if size > LEAST_HOLE and blocks is not None and blocks * 512 < size // 100:
            raise SavedModelError(path, f"of its {size} bytes the disk holds {blocks * 512}: the rest is a hole")
        try:
            return start + file.read()
        except (MemoryError, OverflowError) as error:
            raise _too_large(path, size) from error


# Files of other libraries by their first bytes, which as the length of a header would be out of bounds.
_OTHERS = {
    b"PK\x03\x04": (
        "a zip archive, as Keras and PyTorch write",
        "Read it with minicnn.load_keras, or weights of PyTorch with minicnn.interop.load_torch_weights",
    ),
    b"\x89HDF": ("an HDF5 file, as Keras writes", "Read it with minicnn.load_keras"),
}


def _check_header(path: Path, start: bytes, size: int) -> None:
    """Refuse a safetensors file by its first 8 bytes, the length of its header, and its own length."""
    header = int.from_bytes(start, "little")
    for magic, (what, remedy) in _OTHERS.items():
        if start.startswith(magic):
            raise SavedModelError(path, f"it is {what}", remedy)
    if len(start) < 8 or not 2 <= header <= min(size - 8, 2 * MOST_TEXT):
        wrong = f"it is damaged, or no safetensors file (a header of {header} bytes in a file of {size})"
        raise SavedModelError(path, wrong)


def _too_large(path: Path, size: int) -> SavedModelError:
    return SavedModelError(path, f"its {size} bytes do not fit into memory", "Read it where there is more")


def _safetensors() -> ModuleType:
    with needing("Saving and loading need", "safetensors"):
        import safetensors.numpy
    return safetensors.numpy


def _checksum(tensors: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, Any]) -> str:
    """SHA-256 of the description and of every tensor's name, dtype, shape and bytes."""
    # The description counts, too: weights under another architecture are another model.
    total = hashlib.sha256(json.dumps(about).encode())
    for name in sorted(tensors):
        array: Any = tensors[name]
        total.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        total.update(array.reshape(-1).view(np.uint8))
    return total.hexdigest()


def _object(path: Path, text: bytes) -> dict[str, Any]:
    """A JSON object within bounds, without doubled keys and without numbers that are not finite."""
    try:
        value = parse_json(text, 2 * MOST_TEXT)  # a description within a header has its quotes escaped
    except ValueError as error:
        raise SavedModelError(path, f"its description is not valid ({error})") from error
    if not isinstance(value, dict):
        raise SavedModelError(path, "its description is not a JSON object")
    return value


def _check_bounds(text: bytes, most: int) -> None:
    """Refuse JSON that would fill memory or Python's stack, before it is parsed."""
    if len(text) > most:
        raise ValueError(f"JSON is at most {most >> 20} MB long; this is longer")
    # Counted before parsing: deep nesting would end Python's stack.
    brackets = np.frombuffer(_NO_BRACKETS.sub(b"", text), np.uint8)
    change = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1).astype(np.int8)
    if np.cumsum(change, dtype=np.int32).max(initial=0) > MOST_DEPTH:
        raise ValueError(f"JSON has at most {MOST_DEPTH} brackets within brackets; this has more")


def _check_characters(text: bytes, value: Any) -> None:
    """Refuse half a character, which JSON has an escape for: no file, name or page takes it."""
    if _SURROGATE.search(text):
        # Half of a surrogate pair is valid JSON and no text: encoding it fails here rather than where it is written
        # next.
        json.dumps(value, ensure_ascii=False).encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [k for k, _ in pairs]
        raise ValueError(f"doubled name {next(k for k in keys if keys.count(k) > 1)!r}")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def sync_folder(folder: str) -> None:
    """Make the new name durable, where the system lets a folder be synchronised."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
