"""Training on several ranks beside one, and beside PyTorch's DistributedDataParallel (DDP): the same global batch.

    python benchmarks/ddp.py [--ranks N] [--networks "NAME:H,W,C ..."] [--contenders "torch cupy"] [--batch N]
        [--modes one,tree,fast] [--precisions float32,mixed_bfloat16] [--rounds N] [--steps N] [--limit SECONDS]
        [--json FILE]

Each contender, "torch" for PyTorch's own modules or a backend of minicnn, is started on its own, as what fails may end
all ranks; those joined by a plus, as in "torch+numba", live in the same processes and take turns. torchrun starts
several ranks, which have a GPU each, or talk through gloo. A backend may have a strategy of convolution, as
torch/vendor. The modes of a backend are

- one: one rank alone with the whole batch;
- part: one rank alone with its part of the batch, which bounds what several can do;
- tree, fast: all ranks with one shard each; by one rank, on GPUs, what cutting a step for NCCL costs;
- tree-local, fast-local: likewise with statistics of batch normalisation of each shard;
- tree-messages, fast-messages: likewise with small sums by NCCL, where kernels would take them in the peers' memory.

Those of PyTorch are one, ddp, its statistics being local, and sync; each with -graph for a CUDA graph of a step. What a
contender cannot do is left out. Medians are of rounds of so many steps; one whose loss of the first step is not that of
the others is not timed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minicnn import zoo
from minicnn.backends import get_backend
from minicnn.callbacks import LambdaCallback
from minicnn.distribution import DataParallel, NcclCommunicator, OneProcess, TorchCommunicator
from minicnn.layers import BatchNormalization
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import Spread, interleaved, stopwatch
from minicnn.models import Model
from minicnn.ops.groups import rows
from minicnn.optimizers import SGD

RATE, MOMENTUM = 0.01, 0.9
TOLERANCE = {"float32": 1e-3, "mixed_bfloat16": 3e-2}  # of the losses of the first step
ENGINES = ("cupy", "numba_cuda")
WARM = 12  # steps of DDP before a capture, in which it arranges its buckets


def main() -> None:
    """Start each contender in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--networks", default="platforms:28,28,1", help="separated by spaces")
    parser.add_argument("--contenders", default="torch cupy", help="separated by spaces")
    parser.add_argument("--modes", default="one,tree,fast,tree-local,fast-local,ddp,sync,one-graph,ddp-graph")
    parser.add_argument("--precisions", default="float32")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        Worker(given).run()
        return
    groups, end = given.contenders.split(), time.monotonic() + given.limit
    for left, group in zip(range(len(groups), 0, -1), groups, strict=True):
        start(group, given.ranks, (end - time.monotonic()) / left)


def start(group: str, ranks: int, limit: float) -> None:
    """Start this file on so many ranks, which have so many seconds."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    own = ["--worker", group, "--limit", str(limit)]
    process = subprocess.Popen([sys.executable, *launch, __file__, *sys.argv[1:], *own])
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        status = None
        process.terminate()  # torchrun ends its ranks
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    print(f"{group}: {'ended after its time' if status is None else f'status {status}'}", flush=True)


@dataclass(frozen=True)
class Contender:
    """What is timed.

    Attributes:
        name: What it is.
        alone: Whether the first rank does it while the others wait.
        begin: Gives the loss of the first step, and what gives the seconds of a step in a round.
        like: Contenders like it compute the same loss.
    """

    name: str
    alone: bool
    begin: Callable[[], tuple[float, Callable[[], float]]]
    like: str = ""


class Worker:
    """What each rank does with the contenders that live in the same processes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.modes = given, given.modes.split(",")
        self.end = time.monotonic() + given.limit - 15  # seconds that starting may have taken
        self.contenders = given.worker.split("+")
        self.communicator: Any = OneProcess() if given.ranks == 1 else TorchCommunicator(given.limit)
        self.first, self.ranks = self.communicator.rank == 0, self.communicator.size
        self.found: list[dict[str, Any]] = []
        self.peers = Peers(self) if "torch" in self.contenders else None

    def say(self, text: str) -> None:
        """Print it on the first rank."""
        if self.first:
            print(text, flush=True)

    def run(self) -> None:
        """All networks, in all precisions."""
        given = self.given
        self.say(f"{given.worker}: {self.ranks} rank(s), batch {given.batch}; median ms of a step")
        for entry in given.networks.split():
            self.network, _, image = entry.partition(":")
            self.shape = tuple(map(int, image.split(",")))
            rng = np.random.default_rng(0)
            self.x = rng.random((given.steps * given.batch, *self.shape), dtype=np.float32)
            self.y = rng.integers(0, given.classes, len(self.x))
            for self.precision in given.precisions.split(","):
                late = b"x" if time.monotonic() > self.end else b""
                if self.communicator.share(late)[0]:  # as the first rank sees it
                    self.say("no time is left for more")
                    return
                self.take_turns()
                gc.collect()  # graphs that keep NCCL
        if given.json and self.first:
            known = json.loads(given.json.read_text()) if given.json.exists() else []
            given.json.write_text(json.dumps(known + self.found, indent=1) + "\n")

    def take_turns(self) -> None:
        """Let all of a network begin, compare their first losses, and time them in turn."""
        rounds: dict[str, Callable[[], float]] = {}
        losses: dict[str, float] = {}
        for each in self.entries():
            loss, once = 0.0, float
            if self.first or not each.alone:
                loss, once = each.begin()
            loss = float(self.communicator.share(repr(loss).encode())[0])  # all agree on what is left out
            expected = losses.setdefault(each.like, loss)
            if abs(loss - expected) <= TOLERANCE[self.precision] * abs(expected):
                rounds[each.name] = partial(self.once, each, once)
            else:
                self.say(f"  {self.network} {each.name}: not timed, its loss is {loss:.6g}, not {expected:.6g}")
        # No budget: all ranks do as many rounds, in the same order.
        for name, taken in interleaved(rounds, rounds=self.given.rounds).items():
            middle = Spread.of(taken, 1e3).median
            self.say(f"  {self.network:10} {self.precision:15} {name:34} {middle:9.3f}   least {1e3 * min(taken):.3f}")
            about = {"ranks": self.ranks, "batch": self.given.batch, "precision": self.precision}
            self.found.append({"network": self.network, "name": name, **about, "seconds": taken})

    def once(self, each: Contender, run: Callable[[], float]) -> float:
        """Seconds of a step in a round, after which all ranks meet."""
        taken = run() if self.first or not each.alone else 0.0
        self.communicator.share(b"")
        return taken

    def entries(self) -> list[Contender]:
        """All that is asked for, and can be done."""
        entries: list[Contender] = []
        model = self.model("numpy")
        normalized = any(isinstance(layer, BatchNormalization) for layer in model._with_sublayers())
        for kind in self.contenders:
            modes = [m for m in self.modes if normalized or m.partition("-")[2] != "local"]
            if self.peers is not None and kind == "torch":
                entries += self.peers.entries(modes, model.get_weights(), normalized)
            else:
                entries += self.ours(kind, modes)
        return entries

    # minicnn --------------------------------------------------------------------------------------

    def model(self, backend: Any) -> Model:
        """The network, which gives logits."""
        return zoo.get_model(self.network, num_classes=self.given.classes, input_shape=self.shape, backend=backend)

    def ours(self, kind: str, modes: list[str]) -> list[Contender]:
        """One rank alone, and all of them in each mode."""
        name, _, strategy = kind.partition("/")
        communicator = self.communicator
        apart = communicator
        if name in ENGINES:
            communicator, apart = (NcclCommunicator(communicator, peers=peers) for peers in (True, False))
        entries: list[Contender] = []
        if self.precision not in get_backend(name).precisions:
            return entries
        for mode in modes:
            sums, _, local = mode.partition("-")
            through = apart if local == "messages" else communicator
            about = {"communicator": through, "deterministic": sums == "tree"}
            if sums in ("tree", "fast") and (self.ranks > 1 or name in ENGINES):
                shared = DataParallel(self.ranks, **about)
            elif mode in ("one", "part"):
                shared = None
            else:
                continue

            part = mode == "part"

            def begin(shared: Any = shared, local: str = local, part: bool = part) -> tuple[float, Callable[[], float]]:
                device = get_backend(name, convolution=strategy or None)
                return self.fit(device, shared, local == "local", self.given.batch // (self.ranks if part else 1))

            own = f"{kind}, {1 if shared is None else self.ranks} rank(s), {mode}"
            like = mode if part else "local" if local == "local" and self.ranks > 1 else ""
            entries.append(Contender(own, shared is None, begin, like))
        return entries

    def fit(
        self, backend: Any, shared: DataParallel | None, local: bool, batch: int
    ) -> tuple[float, Callable[[], float]]:
        """See `Contender.begin`."""
        given, model = self.given, self.model(backend)
        for layer in model._with_sublayers():
            if isinstance(layer, BatchNormalization):
                layer.synchronized = not local
        loss = SparseCategoricalCrossentropy(from_logits=True)
        model.compile(SGD(RATE, momentum=MOMENTUM), loss, distribution=shared, precision=self.precision)
        count = given.steps * batch
        x, y = (model.backend.asarray(a[:count]) for a in (self.x, self.y.astype(np.int32)))
        quiet = {"verbose": 0, "shuffle": False}
        first = model.fit(x[:batch], y[:batch], batch, 1, **quiet).history["loss"][0]

        def once() -> float:
            ends: list[float] = []

            def ended(epoch: int, logs: Any) -> None:
                float(logs["loss"])  # waits for the device
                ends.append(time.perf_counter())

            # What `fit` does once, such as comparing weights between ranks, is before the first epoch's end.
            model.fit(x, y, batch, 2, callbacks=[LambdaCallback(on_epoch_end=ended)], **quiet)
            return (ends[1] - ends[0]) / given.steps

        return first, once


class Peers:
    """PyTorch's modules, by themselves and in DistributedDataParallel.

    Args:
        worker: Whose network and data they have.
    """

    def __init__(self, worker: Worker) -> None:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # a watchdog would ask events of a capture
        import torch
        import torch.distributed as dist

        self.worker, self.torch, self.dist = worker, torch, dist
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # as minicnn's float32
        self.cuda, self.gpus = torch.cuda.is_available(), None
        self.device = torch.device("cuda", worker.communicator.rank) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
            self.gpus = dist.new_group(backend="nccl") if worker.ranks > 1 else None

    def entries(self, modes: list[str], weights: Any, normalized: bool) -> list[Contender]:
        """What is asked for, and can be done."""
        entries: list[Contender] = []
        for mode in modes:
            kind, _, graph = mode.partition("-")
            several = kind in ("ddp", "sync") and self.worker.ranks > 1 and (kind == "ddp" or normalized)
            if graph not in ("", "graph") or (graph and not self.cuda) or not (several or kind == "one"):
                continue
            if kind == "sync" and (graph or not self.cuda):
                continue

            def begin(kind: str = kind, graph: bool = bool(graph)) -> tuple[float, Callable[[], float]]:
                return self.train(weights, kind, graph)

            ranks = self.worker.ranks if several else 1
            like = "local" if normalized and kind == "ddp" else ""
            entries.append(Contender(f"torch.nn, {ranks} rank(s), {mode}", not several, begin, like))
        return entries

    def train(self, weights: Any, kind: str, graph: bool) -> tuple[float, Callable[[], float]]:
        """See `Contender.begin`."""
        from minicnn.measure.torch_networks import build

        torch, worker = self.torch, self.worker
        given, batch = worker.given, worker.given.batch
        module = build(worker.network, worker.shape, given.classes, weights)
        module = module.to(self.device, memory_format=torch.channels_last)
        stream = torch.cuda.Stream() if self.cuda else None
        own = range(batch)
        if kind == "sync":
            module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, self.gpus)
        if kind != "one":
            own = rows(batch, worker.ranks, worker.communicator.rank)
            with torch.cuda.stream(stream):
                module = torch.nn.parallel.DistributedDataParallel(
                    module, process_group=self.gpus, gradient_as_bucket_view=True
                )
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), RATE, MOMENTUM)
        layout = {"device": self.device, "memory_format": torch.channels_last}
        x = torch.from_numpy(worker.x).permute(0, 3, 1, 2).to(**layout)
        y = torch.from_numpy(worker.y.astype(np.int64)).to(self.device)
        images, labels = x[: len(own)].clone(memory_format=torch.channels_last), y[: len(own)].clone()
        short = worker.precision == "mixed_bfloat16"

        def step() -> Any:
            # Casts of weights are made anew in each step, as a graph would keep the first.
            with torch.autocast(self.device.type, torch.bfloat16, enabled=short, cache_enabled=not graph):
                loss = torch.nn.functional.cross_entropy(module(images).float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.detach() * (len(own) / batch)

        def bring(number: int) -> None:
            part = slice(number * batch + own.start, number * batch + own.stop)
            images.copy_(x[part])
            labels.copy_(y[part])

        def whole(total: Any) -> float:
            if kind != "one":
                self.dist.all_reduce(total, group=self.gpus)
            return float(total)

        with torch.cuda.stream(stream):
            bring(0)
            first = whole(step())
            run = self.captured(step, stream) if graph else step

        def steps() -> None:
            with torch.cuda.stream(stream):
                total = torch.zeros((), device=self.device)
                for number in range(given.steps):
                    bring(number)
                    total += run()
                whole(total)  # waits for the device

        return first, lambda: stopwatch(steps) / given.steps

    def captured(self, step: Callable[[], Any], stream: Any) -> Callable[[], Any]:
        """A step as a CUDA graph."""
        torch = self.torch
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = step()

        # The graph reads weights and state where they are: the step keeps them there.
        return partial(_replayed, graph, loss, step)


def _replayed(graph: Any, loss: Any, step: Callable[[], Any]) -> Any:
    graph.replay()
    return loss


if __name__ == "__main__":
    main()
