"""Several processes for a test, started by mpiexec or torchrun: `support.rank_training` on each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
_BESIDE = Path(sys.executable).with_name("mpiexec")  # the wheels put it there
MPIEXEC = str(_BESIDE) if _BESIDE.exists() else shutil.which("mpiexec")


@cache
def _open_mpi() -> bool:
    version = subprocess.run([str(MPIEXEC), "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in version.stdout


def _run(
    command: Sequence[str], arguments: Sequence[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), *(p for p in sys.path if p)])
    settings = {"MINICNN_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    return subprocess.run(
        [*command, "-m", "support.rank_training", *arguments],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, **settings},
    )  # fmt: skip


def mpiexec(ranks: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it on that many ranks of an MPI job."""
    extra = ["--allow-run-as-root", "--oversubscribe"] if _open_mpi() else []
    return _run([str(MPIEXEC), *extra, "-n", str(ranks), sys.executable], arguments, environment)


def torchrun(ranks: int, *arguments: str, restarts: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it on that many ranks that torchrun starts."""
    options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    return _run([sys.executable, "-m", "torch.distributed.run", *options], arguments, environment)


def results(done: subprocess.CompletedProcess[str], ranks: int) -> Any:
    """What the first rank has printed of its trainings."""
    assert done.returncode == 0, done.stderr
    count, made = json.loads(done.stdout)
    assert count == ranks
    return made
