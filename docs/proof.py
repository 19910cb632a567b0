"""The tables of docs/proof.md: `python docs/proof.py` trains on several ranks and on each backend, and writes them.

Every training has the same first weights and data. A hash is the start of SHA-256 of all its weights in float32.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import Sequential, backends
from minicnn.callbacks import BackupAndRestore, LambdaCallback
from minicnn.distribution import DataParallel
from minicnn.distribution.launchers import OPEN_MPI, mpiexec
from minicnn.layers import BatchNormalization, Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D

PAGE = Path(__file__).with_suffix(".md")
BEGIN, END = "<!-- rows: python docs/proof.py -->\n", "<!-- end of rows -->\n"
RANKS, EPOCHS, BATCH = (1, 2, 4), 4, 32


def model(backend: str, shards: int | None = None) -> Sequential:
    """A network with all that could draw numbers or keep state."""
    made = Sequential(
        [
            Input((12, 12, 1)), Conv2D(8, 3, activation="relu"), BatchNormalization(), MaxPooling2D(2), Flatten(),
            Dropout(0.25), Dense(10, "softmax"),
        ],
        backend=backend, seed=1,
    )  # fmt: skip
    made.compile("adam", distribution=None if shards is None else DataParallel(shards))
    return made


def fit(network: Sequential, *callbacks: Any) -> Sequential:
    """The training."""
    rng = np.random.default_rng(0)
    x, y = rng.random((256, 12, 12, 1), "float32"), rng.integers(0, 10, 256)
    network.fit(x, y, BATCH, EPOCHS, 0, list(callbacks))
    return network


def digest(network: Sequential) -> str:
    """The first digits of a hash of all weights."""
    total = hashlib.sha256()
    for array in network.get_weights().values():
        total.update(array.astype("<f4").tobytes())
    return total.hexdigest()[:16]


def on_ranks(count: int) -> str:
    """The hash of a training on so many processes."""
    command = [sys.executable, __file__, "rank"]
    launcher = mpiexec()
    if count > 1 and launcher is not None:
        command = [launcher, "-n", str(count), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**OPEN_MPI, **os.environ})
    return done.stdout.split()[-1]


def restarted(folder: str) -> str:
    """The hash of a training that is broken off in its third epoch, and taken up by another model."""

    def stop(batch: int, logs: Any) -> None:
        if first.steps_taken == 21:
            raise KeyboardInterrupt

    first = model("numpy", 8)
    try:
        fit(first, BackupAndRestore(folder, save_freq=1), LambdaCallback(on_train_batch_end=stop))
    except KeyboardInterrupt:
        return digest(fit(model("numpy", 8), BackupAndRestore(folder)))
    raise RuntimeError("The training was not broken off.")


def rows() -> str:
    """All tables."""
    lines = ["| the training, in 8 shards on `numpy` | weights |", "| --- | --- |"]
    lines += [f"| {count} {'process' if count == 1 else 'processes'} | `{on_ranks(count)}` |" for count in RANKS]
    with tempfile.TemporaryDirectory() as folder:
        lines.append(f"| broken off at step 21, and taken up by another model | `{restarted(folder)}` |")
    lines += ["", "| backend | versions | weights | once more | largest difference from `numpy` |", "| --- " * 5 + "|"]
    expected = fit(model("numpy")).get_weights()
    for name in backends.names():
        try:
            about = backends.backend_class(name).describe()
            first, again = fit(model(name)), fit(model(name))
        except (ImportError, RuntimeError):  # not installed, or without its device
            continue
        far = max(float(np.max(np.abs(a - expected[path]))) for path, a in first.get_weights().items())
        same = "the same" if digest(first) == digest(again) else "**others**"
        versions = ", ".join(f"{key} {value}" for key, value in about.items() if "device" not in key)
        lines.append(f"| `{name}` | {versions} | `{digest(first)}` | {same} | {far:.1e} |")
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Train, and write the page; as a rank print the hash."""
    if sys.argv[1:] == ["rank"]:
        network = fit(model("numpy", 8))
        if network.chief:
            print(digest(network))
        return
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{rows()}\n{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    main()
