"""Launchers: detection of the one that has started this process, and one for processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

# What launchers tell a process: names of its number and of how many there are. MPICH and others have PMI, Open MPI its
# own names; torchrun comes last, because its names are also set by hand.
_LAUNCHED = {
    "mpi": (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
    "torchrun": (("RANK", "WORLD_SIZE"),),
    "jax": (("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),),
}

# So that Open MPI starts more processes than there are cores, as MPICH does.
OPEN_MPI = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def mpiexec() -> str | None:
    """The command that starts processes which talk through mpi4py; None without either."""
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside = Path(sys.executable).with_name("mpiexec")  # the wheels put it there
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def launched(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int]:
    """Launcher of this process, "mpi", "torchrun", "jax" or nothing; its number, and the number of processes."""
    for launcher, names in _LAUNCHED.items():
        for rank, size in names:
            if int(environment.get(size) or "1") > 1 and rank in environment:
                return launcher, int(environment[rank]), int(environment[size])
    # srun sets names of SLURM in whatever it starts: that it speaks for MPI, PMIx says.
    return ("mpi", -1, -1) if "PMIX_RANK" in environment else ("", 0, 1)
