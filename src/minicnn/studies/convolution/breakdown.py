"""Times of the kinds of layers of whole networks: each node of a step between clocks, or PyTorch's profiler.

Where a candidate merges nodes into kernels and tells their times, each kernel's is divided among its nodes by their
operations and bytes. If not, or if it compiles the step as a whole, each node is compiled and timed by itself. On a GPU
all times are those of kernels; what a step takes beside them is seen from whole steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minicnn import layers as kinds
from minicnn import zoo
from minicnn.backends.base import Array, Backend
from minicnn.jobs.job import Samples
from minicnn.jobs.settings import Settings
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import CandidateError, Worker, stopwatch
from minicnn.measure.cases import as_samples
from minicnn.measure.operations import apart, step_inputs, step_times
from minicnn.measure.parity import loss_parity
from minicnn.measure.torch_peer import TorchTrainer
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import settings_of, trainer
from minicnn.measure.worker import together
from minicnn.models import Model
from minicnn.optimizers import SGD
from minicnn.program.graph import Program

PARTS = ("convolution", "pooling", "ReLU", "fully connected", "concat", "normalisation", "other")
PHASES = ("forward", "backward", "update")

# Layers by the part of the network that they are.
LAYERS: dict[type, str] = {
    kinds.Conv2D: "convolution", kinds.DepthwiseConv2D: "convolution", kinds.Dense: "fully connected",
    kinds.MaxPooling2D: "pooling", kinds.AveragePooling2D: "pooling", kinds.AdaptiveAveragePooling2D: "pooling",
    kinds.GlobalAveragePooling2D: "pooling", kinds.Concatenate: "concat", kinds.BatchNormalization: "normalisation",
}  # fmt: skip

# PyTorch's operations, as its profiler names them, by phase and part.
TORCH = {
    "forward": {
        r"aten::conv2d": "convolution", r"aten::(max_pool2d|adaptive_avg_pool2d|avg_pool2d)": "pooling",
        r"aten::relu_?": "ReLU", r"aten::linear": "fully connected", r"aten::cat": "concat",
        r"aten::batch_norm": "normalisation",
    },
    "backward": {
        r"ConvolutionBackward\d": "convolution",
        r"(MaxPool2DWithIndices|AdaptiveAvgPool2D|AvgPool2D|Mean)Backward\d": "pooling", r"ReluBackward\d": "ReLU",
        r"AddmmBackward\d": "fully connected", r"CatBackward\d": "concat",
        r"\w*BatchNormBackward\d": "normalisation",
    },
}  # fmt: skip
STEPS = 3  # whole steps, timed to see what the clocks within a step cost
Seconds = dict[str, dict[str, list[float]]]
EVALUATE = "autograd::engine::evaluate_function: "


def part_of(op: str, scope: str, layer_types: Mapping[str, type]) -> str:
    """The part that a node belongs to: an activation by itself, anything else to its layer."""
    if op.startswith("relu"):
        return "ReLU"
    return LAYERS.get(layer_types.get(scope.split("/")[0], object), "other")


def network(name: str, image: int, backend: str | None, classes: int) -> Model:
    """A network without dropout, compiled for training as in the study."""
    model = zoo.get_model(name, input_shape=(image, image, 3), num_classes=classes, backend=backend, dropout=0.0)
    model.compile(SGD(0.01), SparseCategoricalCrossentropy(from_logits=True))
    return model


def made_images(image: int, batch: int, classes: int, _: Settings) -> Samples:
    """A batch of images (N, image, image, 3), normal numbers, and labels."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, image, image, 3), np.float32)
    return as_samples(x, rng.integers(0, classes, batch).astype(np.int32), classes)


class Layers:
    """A candidate: trains a network and times its parts; lives in a process of its own.

    Args:
        candidate: A backend, or the peer "torch.nn" with a device.
        name: Name of the network in the zoo.
        image: Height and width of an image.
        batch: Images in a step.
        classes: Classes.
    """

    def __init__(self, candidate: str, name: str, image: int, batch: int, classes: int) -> None:
        settings = settings_of(name, "synthetic", batch_size=batch, learning_rate=0.01, momentum=0.0)
        load = partial(made_images, image, batch, classes)
        work = Work(accuracy=False, network={"dropout": 0.0}, load=load)
        self._trainer: Any = trainer(candidate, settings, work=work)
        self._batch = self._trainer.place(np.arange(batch))

    def loss(self) -> float:
        """Loss of the first batch with the first weights."""
        return float(self._trainer.step(self._batch))

    def parts(self, iterations: int) -> tuple[Seconds, str]:
        """Seconds of each iteration by phase and part, and what was timed: "nodes", "merged" ones, or each "apart"."""
        if isinstance(self._trainer, TorchTrainer):
            return self._torch_parts(self._trainer, iterations), "nodes"
        return self._node_parts(self._trainer.model, iterations)

    def step(self, iterations: int) -> list[float]:
        """Seconds of whole training steps, without clocks within."""

        def step() -> None:
            self._trainer.step(self._batch)

        step()
        return [stopwatch(step, self._trainer.backend.synchronize) for _ in range(iterations)]

    def _node_parts(self, model: Model, iterations: int) -> tuple[Seconds, str]:
        x, y = (self._trainer.samples[f"{axis}_train"] for axis in "xy")
        inputs = {"x": x, "y": y, "learning_rate": np.asarray(0.01, np.float32)}

        def step() -> tuple[Backend, Program, dict[str, Array]]:  # anew for each: a backend may rewrite a Program
            program = model.program("train", batch_size=len(y))
            return model.backend, program, step_inputs(model, program, inputs)

        timed = step_times(*step(), repeats=iterations)
        how, nodes = timed or ("apart", apart(*step(), repeats=iterations))
        types = {model.layer_name(layer): type(layer) for layer in model.layers}
        seconds = {phase: {part: [0.0] * iterations for part in PARTS} for phase in PHASES}
        for node in nodes:
            sums = seconds[node.phase][part_of(node.op, node.scope, types)]
            for i, s in enumerate(node.seconds):
                sums[i] += s
        return seconds, how

    def _torch_parts(self, peer: TorchTrainer, iterations: int) -> Seconds:
        from torch.profiler import ProfilerActivity, profile

        cuda = peer.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        seconds = {phase: {part: [0.0] * iterations for part in PARTS} for phase in PHASES}
        losses: list[Any] = []

        def forward() -> None:
            losses[:] = [peer.loss(*self._batch)]

        def backward() -> None:
            peer.optimizer.zero_grad()
            losses[0].backward()

        calls = {"forward": forward, "backward": backward, "update": peer.optimizer.step}
        for i in range(-1, iterations):
            for phase, call in calls.items():
                with profile(activities=activities) as seen:
                    wall = stopwatch(call, peer.backend.synchronize)
                if i >= 0:  # the first fills caches
                    for part, taken in torch_seconds(seen.key_averages(), phase, None if cuda else wall).items():
                        seconds[phase][part][i] = taken
        return seconds


def torch_seconds(events: Iterable[Any], phase: str, wall: float | None) -> dict[str, float]:
    """Seconds of each part of a phase, from PyTorch's profile of it.

    Args:
        events: Sums of the profile by operation and kernel.
        phase: The phase.
        wall: Seconds that it took on a CPU; None on a GPU, where kernels count alone.

    Returns:
        By part; "other" is what no operation of a part has taken.
    """
    gpu = wall is None
    seconds = dict.fromkeys(PARTS, 0.0)
    whole = 0.0 if wall is None else wall
    for event in events:
        if gpu and "CPU" not in str(event.device_type) and not event.is_user_annotation:
            whole += event.self_device_time_total * 1e-6
        for pattern, part in TORCH.get(phase, {}).items():
            if re.fullmatch(pattern, event.key.removeprefix(EVALUATE)) and (phase == "forward") != (
                event.key.startswith(EVALUATE)
            ):
                seconds[part] += (event.device_time_total if gpu else event.cpu_time_total) * 1e-6
    return {**seconds, "other": max(whole - sum(seconds.values()), 0.0)}


def measure(
    candidates: Sequence[str], name: str, image: int, batch: int, iterations: int, classes: int, rtol: float
) -> dict[str, Any]:
    """The parts of a network's training step on each candidate, one after the other.

    Returns:
        "seconds" by candidate, phase and part; "nodes", "merged" and "apart": whose nodes were timed so; "steps" by
        candidate; "out": why others could not take part; "refused": those that compute another loss.
    """
    result: dict[str, Any] = {
        "seconds": {}, "nodes": [], "merged": [], "apart": [], "steps": {}, "losses": {}, "out": {}, "refused": {},
    }  # fmt: skip
    waiting = {c: Worker(c, Layers, c, name, image, batch, classes) for c in candidates}
    with together(waiting) as (workers, result["out"]):
        for candidate, worker in workers.items():
            try:
                result["losses"][candidate] = worker.call("loss")
                refused = loss_parity({n: [v] for n, v in result["losses"].items()}, [rtol], what="loss")
                if candidate in refused:
                    result["refused"][candidate] = refused[candidate]
                    continue
                result["seconds"][candidate], how = worker.call("parts", iterations)
                result[how].append(candidate)
                result["steps"][candidate] = worker.call("step", min(iterations, STEPS))
            except CandidateError as error:
                result["out"][candidate] = error.why
            finally:
                worker.close()  # its memory is the next one's
    return result
