"""Peak resident memory of training on the CPU beside PyTorch, each candidate in a process of its own.

    python benchmarks/memory_peers.py [--json FILE] [--threads N] [--steps N] [NETWORK ...]

All hold the same uint8 images and turn each batch into float32; in PyTorch a batch that is the whole set is turned
once. Total is the largest resident memory that the system saw, increase is that beyond the process after its imports.
"minicnn, first run" compiles its kernels, "minicnn" finds them on the disk. PyTorch keeps images channels last; with
malloc tuned it is faster and larger.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cpu_peers import CASES, TUNED_MALLOC, deep

SAMPLES = {"platforms": 60_000, "kernels": 60_000, "mlp": 59_000, "resnet18": 1024, "squeezenet1_1": 1024}
CANDIDATES = ("minicnn", "minicnn, first run", "torch", "torch, tuned malloc")
RATE = 0.01


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def data(name: str) -> tuple[Any, Any]:
    """Images (N, H, W, C) uint8 and labels (N,)."""
    import numpy as np

    generator, count = np.random.default_rng(0), SAMPLES[name]
    images = generator.integers(0, 256, (count, *CASES[name].image), np.uint8)
    return images, generator.integers(0, CASES[name].classes, count).astype(np.int32)


def minicnn_losses(name: str, threads: int, steps: int) -> tuple[int, list[float]]:
    """Peak after the imports, and the losses of some steps."""
    from minicnn.backends import backend_class
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.optimizers import SGD

    backend = backend_class("numba")(threads=threads)
    start = peak()
    case = CASES[name]
    x, y = data(name)
    model = deep(name, case, backend)
    model.compile(SGD(RATE, momentum=case.momentum), SparseCategoricalCrossentropy(from_logits=True))
    losses: list[float] = []
    while len(losses) < steps:  # epochs of a whole set, or one that is cut short
        last = min(len(x) // case.batch, steps - len(losses)) * case.batch
        made = model.fit(x[:last], y[:last], case.batch, 1, shuffle=False, verbose=0)
        losses += made.history["loss"] * (last // case.batch)
    return start, losses


def torch_losses(name: str, threads: int, steps: int) -> tuple[int, list[float]]:
    """The same with PyTorch."""
    import numpy as np
    import torch

    from minicnn.measure import torch_networks

    torch.set_num_threads(threads)
    start = peak()
    case = CASES[name]
    x, y = data(name)
    weights = deep(name, case, "numpy").get_weights()
    network = torch_networks.build(name, case.image, case.classes, weights).train()
    del weights
    network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), RATE, case.momentum)
    images, labels = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y.astype(np.int64))
    whole = images.to(torch.float32).div_(255) if case.batch == len(x) else None
    losses = []
    for step in range(steps):
        at = slice(step * case.batch % len(x), step * case.batch % len(x) + case.batch)
        batch = images[at].to(torch.float32).div_(255) if whole is None else whole
        loss = torch.nn.functional.cross_entropy(network(batch), labels[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return start, losses


def measured(candidate: str, name: str, threads: int, steps: int) -> dict[str, Any]:
    """What a candidate's process says of itself."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads)} | (TUNED_MALLOC if "malloc" in candidate else {})
    with tempfile.TemporaryDirectory() as empty:
        env |= {"MINICNN_CACHE": empty} if "first" in candidate else {}
        command = [sys.executable, __file__, "--worker", candidate, "--threads", str(threads), "--steps", str(steps)]
        found = subprocess.run([*command, name], env=env, check=True, stdout=subprocess.PIPE)
    made: dict[str, Any] = json.loads(found.stdout)
    return made


def main() -> None:
    """Measure the networks named, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="networks; all if none is named")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="training steps")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        run = minicnn_losses if given.worker.startswith("minicnn") else torch_losses
        start, losses = run(given.networks[0], given.threads, given.steps)
        print(json.dumps({"start": start, "peak": peak(), "loss": sum(losses) / len(losses)}))
        return
    figures: dict[str, dict[str, Any]] = {}
    print(f"{'network':14} {'candidate':22} {'total MB':>9} {'increase MB':>12} {'loss':>9}")
    for name in given.networks or SAMPLES:
        measured("minicnn", name, given.threads, 1)  # so that the kernels are on the disk
        figures[name] = {c: measured(c, name, given.threads, given.steps) for c in CANDIDATES}
        for candidate, one in figures[name].items():
            total, increase = one["peak"] / 2**20, (one["peak"] - one["start"]) / 2**20
            print(f"{name:14} {candidate:22} {total:9.0f} {increase:12.0f} {one['loss']:9.4f}", flush=True)
        losses = [one["loss"] for one in figures[name].values()]
        if max(losses) - min(losses) > 2e-3 * abs(losses[0]):
            raise RuntimeError(f"{name}: all candidates have the same loss. Received: {losses}.")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
