"""Steps whose sums go through NCCL, on one GPU and on two: do they leave the same weights, and what do they cost?

    python benchmarks/nccl_steps.py [--network NAME] [--image H,W,C] [--classes N] [--batch N] [--shards N] [--rounds N]
        [--backends cupy,numba_cuda]

For each backend, with CUDA graphs and without: steps without NCCL, with it in the fixed tree, and in the fast mode,
timed in turn. One rank sends nothing to others; what is tried is that NCCL takes part in the stream and in the graphs.
With one shard steps without NCCL are those of no distribution, and weights differ by rounding.

    python benchmarks/nccl_steps.py --ranks 2 [--limit SECONDS] [--networks "NAME:H,W,C ..."] [--batch N] [--rounds N]
        [--backends cupy,numba_cuda]

Ranks that torchrun starts, with a GPU each: for each network and backend ms a step of one GPU alone with the whole
batch, and of all of them with their parts of it, in the tree and in the fast mode, beside PyTorch's
DistributedDataParallel through NCCL. Each line is printed as soon as it is known; one whose loss of the first step is
not that of one GPU says so in place of a time. Each backend has its share of the limit. Without GPUs, and with
--backends numpy, it goes through gloo, to be tried.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minicnn import zoo
from minicnn.backends import get_backend
from minicnn.backends._gpu.options import Options
from minicnn.callbacks import LambdaCallback
from minicnn.distribution import DataParallel, NcclCommunicator, OneProcess, TorchCommunicator
from minicnn.layers import BatchNormalization
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.timing import interleaved
from minicnn.models import Model
from minicnn.ops.groups import rows
from minicnn.optimizers import SGD

STEPS = 20  # of a round
RATE, MOMENTUM = 0.01, 0.9
TOLERANCE = 1e-3  # of the losses of the first step


def main() -> None:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="platforms")
    parser.add_argument("--image", default="28,28,1")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--backends", default="cupy,numba_cuda")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--networks", default="platforms:28,28,1 resnet18:64,64,3", help="separated by spaces")
    parser.add_argument("--limit", type=float, default=110.0)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        Ranks(given).run(given.worker)
    elif given.ranks > 1:
        end, kinds = time.monotonic() + given.limit, ["torch", *given.backends.split(",")]
        for left, kind in zip(range(len(kinds), 0, -1), kinds, strict=True):
            start(kind, given.ranks, (end - time.monotonic()) / left)
    else:
        one_gpu(given)


def start(kind: str, ranks: int, limit: float) -> None:
    """Start this file on several ranks for PyTorch or a backend, by itself, since what fails may end them."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    own = ["--worker", kind, "--limit", str(limit)]
    process = subprocess.Popen([sys.executable, *launch, __file__, *sys.argv[1:], *own])
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        print(f"{kind}: ended after {limit:.0f} seconds", flush=True)
        process.terminate()  # torchrun ends its ranks
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def made(network: str, shape: tuple[int, ...], classes: int, backend: Any) -> Model:
    """A network that gives logits."""
    return zoo.get_model(network, num_classes=classes, input_shape=shape, backend=backend)


def compiled(model: Model, distribution: DataParallel | None) -> Model:
    """The same, ready to be trained."""
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(RATE, momentum=MOMENTUM), loss, distribution=distribution)
    return model


# Several GPUs -------------------------------------------------------------------------------------


class Ranks:
    """What each rank does.

    Args:
        given: The arguments of the command.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        self.given, self.torch, self.dist = given, torch, dist
        self.end = time.monotonic() + given.limit - 15  # seconds that starting may have taken
        self.communicator = TorchCommunicator(given.limit)  # others may compile for long while a rank waits
        self.cuda = torch.cuda.is_available()
        self.device, self.gpus = torch.device("cpu"), None
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # as minicnn's float32
        if self.cuda:
            self.device = torch.device("cuda", self.communicator.rank)
            torch.cuda.set_device(self.device)
            self.gpus = dist.new_group(backend="nccl")
        self.first = self.communicator.rank == 0

    def say(self, text: str) -> None:
        """Print it on the first rank."""
        if self.first:
            print(text, flush=True)

    def late(self) -> bool:
        """Whether there is no time left, as all ranks see it."""
        return self.communicator.share(b"x" if time.monotonic() > self.end else b"")[0] == b"x"

    def run(self, kind: str) -> None:
        """All networks with "torch" or a backend."""
        given = self.given
        where = self.torch.cuda.get_device_name(0) if self.cuda else "CPU"
        self.say(f"{kind}: {self.communicator.size} ranks, {where}; batch {given.batch}, float32; median ms of a step")
        losses: dict[str, float] = {}
        for entry in given.networks.split():
            self.network, _, image = entry.partition(":")
            self.shape = tuple(map(int, image.split(",")))
            rng = np.random.default_rng(0)
            self.x = rng.random((STEPS * given.batch, *self.shape), dtype=np.float32)
            self.y = rng.integers(0, given.classes, len(self.x))
            for name, alone, begin in self.peers() if kind == "torch" else self.ours(kind):
                if self.late():
                    self.say("no time is left for more")
                    return
                self.time(name, alone, begin, losses)

    def time(self, name: str, alone: bool, begin: Callable[[], Any], losses: dict[str, float]) -> None:
        """Time something on the first rank alone, or on all.

        Args:
            name: What it is.
            alone: Whether the others wait.
            begin: Gives the loss of the first step, and the seconds of a step in each round.
            losses: Of each network on one GPU; entries are added.
        """
        found: tuple[float, list[float]] | None = None
        if self.first or not alone:
            found = begin()
        self.communicator.share(b"")
        if found is None or not self.first:
            return
        loss, seconds = found
        expected = losses.setdefault(self.network, loss)
        line = f"  {self.network:10} {name:34}"
        if abs(loss - expected) > TOLERANCE * abs(expected) and "local" not in name:
            self.say(f"{line} no time: its loss is {loss:.5g}, not {expected:.5g}")
        else:
            middle, least = (1e3 * function(seconds) for function in (statistics.median, min))
            self.say(f"{line} {middle:9.3f}   least {least:.3f}   loss {loss:.6g}")

    def ours(self, name: str) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
        """One GPU, and all of them in each mode."""
        ranks = self.communicator.size
        gpu = name in ("cupy", "numba_cuda")
        communicator: Any = NcclCommunicator(self.communicator) if gpu else self.communicator
        normalized = any(isinstance(layer, BatchNormalization) for layer in self.layers(self.model("numpy")))
        yield f"{name}, one rank", True, lambda: self.fit(name, None)
        for local in (False, True) if normalized else (False,):
            for deterministic in (True, False):
                mode = f"{'tree' if deterministic else 'fast'}{', local statistics' if local else ''}"
                about = {"communicator": communicator, "deterministic": deterministic}
                yield (
                    f"{name}, {ranks} ranks, {mode}", False,
                    lambda about=about, local=local: self.fit(name, DataParallel(ranks, **about), local),
                )  # fmt: skip

    def model(self, backend: str) -> Model:
        """The network that is timed."""
        return made(self.network, self.shape, self.given.classes, backend)

    def layers(self, model: Model) -> list[Any]:
        """All of them, those within blocks, too."""
        return list(model._with_sublayers())

    def fit(self, name: str, distribution: DataParallel | None, local: bool = False) -> tuple[float, list[float]]:
        """The loss of the first step, and seconds of a step in each round."""
        model = self.model(name)
        for layer in self.layers(model):
            if isinstance(layer, BatchNormalization):
                layer.synchronized = not local
        compiled(model, distribution)
        x, y = (model.backend.asarray(a) for a in (self.x, self.y.astype(np.int32)))
        ends: list[float] = []

        def ended(epoch: int, logs: Any) -> None:
            float(logs["loss"])  # waits for the device
            ends.append(time.perf_counter())

        batch, quiet = self.given.batch, {"verbose": 0, "shuffle": False}
        first = model.fit(x[:batch], y[:batch], batch, 1, **quiet).history["loss"][0]
        # One round in which kernels may be compiled, and one to warm up.
        model.fit(x, y, batch, self.given.rounds + 2, callbacks=[LambdaCallback(on_epoch_end=ended)], **quiet)
        return first, [float(s) for s in np.diff(ends)[1:] / STEPS]

    # PyTorch ------------------------------------------------------------------------------------

    def peers(self) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
        """PyTorch's own modules on one GPU, and DistributedDataParallel."""
        ranks = self.communicator.size
        yield "torch.nn, one rank", True, lambda: self.train(distributed=False)
        module = self.module()
        if any(isinstance(m, self.torch.nn.BatchNorm2d) for m in module.modules()):
            if self.cuda:
                yield f"DDP, {ranks} ranks, SyncBatchNorm", False, lambda: self.train(synchronized=True)
            yield f"DDP, {ranks} ranks, local statistics", False, self.train
        else:
            yield f"DDP, {ranks} ranks", False, self.train

    def module(self) -> Any:
        """The same of PyTorch, with the same weights."""
        from minicnn.measure.torch_networks import build

        module = build(self.network, self.shape, self.given.classes, self.model("numpy").get_weights())
        return module.to(self.device, memory_format=self.torch.channels_last)

    def train(self, distributed: bool = True, synchronized: bool = False) -> tuple[float, list[float]]:
        """As `fit`."""
        torch, batch, module = self.torch, self.given.batch, self.module()
        own = range(batch)
        if synchronized:
            module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, self.gpus)
        if distributed:
            module = torch.nn.parallel.DistributedDataParallel(module, process_group=self.gpus)
            own = rows(batch, self.communicator.size, self.communicator.rank)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), RATE, MOMENTUM)
        x = torch.from_numpy(self.x).permute(0, 3, 1, 2).to(self.device, memory_format=torch.channels_last)
        y = torch.from_numpy(self.y.astype(np.int64)).to(self.device)

        def step(number: int) -> Any:
            part = slice(number * batch + own.start, number * batch + own.stop)
            loss = torch.nn.functional.cross_entropy(module(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach() * (len(own) / batch)

        def whole(total: Any) -> float:
            if distributed:
                self.dist.all_reduce(total, group=self.gpus)
            return float(total)

        first = whole(step(0))
        seconds: list[float] = []
        for _ in range(self.given.rounds + 2):
            begun, total = time.perf_counter(), torch.zeros((), device=self.device)
            for number in range(STEPS):
                total += step(number)
            whole(total)
            seconds.append((time.perf_counter() - begun) / STEPS)
        return first, seconds[2:]


# One GPU ------------------------------------------------------------------------------------------


def one_gpu(given: argparse.Namespace) -> None:
    """Check the bits, then time."""
    shape = tuple(map(int, given.image.split(",")))
    rng = np.random.default_rng(0)
    x = rng.random((given.batch, *shape), dtype=np.float32)
    y = rng.integers(0, given.classes, given.batch)
    nccl = {"communicator": NcclCommunicator(OneProcess())}
    kinds: dict[str, dict[str, Any]] = {"without": {}, "tree": nccl, "fast": nccl | {"deterministic": False}}

    def timed(model: Model) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in range(STEPS):
                model.train_on_batch(x, y)
            return (time.perf_counter() - start) / STEPS

        return run

    for name in given.backends.split(","):
        for graph in (True, False):
            backend = type(get_backend(name))(options=Options(graph=graph))  # type: ignore[call-arg]
            models = {
                kind: compiled(made(given.network, shape, given.classes, backend), DataParallel(given.shards, **about))
                for kind, about in kinds.items()
            }
            seconds = interleaved({kind: timed(model) for kind, model in models.items()}, rounds=given.rounds)
            weights = [list(model.get_weights().values()) for model in models.values()]
            apart = max(np.abs(a - b).max() for other in weights[1:] for a, b in zip(weights[0], other, strict=True))
            print(f"{name}, {'CUDA graphs' if graph else 'no graphs'}: weights at most {apart:.1e} apart")
            for kind, found in seconds.items():
                print(f"  {kind:8} {statistics.median(found) * 1e3:9.3f} ms a step, least {min(found) * 1e3:.3f}")


if __name__ == "__main__":
    main()
