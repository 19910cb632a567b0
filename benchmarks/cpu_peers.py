"""Training on the CPU beside PyTorch and JAX, alternating, after checking that all compute the same losses.

    python benchmarks/cpu_peers.py [--json FILE] [--rounds N] [--threads N] [CASE ...]

Each candidate runs in a process of its own and is idle while another is timed. PyTorch runs at its best: images in
float32 and normalised beforehand, channels last, also with malloc tuned so that it keeps its memory. minicnn runs
through `fit` on uint8 images. Data are random bytes, which take the same time as real ones.

    platforms, kernels, mlp                          the reference studies' networks, time of an epoch (an iteration)
    resnet18, resnet50, mobilenet_v2, squeezenet1_1  64x64 images, 200 classes, time of a step
    channels12, kernel5, stride2, batch96, rgb32     variations of `platforms` and `kernels`, time of an epoch
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TUNED_MALLOC = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network and how it is trained.

    Attributes:
        layers: (filters, kernel, stride, pool) of each convolution, then units of hidden dense layers; empty for a
            network of the zoo.
        image: (H, W, C).
        batch: Samples of a step.
        steps: Steps of an epoch; times are of an epoch.
        timed: Steps of a timed round.
        classes: Number of classes.
        rate: Learning rate.
        momentum: Momentum.
    """

    layers: tuple[Any, ...]
    image: tuple[int, int, int] = (28, 28, 1)
    batch: int = 512
    steps: int = 118
    timed: int = 40
    classes: int = 10
    rate: float = 0.01
    momentum: float = 0.9


# A small rate: with a large one a deep network magnifies rounding within two steps.
_DEEP: dict[str, Any] = {"image": (64, 64, 3), "steps": 1, "timed": 2, "classes": 200, "rate": 1e-4}
CASES = {
    "platforms": Case(((8, 3, 1, 2), (16, 3, 1, 2), 128)),
    "kernels": Case(((16, 3, 1, 0), (32, 3, 1, 2)), batch=64, steps=938, timed=80, momentum=0.0),
    "mlp": Case((10,), batch=59_000, steps=1, timed=8, rate=0.1, momentum=0.0),
    "channels12": Case(((12, 3, 1, 2), (24, 3, 1, 2), 128)),
    "kernel5": Case(((8, 5, 1, 2), (16, 5, 1, 2), 128)),
    "stride2": Case(((16, 3, 2, 0), (32, 3, 2, 0), 128)),
    "batch96": Case(((8, 3, 1, 2), (16, 3, 1, 2), 128), batch=96, steps=625, timed=160),
    "rgb32": Case(((16, 3, 1, 0), (32, 3, 1, 2)), image=(32, 32, 3), batch=64, steps=781, timed=80),
    "resnet18": Case((), batch=128, **_DEEP),
    "resnet50": Case((), batch=128, **_DEEP),
    "mobilenet_v2": Case((), batch=128, **_DEEP),
    "squeezenet1_1": Case((), batch=64, **_DEEP),
}
DROPOUT = ("mobilenet_v2", "squeezenet1_1", "vgg11")  # networks that have some
CANDIDATES = ("minicnn", "torch", "torch channels-last", "torch channels-last, tuned malloc", "jax")


def samples(case: Case) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random images (N, H, W, C) uint8 and labels (N,) for a round."""
    generator = np.random.default_rng(0)
    # A round goes over the samples a whole number of times.
    count = case.batch * (1 if case.steps == 1 and case.layers else min(case.timed, 40))
    if case.timed * case.batch % count:
        raise ValueError(
            f"A round is a whole number of epochs. Received: {case.timed} steps of {case.batch} on {count} samples."
        )
    return (
        generator.integers(0, 256, (count, *case.image), np.uint8),
        generator.integers(0, case.classes, count).astype(np.int32),
    )


def sequential(case: Case, backend: Any = None) -> Any:
    """A network of a case's own layers in minicnn, not compiled."""
    from minicnn import Sequential, layers

    stack: list[Any] = [layers.Input(case.image, dtype="uint8"), layers.Rescaling(1 / 255)]
    for one in case.layers:
        if isinstance(one, tuple):
            filters, kernel, stride, pool = one
            stack.append(layers.Conv2D(filters, kernel, strides=stride, activation="relu"))
            stack += [layers.MaxPooling2D(pool)] if pool else []
    stack.append(layers.Flatten())
    stack += [layers.Dense(one, "relu") for one in case.layers if isinstance(one, int)]
    return Sequential([*stack, layers.Dense(case.classes)], backend=backend)


def torch_network(case: Case) -> Any:
    """The same network of PyTorch's modules, for images (N, C, H, W)."""
    import torch
    from torch import nn

    H, W, C = case.image
    modules: list[Any] = []
    shape: tuple[int, ...] = (C, H, W)
    for one in case.layers:
        if isinstance(one, tuple):
            filters, kernel, stride, pool = one
            modules += [nn.Conv2d(shape[0], filters, kernel, stride), nn.ReLU()]
            modules += [nn.MaxPool2d(pool)] if pool else []
            shape = tuple(nn.Sequential(*modules)(torch.zeros(1, C, H, W)).shape[1:])
    modules.append(nn.Flatten())
    units = [int(np.prod(shape)), *(one for one in case.layers if isinstance(one, int))]
    for inputs, outputs in itertools.pairwise(units):
        modules += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(units[-1], case.classes))


def torch_module(name: str, case: Case, weights: dict[str, np.ndarray[Any, Any]]) -> Any:
    """A case's network of PyTorch's modules, which have no dropout, with minicnn's weights."""
    import torch

    from minicnn.measure import torch_networks

    if not case.layers:
        return torch_networks.build(name, case.image, case.classes, weights).train()
    H, W, C = case.image
    network = torch_network(case)
    torch_networks.load(network, weights, torch_networks.image_before_dense(network, torch.zeros(2, C, H, W)))
    return network.train()


def jax_loss(case: Case) -> Callable[[list[Any], Any, Any], Any]:
    """Mean loss of the same network in plain JAX: a function of weights, images (N, H, W, C) and labels (N,)."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    def forward(weights: list[Any], h: Any) -> Any:
        pairs: Iterator[Any] = iter(zip(weights[::2], weights[1::2], strict=True))
        for one in case.layers:
            if isinstance(one, tuple):
                _, _, stride, pool = one
                kernel, bias = next(pairs)
                h = lax.conv_general_dilated(
                    h, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                h = jax.nn.relu(h + bias)
                if pool:
                    window = (1, pool, pool, 1)
                    h = lax.reduce_window(h, -jnp.inf, lax.max, window, window, "VALID")
        h = h.reshape(len(h), -1)
        rest = list(pairs)
        for i, (kernel, bias) in enumerate(rest):
            h = h @ kernel + bias
            h = jax.nn.relu(h) if i < len(rest) - 1 else h
        return h

    def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
        logits = jax.nn.log_softmax(forward(weights, x))
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    return loss_of


def deep(name: str, case: Case, backend: Any = None) -> Any:
    """A network of the zoo in minicnn for the images of a case, without dropout, not compiled."""
    from minicnn import layers, zoo

    return zoo.get_model(
        name,
        num_classes=case.classes,
        input_shape=case.image,
        backend=backend,
        preprocessing=[layers.Rescaling(1 / 255)],
        input_dtype="uint8",
        **({"dropout": 0.0} if name in DROPOUT else {}),
    )


def model_of(name: str, backend: Any = None) -> Any:
    """The network in minicnn, compiled."""
    from minicnn.losses import SparseCategoricalCrossentropy
    from minicnn.optimizers import SGD

    case = CASES[name]
    model = sequential(case, backend) if case.layers else deep(name, case, backend)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(case.rate, momentum=case.momentum), loss)
    return model


# Candidates: each makes a function that trains a round and returns its mean loss -----------------


def minicnn_round(name: str, threads: int) -> Callable[[], float]:
    """Train through `fit` on the numba backend."""
    from minicnn.backends import backend_class

    case = CASES[name]
    x, y = samples(case)
    model = model_of(name, backend_class("numba")(threads=threads))
    epochs = case.timed * case.batch // len(x)

    def run() -> float:
        made = model.fit(x, y, batch_size=case.batch, epochs=epochs, shuffle=False, verbose=0)
        return statistics.fmean(made.history["loss"])

    return run


def torch_round(name: str, threads: int, *, channels_last: bool) -> Callable[[], float]:
    """Train with PyTorch's own modules, eagerly."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    case = CASES[name]
    x, y = samples(case)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network = torch_module(name, case, model_of(name, "numpy").get_weights()).to(memory_format=layout)
    images = torch.from_numpy(x).permute(0, 3, 1, 2).to(torch.float32) / 255
    images = images.contiguous(memory_format=layout)
    labels = torch.from_numpy(y.astype(np.int64))
    optimizer = torch.optim.SGD(network.parameters(), case.rate, case.momentum)
    every = torch.arange(len(y))

    def run() -> float:
        total = torch.zeros(())
        for step in range(case.timed):
            index = every[step * case.batch % len(y) :][: case.batch]
            whole = case.batch == len(y)
            loss = nn.functional.cross_entropy(
                network(images if whole else images[index]), labels if whole else labels[index]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return float(total) / case.timed

    return run


def jax_round(name: str, threads: int) -> Callable[[], float]:
    """Train with one jitted step in plain JAX; networks of this file's own layers only."""
    import jax
    from jax import numpy as jnp

    case = CASES[name]
    x, y = samples(case)
    weights = [jnp.asarray(w) for w in model_of(name, "numpy").get_weights().values()]
    images, labels = jnp.asarray(x.astype(np.float32) / 255), jnp.asarray(y)

    loss_of = jax_loss(case)

    @jax.jit
    def step(weights: Any, velocity: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        velocity = [case.momentum * v - case.rate * g for v, g in zip(velocity, gradients, strict=True)]
        return [w + v for w, v in zip(weights, velocity, strict=True)], velocity, loss

    state = [weights, [jnp.zeros_like(w) for w in weights]]

    def run() -> float:
        losses = []
        for i in range(case.timed):
            first = i * case.batch % len(y)
            if case.batch == len(y):
                *state[:], loss = step(*state, images, labels)
            else:
                *state[:], loss = step(*state, images[first : first + case.batch], labels[first : first + case.batch])
            losses.append(loss)
        return float(jnp.stack(losses).mean())

    return run


def worker(candidate: str, name: str, threads: int) -> None:
    """Train a round at each line of the standard input, and print its loss and time."""
    if candidate == "minicnn":
        run = minicnn_round(name, threads)
    elif candidate == "jax":
        run = jax_round(name, threads)
    else:
        run = torch_round(name, threads, channels_last="channels-last" in candidate)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = run()
        print(json.dumps({"loss": loss, "seconds": time.perf_counter() - start}), flush=True)


# The parent --------------------------------------------------------------------------------------


@contextmanager
def started(candidate: str, name: str, threads: int) -> Iterator[Callable[[], dict[str, float]]]:
    """A candidate's process, as a function that trains a round there."""
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={threads > 1}"}
    env |= TUNED_MALLOC if "malloc" in candidate else {}
    command = [sys.executable, __file__, "--worker", candidate, "--threads", str(threads), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        if process.stdin is None or process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{candidate} could not be started for {name}; its error is above.")
        stdin, stdout = process.stdin, process.stdout

        def ask() -> dict[str, float]:
            stdin.write("\n")
            stdin.flush()
            made: dict[str, float] = json.loads(stdout.readline())
            return made

        yield ask
        stdin.close()


def measure(name: str, candidates: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Milliseconds of an epoch of each candidate: median and quartiles, rounds alternating."""
    from contextlib import ExitStack

    case = CASES[name]
    with ExitStack() as stack:
        ask = {c: stack.enter_context(started(c, name, threads)) for c in candidates}
        losses = {c: run()["loss"] for c, run in ask.items()}
        first = losses[candidates[0]]
        wrong = {c: v for c, v in losses.items() if not abs(v - first) <= 2e-4 * abs(first)}
        if wrong:
            raise RuntimeError(f"{name}: all candidates have the same loss in the first round. Received: {losses}.")
        times: dict[str, list[float]] = {c: [] for c in candidates}
        for _ in range(rounds):
            for c, run in ask.items():
                times[c].append(run()["seconds"] * case.steps / case.timed * 1e3)
    result = {}
    for c, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        result[c] = {"loss": losses[c], "median_ms": middle, "low_ms": low, "high_ms": high, "best_ms": min(values)}
    return result


def table(path: Path) -> str:
    """Results of a file as a Markdown table."""
    results = json.loads(path.read_text("utf-8"))
    lines = [
        "| case | minicnn | " + " | ".join(c.replace("torch", "PyTorch") for c in CANDIDATES[1:4])
        + " | JAX | minicnn against the fastest PyTorch |",
        "| --- |" + " ---: |" * 6,
    ]  # fmt: skip
    for name, case in CASES.items():
        rows = results.get(name, {})
        cells = [f"{rows[c]['median_ms']:,.1f}" if c in rows else "" for c in CANDIDATES]
        torch = [row["median_ms"] for c, row in rows.items() if c.startswith("torch")]
        if torch:
            what = "an epoch" if case.steps > 1 else "a step"
            ratio = min(torch) / rows["minicnn"]["median_ms"]
            lines.append(f"| `{name}`, {what}, batch {case.batch:,} | " + " | ".join(cells) + f" | {ratio:.2f} times |")
    return "\n".join(lines)


def main() -> None:
    """Measure the cases named, print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; all if none is named")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    listed = ", ".join(f"{i} {c}" for i, c in enumerate(CANDIDATES))
    parser.add_argument("--candidates", default="0,1,2,3,4", help=f"numbers of candidates ({listed})")
    parser.add_argument("--table", type=Path, help="print the results of a file as a Markdown table, measure nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.table))
        return
    names = arguments.cases or list(CASES)
    if unknown := set(names) - set(CASES):
        parser.error(f"the cases are {', '.join(CASES)}. Received: {', '.join(sorted(unknown))}.")
    if arguments.rounds < 2:
        parser.error(f"quartiles need at least 2 rounds. Received: --rounds {arguments.rounds}.")
    if arguments.worker:
        worker(arguments.worker, names[0], arguments.threads)
        return
    from minicnn import machine

    results: dict[str, Any] = {"machine": machine.facts(), "threads": arguments.threads, "precision": "float32"}
    wanted = [CANDIDATES[int(i)] for i in arguments.candidates.split(",")]
    for name in names:
        chosen = [c for c in wanted if c != "jax" or CASES[name].layers]
        made = results[name] = measure(name, chosen, arguments.rounds, arguments.threads)
        base = made[chosen[0]]["median_ms"]
        print(f"{name}: ms per {'epoch' if CASES[name].steps > 1 else 'step'}, median (quartiles), ratio, loss")
        for c, row in made.items():
            spread = f"({row['low_ms']:.1f} to {row['high_ms']:.1f})"
            print(
                f"  {c:36} {row['median_ms']:10.1f} {spread:24} {row['median_ms'] / base:6.2f}  {row['loss']:.6f}",
                flush=True,
            )
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
