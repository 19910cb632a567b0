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
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

CANDIDATES = ("minicnn", "torch eager", "torch compile")


def batch_of(sizes: dict[str, int]) -> tuple[Any, Any]:
    """Images uint8 (N, H, W, C), and labels."""
    rng, n = np.random.default_rng(0), sizes["batch"]
    images = rng.integers(0, 256, (n, sizes["image"], sizes["image"], 3), np.uint8)
    return images, rng.integers(0, sizes["classes"], n).astype(np.int32)


def network(name: str, sizes: dict[str, int], backend: Any) -> Any:
    """The network in minicnn."""
    from minicnn.layers import Rescaling
    from minicnn.zoo import get_model

    image = (sizes["image"], sizes["image"], 3)
    return get_model(
        name, num_classes=sizes["classes"], input_shape=image, backend=backend, preprocessing=[Rescaling(1 / 255)],
        input_dtype="uint8", seed=0,
    )  # fmt: skip


def minicnn_bytes(name: str, sizes: dict[str, int]) -> dict[str, int]:
    """What minicnn's arrays have after some steps, and what was taken from the GPU."""
    import cupy

    from minicnn.backends import get_backend
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.optimizers import SGD

    backend = get_backend("cupy", strict=True)
    backend.asarray(np.zeros(1, np.float32))
    free = cupy.cuda.runtime.memGetInfo()[0]
    model = network(name, sizes, backend)
    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), precision="mixed_bfloat16")
    x, y = batch_of(sizes)
    for _ in range(4):
        model.train_on_batch(x, y)
    return {"arrays": int(backend.memory() or 0), "device": free - cupy.cuda.runtime.memGetInfo()[0]}


def torch_bytes(name: str, sizes: dict[str, int], *, compiled: bool) -> dict[str, int]:
    """The peak of what PyTorch's arrays had in some steps, and what was taken from the GPU."""
    import torch
    from torch import nn

    from minicnn.measure import torch_networks

    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    weights = network(name, sizes, "numpy").get_weights()
    size = sizes["image"]
    module = torch_networks.build(name, (size, size, 3), sizes["classes"], weights).train()
    module = module.to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), 0.01, 0.9, fused=True)
    images, labels = batch_of(sizes)
    x, y = torch.from_numpy(images).cuda(), torch.from_numpy(labels.astype(np.int64)).cuda()

    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            logits = module((x.float() / 255).permute(0, 3, 1, 2))
        return nn.functional.cross_entropy(logits.float(), y)

    step = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    for number in range(4):
        if number == 1:  # what is measured is a step, not the first one's choices
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad(set_to_none=True)
        step(x, y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return {"arrays": torch.cuda.max_memory_allocated(), "device": free - torch.cuda.mem_get_info()[0]}


def main() -> None:
    """Print a line for each network and candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=["resnet50"])
    for name, default in (("batch", 128), ("image", 64), ("classes", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--candidates", default=",".join(CANDIDATES), help="some of them, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = {"batch": given.batch, "image": given.image, "classes": given.classes}
    if given.worker:
        (name,) = given.networks
        compiled = given.worker == "torch compile"
        found = minicnn_bytes(name, sizes) if given.worker == "minicnn" else torch_bytes(name, sizes, compiled=compiled)
        print(json.dumps(found))
        return
    results: dict[str, Any] = {}
    for name in given.networks:
        for candidate in given.candidates.split(","):
            command = [sys.executable, __file__, name, "--worker", candidate]
            command += [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name}, {candidate}: {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            found = results.setdefault(name, {})[candidate] = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name}, {candidate}: {found['arrays'] / 1e6:,.0f} MB, {found['device'] / 1e6:,.0f} of the device",
                flush=True,
            )
            if given.json:
                given.json.write_text(json.dumps({**sizes, "networks": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
