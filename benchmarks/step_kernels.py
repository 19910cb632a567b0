"""Where a step goes on a GPU: every kernel in its graph, and beside convolutions NVIDIA's libraries on the same shapes.

    python benchmarks/step_kernels.py [--image N] [--classes N] [--batch N] [--libraries] [--peer] [--json FILE]
                                      [--dry] [NETWORK]

NETWORK is one of the deep ones of `gpu_peers.py`, or `airbench`, the network of `examples/cifar10_94.py` on made
images; in `mixed_bfloat16`. Times are read by CUPTI, through PyTorch's profiler, while a graph of 16 steps runs. The
time of a kernel is that by which it makes the step longer, from the end of those before it to its own, so that the sum
of all is the step. With --libraries, each convolution and gradient is timed in cuDNN and, for 1x1 without strides, in
cuBLAS; ours have more to do: statistics, gradients of activations, updates. With --peer, the kernels of PyTorch's step
by `torch.compile` in bfloat16, channels last, are added up by kind, too.

With --dry, the plan for an H100 is shown, without times: to see that it works without a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gpu_steps import build, graphs, network, orders, seconds

from minicnn import plans
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.planning import PlannedLaunch, planned_launch
from minicnn.backends._gpu.source import Source
from minicnn.loop.totals import Totals
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure.cases import CASES, TrainingCase
from minicnn.measure.trainer import Work
from minicnn.ops.windows import Axes
from minicnn.optimizers import SGD
from minicnn.program.graph import Node

STEPS = 16  # of a graph
Kernels: TypeAlias = list[tuple[str, float, float]]  # names, us by which each moves the end, us that it runs
CONVOLUTIONS = ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient")


@dataclass(frozen=True)
class Shape:
    """A convolution or a gradient of one, as `library_shapes.py` times it."""

    op: str
    images: int
    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    padding: int

    @classmethod
    def of(cls, node: Node) -> Shape | None:
        """The shape of a node; None if it is no convolution, or one in groups."""
        op = node.op.name.removesuffix("_partial_sums")
        if op not in CONVOLUTIONS or node.attrs.get("groups", 1) > 1:
            return None
        axes, attrs = Axes.of(node.attrs["data_format"]), node.attrs
        if op == "conv2d_weight_gradient":
            y, x = (v.shape for v in node.inputs[:2])
            kernel = attrs["kernel"][0]
        else:
            kernel = node.inputs[1].shape[0]
            first, last = node.inputs[0].shape, node.outputs[0].shape[-4:]
            x, y = (last, first) if op == "conv2d_input_gradient" else (first, last)
        padding = attrs["padding"][0][0]
        return cls(op, x[axes.n], x[axes.h], x[axes.c], y[axes.c], kernel, attrs["strides"][0], padding)

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        out = (self.size + 2 * self.padding - self.kernel) // self.stride + 1
        return 2.0 * self.images * out**2 * self.channels * self.filters * self.kernel**2


def airbench(backend: Any, case: TrainingCase) -> Any:
    """The network of `examples/cifar10_94.py`, compiled."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import cifar10_94 as recipe

    images, _ = recipe.made_images(64)
    model = recipe.network(recipe.padded(images), backend, 0)
    loss = SparseCategoricalCrossentropy(from_logits=True, label_smoothing=recipe.SMOOTHING)
    model.compile(SGD(1e-3, momentum=recipe.MOMENTUM, nesterov=True), loss, precision="mixed_bfloat16")
    return model


def kernel_times(run: Callable[[], Any], *, name: str | None = None) -> Kernels:
    """Names of kernels, by how many microseconds each moves the end, and how long each runs, in order.

    Args:
        run: Runs them, and waits.
        name: Only kernels of this name; all if None.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if "CUDA" in str(e.device_type())]
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if name in (None, e.name()))
    rows: Kernels = []
    end = spans[0][0] if spans else 0
    for start, stop, named in spans:
        rows.append((named, max(0, stop - end) / 1e3, (stop - start) / 1e3))
        end = max(end, stop)
    return rows


def compiled(name: str, case: TrainingCase, backend: Any) -> Any:
    """The network, compiled; images are uint8."""
    return airbench(backend, case) if name == "airbench" else build(name, backend, "mixed_bfloat16", case)


def profiled(name: str, case: TrainingCase) -> dict[str, Any]:
    """Launches of our step with their times."""
    backend = network("cupy", Options(), dry=False)
    model = compiled(name, case, backend)
    rng, count, steps = np.random.default_rng(0), 2 * case.batch, 4 * STEPS
    x = rng.integers(0, 256, (count, *case.image)).astype("uint8")
    y = rng.integers(0, case.classes, count).astype("int32")
    training = model._training
    source = training.source(x, y, None, case.batch, last_batch="drop")
    first = next(source.runs(shuffle=False, seed=0, epoch=0))
    every = replace(first, steps=steps, index=orders(rng, count, case.batch, steps))
    training.train(first, Totals())
    model.optimizer.learning_rate = 1e-4

    def run() -> None:
        training.train(every, Totals())

    run()
    whole = seconds(backend, run, 7) / steps * 1e6
    executable = training.executor._compiled["train", first.feed].many.__self__
    plan = executable._plan
    bound = {**training.variables.state(), **first.arrays, **executable._static, **executable._queue}
    *_, graph = graphs(executable, bound, 0)

    def replayed() -> None:
        graph()
        backend.synchronize()

    replayed()
    times = kernel_times(replayed, name="kernel")
    each = len(times) // STEPS
    launches = [
        planned_launch(plan, groups, lambda one=one: one) for one, groups in
        zip(executable._sources, plan.launches, strict=True) if isinstance(one, Source)
    ]  # fmt: skip
    own = [[times[k + each * s] for s in range(STEPS)] for k in range(each)] if each == len(launches) else []
    counted = f"{len(launches)} launches, {len(times)} kernels in {STEPS} steps"
    return {"network": name, "batch": case.batch, "us": whole, "counted": counted, "launches": rows_of(launches, own)}


def planned(name: str, case: TrainingCase) -> dict[str, Any]:
    """The same without a GPU: the plan for an H100."""
    program = compiled(name, case, None).program("train", batch_size=case.batch)
    launches = plans.plan(program, plans.GPUS["h100"]).launches
    counted = f"{len(launches)} launches"
    return {"network": name, "batch": case.batch, "us": 0.0, "counted": counted, "launches": rows_of(launches, [])}


def rows_of(launches: Sequence[PlannedLaunch], times: Sequence[Kernels]) -> list[dict[str, Any]]:
    """What is known of each launch; times of its kernel in several steps, or none of any."""
    rows = []
    for k, launch in enumerate(launches):
        source, own = launch.source, times[k] if times else []
        shape = next((s for n in launch.nodes if (s := Shape.of(n))), None)
        rows.append(
            {
                "title": source.title if source else "", "blocks": source.blocks if source else 0,
                "threads": source.threads if source else 0,
                "tiles": [str(g.tile.sizes) for g in launch.groups if g.tile is not None],
                "layer": launch.nodes[0].scope if launch.nodes else "", "shape": shape,
                "us": statistics.median(t[1] for t in own) if own else 0.0,
                "alone_us": statistics.median(t[2] for t in own) if own else 0.0,
                "roof_us": launch.roof * 1e6, "modelled_us": launch.seconds * 1e6, "bytes": launch.nbytes,
            }
        )  # fmt: skip
    return rows


def kind(row: dict[str, Any]) -> str:
    """What a launch is added to."""
    if row["shape"]:
        return f"{row['shape'].op} {row['shape'].kernel}x{row['shape'].kernel}"
    words = row["title"].split("+")
    return "passes over images" if row["bytes"] > 1e6 and words[0] in ("cast", "subtract", "multiply") else "other"


def show(found: dict[str, Any]) -> None:
    """Print every launch, and the sums by kind."""
    print(f"{found['network']}: {found['us']:.0f} us a step of {found['batch']}; {found['counted']}")
    print("     us  alone   roof  model  launch")
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for k, row in enumerate(found["launches"]):
        times = row["us"], row["roof_us"], row["modelled_us"]
        shape = "" if row["shape"] is None else " ".join(map(str, vars(row["shape"]).values()))
        title = f"{k} {row['layer']} {row['title'][:50]} {row['blocks']}x{row['threads']} {' '.join(row['tiles'])}"
        print(f"  {times[0]:6.1f} {row['alone_us']:6.1f} {times[1]:6.1f} {times[2]:6.1f}  {title} {shape}")
        for n, value in enumerate((1, *times)):
            sums[kind(row)][n] += value
    print("  kind, launches, us, roof, model")
    for name, (count, *times) in (*sums.items(), ("all", [sum(v) for v in zip(*sums.values(), strict=True)])):
        print(f"  {name:32} {count:4.0f} " + " ".join(f"{us:8.1f}" for us in times))


def libraries(shapes: Sequence[Shape], *, dry: bool) -> dict[Shape, dict[str, float]]:
    """Microseconds of each shape in cuDNN and cuBLAS."""
    import torch
    from library_shapes import calls, microseconds
    from tile_cases import Case

    torch.backends.cudnn.benchmark = True
    found = {}
    for shape in dict.fromkeys(shapes):
        sizes = tuple(vars(shape).values())[1:]
        case = Case(
            "weight_gradient" if shape.op == CONVOLUTIONS[2] else "convolution", shape.op, "bfloat16", (*sizes, 1)
        )
        by_library = calls(case, "cpu" if dry else "cuda").items()
        found[shape] = {name: microseconds(call, dry=dry) for name, call in by_library}
    return found


def beside(found: dict[str, Any], theirs: dict[Shape, dict[str, float]]) -> Iterator[tuple[str, float, float]]:
    """Print each shape beside the libraries; what both take in a step, by kind."""
    own: dict[Shape, list[float]] = defaultdict(list)
    for row in found["launches"]:
        if row["shape"]:
            own[row["shape"]].append(row["us"])
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    print("  times in a step, ours each us, libraries, TFLOP/s of ours: shape")
    for shape, us in own.items():
        told = ", ".join(f"{name} {each:.1f}" for name, each in theirs[shape].items())
        mean = statistics.mean(us)
        rate = shape.flops / mean / 1e6 if mean else 0.0
        print(f"  {len(us):3} {mean:6.1f}  {told:28} {rate:5.0f}: {shape}")
        one = totals[f"{shape.op} {shape.kernel}x{shape.kernel}"]
        one[0], one[1] = one[0] + sum(us), one[1] + len(us) * min(theirs[shape].values())
    for name, (ours, quicker) in totals.items():
        yield name, ours, quicker


KINDS = (
    ("products", "gemm|cutlass|xmma|sm90|nvjet|conv|wgrad|dgrad|fprop"), ("triton", "triton"),
    ("copies", "Memcpy|Memset|copy"), ("other", ""),
)  # fmt: skip


def peer(name: str, case: TrainingCase, *, dry: bool) -> dict[str, Any]:
    """PyTorch's step, compiled, in a graph: its time and that of its kernels by kind."""
    from gpu_peers import samples
    from torch_graphs import GraphTrainer

    case = replace(case, steps=STEPS)
    work = Work(scaled=True, accuracy=False, network=case.options, load=partial(samples, case))
    kind, device = ("eager", "cpu") if dry else ("compile graph", "cuda")
    settings = case.settings(name, precision="float32")
    where = f"torch.nn:{device}"
    trainer = GraphTrainer(where, settings, work, kind=kind, precision="bfloat16", channels_last=True)
    for _ in range(3):
        trainer._epoch()
    taken = statistics.median(trainer._epoch()["time_s"] for _ in range(7)) / STEPS * 1e6
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    rows = [] if dry else kernel_times(trainer._epoch)
    for kernel, us, _ in rows:
        which = next(k for k, pattern in KINDS if re.search(pattern, kernel, re.IGNORECASE))
        sums[which][0], sums[which][1] = sums[which][0] + 1 / STEPS, sums[which][1] + us / STEPS
    return {"us": taken, "kinds": sums, "kernels": rows}


def main() -> None:
    """Measure one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="resnet50")
    for size, default in (("image", 80), ("classes", 50), ("batch", 96)):
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry", action="store_true")
    chosen = parser.parse_args()
    sizes = {"image": (chosen.image, chosen.image, 3), "classes": chosen.classes, "batch": chosen.batch}
    case = replace(CASES["resnet18" if chosen.network == "airbench" else chosen.network], **sizes)
    if chosen.network == "airbench":
        case = replace(case, image=(36, 36, 3), classes=10)
    found = (planned if chosen.dry else profiled)(chosen.network, case)
    show(found)
    if chosen.libraries:
        theirs = libraries([row["shape"] for row in found["launches"] if row["shape"]], dry=chosen.dry)
        for name, ours, quicker in beside(found, theirs):
            print(f"  {name:32} ours {ours:8.1f} the quicker library {quicker:8.1f}")
    if chosen.peer:
        other = peer(chosen.network, case, dry=chosen.dry)
        print(f"PyTorch: {other['us']:.0f} us a step")
        for name, (count, us) in other["kinds"].items():
            print(f"  {name:32} {count:6.1f} {us:8.1f}")
        found["peer"] = other
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1, default=vars) + "\n", "utf-8")


if __name__ == "__main__":
    main()
