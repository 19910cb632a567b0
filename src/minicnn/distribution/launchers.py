"""Which launcher has started this process, and with how many others."""

from __future__ import annotations

import os
from collections.abc import Mapping

# What launchers tell a process: names of its number and of how many there are. MPICH and others have PMI, Open MPI its
# own names; torchrun comes last, because its names are also set by hand.
_LAUNCHED = {
    "mpi": (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
    "torchrun": (("RANK", "WORLD_SIZE"),),
}


def launched(environment: Mapping[str, str] = os.environ) -> tuple[str, int, int]:
    """What has started this process, "mpi", "torchrun" or nothing, the process's number, and how many there are."""
    for launcher, names in _LAUNCHED.items():
        for rank, size in names:
            if int(environment.get(size) or "1") > 1 and rank in environment:
                return launcher, int(environment[rank]), int(environment[size])
    # srun sets names of SLURM in whatever it starts: that it speaks for MPI, PMIx says.
    return ("mpi", -1, -1) if "PMIX_RANK" in environment else ("", 0, 1)
