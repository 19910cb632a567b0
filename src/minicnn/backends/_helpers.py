"""Processes that compile kernels beside this one, for compilers that do one kernel at a time.

They put machine code on the disk, where this process finds it. Whatever they do not bring about it compiles itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Any, TypeVar

Job = TypeVar("Job")

MOST_PROCESSES = 8
# For each further process: it imports this package first, which takes as long as so many kernels.
LEAST_KERNELS = 3


def compile_side_by_side(
    jobs: Iterable[Job], compile_one: Callable[[Job], object], module: str, *, processes: int,
    told: Callable[[Job, int], object] = lambda job, left: None,
) -> None:  # fmt: skip
    """Compile kernels in this process and others, each taking the next when it is done.

    Args:
        jobs: What is to be compiled, as JSON can say it, the longest first.
        compile_one: Compiles one of them, and puts it on the disk.
        module: Name of a module whose function `work`, without arguments, calls `work_with` in the other processes.
        processes: How many may compile, this one included.
        told: Called with each job that this process begins, and how many nobody has begun.
    """
    queue = deque(jobs)
    count = min(processes, len(queue) // LEAST_KERNELS, MOST_PROCESSES) if sys.executable else 0

    def compile_elsewhere() -> None:
        # Where a process cannot be started, or ends, the others compile what is left.
        with (
            contextlib.suppress(OSError),
            subprocess.Popen(
                [sys.executable, "-c", f"from {module} import work; work()"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
            ) as process,
        ):  # fmt: skip
            if process.stdin is None or process.stdout is None or not process.stdout.readline():
                return
            for job in _taken(queue):
                process.stdin.write(json.dumps(job) + "\n")
                if not process.stdout.readline():
                    return

    threads = [Thread(target=compile_elsewhere, daemon=True) for _ in range(1, count)]
    for thread in threads:
        thread.start()
    for job in _taken(queue):
        told(job, len(queue))
        compile_one(job)
    for thread in threads:
        thread.join()


def _taken(queue: deque[Job]) -> Iterator[Job]:
    with contextlib.suppress(IndexError):
        while True:
            yield queue.popleft()


def work_with(compile_one: Callable[[Any], object]) -> None:
    """Compile what stdin lists, a job a line, and say so after each: all that a process beside another one does."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a compiler may print
    gc.disable()  # looking for cycles among what a compiler makes takes 8 % of the time, and the process ends soon
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        compile_one(json.loads(line))
        print("done", file=answers, flush=True)
