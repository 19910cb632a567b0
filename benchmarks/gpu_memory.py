"""Memory on the GPU that a training step takes, beside PyTorch: each in a process of its own, with one batch.

    python benchmarks/gpu_memory.py [NETWORK ...] [--candidates LIST] [--batch N] [--image N] [--classes N]
                                    [--json FILE]

Both hold the weights, their momentum, a batch of images and what the step makes. Of PyTorch it is the peak of what its
arrays had, in eager mode and compiled, by autocast to bfloat16, channels last; of minicnn what its arrays have, of
which none is given back, in `mixed_bfloat16`. "Device" is what the process took from the GPU after its first array.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minicnn.measure import CandidateError, Worker
from minicnn.measure.cases import CASES, TrainingCase, network

CANDIDATES = ("minicnn", "torch eager", "torch compile")
STEPS = 4


class Training:
    """A candidate that trains a network on a GPU, in a process of its own.

    Args:
        name: Name of the network.
        case: Its sizes.
    """

    def __init__(self, name: str, case: TrainingCase) -> None:
        self._name, self._case = name, case
        samples = case.samples(case.batch)
        self._x, self._y = samples["x_train"], samples["y_train"]

    def minicnn(self) -> dict[str, int]:
        """Bytes that minicnn's arrays have after some steps, and that were taken from the GPU."""
        import cupy

        from minicnn.backends import get_backend
        from minicnn.losses import SparseCategoricalCrossentropy
        from minicnn.optimizers import SGD

        backend = get_backend("cupy", strict=True)
        backend.asarray(np.zeros(1, np.float32))
        free = cupy.cuda.runtime.memGetInfo()[0]
        model, loss = network(self._name, self._case, backend), SparseCategoricalCrossentropy(from_logits=True)
        model.compile(SGD(0.01, momentum=0.9), loss, precision="mixed_bfloat16")
        for _ in range(STEPS):
            model.train_on_batch(self._x, self._y)
        return {"arrays": int(backend.memory() or 0), "device": free - cupy.cuda.runtime.memGetInfo()[0]}

    def torch(self, *, compiled: bool) -> dict[str, int]:
        """The peak of what PyTorch's arrays had in some steps, and what was taken from the GPU."""
        import torch

        from minicnn.measure import torch_networks

        torch.zeros(1, device="cuda")
        free = torch.cuda.mem_get_info()[0]
        weights = network(self._name, self._case, "numpy").get_weights()
        module = torch_networks.build(self._name, self._case.image, self._case.classes, weights).train()
        module = module.to("cuda", memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(module.parameters(), 0.01, 0.9, fused=True)
        x, y = torch.from_numpy(self._x).cuda(), torch.from_numpy(self._y.astype(np.int64)).cuda()

        def loss_of(x: Any, y: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16):
                logits = module((x.float() / 255).permute(0, 3, 1, 2))
            return torch.nn.functional.cross_entropy(logits.float(), y)

        step = torch.compile(loss_of, dynamic=False) if compiled else loss_of
        for number in range(STEPS):
            if number == 1:  # what is measured is a step, not the first one's choices
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad(set_to_none=True)
            step(x, y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        return {"arrays": torch.cuda.max_memory_allocated(), "device": free - torch.cuda.mem_get_info()[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each network and candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=["resnet50"])
    for size, default in (("batch", 128), ("image", 64), ("classes", 200)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="some of them, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    given = parser.parse_args(arguments)
    sizes = {"batch": given.batch, "image": given.image, "classes": given.classes}
    results: dict[str, Any] = {}
    for name in given.networks:
        image = (given.image, given.image, 3)
        case = replace(CASES[name], batch=given.batch, image=image, classes=given.classes, options={})
        for candidate in given.candidates.split(","):
            method, _, how = candidate.partition(" ")
            options = {"compiled": how == "compile"} if how else {}
            try:
                with Worker(candidate, Training, name, case) as worker:
                    found = results.setdefault(name, {})[candidate] = worker.call(method, **options)
            except CandidateError as error:
                print(f"{name}, {error}", flush=True)
                continue
            arrays, device = found["arrays"] / 1e6, found["device"] / 1e6
            print(f"{name}, {candidate}: {arrays:,.0f} MB, {device:,.0f} of the device", flush=True)
            if given.json:
                given.json.write_text(json.dumps({**sizes, "networks": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
