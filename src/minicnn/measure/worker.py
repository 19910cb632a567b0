"""A candidate in a process of its own, so that threads, memory and settings of libraries do not mix."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from minicnn import machine

DEFAULTS = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX would take three quarters of a GPU's memory, which all share
    "PYTHONSAFEPATH": "1",  # no module of the folder that it runs in is Python's own of the same name
}
EXPECTED = (ValueError, TypeError, RuntimeError, OSError, ImportError, MemoryError)
PATIENCE = 10.0  # seconds that a process gets to end by itself


class CandidateError(RuntimeError):
    """A candidate failed: the message names it and says why.

    Attributes:
        name: The candidate.
        why: Why it failed, in one line.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


def ended(code: int | None, lines: Sequence[str] = ()) -> str:
    """End of a process: its exit, and the last line with words that it printed.

    Args:
        code: Its exit code; negative if a signal ended it.
        lines: What it printed.
    """
    if code is None or code >= 0:
        how = f"its process ended with code {code}"
    else:
        how = f"its process was ended by signal {-code} ({signal.strsignal(-code)}"
        how += ", as when memory runs out)" if -code == getattr(signal, "SIGKILL", None) else ")"
    said = [line.strip() for line in lines if line.strip()]
    return how + (f": {said[-1]}" if said else "")


class Worker:
    """Context manager: an object in a fresh process, whose methods are called from this one.

    Args:
        name: Name of the candidate, for messages.
        make: Class or function of a module, called there as `make(*args)`; it makes the object.
        args: Its arguments; they travel by pickle.
        environment: Variables of the environment that the process has in addition, from its start.

    Raises:
        CandidateError: On entering, if the object cannot be made.

    Example:
        >>> import collections
        >>> with Worker("counter", collections.Counter, "abca") as worker:
        ...     worker.call("total")
        4
    """

    def __init__(
        self, name: str, make: Callable[..., Any], *args: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._make, self._args = make, args
        self._process: Any = None
        self._environment = {k: v for k, v in DEFAULTS.items() if k not in os.environ} | dict(environment or {})

    def __enter__(self) -> Worker:
        self.start()
        self.wait()
        return self

    def start(self) -> None:
        """Start the process, without waiting until the object is made: several can start at the same time."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        handle, name = tempfile.mkstemp(prefix="minicnn-", suffix=".txt")
        os.close(handle)
        self._said = Path(name)
        arguments = (theirs, self._said, multiprocessing.get_start_method(), self._make, self._args)
        self._process = context.Process(target=_serve, args=arguments, name=self.name)
        with ExitStack() as undo:
            for variable, value in self._environment.items():  # a process inherits them when it starts
                undo.callback(_restore, variable, os.environ.get(variable))
                os.environ[variable] = value
            self._process.start()
        theirs.close()

    def wait(self, patience: float | None = None) -> None:
        """Wait until the object is made, for some seconds, or for as long as it takes.

        Raises:
            CandidateError: If it cannot be; the process has then ended.
        """
        try:
            if not self._pipe.poll(patience):
                raise CandidateError(self.name, f"not ready after {patience:g} seconds")
            self.receive()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close(patience=0.0 if kind else PATIENCE)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object and wait for its result.

        Raises:
            CandidateError: If it raises an exception, or the process ends.
        """
        self.send(method, *args, **kwargs)
        return self.receive()

    def send(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Begin a call of a method; `receive` ends it."""
        with suppress(OSError):  # it has ended; the answer says how
            self._pipe.send((method, args, kwargs))

    def leave(self) -> None:
        """Have the process end by itself, if there is one; `close` waits for that."""
        if self._process is not None:
            self._pipe.close()

    def close(self, patience: float = PATIENCE) -> None:
        """End the process; it gets some seconds to do so by itself."""
        if self._process is None:
            return
        self.leave()
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._said.unlink(missing_ok=True)

    def receive(self) -> Any:
        """Wait for the result of the call that `send` has begun.

        Raises:
            CandidateError: If it raises an exception, or the process ends.
        """
        try:
            good, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            said = self._said.read_text("utf-8", "replace").splitlines()
            raise CandidateError(self.name, ended(self._process.exitcode, said)) from None
        if not good:
            raise CandidateError(self.name, answer)
        return answer


@contextmanager
def together(
    workers: Mapping[str, Worker], patience: float | None = None
) -> Iterator[tuple[dict[str, Worker], dict[str, str]]]:
    """Context manager: several workers that start at the same time.

    Args:
        workers: Workers that have not started, by name.
        patience: Seconds in which each must be ready, if there is a limit.

    Yields:
        Those whose objects could be made, and why the others could not.
    """
    ready: dict[str, Worker] = {}
    out: dict[str, str] = {}
    start, leaving = time.monotonic(), 0.0
    try:
        for worker in workers.values():
            worker.start()
        for name, worker in workers.items():
            try:
                worker.wait(None if patience is None else max(start + patience - time.monotonic(), 0.0))
            except CandidateError as error:
                out[name] = error.why
            else:
                ready[name] = worker
        yield ready, out
        leaving = PATIENCE
    finally:
        for worker in workers.values():
            worker.leave()
        for worker in workers.values():
            worker.close(leaving)


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def describe(error: BaseException) -> str:
    """An exception in one line; the kind is named unless its message is written for users."""
    text = " ".join(str(error).split())
    return text if text and isinstance(error, EXPECTED) else f"{type(error).__name__}: {text}"


def _serve(pipe: Connection, said: Path, method: str, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The process: make the object, then answer calls until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    multiprocessing.set_start_method(method, force=True)  # libraries start processes as they do anywhere
    machine.keep_freed_memory()
    _write_into(said)
    with suppress(EOFError, OSError):
        try:
            instance = make(*args)
        except Exception as error:
            pipe.send((False, describe(error)))
            return
        pipe.send((True, None))
        while True:
            method, arguments, named = pipe.recv()
            try:
                answer = (True, getattr(instance, method)(*arguments, **named))
            except Exception as error:
                answer = (False, describe(error))
            pipe.send(answer)


def _write_into(path: Path) -> None:
    """Send what the process and its libraries print into a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    os.close(file)
