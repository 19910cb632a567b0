"""Several processes for a test, started by mpiexec or torchrun: `support.rank_training` on each of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from support.campaign import FULL

LIMIT = 600 if FULL else 300  # seconds of one start
# Seconds that ranks wait for each other where no deadline is tested: on a busy machine they compile for minutes.
PATIENT = str(LIMIT)
TESTS = Path(__file__).resolve().parents[1]
_BESIDE = Path(sys.executable).with_name("mpiexec")  # the wheels put it there
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")


def patience(seconds: float) -> int:
    """Seconds as long for a process of a busy machine as the given ones for one of an idle machine."""
    return round(seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@cache
def _open_mpi() -> bool:
    version = subprocess.run([str(MPIEXEC), "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in version.stdout or "OpenRTE" in version.stdout  # as it calls itself before version 5


def settings(environment: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *(p for p in sys.path if p)])
    return {**os.environ, "MINICNN_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}


def _run(
    command: Sequence[str], arguments: Sequence[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, "-m", "support.rank_training", *arguments],
        capture_output=True, text=True, check=False, timeout=LIMIT, env=settings(environment),
    )  # fmt: skip


def jax_processes(ranks: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it on that many ranks that jax.distributed connects; no launcher is needed. Errors are those of all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "support.rank_training", *arguments]
    given = {"JAX_COORDINATOR_ADDRESS": place, "JAX_NUM_PROCESSES": str(ranks), "JAX_PLATFORMS": "cpu",
             "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}  # fmt: skip
    started = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=settings({**given, **environment, "JAX_PROCESS_ID": str(rank)}),
        ) for rank in range(ranks)
    ]  # fmt: skip
    try:
        ends = [process.communicate(timeout=LIMIT) for process in started]
    finally:
        for process in started:
            process.kill()
    codes = [process.returncode for process in started]
    return subprocess.CompletedProcess(command, max(map(abs, codes)), ends[0][0], "".join(e for _, e in ends))


def mpiexec(ranks: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it on that many ranks of an MPI job."""
    extra = ["--allow-run-as-root", "--oversubscribe"] if _open_mpi() else []
    return _run([str(MPIEXEC), *extra, "-n", str(ranks), sys.executable], arguments, environment)


def torchrun(ranks: int, *arguments: str, restarts: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it on that many ranks that torchrun starts."""
    options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    return _run([sys.executable, "-m", "torch.distributed.run", *options], arguments, environment)


def gpus() -> int:
    """How many GPUs the driver finds on this machine."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def results(done: subprocess.CompletedProcess[str], ranks: int) -> Any:
    """What the first rank has printed of its trainings."""
    assert done.returncode == 0, done.stderr
    # gloo prints before; colorama switches colours off where a rank ends, which may be before the first one prints.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    printed = [line for line in lines if line.startswith("[")]
    assert printed, done.stdout + done.stderr
    count, made = json.loads(printed[-1])
    assert count == ranks
    return made
