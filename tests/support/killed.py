"""Processes that are killed while they train or save, by themselves at a chosen point or from outside.

`python -m support.killed fit numpy FOLDER write:3` trains with a back-up and kills itself in the middle of the third
piece that it writes; `fsync:3` and `replace:3` do so before the third call of that function of `os`. Of several points
all but the last have a process of their own, which ends there. With `time` steps are slow, so that others can kill it.
The last line printed is a digest of all state; with `to-the-end` two lines are, the second from a training without
back-up. `save` in place of `fit` saves models of one number each to the file FOLDER instead, and prints the number.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


def start(*arguments: object, module: str = "support.killed", **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs a module with arguments."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    variables = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a process printed, when it has ended with that code."""
    with process:
        out, _ = process.communicate()
    assert process.returncode == code, out
    return out


class Countdown:
    """Kills this process when it is called for the so-many-th time."""

    def __init__(self, count: int) -> None:
        self.left = count

    def due(self) -> bool:
        self.left -= 1
        return self.left == 0

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self.due():
                self.kill()
            return function(*args, **options)

        return call

    def arm(self, where: str) -> None:
        import minicnn.files as files

        countdown = self

        class Half(io.FileIO):
            def write(self, data: Any) -> int:
                if countdown.due():
                    super().write(data[: len(data) // 2])
                    countdown.kill()
                return super().write(data)

        if where == "write":
            files.open = lambda path, mode: (Half if "x" in mode else open)(path, mode)  # type: ignore
        elif where in ("fsync", "replace"):
            setattr(os, where, self.before(getattr(os, where)))


def fit(backend: str, folder: str, where: str) -> None:
    from minicnn.callbacks import BackupAndRestore, Callback

    class Slow(Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:
            time.sleep(0.02 if where == "time" else 0)

    print(digest_of_training(backend, [BackupAndRestore(folder, save_freq=2), Slow()]), flush=True)
    if where == "to-the-end":
        print(digest_of_training(backend, []))


def digest_of_training(backend: str, callbacks: list[Any]) -> str:
    from minicnn.callbacks import ReduceLROnPlateau
    from support.small_training import arrays, compiled, digits

    model = compiled(backend, "adam")
    model.fit(*digits(24), 6, 4, 0, [*callbacks, ReduceLROnPlateau("loss", patience=1, min_delta=0.1)])
    total = hashlib.sha256()
    for name, array in sorted(arrays(model).items()):
        total.update(name.encode() + array.tobytes())
    return total.hexdigest()


def save(backend: str, path: str, where: str) -> None:
    from minicnn import Sequential
    from minicnn.layers import Dense, Input

    model = Sequential([Input((100,)), Dense(100)], backend=backend)
    for number in range(1, 100 if where == "time" else 10):
        model.set_weights({name: array * 0 + number for name, array in model.get_weights().items()})
        model.save(path)
        print(number, flush=True)


def run(what: str, backend: str, folder: str, point: str) -> None:
    where, _, count = point.partition(":")
    Countdown(int(count or 0)).arm(where)
    {"fit": fit, "save": save}[what](backend, folder, where)


def main(what: str, backend: str, folder: str, *points: str) -> None:
    importlib.import_module(f"minicnn.backends.{backend}")  # takes most of the time, and processes share it
    print("ready", flush=True)
    for point in points[:-1]:
        if (child := os.fork()) == 0:
            run(what, backend, folder, point)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, point
    run(what, backend, folder, points[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
