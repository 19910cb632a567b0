"""Convolutions of the NumPy backend shape by shape beside PyTorch eager: forward pass, input and weight gradient.

    python benchmarks/numpy_shapes.py [--threads N] [--out FILE] [--rounds N] [--batches N ...]
    python benchmarks/numpy_shapes.py --unfolded    # beside what NumPy takes with unfolded images, at once or in blocks

Images are in the order that each library trains in: NumPy's with the batch last from 32 samples on, PyTorch's with the
channels first. Results are compared before they are timed. Contenders take turns in one process, with as many threads;
times are medians in milliseconds, and the ratio is that of the sums of all three. Of one thread the processor time is
taken, which other programs disturb little. With strides of 2 PyTorch pads one
row and column more, so that its images are padded alike on both sides; both compute as many outputs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import array_api_compat.numpy as xp
import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.nn import functional

from minicnn import machine, ops
from minicnn.backends import get_backend
from minicnn.backends._blocks import in_blocks
from minicnn.measure.timing import interleaved
from minicnn.ops.convolution import conv2d_input_gradient, conv2d_weight_gradient
from minicnn.program import Program
from minicnn.program.graph import Node
from minicnn.program.layout import LEAST_BATCH
from minicnn.tolerance import tolerance

IMAGES, CHANNELS, KERNELS, STRIDES = (8, 16, 32, 64), ((1, 8), (3, 16), (16, 16), (64, 64)), (1, 3, 5, 7), (1, 2)
MOST_PRODUCTS = 2e9  # multiply-adds of a forward pass; larger ones take a batch that stays below
LEAST_S = 1e-3  # a measurement repeats its call for so long
AXES = {"HWCN": (3, 2, 0, 1), "NHWC": (0, 3, 1, 2)}  # to (N, C, H, W)


class Shape(NamedTuple):
    """A convolution with the padding that keeps the image's size, divided by the stride."""

    batch: int
    image: int
    channels: int
    filters: int
    kernel: int
    stride: int

    @property
    def products(self) -> int:
        """Multiply-adds of the forward pass."""
        return self.batch * (self.image // self.stride) ** 2 * self.channels * self.filters * self.kernel**2


def shapes(batches: list[int]) -> Iterator[Shape]:
    """All of them."""
    for batch, image, (channels, filters), kernel, stride in product(batches, IMAGES, CHANNELS, KERNELS, STRIDES):
        one = Shape(1, image, channels, filters, kernel, stride)
        if stride <= kernel:
            yield one._replace(batch=min(batch, max(1, int(MOST_PRODUCTS // one.products))))


def program_of(shape: Shape) -> Program:
    """The convolution and its gradients, in the order of axes that the backend chooses."""
    n, image, c, f, kernel, stride = shape
    data_format = "HWCN" if n >= LEAST_BATCH else "NHWC"
    before = (kernel - 1) // 2
    attrs: dict[str, Any] = {
        "strides": (stride, stride), "padding": ((before, kernel - stride - before),) * 2, "data_format": data_format
    }  # fmt: skip
    program = Program()
    sizes = {"N": n, "H": image, "W": image, "C": c}
    x = program.input("x", tuple(sizes[axis] for axis in data_format), "float32")
    w = program.input("w", (kernel, kernel, c, f), "float32")
    dy = program.input("dy", ops.conv2d(x, w, **attrs).shape, "float32")
    conv2d_input_gradient(dy, w, image=(image, image), **attrs)
    conv2d_weight_gradient(dy, x, kernel=(kernel, kernel), **attrs)
    return program


def run(node: Node, arrays: dict[str, Any], *, unfolded: bool) -> Callable[[], Any]:
    """A call of what the backend computes a node by; or of its reference, in blocks where they are large."""
    function = in_blocks(node, xp) if unfolded else get_backend("numpy").kernel(node)
    if function is None or isinstance(function, str):
        function = partial(node.op.reference, xp=xp, **node.attrs)
    return partial(function, *(arrays[v.name] for v in node.inputs))


def torch_calls(shape: Shape, program: Program, arrays: dict[str, Any]) -> list[Callable[[], torch.Tensor]]:
    """The same in PyTorch, with the channels first."""
    node = program.nodes[0]
    order = AXES[node.attrs["data_format"]]
    x, dy = (torch.from_numpy(np.ascontiguousarray(arrays[name].transpose(order))) for name in ("x", "dy"))
    w = torch.from_numpy(np.ascontiguousarray(arrays["w"].transpose(3, 2, 0, 1)))
    pads, strides = [node.attrs["padding"][0][0]] * 2, [shape.stride] * 2

    def backward(index: int) -> torch.Tensor:
        mask = [index == 0, index == 1, False]
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, strides, pads, [1, 1], False, [0, 0], 1, mask
        )[index]  # fmt: skip

    return [lambda: functional.conv2d(x, w, None, strides, pads), partial(backward, 0), partial(backward, 1)]


def check(shape: Shape, order: tuple[int, ...], results: list[Any], torch_results: list[torch.Tensor]) -> None:
    """Check that both compute the same, relative to the largest element."""
    outputs = shape.batch * (shape.image // shape.stride) ** 2
    sums = (shape.channels * shape.kernel**2, shape.filters * shape.kernel**2, outputs)
    for i, (ours, theirs) in enumerate(zip(results, torch_results, strict=True)):
        ours = ours.transpose((3, 2, 0, 1) if i == 2 else order)
        error = np.abs(ours - theirs.numpy()).max() / np.abs(ours).max()
        if error > tolerance("float32", sums[i])[0]:
            raise RuntimeError(f"NumPy and PyTorch compute the same. Received: {shape}, direction {i}, error {error}.")


def seconds_of(call: Callable[[], Any], threads: int) -> float:
    """Mean seconds of a call that is repeated for a while; the processor's if it is one thread."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start, count = clock(), 0
    taken = 0.0
    while taken < LEAST_S:
        call()
        count += 1
        taken = clock() - start
    return taken / count


def measure(shape: Shape, rounds: int, threads: int, *, unfolded: bool) -> dict[str, list[float]]:
    """Median milliseconds of forward pass, input gradient and weight gradient, by contender."""
    program = program_of(shape)
    draw = np.random.default_rng(0)
    arrays = {v.name: draw.standard_normal(v.shape, np.float32) for v in program.inputs}
    calls: dict[tuple[str, int], Callable[[], Any]] = {}
    for i, (node, peer) in enumerate(zip(program.nodes, torch_calls(shape, program, arrays), strict=True)):
        calls["numpy", i], calls["torch", i] = run(node, arrays, unfolded=False), peer
        if unfolded:
            calls["unfolded", i] = run(node, arrays, unfolded=True)
    order = AXES[program.nodes[0].attrs["data_format"]]
    check(shape, order, [calls["numpy", i]() for i in range(3)], [calls["torch", i]() for i in range(3)])
    seconds = interleaved({k: partial(seconds_of, c, threads) for k, c in calls.items()}, rounds=rounds)
    names = dict.fromkeys(name for name, _ in calls)
    return {name: [1e3 * statistics.median(seconds[name, i]) for i in range(3)] for name in names}


def main() -> None:
    """Measure all shapes, print a line for each and the worst at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--unfolded", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    threadpool_limits(chosen.threads, "blas")
    rows: list[dict[str, Any]] = []
    for shape in shapes(chosen.batches):
        ms = measure(shape, chosen.rounds, chosen.threads, unfolded=chosen.unfolded)
        ratios = {name: sum(times) / sum(ms["torch"]) for name, times in ms.items() if name != "torch"}
        rounded = {name: [float(f"{t:.4g}") for t in each] for name, each in ms.items()}
        rows.append({**shape._asdict(), "ms": rounded, "ratio": {k: round(v, 3) for k, v in ratios.items()}})
        times = "; ".join(f"{name} {' '.join(f'{t:.3f}' for t in each)}" for name, each in ms.items())
        print(*shape, "|", times, "|", " ".join(f"{ratio:.2f}" for ratio in ratios.values()), flush=True)
        if chosen.out:
            facts = {"machine": machine.facts(), "threads": chosen.threads, "precision": "float32"}
            lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
            chosen.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "shapes": [\n{lines}\n ]\n}}\n', "utf-8")
    for name in rows[0]["ratio"]:
        every = sorted((row["ratio"][name], [row[k] for k in Shape._fields]) for row in rows)
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in every))
        print(f"{name}: {mean:.2f} times PyTorch's time in the mean, at most {every[-1][0]:.2f}, for {every[-1][1]}")


if __name__ == "__main__":
    main()
