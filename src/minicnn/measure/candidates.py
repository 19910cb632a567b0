"""The candidates of a study: minicnn's backends on each device, and peers, other libraries; why some cannot run."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minicnn import backends, machine
from minicnn.backends.base import Backend
from minicnn.measure.worker import Worker, describe

SLOW = ("array_api_strict",)  # takes part only when named
DEVICES = {"torch": ("cpu", "cuda", "mps"), "jax": ("cpu", "gpu")}
# Peers, and the backend whose library and devices they have.
PEERS = {"torch.nn": "torch", "torch.nn-loader": "torch", "jax.lax": "jax"}
LIBRARIES = (*backends.names(), *PEERS)  # what candidates are called without their device
HYBRID = "+"  # between the two backends of a hybrid
NO_PART = "A hybrid names two backends, each with its device if its library has several, such as torch:cuda+numba."


@dataclass(frozen=True)
class Field:
    """Candidates and machine, as found.

    Attributes:
        present: Names of those that can run, in order: backends, NumPy first, then peers.
        absent: The others, with the reason and the remedy.
        machine: Machine, versions and devices, as plain data.
        clocks: State of the GPUs' clocks when they were looked at; empty without.
    """

    present: tuple[str, ...]
    absent: Mapping[str, str]
    machine: Mapping[str, Any]
    clocks: tuple[str, ...] = ()

    def of(self, only: Sequence[str] | None, peers: Sequence[str], *, hybrids: bool = False) -> Field:
        """The field for a study.

        Args:
            only: Backends that take part, with or without device, and with the peers of their libraries; or peers by
                themselves; or hybrids of two backends; None for all but hybrids.
            peers: Peers that the study has.
            hybrids: Whether it has hybrids: see `minicnn.measure.hybrid`.
        """

        def wanted(name: str) -> bool:
            library, _, device = name.partition(":")
            peer = PEERS.get(library, library)
            if library in PEERS and library not in peers:
                return False
            if only is None:
                return library not in SLOW
            return any(o in (peer, f"{peer}:{device}", library, name) for o in only)

        absent = {name: why for name, why in self.absent.items() if wanted(name)}
        present = [name for name in self.present if wanted(name)]
        for name in (name for name in only or () if HYBRID in name):
            missing = [self.absent.get(one, NO_PART) for one in name.split(HYBRID) if one not in self.present]
            if hybrids and not missing:
                present.append(name)
            else:
                absent[name] = missing[0] if hybrids else "This study has no hybrids of two backends."
        return Field(tuple(present), absent, self.machine, self.clocks)


def backend_of(name: str) -> str:
    """The backend whose library and device a candidate has, as `get_backend` takes it."""
    library, colon, device = name.partition(":")
    return f"{PEERS.get(library, library)}{colon}{device}"


def on_gpu(name: str) -> bool:
    """True if a candidate computes on a GPU, a hybrid with its first backend."""
    library, _, device = backend_of(name.partition(HYBRID)[0]).partition(":")
    return library in ("cupy", "numba_cuda", "webgpu") or device.partition(":")[0] in ("cuda", "gpu", "mps")


def names() -> list[str]:
    """Names of all possible candidates, NumPy first, peers last."""
    kinds = sorted(backends.names(), key=lambda n: (n != "numpy", n))
    return [
        f"{kind}:{device}" if device else kind
        for kind in (*kinds, *PEERS)
        for device in DEVICES.get(PEERS.get(kind, kind), ("",))
    ]


def is_name(name: Any) -> bool:
    """True if a candidate could have this name: a backend or a peer, perhaps with a device, or a hybrid."""
    one = rf"({'|'.join(map(re.escape, LIBRARIES))})(:[a-z0-9]+)*"
    return isinstance(name, str) and re.fullmatch(rf"{one}({re.escape(HYBRID)}{one})?", name) is not None


def find() -> Field:
    """Look at everything, in a process of its own: libraries make threads, and take hold of GPUs."""
    with Worker("the look at this machine", _Survey) as worker:
        field: Field = worker.call("field")
    return field


class _Survey:
    def field(self) -> Field:
        present: list[str] = []
        absent: dict[str, str] = {}
        devices: dict[str, str] = {}
        opened: dict[str, Backend | str] = {}
        for name in names():
            full = backend_of(name)
            candidate = opened[full] = opened[full] if full in opened else _open(full)
            if isinstance(candidate, str):
                absent[name] = candidate
            else:
                present.append(name)
                devices |= {f"{candidate.name} {k}": v for k, v in candidate.describe().items()}
        facts = {**machine.facts(), "system": f"{platform.system()} {platform.machine()}"}
        # CuPy's "cuda" is a version, PyTorch's a device.
        facts["devices"] = {k: v for k, v in devices.items() if ":" in k or k in ("torch cuda", "torch mps")}
        return Field(tuple(present), absent, facts, _clocks())


def _open(name: str) -> Backend | str:
    try:
        return backends.get_backend(name)
    except Exception as error:  # a library may be there and broken in any way
        return describe(error)


def _clocks() -> tuple[str, ...]:
    """Name, driver, clocks and power limit of each GPU, by nvidia-smi; nothing without it."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return tuple(done.stdout.splitlines()) if done.returncode == 0 else ()
