"""Convolutions of deep networks shape by shape: the tile that the model chooses, cuDNN, and cuBLAS for products.

    python benchmarks/library_shapes.py [--out FILE]
    python benchmarks/library_shapes.py --dry    # without a GPU: the model's times, and PyTorch's on the CPU

Operands are in memory in bfloat16, channels last; ours leave float32, partial ones where sums are split, the libraries
bfloat16. They are called by PyTorch, cuDNN with the quickest of its algorithms, in CUDA graphs as ours are: the time is
that of the kernels, in microseconds, medians. Results are written after each shape.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fit_tiles import REPEATS, ROUNDS, Timer
from pipelined_tiles import cases, tiles_of
from tile_cases import Case, kernel_of

from minicnn.backends._gpu.device import H200
from minicnn.backends.cupy.compiler import compile_all


def calls(case: Case, device: str) -> dict[str, Callable[[], Any]]:
    """The same in cuDNN and, for 1x1 without strides, in cuBLAS."""
    n, image, c, f, kernel, stride, pad, _ = case.sizes

    def made(*shape: int) -> torch.Tensor:
        """Noise (N, C, H, W) in bfloat16, whose channels are last in memory."""
        noise = torch.randn(shape, device=device, dtype=torch.bfloat16)
        return noise.to(memory_format=torch.channels_last)

    x, weight, y = made(n, c, image, image), made(f, c, kernel, kernel), made(n, f, case.out, case.out)
    sizes = [stride] * 2, [pad] * 2, [1, 1]
    masks = {"conv2d_input_gradient": [True, False, False], "conv2d_weight_gradient": [False, True, False]}

    def cudnn() -> Any:
        if case.op == "conv2d":
            return torch.nn.functional.conv2d(x, weight, None, *sizes)
        return torch.ops.aten.convolution_backward(y, x, weight, None, *sizes, False, [0, 0], 1, masks[case.op])

    if kernel > 1 or stride > 1:
        return {"cudnn": cudnn}
    rows, filters = (v.permute(0, 2, 3, 1).reshape(-1, v.shape[1]) for v in (x, weight))
    dy = y.permute(0, 2, 3, 1).reshape(-1, f)
    left, right = {
        "conv2d": (rows, filters.T), "conv2d_input_gradient": (dy, filters), "conv2d_weight_gradient": (dy.T, rows)
    }[case.op]  # fmt: skip
    return {"cudnn": cudnn, "cublas": lambda: left @ right}


def microseconds(call: Callable[[], Any], *, dry: bool) -> float:
    """Median time of a call in a graph that repeats it."""
    if dry:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6
    beside, graph, times = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []
    with torch.cuda.stream(beside):
        for _ in range(3):  # cuDNN times its algorithms
            call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    for _ in range(ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / REPEATS)
    return statistics.median(times[1:])


def main() -> None:
    """Print a line for each case: microseconds, TFLOP/s of ours, and the time of the quicker library beside ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("library_shapes.json"))
    parser.add_argument("--dry", action="store_true")
    chosen = parser.parse_args()
    gpu, timer, device = H200, None, "cpu"
    if not chosen.dry:
        from minicnn.backends.cupy.backend import CupyBackend

        backend, device = CupyBackend(), "cuda"
        gpu, timer = backend.gpu, Timer(backend)
        torch.backends.cudnn.benchmark = True
    ours = {case: min(tiles_of(case, gpu, 1), key=lambda tile: tile.score) for case in cases()}
    if timer:
        compile_all([kernel_of(case, gpu, tile).text for case, tile in ours.items()], gpu.architecture)
    stored, ratios = [], []
    for case, tile in ours.items():
        us = {name: microseconds(call, dry=chosen.dry) for name, call in calls(case, device).items()}
        own = next((found for _, found in timer(case, [tile])), None) if timer else tile.score / gpu.clock * 1e6
        if own is None:
            print(f"{case.op} {case.sizes}: the tile does not fit", flush=True)
            continue
        n, _, c, f, kernel, *_ = case.sizes
        rate = 2 * n * case.out**2 * c * f * kernel**2 / own / 1e6
        ratios.append(min(us.values()) / own)
        told = ", ".join(f"{name} {found:.1f}" for name, found in us.items())
        print(f"{case.op} {case.sizes}: ours {own:.1f} ({rate:.0f} TFLOP/s), {told}; {ratios[-1]:.2f}", flush=True)
        stored.append(asdict(case) | {"tile": asdict(tile), "us": {"ours": own, **us}})
        chosen.out.write_text(json.dumps(stored), "utf-8")
    print(f"the quicker library takes {statistics.geometric_mean(ratios):.2f} times as long as ours in the mean")


if __name__ == "__main__":
    main()
