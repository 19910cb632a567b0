"""The path of a newcomer, timed: from a clone to a first picture of data of their own, in at most ten commands.

    python .ci/newcomer.py [SOURCE]

SOURCE is what is cloned, this repository by default. The images are made before the clock starts: a folder for each of
three classes, as anybody may have one. The commands are those of README.md and of the page Getting started; the exit
code is 1 if one fails, or the picture is missing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from struct import pack

ROOT = Path(__file__).resolve().parents[1]
MOST = 10  # commands
PICTURE = "judged/confusion.svg"
COMMANDS = (
    "git clone --quiet {source} minicnn",
    "python3 -m venv env",
    "env/bin/pip install --quiet ./minicnn[cli,numba]",
    "env/bin/minicnn train lenet5 --data image_folder --data-dir images --size 28 --optimizer adam --out mine",
    "env/bin/minicnn evaluate mine --data image_folder --data-dir images --out judged",
)


def png(side: int, bright: range) -> bytes:
    """A grey image with bright columns, as a PNG file of the standard library alone."""
    rows = b"".join(b"\0" + bytes(230 if x in bright else 20 for x in range(side)) for _ in range(side))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return pack(">I", len(content)) + kind + content + pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def draw(folder: Path) -> None:
    """A folder of images: bars at the left, in the middle or at the right, in several sizes."""
    for place, name in enumerate(("left", "middle", "right")):
        (folder / name).mkdir(parents=True)
        for number in range(60):
            side = 28 + number % 7
            start = (2 + place * 9 + number % 5) * side // 32
            (folder / name / f"{number}.png").write_bytes(png(side, range(start, start + 4 + number % 3)))


def main() -> int:
    """See the module."""
    source = sys.argv[1] if len(sys.argv) > 1 else str(ROOT)
    with tempfile.TemporaryDirectory() as place:
        draw(Path(place) / "images")
        begun = time.perf_counter()
        for command in COMMANDS:
            start = time.perf_counter()
            done = subprocess.run(command.format(source=source).split(), cwd=place, stdout=subprocess.DEVNULL)
            print(f"{time.perf_counter() - start:7.1f} s  {command}", flush=True)
            if done.returncode:
                return 1
        there = (Path(place) / PICTURE).exists()
    print(f"{time.perf_counter() - begun:7.1f} s  from a clone to {PICTURE} in {len(COMMANDS)} commands")
    return 0 if there and len(COMMANDS) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
