"""Training on one GPU beside PyTorch and JAX, alternating, after checking that all compute the same losses.

    python benchmarks/gpu_peers.py [--quick] [--json FILE] [--rounds N] [--image N] [--classes N] [--batch N] [--dry]
                                   [CASE ...]

Each candidate runs in a process of its own and is idle while another is timed. All have the samples on the GPU and
start from the same weights; each round the host hands them the rows of every step, and reads the mean loss at the end.
Peers run at their best: images in float32 and normalised beforehand, PyTorch's optimizer fused, its CUDA graph holding
the whole step with the choice of the rows, in the faster of its two layouts, JAX with all steps in one jitted scan.
"TF32" is what a candidate's products and convolutions are rounded to; all else is float32 everywhere.

    mlp        500 steps on 59,000 samples        platforms, kernels    an epoch of 60,000 samples
    channels12, kernel5, stride2, batch96, batch1000, rgb32    variations of `platforms` and `kernels`
    resnet18, resnet50, mobilenet_v2, squeezenet1_1, vgg11     20 steps on images of 64x64, 200 classes, batch 128;
        float32, bfloat16 and float16: PyTorch by autocast, channels last, compiled with max-autotune

With --dry, all run on the CPU, a few steps on small images, minicnn on PyTorch's arrays: it shows that the candidates
agree and that the script works, and times nothing that counts.

A candidate whose losses differ from the others' is refused, not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import Any, Protocol

import cpu_peers
import numpy as np
from cpu_peers import Case

SETTINGS = json.loads(os.environ.get("GPU_PEERS", "{}"))  # what the parent tells the candidates
DRY = SETTINGS.get("dry", False)
DEVICE = "cpu" if DRY else "cuda"
STUDIES = ("mlp", "platforms", "kernels")
DEEP = ("resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "vgg11")
CASES = {
    "mlp": replace(cpu_peers.CASES["mlp"], steps=500),
    **{name: cpu_peers.CASES[name] for name in ("platforms", "kernels", "channels12", "kernel5", "stride2", "batch96")},
    "batch1000": replace(cpu_peers.CASES["platforms"], batch=1000, steps=60),
    "rgb32": cpu_peers.CASES["rgb32"],
    **{name: replace(cpu_peers.CASES["resnet18"], steps=20) for name in DEEP},
}
if "deep" in SETTINGS:
    CASES |= {name: replace(CASES[name], **SETTINGS["deep"]) for name in DEEP}
LIKE = {name: "kernels" if name == "rgb32" else "platforms" for name in CASES if name not in STUDIES + DEEP}
PROBED = 16  # steps whose mean loss must agree closely; rounding has grown by the end of an epoch
TOLERANCE = {  # of these steps, of a round
    "float32": (2e-4, 1e-2), "tf32": (2e-3, 3e-2), "bfloat16": (2e-2, 3e-2), "float16": (5e-3, 2e-2),
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """Who trains and how.

    Attributes:
        library: "minicnn", "torch" or "jax".
        kind: Backend or way of running.
        precision: Key of `TOLERANCE`.
        standard: Whether it takes part in the variations, and in a quick run.
        deep: Whether it trains the deep networks, and only these if its precision is of 16 bits.
    """

    library: str
    kind: str
    precision: str = "float32"
    standard: bool = False
    deep: bool = False

    def trains(self, case: str, *, few: bool) -> bool:
        """Whether it takes part in a case; in a quick run the `standard` ones do."""
        if case in DEEP:
            return self.deep and (self.standard or not few)
        return not self.precision.endswith("16") and (self.standard or not few)


CANDIDATES = {
    "minicnn cupy": Candidate("minicnn", "cupy", standard=True, deep=True),
    "minicnn cupy, bfloat16": Candidate("minicnn", "cupy", "bfloat16", standard=True, deep=True),
    "minicnn cupy, float16": Candidate("minicnn", "cupy", "float16", deep=True),
    "minicnn numba_cuda": Candidate("minicnn", "numba_cuda"),
    "PyTorch graph": Candidate("torch", "graph", standard=True, deep=True),
    "PyTorch eager": Candidate("torch", "eager"),
    "PyTorch compile": Candidate("torch", "compile"),
    "PyTorch eager, TF32": Candidate("torch", "eager", "tf32"),
    "PyTorch graph, TF32": Candidate("torch", "graph", "tf32", standard=True),
    "PyTorch compile, TF32": Candidate("torch", "compile", "tf32"),
    "PyTorch compile in a graph, TF32": Candidate("torch", "compile graph", "tf32"),
    "PyTorch eager, bfloat16": Candidate("torch", "eager", "bfloat16", deep=True),
    "PyTorch graph, bfloat16": Candidate("torch", "graph", "bfloat16", deep=True),
    "PyTorch compile, bfloat16": Candidate("torch", "compile", "bfloat16", standard=True, deep=True),
    "PyTorch compile, float16": Candidate("torch", "compile", "float16", deep=True),
    "JAX": Candidate("jax", "scan", standard=True),
    "JAX, TF32": Candidate("jax", "scan", "tf32", standard=True),
    "JAX, bfloat16": Candidate("jax", "scan", "bfloat16", deep=True),
}


class Trainer(Protocol):
    """What a candidate does."""

    def reset(self) -> None:
        """Back to the first weights."""

    def train(self, index: np.ndarray[Any, Any]) -> float:
        """A step on each row of an index (steps, batch); the mean loss. On all samples where a batch has them all."""


def _samples(case: Case) -> int:
    if not case.layers:  # a deep network sees each once
        return case.batch * case.steps
    return max(case.batch, 60_000 if case.steps != 500 else 0)


def samples(case: Case) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (N, H, W, C) uint8 that can be told apart, with noise, and labels (N,)."""
    generator = np.random.default_rng(0)
    count = _samples(case)
    y = generator.integers(0, case.classes, count).astype(np.int32)
    ink = (generator.random((case.classes, *case.image)) < 0.15) * np.uint8(150)  # mostly dark, as digits are
    noise = generator.integers(0, 50, (count, *case.image), np.uint8)
    return ink[y] + noise * (noise < 5), y


def rows(case: Case) -> np.ndarray[Any, Any]:
    """Rows of each step of a round, int32 (steps, batch)."""
    count = _samples(case)
    if case.batch == count:
        return np.zeros((case.steps, 0), np.int32)
    order = np.random.default_rng(1).permutation(count).astype(np.int32)
    return np.resize(order, (case.steps, case.batch))


def first_weights(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """The weights that all begin with."""
    weights: dict[str, np.ndarray[Any, Any]] = model(name, "numpy").get_weights()
    return weights


def model(name: str, backend: Any) -> Any:
    """The network of a case in minicnn, not compiled."""
    case = CASES[name]
    return cpu_peers.sequential(case, backend) if case.layers else cpu_peers.deep(name, case, backend)


class MiniCNN:
    """The engine's training loop: all steps of a round in one call, as `fit` makes it."""

    def __init__(self, name: str, kind: str, precision: str) -> None:
        from minicnn.backends import get_backend
        from minicnn.losses import SparseCategoricalCrossentropy
        from minicnn.optimizers import SGD

        case = CASES[name]
        self._model = model(name, get_backend("torch" if DRY else kind, strict=not DRY))
        self._model.compile(
            SGD(case.rate, momentum=case.momentum),
            SparseCategoricalCrossentropy(from_logits=True),
            precision=f"mixed_{precision}" if precision.endswith("16") else precision,
        )
        x, y = samples(case)
        self._whole = case.batch == len(y)
        if self._whole:
            self._run = self._model._training.standardizer().batch(x, y)
        else:
            source = self._model._training.source(x, y, None, case.batch, last_batch="drop")
            self._run = next(source.runs(shuffle=False, seed=0, epoch=0))
        self._model.get_weights()
        self._state = self._model.get_state()

    def reset(self) -> None:
        """See `Trainer`."""
        self._model.set_state(self._state)

    def train(self, index: np.ndarray[Any, Any]) -> float:
        """See `Trainer`."""
        from minicnn.loop.totals import Totals

        run = replace(self._run, steps=len(index), index=None if self._whole else index)
        training = self._model._training
        return float(training.logs(training.train(run, Totals()))["loss"])


class Torch:
    """PyTorch's own modules: eager, compiled, or the whole step in a CUDA graph."""

    def __init__(self, name: str, kind: str, precision: str) -> None:
        import torch

        case, tf32 = CASES[name], precision == "tf32"
        self._name = name
        self._short = getattr(torch, precision) if precision.endswith("16") else None
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        self._case, self._kind = case, "eager" if DRY else kind
        x, y = samples(case)
        self._whole, self._count = case.batch == len(y), len(y)
        device = torch.device(DEVICE)
        self._y = torch.from_numpy(y.astype(np.int64)).to(device)
        self._index = torch.zeros((case.steps, case.batch * (not self._whole)), dtype=torch.int64, device=device)
        self._step_number = torch.zeros(1, dtype=torch.int64, device=device)
        self._total = torch.zeros((), device=device)
        images = torch.from_numpy(x).to(device).to(torch.float32) / 255
        trial = rows(case)[:PROBED]
        best = np.inf
        for channels_last in self._layouts(tf32):
            self._make(images, channels_last)
            self.train(trial)
            start = time.perf_counter()
            self.train(trial)
            taken = time.perf_counter() - start
            if taken < best:
                best, kept = taken, self.__dict__.copy()
        self.__dict__ |= kept

    def _layouts(self, tf32: bool) -> tuple[bool, ...]:
        if not self._case.layers:
            return (True,)
        if not any(isinstance(one, tuple) for one in self._case.layers):
            return (False,)
        return (tf32,) if "compile" in self._kind else (False, True)  # compiling takes long

    def _make(self, images: Any, channels_last: bool) -> None:
        import torch
        from torch import nn

        case = self._case
        layout = torch.channels_last if channels_last else torch.contiguous_format
        module = cpu_peers.torch_module(self._name, case, first_weights(self._name))
        network = module.to(DEVICE, memory_format=layout)
        self._x = images if channels_last else images.permute(0, 3, 1, 2).contiguous()
        self._parameters = list(network.parameters())
        self._first = [p.detach().clone() for p in self._parameters]
        self._optimizer = torch.optim.SGD(self._parameters, case.rate, case.momentum, fused=not DRY)
        # float16 needs the gradients scaled; by a constant, which is less work than PyTorch's own scaler.
        scale = 1024.0 if self._short is torch.float16 else 1.0
        self._unscaled = 1 / scale

        def loss_of(x: Any, y: Any) -> Any:
            with torch.autocast(DEVICE, self._short, enabled=self._short is not None):
                logits = network(x.permute(0, 3, 1, 2) if channels_last else x)
            return nn.functional.cross_entropy(logits.float(), y) * scale

        best = "reduce-overhead" if case.layers else "max-autotune"
        compiled = {"compile": best, "compile graph": "default"}.get(self._kind)
        self._loss = loss_of if compiled is None else torch.compile(loss_of, mode=compiled, dynamic=False)
        self._replay = self._step
        if "graph" in self._kind:
            self._replay = self._captured()

    def _step(self) -> None:
        import torch

        if self._whole:
            x, y = self._x, self._y
        else:
            chosen = self._index.index_select(0, self._step_number)[0]
            x, y = self._x.index_select(0, chosen), self._y.index_select(0, chosen)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(x, y)
        loss.backward()
        if self._unscaled != 1:
            torch._foreach_mul_([p.grad for p in self._parameters], self._unscaled)
        self._optimizer.step()
        self._total += loss.detach() * self._unscaled
        self._step_number += 1

    def _captured(self) -> Callable[[], None]:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(5):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._optimizer.zero_grad(set_to_none=True)
        self._step_number.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.reset()
        return graph.replay

    def reset(self) -> None:
        """See `Trainer`."""
        import torch

        with torch.no_grad():
            for parameter, first in zip(self._parameters, self._first, strict=True):
                parameter.copy_(first)
                velocity = self._optimizer.state[parameter].get("momentum_buffer")
                if velocity is not None:
                    velocity.zero_()

    def train(self, index: np.ndarray[Any, Any]) -> float:
        """See `Trainer`."""
        import torch

        self._index[: len(index)].copy_(torch.from_numpy(index))
        self._step_number.zero_()
        self._total.zero_()
        for _ in range(len(index)):
            self._replay()
        return float(self._total) / len(index)


class Jax:
    """Plain JAX: all steps of a round in one jitted scan."""

    def __init__(self, name: str, kind: str, precision: str) -> None:
        import jax
        from jax import numpy as jnp

        case = CASES[name]

        if precision == "float32":  # by default JAX takes TF32
            jax.config.update("jax_default_matmul_precision", "highest")
        x, y = samples(case)
        whole = case.batch == len(y)
        if case.layers:
            self._first, loss_of = list(first_weights(name).values()), cpu_peers.jax_loss(case)
        else:
            import jax_networks

            short = precision if precision.endswith("16") else "float32"
            made, run = jax_networks.network(cpu_peers.torch_module(name, case, first_weights(name)), short)
            self._first = list(made.values())

            def loss_of(weights: list[Any], x: Any, y: Any) -> Any:
                logits = jax.nn.log_softmax(run(dict(zip(made, weights, strict=True)), x))
                return -jnp.take_along_axis(logits, y[:, None], 1).mean()

        images, labels = jnp.asarray(x, jnp.float32) / 255, jnp.asarray(y)
        gradient = jax.value_and_grad(loss_of)

        def step(state: Any, index: Any, x: Any, y: Any) -> Any:
            weights, velocity, total = state
            loss, found = gradient(weights, x if whole else x[index], y if whole else y[index])
            velocity = [case.momentum * v + g for v, g in zip(velocity, found, strict=True)]
            weights = [w - case.rate * v for w, v in zip(weights, velocity, strict=True)]
            return (weights, velocity, total + loss), None

        def several(weights: Any, velocity: Any, index: Any, x: Any, y: Any) -> Any:
            state = (weights, velocity, jnp.zeros(()))
            return jax.lax.scan(lambda state, rows: step(state, rows, x, y), state, index)[0]

        jitted = jax.jit(several, donate_argnums=(0, 1))
        self._run = lambda index: jitted(self._weights, self._velocity, index, images, labels)
        self.reset()

    def reset(self) -> None:
        """See `Trainer`."""
        from jax import numpy as jnp

        self._weights = [jnp.array(w) for w in self._first]
        self._velocity = [jnp.zeros_like(w) for w in self._weights]

    def train(self, index: np.ndarray[Any, Any]) -> float:
        """See `Trainer`."""
        self._weights, self._velocity, total = self._run(index)
        return float(total) / len(index)


LIBRARIES: dict[str, Callable[[str, str, str], Trainer]] = {"minicnn": MiniCNN, "torch": Torch, "jax": Jax}


def worker(name: str, candidate: str) -> None:
    """Check in with the losses from the first weights; then a round at each line of the standard input."""
    case, who = CASES[name], CANDIDATES[candidate]
    try:
        start = time.perf_counter()
        trainer = LIBRARIES[who.library](name, who.kind, who.precision)
        index = rows(case)
        trainer.reset()
        probe = trainer.train(index[:PROBED])
        trainer.reset()
        losses = {"probe": probe, "loss": trainer.train(index)}
    except Exception as error:  # whatever a peer's library makes of this machine
        print(json.dumps({"failed": f"{type(error).__name__}: {str(error)[:300]}"}), flush=True)
        raise
    print(json.dumps({**losses, "ready_s": time.perf_counter() - start}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = trainer.train(index)
        print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)


# The parent --------------------------------------------------------------------------------------


class Process:
    """A candidate's process.

    Args:
        name: Name of the case.
        candidate: Name of the candidate.
        log: Folder for what it says on the standard error.
        settings: See `SETTINGS`.
        patience: Seconds after which it is ended if it is not ready.
    """

    def __init__(
        self, name: str, candidate: str, log: Path, settings: Mapping[str, Any], patience: float = 3600
    ) -> None:
        env = os.environ | {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "2", "GPU_PEERS": json.dumps(settings),
            "TORCHINDUCTOR_COMPILE_THREADS": "4" if name in DEEP else "1",
        }  # fmt: skip
        command = [sys.executable, __file__, "--worker", candidate, name]
        log.mkdir(parents=True, exist_ok=True)
        with (log / f"{name}-{candidate.replace(' ', '_').replace(',', '')}.log").open("w") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=env
            )
        self._late = Timer(patience, self._process.kill)
        self._late.daemon = True
        self._late.start()

    def answer(self) -> dict[str, Any]:
        """Its next line."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        self._late.cancel()
        late = self._process.poll() is not None and self._process.returncode == -signal.SIGKILL
        why = "not ready in time, or out of memory" if late else "the process ended; see its log"
        made: dict[str, Any] = json.loads(line) if line else {"failed": why}
        return made

    def round(self) -> float:
        """Seconds of a round."""
        if self._process.stdin:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return float(self.answer()["seconds"])

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._late.cancel()
        self._process.wait(60)


def first_answers(processes: dict[tuple[str, str], Process]) -> dict[tuple[str, str], dict[str, Any]]:
    """What each process says when it is ready."""
    with ThreadPoolExecutor(len(processes)) as pool:
        return dict(zip(processes, pool.map(Process.answer, processes.values()), strict=True))


def refused(first: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Candidates that could not start, or whose losses are not those of PyTorch in float32, and why."""
    result = {c: made["failed"] for c, made in first.items() if "failed" in made}
    able = [c for c in first if c not in result]
    judge = next((c for c in able if CANDIDATES[c].library == "torch" and CANDIDATES[c].precision == "float32"), None)
    for c in able:
        if judge is None:
            result[c] = "refused: no candidate of PyTorch in float32 to compare it with"
            continue
        for key, tolerance in zip(("probe", "loss"), TOLERANCE[CANDIDATES[c].precision], strict=True):
            theirs, right = first[c][key], first[judge][key]
            if not abs(theirs - right) <= tolerance * abs(right):
                result[c] = f"refused: its {key} is {theirs:.6g}, that of {judge} {right:.6g}"
    return result


def measure(processes: dict[str, Process], first: dict[str, dict[str, Any]], rounds: int) -> dict[str, Any]:
    """Milliseconds of a round of each candidate: median and quartiles, rounds alternating; or why it was not timed."""
    why = refused(first)
    times: dict[str, list[float]] = {c: [] for c in processes if c not in why}
    for at in range(rounds + 1):
        for c, found in times.items():
            seconds = processes[c].round()
            if at:  # the first round warms up
                found.append(seconds * 1e3)
    result: dict[str, Any] = {c: {**first[c], "failed": text} for c, text in why.items()}
    for c, found in times.items():
        low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
        result[c] = {**first[c], "median_ms": middle, "low_ms": low, "high_ms": high}
    return {c: result[c] for c in processes}


def best(results: dict[str, Any], library: str | None = None, precision: str | None = None) -> tuple[float, str]:
    """Median and name of the fastest of minicnn's candidates, or of the others; infinity if there is none."""
    found = [
        (row["median_ms"], c)
        for c, row in results.items()
        if "median_ms" in row
        and (CANDIDATES[c].library == "minicnn") == (library == "minicnn")
        and precision in (None, CANDIDATES[c].precision)
    ]
    return min(found, default=(float("inf"), ""))


def table(results: dict[str, Any]) -> str:
    """Results as Markdown tables."""
    named = [name for name in STUDIES + DEEP if name in results]
    lines = ["| | " + " | ".join(f"`{name}`" for name in named) + " |", "| --- |" + " ---: |" * len(named)]
    for c in CANDIDATES:
        cells = [f"{results[n][c]['median_ms']:,.1f}" if "median_ms" in results[n].get(c, {}) else "" for n in named]
        if any(cells):
            lines.append(f"| {c} | {' | '.join(cells)} |")
    rows = [
        "",
        "| case | minicnn | fastest peer | times as fast | against its study's |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    ratio = {}
    for name in CASES:
        if name in results:
            ours, (peer, who) = best(results[name], "minicnn")[0], best(results[name])
            ratio[name] = peer / ours
            like = LIKE.get(name)
            against = f"{ratio[name] / ratio[like]:.2f}" if like in ratio else ""
            rows.append(f"| `{name}` | {ours:,.1f} | {peer:,.1f} ({who}) | {ratio[name]:.2f} | {against} |")
    return "\n".join([*lines, *rows])


def gpu() -> dict[str, str]:
    """The GPU and its libraries."""
    from importlib.metadata import PackageNotFoundError, version

    facts: dict[str, str] = {}
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        facts["gpu"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        facts["gpu"] = "unknown"
    for package in ("cupy-cuda12x", "cupy-cuda13x", "numba-cuda", "cuda-core", "torch", "triton", "jax", "numpy"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    return facts


def main() -> None:
    """Measure the cases named, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases; those of the studies if none is named")
    parser.add_argument("--all", action="store_true", help="the variations, too")
    parser.add_argument("--quick", action="store_true", help="few candidates, three rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--candidate", action="append", choices=sorted(CANDIDATES), help="one of those that take part")
    parser.add_argument("--json", type=Path, help="file for the results; cases that it has already are kept")
    parser.add_argument("--logs", type=Path, default=Path("gpu_peers_logs"), help="folder for what candidates say")
    parser.add_argument("--table", type=Path, help="print the results of a file as Markdown tables, measure nothing")
    deep = parser.add_argument_group("deep networks")
    for name, default in (("image", 64), ("classes", 200), ("batch", 128), ("steps", 20)):
        deep.add_argument(f"--{name}", type=int, default=4 if name == "steps" and "--dry" in sys.argv else default)
    parser.add_argument("--patience", type=float, default=3600, help="seconds after which a candidate must be ready")
    parser.add_argument("--dry", action="store_true", help="on the CPU, to see that it works")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.table:
        print(table(json.loads(chosen.table.read_text("utf-8"))))
        return
    names = chosen.cases or list(CASES if chosen.all else STUDIES)
    if unknown := set(names) - set(CASES):
        parser.error(f"the cases are {', '.join(CASES)}. Received: {', '.join(sorted(unknown))}.")
    if chosen.worker:
        worker(names[0], chosen.worker)
        return
    rounds = 3 if chosen.quick else chosen.rounds
    if rounds < 2:
        parser.error(f"quartiles need at least 2 rounds. Received: --rounds {rounds}.")
    from minicnn import machine

    results: dict[str, Any] = {}
    if chosen.json and chosen.json.exists():
        results = json.loads(chosen.json.read_text("utf-8"))
    results |= {"machine": {**machine.facts(), **gpu()}}
    failed = False
    image = (chosen.image, chosen.image, 3)
    sizes = {"image": image, "classes": chosen.classes, "batch": chosen.batch, "steps": chosen.steps}
    settings = {"dry": chosen.dry, "deep": sizes}
    groups = [[n for n in names if n in STUDIES], [n for n in names if n in LIKE], *([n] for n in names if n in DEEP)]
    for group in filter(None, groups):  # all of a group start side by side, as compiling takes long
        start = time.perf_counter()
        with ExitStack() as stack:
            processes = {}
            for name in group:
                few = chosen.quick or name in LIKE
                for c in chosen.candidate or [c for c, who in CANDIDATES.items() if who.trains(name, few=few)]:
                    made = Process(name, c, chosen.logs, settings, chosen.patience)
                    processes[name, c] = stack.enter_context(made)
            first = first_answers(processes)
            print(f"{len(processes)} candidates ready after {time.perf_counter() - start:.0f} s", flush=True)
            for name in group:
                found = measure(*({c: d[n, c] for n, c in d if n == name} for d in (processes, first)), rounds)
                results[name] = found
                unit = {"mlp": "500 steps", **dict.fromkeys(DEEP, f"{chosen.steps} steps")}.get(name, "an epoch")
                print(f"{name}: ms of {unit}, median (quartiles), loss; images a second")
                for c, row in found.items():
                    failed |= "failed" in row and CANDIDATES[c].library == "minicnn"
                    if "failed" in row:
                        print(f"  {c:34} {row['failed']}", flush=True)
                        continue
                    spread = f"({row['low_ms']:.2f} to {row['high_ms']:.2f})"
                    if name in DEEP:
                        row["images_per_s"] = chosen.batch * chosen.steps / row["median_ms"] * 1e3
                    rate = f" {row['images_per_s']:10,.0f}" if name in DEEP else ""
                    print(f"  {c:34} {row['median_ms']:9.2f} {spread:22} {row['loss']:.6f}{rate}", flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        print(f"measured in {time.perf_counter() - start:.0f} s", flush=True)
    print(table(results))
    if failed:
        sys.exit("a candidate of minicnn could not be timed; see above")


if __name__ == "__main__":
    main()
