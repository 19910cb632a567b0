"""Two "hosts" on one machine: network namespaces that a link joins, and one process in each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.launchers import MPIEXEC, settings

DEVICE = "wire0"
PORT = 29611
# A host has its own name, which is its address so that it resolves, its own processes and shared memory.
_UNSHARE = ["unshare", "-u", "-i", "-p", "-f", "--kill-child=KILL", "--mount-proc"]
_INSIDE = 'hostname {address} && mount -t tmpfs none /dev/shm && exec "$@"'


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Hosts:
    """Two hosts, and the link between them; `close` takes them away.

    Args:
        megabits: A second, that the link moves in each direction; not shaped if None.
    """

    def __init__(self, megabits: int | None = None) -> None:
        self.names = [f"minicnn{os.getpid()}{end}" for end in "ab"]
        number = os.getpid() % 200 + 20
        self.addresses = [f"10.77.{number}.{end}" for end in (1, 2)]
        try:
            for name in self.names:
                ip("netns", "add", name)
            first, second = self.names
            ip("link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
            for name, address in zip(self.names, self.addresses, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
                for device in ("lo", DEVICE):
                    ip("-n", name, "link", "set", device, "up")
                if megabits is not None:
                    # What may pass at once is what a millisecond brings: less takes the processor too long.
                    burst = str(megabits * 130)
                    shape = ["qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", f"{megabits}mbit", "burst", burst]
                    subprocess.run(["tc", "-n", name, *shape, "latency", "300ms"], check=True, capture_output=True)
            until = time.monotonic() + 60
            while not all(map(self._up, self.names)):  # MPI looks for a link only once
                assert time.monotonic() < until
                time.sleep(0.01)
        except BaseException:
            self.close()
            raise

    def _up(self, name: str) -> bool:
        return bool(json.loads(ip("-n", name, "-j", "link", "show", DEVICE))[0]["operstate"] == "UP")

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cut(self) -> None:
        """From now on nothing comes through."""
        ip("-n", self.names[0], "link", "set", DEVICE, "down")

    def inside(self, host: int) -> list[str]:
        """What a command begins with that runs on a host."""
        script = _INSIDE.format(address=self.addresses[host])
        return ["ip", "netns", "exec", self.names[host], *_UNSHARE, "sh", "-c", script, "sh"]

    def start(self, engine: str, module: str, *arguments: str, **environment: str) -> list[subprocess.Popen[str]]:
        """A module on each host, as ranks that "mpi", "torchrun" or "jax" connects; what they print is in pipes.

        With "mpi" the variable FOLDER names one for a file.
        """
        own = [sys.executable, "-m", module, *arguments]
        given = settings(
            {"GLOO_SOCKET_IFNAME": DEVICE, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": DEVICE, **environment}
        )
        if engine == "mpi":
            launcher = Path(given["FOLDER"]) / "launcher"
            ssh = [f'{self.addresses[h]}) shift $((at)); exec {_quoted(self.inside(h))} sh -c "$*" ;;' for h in (0, 1)]
            launcher.write_text(_LAUNCHER.format(cases="\n    ".join(ssh)))
            launcher.chmod(0o755)
            hydra = ["-launcher", "ssh", "-launcher-exec", str(launcher), "-localhost", self.addresses[0]]
            commands = [[*self.inside(0), str(MPIEXEC), *hydra, "-hosts", ",".join(self.addresses), "-n", "2", *own]]
            return [_started(commands[0], given)]
        if engine == "torchrun":
            where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", self.addresses[0], "--master-port"]
            run = [sys.executable, "-m", "torch.distributed.run", *where, str(PORT), "--node-rank"]
            return [_started([*self.inside(h), *run, str(h), *own[1:]], given) for h in (0, 1)]
        given |= {"JAX_COORDINATOR_ADDRESS": f"{self.addresses[0]}:{PORT}", "JAX_NUM_PROCESSES": "2",
                  "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}  # fmt: skip
        return [_started([*self.inside(h), *own], {**given, "JAX_PROCESS_ID": str(h)}) for h in (0, 1)]


_LAUNCHER = """#!/bin/sh
# What mpiexec takes for ssh: options, a host, a command.
at=0
for word in "$@"; do
  at=$((at + 1))
  case "$word" in
    {cases}
  esac
done
exit 1
"""


def _quoted(words: Sequence[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment), cwd="/"
    )


def ends(started: Sequence[subprocess.Popen[str]], timeout: float = 120) -> tuple[list[int], str, str]:
    """Exit codes, and what they have printed: in the order in which they were started."""
    try:
        found = [process.communicate(timeout=timeout) for process in started]
    except BaseException:
        stop(started)
        raise
    return [p.returncode for p in started], "".join(o for o, _ in found), "".join(e for _, e in found)


def stop(started: Sequence[subprocess.Popen[str]]) -> None:
    """End what still runs."""
    for process in started:
        process.kill()
        process.communicate()


def result(started: Sequence[subprocess.Popen[str]], timeout: float = 120) -> Any:
    """The last line that the first rank has printed, as JSON."""
    codes, out, errors = ends(started, timeout)
    assert not any(codes), errors
    return json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))


def not_permitted() -> str | None:
    """Why there can be no such hosts here, if so."""
    if not all(map(shutil.which, ("ip", "tc", "unshare"))):
        return "ip, tc or unshare is missing"
    try:
        with hosts():
            return None
    except subprocess.CalledProcessError:
        return "network namespaces are not permitted"


@contextmanager
def hosts(megabits: int | None = None) -> Iterator[Hosts]:
    made = Hosts(megabits)
    try:
        yield made
    finally:
        made.close()
