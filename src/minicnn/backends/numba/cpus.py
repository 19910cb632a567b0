"""The CPU: its cores that are worth a thread each, and which instructions code for it may have."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SYSTEM = Path("/sys")
PROCESS = Path("/proc/self")


def cores(system: Path = SYSTEM, process: Path = PROCESS) -> int:
    """Cores that this process may use: by its affinity, of the hyperthreads of one core one, at most its CPU quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    # Two hyperthreads share the units that multiply: a second one brings nothing but waiting.
    groups = {_read(system / f"devices/system/cpu/cpu{n}/topology/thread_siblings_list") or str(n) for n in allowed}
    limit = quota(system, process)
    return max(1, len(groups) if limit is None else min(len(groups), int(limit)))


def quota(system: Path = SYSTEM, process: Path = PROCESS) -> float | None:
    """CPUs' worth of time that the control group of this process gets, the least of its parents' too; None if all."""
    quotas = []
    for line in _read(process / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, files = system / "fs/cgroup", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, files = system / "fs/cgroup" / controllers, ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        here = root / path.lstrip("/")
        for folder in (here, *here.parents):
            numbers = " ".join(_read(folder / name) for name in files).split()
            if len(numbers) == 2 and numbers[0].isdecimal() and int(numbers[1]):
                quotas.append(int(numbers[0]) / int(numbers[1]))
            if folder == root:
                break
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@cache
def features() -> frozenset[str]:
    """What the CPU that Numba compiles for has, by LLVM's names; `NUMBA_CPU_FEATURES` sets others."""
    from numba.core.registry import cpu_target

    _, _, text = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))


def multiplies_bfloat16() -> bool:
    """True if there is an instruction for products of pairs of bfloat16 on vectors of 16 lanes."""
    return features() >= {"avx512f", "avx512bf16"}
