"""Writers of small data files, in every format that minicnn.data reads."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import struct
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"  # the real MNIST and Fashion-MNIST

IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    magic = {1: 0x801, 3: 0x803}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def digits(n: int, H: int = 3, W: int = 4, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (n, H, W) and labels (n,), both uint8."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, H, W), np.uint8), rng.integers(0, 10, n).astype(np.uint8)


def idx_files(n_train: int = 7, n_test: int = 5) -> dict[str, bytes]:
    """Content of the four files by their Dataset attribute."""
    x_train, y_train = digits(n_train, seed=1)
    x_test, y_test = digits(n_test, seed=2)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    return {key: idx_bytes(array) for key, array in arrays.items()}


def write_idx(folder: Path, files: dict[str, bytes], suffix: str = "") -> Path:
    """Write the four files, gzip if the suffix is ".gz"."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, content in files.items():
        data = gzip.compress(content, mtime=0) if suffix == ".gz" else content
        (folder / (IDX_NAMES[key] + suffix)).write_bytes(data)
    return folder


def photos(n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (n, 32, 32, 3) uint8 and labels (n,) int32."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 32, 32, 3), np.uint8), rng.integers(0, 10, n).astype(np.int32)


def planes(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Images as CIFAR-10 stores them, shape (N, 3072)."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)


def cifar_binary(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bytes:
    return np.concatenate([y.astype(np.uint8)[:, None], planes(x)], axis=1).tobytes()


def cifar_python2(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bytes:
    """The pickle that Python 2 wrote, opcode by opcode, as in the published files."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = planes(x).tobytes()
    shape = b"M" + struct.pack("<H", len(x)) + b"M\x00\x0c"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07"
        b"(K\x01" + shape + b"\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )
    labels = b"]q\x04(" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    names = b"]q\x0a(" + b"".join(text(b"some_picture_s_%06d.png" % i) for i in range(len(x))) + b"e"
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
        + text(b"labels") + labels + text(b"data") + array + text(b"filenames") + names + b"u."
    )  # fmt: skip


def named_pipe(path: Path) -> Path:
    """A pipe that nobody writes to; who reads from it all the same is let go after two seconds."""
    os.mkfifo(path)

    def end() -> None:
        with contextlib.suppress(OSError):  # nobody reads
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    timer = threading.Timer(2, end)
    timer.daemon = True
    timer.start()
    return path


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def csv_text(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> str:
    """Kaggle's CSV of images (N, 28, 28)."""
    lines = ["label," + ",".join(f"pixel{i}" for i in range(784))]
    lines += [",".join(map(str, [label, *image.ravel()])) for image, label in zip(x, y, strict=True)]
    return "\n".join(lines) + "\n"
