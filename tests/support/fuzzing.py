"""Damaged and hostile data files, and what the readers of minicnn.data make of them.

`READERS` has an entry for each format. `outcome(reader, content)` reads a file of that content; `draw(reader, seed)`
is a valid file with damage; `HOSTILE[reader]` are files made by hand, by what they try. With `src` and `tests` on
PYTHONPATH, `python -m support.fuzzing png,gif 0 1000` reads the damaged files of 1,000 seeds within the limits, and
`python -m support.fuzzing png,gif` the hostile ones; each prints what went wrong.
"""

from __future__ import annotations

import gzip
import io
import pickle
import random
import signal
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numpy as np

from minicnn.data import DataError, cifar10, image_folder, kaggle_digits, mnist, tiny_imagenet
from minicnn.machine import PeakMemory
from support.datafiles import (
    IDX_NAMES,
    cifar_binary,
    cifar_python2,
    csv_text,
    digits,
    idx_files,
    photos,
    planes,
    write_idx,
    write_tar,
)

SECONDS, BYTES = 5, 10**9  # for one file; seconds of the processor, as other programs may keep it busy
IMAGES = {"bmp": "bmp", "gif": "gif", "jpg": "jpeg", "png": "png", "ppm": "ppm", "tif": "tiff", "webp": "webp"}
OPCODES = [bytes([code]) for code in b"(.012FGIJKLMNPQRSTUVXabcdeghijloqrstpu]})"]
OPCODES += [bytes([code]) for code in b"\x80\x81\x85\x86\x87\x88\x89\x8c\x8d\x8e\x90\x93\x94\x95\x96"]
OPCODES += [b"U\x01a", b"K\x02", b"cnumpy\ndtype\n", b"q\x01", b"h\x01", b"U\x06labels"]


# Files that are valid, and damage ------------------------------------------------------------------


@cache
def valid(reader: str) -> list[bytes]:
    """Files that the reader takes."""
    x, y = photos(3)
    match reader:
        case "idx":
            return [idx_files()["x_train"]]
        case "idx_labels":
            return [idx_files()["y_train"]]
        case "gzip":
            content = idx_files()["x_train"]
            parts = gzip.compress(content[:50], mtime=0) + gzip.compress(content[50:], mtime=0)
            return [gzip.compress(content, mtime=0), parts + bytes(9)]
        case "tar":
            binary = cifar_binary(x, y)
            batches = [{"data_batch_1.bin": binary, "test_batch.bin": binary, "readme": b"text"}]
            batches += [{"data_batch_1": cifar_python2(x, y), "test_batch": cifar_python2(x, y)}]
            path = place() / "valid.tar.gz"
            return [gzip.decompress(write_tar(path, members).read_bytes()) for members in batches]
        case "cifar10":
            return [cifar_binary(x, y)]
        case "pickle":
            batch = {"labels": y.tolist(), "data": planes(x), "filenames": ["a", "b", "c"]}
            return [cifar_python2(x, y), pickle.dumps(batch, 4)]
        case "csv":
            return [csv_text(*digits(3, 28, 28)).encode()]
        case "table":
            return [b"0.JPEG\tn02\t0\t0\t7\t7\n"]
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(photos(1)[0][0, :8, :8]).save(stream, IMAGES[reader])
    return [stream.getvalue()]


def draw(reader: str, seed: int) -> bytes:
    """A file, mostly a valid one with damage; the same for a seed everywhere."""
    rng = random.Random(f"{reader} {seed}")
    match rng.randrange(20):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1 | 2 | 3 | 4 if reader == "pickle":
            return b"".join(rng.choices([*OPCODES, rng.randbytes(3)], k=rng.randrange(40))) + b"."
        case _:
            return damage(rng, rng.choice(valid(reader)))


def damage(rng: random.Random, good: bytes) -> bytes:
    """One to four changes, half of them near the start, where headers are."""
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        place = rng.randint(0, rng.choice([min(64, len(data)), len(data)]))
        match rng.choice(["cut", "flip", "set", "insert", "remove", "repeat"]):
            case "cut":
                del data[place:]
            case "flip" if place < len(data):
                data[place] ^= 1 << rng.randrange(8)
            case "set":
                value = rng.choice([rng.randbytes(rng.randrange(9)), b"\xff" * 4, bytes(4), b"\x7f" + b"\xff" * 7])
                data[place : place + len(value)] = value
            case "insert":
                data[place:place] = rng.randbytes(rng.randrange(21))
            case "remove":
                del data[place : place + rng.randint(1, 40)]
            case "repeat":
                data += data[place:]
    return bytes(data)


# Readers ------------------------------------------------------------------------------------------


@cache
def place() -> Path:
    """A folder for the files, removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="fuzzing")
    place.folder = folder  # type: ignore[attr-defined]
    return Path(folder.name)


@cache
def prepared(reader: str) -> Path:
    """A folder with all that a reader needs beside the file in question."""
    folder = place() / reader
    folder.mkdir()
    if reader in ("idx", "idx_labels", "gzip"):
        write_idx(folder, idx_files())
    elif reader in ("cifar10", "pickle"):
        (folder / {"cifar10": "test_batch.bin", "pickle": "test_batch"}[reader]).write_bytes(valid(reader)[0])
    elif reader == "table":
        for path in ("train/n01/images/0.JPEG", "train/n02/images/0.JPEG", "val/images/0.JPEG"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(valid("jpg")[0])
        (folder / "words.txt").write_bytes(b"n01\tfish\nn02\ttoad\n")
    elif reader in IMAGES:
        (folder / "some").mkdir()
    return folder


def _read(reader: str, name: str, load: Callable[[Path], object], whole: bool, content: bytes) -> str:
    folder = prepared(reader)
    (folder / name).write_bytes(content)
    try:
        load(folder if whole else folder / name)
    except DataError:
        return "refused"
    return "data"


# By format: reads a file of this content. "data", or "refused" if it ends in DataError; other errors pass.
READERS: dict[str, Callable[[bytes], str]] = {
    "idx": partial(_read, "idx", IDX_NAMES["x_train"], partial(mnist, download=False), True),
    "idx_labels": partial(_read, "idx_labels", IDX_NAMES["y_train"], partial(mnist, download=False), True),
    "gzip": partial(_read, "gzip", IDX_NAMES["x_train"], partial(mnist, download=False), True),
    "tar": partial(_read, "tar", "cifar-10-binary.tar.gz", cifar10, False),
    "cifar10": partial(_read, "cifar10", "data_batch_1.bin", cifar10, True),
    "pickle": partial(_read, "pickle", "data_batch_1", cifar10, True),
    "csv": partial(_read, "csv", "train.csv", partial(kaggle_digits, test_samples=0), False),
    "table": partial(_read, "table", "val/val_annotations.txt", tiny_imagenet, True),
    **{suffix: partial(_read, suffix, f"some/1.{suffix}", partial(image_folder, size=8), True) for suffix in IMAGES},
}


def outcome(reader: str, content: bytes) -> str:
    """What becomes of a file: "data", or "refused" by a DataError; any other error is raised."""
    return READERS[reader](content)


# Files made by hand -------------------------------------------------------------------------------


def idx_header(count: int, rows: int = 28, columns: int = 28) -> bytes:
    return struct.pack(">4I", 0x803, count, rows, columns)


def member(name: str, size: int, kind: bytes = b"0") -> bytes:
    """The header of a member of a tar archive."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def many(block: bytes, times: int) -> bytes:
    """A block many times, gzip, made quickly: in members of one gzip file."""
    inside = max(1, 2**20 // len(block))
    return gzip.compress(block * inside, mtime=0) * (times // inside)


def pickle_of_copies(copies: int) -> bytes:
    """A text of 31 MB, made the content of many arrays, one after another."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01M\x10\x27M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89h\x00tb"
    )
    text = b"T" + struct.pack("<i", 10_000 * 3072) + bytes(10_000 * 3072)
    return b"\x80\x02" + text + b"q\x00]q\x01(" + array * copies + b"e."


def png(width: int, height: int, content: bytes) -> bytes:
    """A PNG in RGBA."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def jpeg_of_scans(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is there many times."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(stream, "jpeg", progressive=True)
    content = stream.getvalue()[:-2]
    return content + content[content.rindex(b"\xff\xda") :] * scans + b"\xff\xd9"


ROW = b"0," * 784 + b"0\n"
HEADER = csv_text(*digits(1, 28, 28)).encode().split(b"\n")[0] + b"\n"

# By format: what is tried, the file, and what may become of it.
HOSTILE: dict[str, dict[str, tuple[Callable[[], bytes], str]]] = {
    "idx": {"a header of 72 petabytes": (lambda: idx_header(2**32 - 1, 4096, 4096) + bytes(100), "refused")},
    "gzip": {
        "2 million members": (lambda: gzip.compress(b"", mtime=0) * 2_000_000, "refused"),
        "2 GB of zeros": (lambda: gzip.compress(idx_header(2**21, 32, 32)) + many(bytes(2**20), 2**11), "refused"),
        "205 MB of images": (
            lambda: gzip.compress(idx_header(200_704, 32, 32)) + many(bytes(2**20), 196),
            "refused",
        ),
    },
    "tar": {
        "2 million members": (lambda: many(member("a", 0), 2_000_000), "refused"),
        "an extended header of a megabyte of digits": (
            lambda: member("p", 2**20, b"x") + b"9" * 2**20 + valid("tar")[0],
            "data",
        ),
        "an extended header that names a size": (
            lambda: member("p", 512, b"x") + b"28 size=999999999999999999\n".ljust(512, b"\0") + valid("tar")[0],
            "data",
        ),
        "a size of 1e18": (lambda: gzip.compress(member("a", 10**18) + bytes(2**16)), "refused"),
        "a size below zero": (lambda: gzip.compress(member("a", -512) * 5), "refused"),
        "a long name of 30 MB": (
            lambda: gzip.compress(member("a", 30 * 2**20, b"L") + b"a" * 30 * 2**20 + valid("tar")[0]),
            "data",
        ),
        "nothing but zeros": (lambda: many(bytes(2**20), 2**11), "refused"),
    },
    "pickle": {
        "copies of 6 GB": (lambda: pickle_of_copies(200), "refused"),
        "a memo of 34 GB": (lambda: b"}}" + b"r\xff\xff\xff\xff" * 10_000 + b".", "refused"),
        "3 million opcodes": (lambda: b"\x80\x04" + b"]" * 3_000_000 + b".", "refused"),
        "deep nesting": (lambda: b"\x80\x04)" + b"\x85" * 150_000 + b".", "refused"),
        "marks over a tall stack": (lambda: b"K\x01" * 100_000 + b"(t" * 40_000 + b".", "refused"),
        "a number of a million digits": (lambda: b"L" + b"9" * 10**6 + b"L\n.", "refused"),
        "a text of four bytes a character": (
            lambda: b"X" + struct.pack("<i", 33_000_004) + b"a" * 33_000_000 + "\U0001f600".encode() + b".",
            "refused",
        ),
        "more labels than the limit of opcodes": (lambda: b"U\x06labels](" + b"K\x01" * 10**6 + b"e.", "refused"),
    },
    "csv": {
        "a line of 134 MB": (lambda: HEADER + b"1," * 67_000_000, "refused"),
        "50 million empty lines": (lambda: HEADER + b"\n" * 50_000_000, "refused"),
        "a mistake in the last of many rows": (lambda: HEADER + ROW * 20_000 + b"1,2,3\n", "refused"),
        "rows of one value": (lambda: HEADER + b"1\n" * 2_000_000, "refused"),
    },
    "table": {
        "20 million lines": (lambda: b"\n" * 20_000_000, "refused"),
        "a name with a zero byte": (lambda: b"\0.JPEG\tn02\t0\t0\t7\t7\n", "refused"),
        "4 million tabs": (lambda: b"\t" * 2**22, "refused"),
        "a million lines": (lambda: b"a\tb\n" * 10**6, "refused"),
    },
    "png": {
        "a picture of 10 gigapixels": (lambda: png(100_000, 100_000, zlib.compress(bytes(1000))), "refused"),
        "a picture of 33 megapixels": (
            lambda: png(5792, 5792, zlib.compress(bytes(5792 * (5792 * 4 + 1)), 1)),
            "data",
        ),
        "a program for a printer": (
            lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
            "refused",
        ),
    },
    "jpg": {"2,000 scans of 25 megapixels": (lambda: jpeg_of_scans(5000, 2000), "refused")},
    "ppm": {"20 megapixels as text": (lambda: b"P3 4500 4500 255\n" + b"1 " * (4500 * 4500 * 3), "refused")},
}


# A process with limits ----------------------------------------------------------------------------


class TooSlow(BaseException):
    """A file took more time than it may; no reader catches this."""


@contextmanager
def limits() -> Iterator[None]:
    """Ends what takes too long, and sees to it that not all of the machine's memory is taken."""

    def stop(*_: object) -> None:
        raise TooSlow

    timers = {signal.ITIMER_PROF: SECONDS, signal.ITIMER_REAL: 12 * SECONDS}  # the second ends waiting
    for alarm in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(alarm, stop)
    for timer, seconds in timers.items():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)


def complaint(reader: str, content: bytes, wanted: str = "") -> str | None:
    """What is wrong with how a file was read; None if nothing is."""
    start = time.perf_counter()
    try:
        with limits():
            result = outcome(reader, content)
    except (Exception, TooSlow) as error:
        return f"{error!r} after {time.perf_counter() - start:.1f} s"
    return f"it is {result}, not {wanted}" if wanted and result != wanted else None


def main(readers: str, first: str = "", count: str = "") -> int:
    """Read the hostile files of some readers, or the damaged ones of some seeds; print what goes wrong."""
    import resource

    warnings.simplefilter("ignore")  # Pillow warns of damage
    start = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (start + 3 * BYTES, start + 3 * BYTES))
    return max(_read(reader, first, count) for reader in readers.split(","))


def _read(reader: str, first: str, count: str) -> int:
    """1 if anything goes wrong."""
    outcome(reader, valid(reader)[0])  # loads libraries
    found = 0
    if first:
        inputs = ((seed, partial(draw, reader, seed), "") for seed in range(int(first), int(first) + int(count)))
    else:
        inputs = ((name, *case) for name, case in HOSTILE[reader].items())
    peak = PeakMemory()
    for number, (name, make, wanted) in enumerate(inputs):
        content = make()
        if not first or number % 1000 == 0:
            peak = PeakMemory()
        wrong = complaint(reader, content, wanted)
        if not wrong and (not first or number % 1000 == 999) and peak.growth() > BYTES:
            wrong = f"{peak.growth():,} bytes of memory"
        if wrong:
            print(f"{reader} {name}: {wrong}")
            found += 1
        elif not first:
            print(f"{reader} {name}: {wanted}, {peak.growth() / 1e6:.0f} MB", file=sys.stderr)
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
