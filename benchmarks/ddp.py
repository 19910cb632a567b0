"""Data parallel training beside PyTorch's DistributedDataParallel: the same processes, network and global batch.

    torchrun --nproc-per-node 2 benchmarks/ddp.py [--network NAME] [--image H,W,C] [--classes N] [--batch N]
        [--backends numba,torch] [--shards N] [--rounds N] [--steps N] [--json FILE]

All candidates live in the same processes, talk through gloo, and are timed in turn, each between two barriers; one
whose losses are not DDP's is an error. By default there are as many shards as ranks, so that a rank has one. Networks
are those of the zoo that `minicnn.measure.torch_networks` has as modules, without dropout. A backend may have a
strategy of convolution, such as torch/vendor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from minicnn import zoo
from minicnn.backends import get_backend
from minicnn.distribution import DataParallel, TorchCommunicator
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.timing import interleaved
from minicnn.measure.torch_networks import build
from minicnn.ops.groups import rows
from minicnn.optimizers import SGD

RATE, MOMENTUM, CHECKED, TOLERANCE = 0.01, 0.9, 3, 1e-3


def arguments() -> argparse.Namespace:
    """What is compared, and how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="platforms")
    parser.add_argument("--image", default="28,28,1")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--backends", default="numba,torch")
    parser.add_argument("--shards", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def minicnn_step(given: argparse.Namespace, backend: str, communicator: Any, x: Any, y: Any) -> Callable[[], float]:
    """A step of minicnn's; gives the loss of the whole batch before it."""
    shape = tuple(map(int, given.image.split(",")))
    name, _, strategy = backend.partition("/")
    made = get_backend(name, convolution=strategy or None)
    model = zoo.get_model(given.network, num_classes=given.classes, input_shape=shape, backend=made)
    distribution = DataParallel(given.shards or communicator.size, communicator=communicator)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(RATE, momentum=MOMENTUM), loss, distribution=distribution)
    return lambda: float(model.train_on_batch(x, y))


def ddp_step(given: argparse.Namespace, communicator: Any, x: Any, y: Any) -> Callable[[], float]:
    """A step of PyTorch's; gives the loss of the whole batch before it."""
    shape = tuple(map(int, given.image.split(",")))
    model = zoo.get_model(given.network, num_classes=given.classes, input_shape=shape, backend="numpy")
    module = build(given.network, shape, given.classes, model.get_weights()).to(memory_format=torch.channels_last)
    module = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), RATE, MOMENTUM)
    own = rows(len(y), communicator.size, communicator.rank)
    images = torch.from_numpy(x[own.start : own.stop]).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(y[own.start : own.stop].astype(np.int64))

    def step() -> float:
        loss = nn.functional.cross_entropy(module(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach() * len(own)
        dist.all_reduce(total)  # minicnn's loss is that of the whole batch, too
        return float(total) / len(y)

    return step


def main() -> None:
    """Check that all compute the same, then time them."""
    given = arguments()
    communicator = TorchCommunicator(300)
    if given.batch % communicator.size:
        raise SystemExit(f"DDP means over ranks, so --batch is a multiple of them. Received: {given.batch}.")
    rng = np.random.default_rng(0)
    x = rng.random((given.batch, *map(int, given.image.split(","))), dtype=np.float32)
    y = rng.integers(0, given.classes, given.batch)
    steps = {"ddp": ddp_step(given, communicator, x, y)}
    steps |= {name: minicnn_step(given, name, communicator, x, y) for name in given.backends.split(",")}
    losses = {name: [step() for _ in range(CHECKED)] for name, step in steps.items()}
    for name, found in losses.items():
        if not np.allclose(found, losses["ddp"], rtol=TOLERANCE):
            raise SystemExit(f"All candidates compute the same losses. Received: {name} {found}, DDP {losses['ddp']}.")

    def timed(step: Callable[[], float]) -> Callable[[], float]:
        def run() -> float:
            dist.barrier()
            start = time.perf_counter()
            for _ in range(given.steps):
                step()
            dist.barrier()
            return (time.perf_counter() - start) / given.steps

        return run

    seconds = interleaved({name: timed(step) for name, step in steps.items()}, rounds=given.rounds)
    if communicator.rank:
        return
    median = {name: statistics.median(found) for name, found in seconds.items()}
    threads = f"{torch.get_num_threads()} PyTorch thread(s)"
    print(f"{given.network}, batch {given.batch} on {communicator.size} ranks, {threads}: median ms of a step")
    for name, value in median.items():
        print(f"  {name:12} {value * 1e3:9.3f}   {median['ddp'] / value:5.2f} times DDP's speed")
    if given.json:
        given.json.write_text(
            json.dumps({"arguments": vars(given) | {"json": None}, "seconds": seconds}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
