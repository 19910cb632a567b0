"""Files of tensors: safetensors with a JSON description and a checksum, written atomically."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from minicnn.extras import install

Tensors = dict[str, np.ndarray[Any, Any]]
Path = str | os.PathLike[str]

# End of the names of files that are being written; one is left behind only by a process that was killed.
UNFINISHED = ".minicnn.tmp"


class SavedModelError(ValueError):
    """A file that cannot be read as what it should be: names the file, what is wrong, and the remedy."""

    def __init__(self, path: Path, wrong: str, remedy: str = "Save it again, or use another copy") -> None:
        super().__init__(
            "A saved file is one that minicnn wrote, whole and unchanged. "
            f"Received: {os.fspath(path)!r}: {wrong}. {remedy}."
        )


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, Any]) -> None:
    """Write a file so that at any moment, whatever interrupts it, the old one or the new one is there, whole.

    Args:
        path: File to write; its folder must exist.
        tensors: Arrays by name.
        about: Plain data that describes them: finite numbers, strings, None, lists, dicts with string keys.

    Raises:
        OSError: If it cannot be written.
        ValueError: If `about` holds something else.
        ImportError: If safetensors is missing.
    """
    save = _safetensors().save
    arrays = {n: np.asarray(a, a.dtype.newbyteorder("="), order="C") for n, a in tensors.items()}
    try:
        text = json.dumps({"sha256": _checksum(arrays, about), **about}, allow_nan=False)
    except (TypeError, ValueError) as error:
        message = f"What describes a file is plain data with finite numbers. Received: {error}."
        raise ValueError(message) from error
    data = save(arrays, {"minicnn": text})  # one entry, because safetensors keeps no order of them
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    unfinished = os.path.join(folder, f".{os.urandom(8).hex()}{UNFINISHED}")
    try:
        with open(unfinished, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    _sync_folder(folder)


def read_tensors(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read a file of tensors and its description.

    Nothing in it is run or imported, and memory is claimed only for what the file really holds.

    Raises:
        OSError: If it cannot be read, e.g. because it is not there.
        SavedModelError: If it is damaged or of another kind.
        ImportError: If safetensors is missing.
    """
    load = _safetensors().load
    with open(path, "rb") as file:
        data = file.read()
    try:
        tensors: Tensors = load(data)
    except Exception as error:  # safetensors raises its own error, but also KeyError, ValueError ...
        wrong = f"it is damaged, or no safetensors file of NumPy's dtypes ({error})"
        raise SavedModelError(path, wrong) from error
    header = _json(path, data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.get("__metadata__") or {}
    if "minicnn" not in metadata:
        raise SavedModelError(path, "it holds tensors, but no description by minicnn")
    about = _json(path, metadata["minicnn"])
    if about.pop("sha256", None) != _checksum(tensors, about):
        raise SavedModelError(path, "its content has changed since it was written")
    return tensors, about


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        message = f"Saving and loading need safetensors: {install('cli')}."
        raise ImportError(message, name="safetensors") from error
    return safetensors.numpy


def _checksum(tensors: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, Any]) -> str:
    """SHA-256 of the description and of every tensor's name, dtype, shape and bytes."""
    total = hashlib.sha256(json.dumps(about).encode())
    for name in sorted(tensors):
        array: Any = tensors[name]
        total.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        total.update(array.reshape(-1).view(np.uint8))
    return total.hexdigest()


def _json(path: Path, text: str | bytes) -> dict[str, Any]:
    """A JSON object without doubled keys and without numbers that are not finite."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise SavedModelError(path, f"its description is not valid ({error})") from error
    if not isinstance(value, dict):
        raise SavedModelError(path, "its description is not a JSON object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [k for k, _ in pairs]
        message = f"doubled name {next(k for k in keys if keys.count(k) > 1)!r}"
        raise ValueError(message)
    return value


def _refuse(constant: str) -> None:
    message = f"{constant} is no number of JSON"
    raise ValueError(message)


def _sync_folder(folder: str) -> None:
    """Make the new name durable, where the system lets a folder be synchronised."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
