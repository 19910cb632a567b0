"""Peak resident memory of training on the CPU beside PyTorch, each candidate in a process of its own.

    python benchmarks/memory_peers.py [--json FILE] [--threads N] [NETWORK ...]

All hold the same uint8 images and turn each batch into float32. Total is the largest resident memory of an epoch,
increase is that beyond the process with its libraries. "minicnn, first run" compiles its kernels, "minicnn" finds them
on the disk. PyTorch keeps images channels last; with malloc tuned it is faster and larger.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_peers import contender, environment

from minicnn.measure import Worker
from minicnn.measure.parity import loss_parity

SAMPLES = {"platforms": 60_000, "kernels": 60_000, "mlp": 59_000, "resnet18": 1024, "squeezenet1_1": 1024}
# By name in the results: the candidate of cpu_peers.
CANDIDATES = {
    "minicnn": "minicnn", "minicnn, first run": "minicnn", "torch": "torch channels-last",
    "torch, tuned malloc": "torch channels-last, tuned malloc",
}  # fmt: skip
LOSS_RTOL = 2e-3


def measured(candidate: str, name: str, threads: int) -> dict[str, Any]:
    """The loss of an epoch, and memory in bytes: with the libraries, and at its peak."""
    own = CANDIDATES[candidate]
    with tempfile.TemporaryDirectory() as empty:
        around = environment(own, threads) | ({"MINICNN_CACHE": empty} if "first" in candidate else {})
        with Worker(candidate, contender, own, name, threads, SAMPLES[name], environment=around) as worker:
            (loss,), account = worker.call("losses"), worker.call("account")
    return {"start": account["library_mb"] * 1e6, "peak": account["peak_mb"] * 1e6, "loss": loss}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the networks named, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="networks; all if none is named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    print(f"{'network':14} {'candidate':22} {'total MB':>9} {'increase MB':>12} {'loss':>9}")
    for name in given.networks or SAMPLES:
        measured("minicnn", name, given.threads)  # so that the kernels are on the disk
        figures[name] = {c: measured(c, name, given.threads) for c in CANDIDATES}
        for candidate, one in figures[name].items():
            total, increase = one["peak"] / 2**20, (one["peak"] - one["start"]) / 2**20
            print(f"{name:14} {candidate:22} {total:9.0f} {increase:12.0f} {one['loss']:9.4f}", flush=True)
        if refused := loss_parity({c: [one["loss"]] for c, one in figures[name].items()}, [LOSS_RTOL]):
            raise RuntimeError(f"{name}: all candidates have the same loss. Received: {refused}.")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
