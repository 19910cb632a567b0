"""The grader's side of the process of a submission: it starts it, asks it, holds the clock, and ends it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from minicnn.exercises import wire
from minicnn.exercises.exercise import WrongError
from minicnn.measure.worker import ended

PRINTED, PIECE = 8, 1000  # pieces kept of what a submission prints, and characters of each
WORKER = Path(__file__).with_name("worker.py")
PACKAGES = {  # that a submission on each library finds, beside Python's own; "*" is all that is installed but minicnn
    "numpy": ["numpy"],
    "array_api_strict": ["numpy", "array_api_strict"],
    "torch": ["numpy", "array_api_compat", "torch", "*"],
    "jax": ["numpy", "jax", "*"],
}


class EndedError(Exception):
    """The process of a submission is no longer there; the message says how it ended."""


@dataclass(frozen=True)
class Answer:
    """Result of a submission.

    Attributes:
        result: Its result.
        changed: Whether it has changed an argument.
        views: Whether a result shares memory with an argument.
        seconds: From the first byte of the arguments to the last of the result, by the grader's clock.
    """

    result: Any
    changed: bool
    views: bool
    seconds: float


class Process:
    """A submission in a process of its own, which has its arguments and nothing else.

    Args:
        text: The submission.
        functions: Names that it defines.
        library: The array library that it uses.
        needs: Further packages that it may import.
        kernels: How its kernels are run, "cuda" or "cpu"; "" if it is a module of Python.
        deadline: When it is ended, by `time.monotonic`.
        environment: Variables beside those of this process.

    Raises:
        WrongError: If the submission cannot be run.
        EndedError: If its process ends.
    """

    def __init__(
        self, text: bytes, functions: Sequence[str], *, library: str = "numpy", needs: Sequence[str] = (),
        kernels: str = "", deadline: float, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._deadline, self._printed = deadline, deque[str](maxlen=PRINTED)
        self._folder = tempfile.TemporaryDirectory(prefix="exercise-", ignore_cleanup_errors=True)
        folder = os.path.realpath(self._folder.name)
        path = Path(folder) / "submission.py"
        path.write_bytes(text)
        packages = places([*PACKAGES[library], *needs])
        order = {
            "path": str(path), "functions": list(functions), "library": library, "kernels": kernels,
            "packages": packages, "hidden": hidden(packages.get("*", [])),
        }  # fmt: skip
        variables = {**os.environ, "NUMBA_CACHE_DIR": folder, "TMPDIR": folder, "JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-u", "-X", "utf8", str(WORKER), json.dumps(order)], cwd=folder,
            env={**variables, **(environment or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, float] | Exception] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_keep, args=(self._process.stderr, self._printed), daemon=True)
        self._reader.start()
        threading.Thread(target=self._exchange, daemon=True).start()
        try:
            reply = self._reply()[0]
            if "error" in reply:
                raise WrongError(reply["error"])
            ready = reply.get("ready")
            missing = [name for name in functions if not isinstance(ready, list) or name not in ready]
            if missing:
                raise WrongError(f"it does not define {' and '.join(missing)}")
            self.confined = bool(reply.get("confined"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return "".join(self._printed)

    def call(
        self, function: str, arguments: Sequence[Any], options: Mapping[str, Any], looked_at: bool = True
    ) -> Answer:
        """Ask for the result of a function.

        Args:
            function: Its name.
            arguments: Its arguments, copies of which it gets.
            options: Its keyword arguments.
            looked_at: Whether it is looked whether an argument is changed; not so where the time counts.

        Raises:
            WrongError: If it raises an error, or its answer cannot be read.
            EndedError: If its process ends.
        """
        self._requests.put(wire.packed([function, list(arguments), dict(options), looked_at]))
        reply, seconds = self._reply()
        if "error" in reply:
            raise WrongError(str(reply["error"]))
        return Answer(reply["result"], bool(reply.get("changed")), bool(reply.get("views")), seconds)

    def close(self) -> None:
        """End it and what it has started."""
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._requests.put(None)
        self._reader.join(1)  # what it has started may live on and hold the pipe
        self._folder.cleanup()

    def _reply(self) -> tuple[dict[str, Any], float]:
        """The next message and the seconds that it took."""
        try:
            answer = self._answers.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            self.close()
            raise EndedError("stopped here at the limit of time of all checks together (--limit)") from None
        if isinstance(answer, wire.WireError) or not isinstance(answer, Exception | tuple):
            self.close()
            raise EndedError(f"stopped here, as its answer cannot be read: {answer}")
        if isinstance(answer, Exception):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            code = self._process.poll()
            self.close()
            raise EndedError(f"{ended(code)} here" if code is not None else "its process closed its output here")
        reply, seconds = answer
        if not isinstance(reply, dict) or not {"error", "result", "ready"} & set(reply):
            self.close()
            raise EndedError("stopped here, as its answer cannot be read")
        return reply, seconds

    def _exchange(self) -> None:
        """Send requests and read answers, one after the other, with the clock beside it."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None  # noqa: S101 - for the checker of types
        assert answers is not None  # noqa: S101
        with suppress(OSError), requests, answers:
            start, request = time.perf_counter(), b""
            while request is not None:
                try:
                    if request:
                        start = time.perf_counter()
                        requests.write(request)
                        requests.flush()
                    answer = wire.read(answers)  # type: ignore[arg-type]
                    self._answers.put((answer, time.perf_counter() - start))
                except (wire.WireError, EOFError, OSError, MemoryError) as error:
                    self._answers.put(error)
                    return
                request = self._requests.get()  # type: ignore[assignment]


def places(names: Sequence[str]) -> dict[str, list[str]]:
    """Folders in which packages lie, by name."""
    paths: dict[str, list[str]] = {}
    for name in names:
        if name == "*":
            paths[name] = sorted({folder for folders in list(paths.values()) for folder in folders})
            continue
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ImportError(f"The process of a submission needs {name}, which is not installed. Install it.")
        paths[name] = [os.path.dirname(os.path.realpath(path)) for path in spec.submodule_search_locations]
    return paths


def hidden(shown: Sequence[str]) -> list[str]:
    """That of minicnn, which holds the answers, and all in which packages are installed but for those shown."""
    package = Path(__file__).resolve().parents[1]
    folders = [os.path.realpath(path) for path in sys.path if path.endswith("-packages")]
    return [str(package), *(folder for folder in folders if folder not in shown)]


def _keep(pipe: IO[bytes], printed: deque[str]) -> None:
    """Read a pipe to its end, and keep the last pieces."""
    with pipe:
        for piece in iter(lambda: pipe.read1(PIECE), b""):  # type: ignore[attr-defined]
            printed.append(piece.decode(errors="replace"))
