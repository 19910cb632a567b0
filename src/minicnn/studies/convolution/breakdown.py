"""What the kinds of layers of whole networks take: each node of a training step between clocks, or PyTorch's profiler.

Where a candidate merges nodes into kernels and tells their times, each kernel's is divided among its nodes by their
operations and bytes. If not, or if it compiles the step as a whole, each node is compiled and timed by itself. On a GPU
all times are those of kernels; what a step takes beside them is seen from whole steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minicnn import layers as kinds
from minicnn import zoo
from minicnn.backends.base import Array, Backend
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import CandidateError, Worker, stopwatch, torch_peer
from minicnn.measure.candidates import PEERS, backend_of
from minicnn.measure.operations import NodeTime, apart, step_inputs, step_times
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
        rng = np.random.default_rng(0)
        self._peer = candidate.partition(":")[0] in PEERS
        self._x = rng.standard_normal((batch, image, image, 3), np.float32)
        self._y = rng.integers(0, classes, batch).astype(np.int32)
        self._device = candidate.partition(":")[2] or "cpu"
        model = network(name, image, None if self._peer else backend_of(candidate), classes)
        weights = model.get_weights()  # all candidates draw them at the same time: 138 million take seconds
        if not self._peer:
            self._model = model
        else:
            from minicnn.measure import torch_networks

            self._module = torch_networks.build(name, self._x.shape[1:], classes, weights)
            self._order: Any = None  # of the axes of its images, once it is known which is the faster

    def loss(self) -> float:
        """Loss of the first batch with the first weights."""
        if self._peer:
            loss, _ = self._torch()
            return float(loss(*self._torch_batch()).detach())
        return float(self._model.train_on_batch(self._x, self._y, return_dict=True)["loss"])

    def parts(self, iterations: int) -> tuple[Seconds, str]:
        """Seconds of each iteration by phase and part, and what was timed: "nodes", "merged" ones, or each "apart"."""
        return (self._torch_parts(iterations), "nodes") if self._peer else self._node_parts(iterations)

    def step(self, iterations: int) -> list[float]:
        """Seconds of whole training steps, without clocks within."""
        if self._peer:
            loss, optimizer = self._torch()
            x, y = self._torch_batch()

            def step() -> None:
                optimizer.zero_grad()
                loss(x, y).backward()
                optimizer.step()

            synchronize = self._torch_synchronize
        else:
            x, y = (self._model.backend.asarray(a) for a in (self._x, self._y))

            def step() -> None:
                self._model.train_on_batch(x, y)

            synchronize = self._model.backend.synchronize
        step()
        return [stopwatch(step, synchronize) for _ in range(iterations)]

    # minicnn --------------------------------------------------------------------------------------

    def _node_parts(self, iterations: int) -> tuple[Seconds, str]:
        model = self._model
        how, found = self._timed(iterations)
        types = {model.layer_name(layer): type(layer) for layer in model.layers}
        seconds = {phase: {part: [0.0] * iterations for part in PARTS} for phase in PHASES}
        for node in found:
            sums = seconds[node.phase][part_of(node.op, node.scope, types)]
            for i, s in enumerate(node.seconds):
                sums[i] += s
        return seconds, how

    def _timed(self, iterations: int) -> tuple[str, list[NodeTime]]:
        """How a step's nodes are timed on the backend, and their times."""
        model = self._model
        given = {"x": self._x, "y": self._y, "learning_rate": np.asarray(0.01, np.float32)}

        def step() -> tuple[Backend, Program, dict[str, Array]]:  # anew for each: a backend may rewrite a Program
            program = model.program("train", batch_size=len(self._x))
            return model.backend, program, step_inputs(model, program, given)

        return step_times(*step(), repeats=iterations) or ("apart", apart(*step(), repeats=iterations))

    # PyTorch --------------------------------------------------------------------------------------

    def _torch(self) -> tuple[Any, Any]:
        """The loss as a function of a batch, and the optimizer, of the same network."""
        import torch

        module = self._module.to(self._device).train()
        if self._order is None:
            torch_peer.at_its_best()
            self._order = torch_peer.faster_order(module, *self._torch_batch())
        module = module.to(memory_format=self._order)
        optimizer = torch.optim.SGD(module.parameters(), 0.01)
        return lambda x, y: torch.nn.functional.cross_entropy(module(x), y), optimizer

    def _torch_batch(self) -> tuple[Any, Any]:
        import torch

        return torch_peer.on_device(self._x, self._y, self._device, self._order or torch.contiguous_format)

    def _torch_synchronize(self) -> None:
        import torch

        if self._device.startswith("cuda"):
            torch.cuda.synchronize()

    def _torch_parts(self, iterations: int) -> Seconds:
        from torch.profiler import ProfilerActivity, profile

        loss, optimizer = self._torch()
        x, y = self._torch_batch()
        cuda = self._device.startswith("cuda")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        seconds = {phase: {part: [0.0] * iterations for part in PARTS} for phase in PHASES}
        losses: list[Any] = []

        def forward() -> None:
            losses[:] = [loss(x, y)]

        def backward() -> None:
            optimizer.zero_grad()
            losses[0].backward()

        calls = {"forward": forward, "backward": backward, "update": optimizer.step}
        for i in range(-1, iterations):
            for phase, call in calls.items():
                with profile(activities=activities) as seen:
                    wall = stopwatch(call, self._torch_synchronize)
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
    found = dict.fromkeys(PARTS, 0.0)
    whole = 0.0 if wall is None else wall
    for event in events:
        if gpu and "CPU" not in str(event.device_type) and not event.is_user_annotation:
            whole += event.self_device_time_total * 1e-6
        for pattern, part in TORCH.get(phase, {}).items():
            if re.fullmatch(pattern, event.key.removeprefix(EVALUATE)) and (phase == "forward") != (
                event.key.startswith(EVALUATE)
            ):
                found[part] += (event.device_time_total if gpu else event.cpu_time_total) * 1e-6
    return {**found, "other": max(whole - sum(found.values()), 0.0)}


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
    made = {c: Worker(c, Layers, c, name, image, batch, classes) for c in candidates}
    with together(made) as (workers, result["out"]):
        for candidate, worker in workers.items():
            try:
                loss = result["losses"][candidate] = worker.call("loss")
                first = next(iter(result["losses"].values()))
                if not abs(loss - first) <= rtol * abs(first):
                    result["refused"][candidate] = f"its loss {loss:.6g} is not {first:.6g}, the first candidate's"
                    continue
                result["seconds"][candidate], how = worker.call("parts", iterations)
                result[how].append(candidate)
                result["steps"][candidate] = worker.call("step", min(iterations, STEPS))
            except CandidateError as error:
                result["out"][candidate] = error.why
            finally:
                worker.close()  # its memory is the next one's
    return result
