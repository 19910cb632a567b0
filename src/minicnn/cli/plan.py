"""`minicnn plan`: a training step as it would run on a GPU, which need not be there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from minicnn import backends, plans, zoo
from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.costs import FITTED, unfitted
from minicnn.backends._gpu.cubin import Resources, resources
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.cli import plan_tables
from minicnn.cli.options import NETWORK, image_shape, several
from minicnn.files import write_file
from minicnn.jobs.settings import usual_batch
from minicnn.layers import Rescaling
from minicnn.loop.tracing import PRECISIONS
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.plans import GPUS, Gpu, PlannedStep
from minicnn.program import Node

THIS, ALL = "this", "all"
SHORT = {name.removeprefix("mixed_"): name for name in PRECISIONS}


@click.command()
@click.argument("network", type=NETWORK)
@click.option(
    "--gpu", "names", required=True, type=several("A GPU", lambda: [*GPUS, THIS]), metavar="NAME[,NAME..]",
    help=f"GPU, or several side by side: {', '.join(GPUS)}; or {THIS}, the GPU of this machine.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples in the step.")
@click.option(
    "--precision", type=click.Choice([*PRECISIONS, *(s for s in SHORT if s not in PRECISIONS)]), default="float32",
    show_default=True, help="Number formats: one everywhere, or mixed: products and images in 16 bits.",
)  # fmt: skip
@click.option("--classes", type=click.IntRange(min=1), metavar="N", help="Classes; by default the network's own.")
@click.option("--image", type=image_shape, metavar="H,W,C", help="Size of an image; by default the network's own.")
@click.option(
    "--kernel", "number", type=click.IntRange(min=0), metavar="N", help="Print the kernel of launch N instead."
)
@click.option(
    "--by", type=click.Choice(plan_tables.BY), help="What a row is; a launch of one GPU, a layer of several by default."
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the N rows of the longest modelled times.")
@click.option(
    "--columns", type=several("A column", lambda: [*plan_tables.COLUMNS, ALL]), default=(), metavar="A,B,..",
    help=f"Columns: {', '.join(plan_tables.COLUMNS)}; or {ALL}. By default those that fit a terminal.",
)  # fmt: skip
@click.option(
    "--html", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write a page to explore the step: each node with the launch that computes it.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON; of several GPUs a list.")
def plan(
    network: str, names: tuple[str, ...], batch_size: int | None, precision: str, classes: int | None,
    image: tuple[int, ...] | None, number: int | None, by: str | None, top: int | None, columns: tuple[str, ...],
    path: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Plan a training step of NETWORK for a GPU that need not be there. The optimizer is SGD with momentum.

    Prints for each launch of the cupy backend, or of webgpu on a GPU that is not NVIDIA's, the time that the
    performance model predicts beside the roof, the least time that the GPU's peak rates allow, the bytes that it moves,
    its FLOPs and its operations; with --columns also its blocks and threads, its shared memory and registers. Registers
    are those of the compiled kernel, where NVRTC is installed. Several GPUs are compared layer by layer.
    """
    gpus = [_this() if name == THIS else GPUS[name] for name in names]
    if len(gpus) > 1 and (number is not None or path is not None or columns):
        message = "--kernel, --columns and --html are for one GPU. Received: several. Name one."
        raise click.UsageError(message)
    precision = SHORT.get(precision, precision)
    for gpu in gpus:
        _check_precision(precision, gpu)
    batch = batch_size or usual_batch(network)
    model = zoo.get_model(
        network, num_classes=classes, input_shape=image, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8"
    )
    model.compile(
        SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], precision=precision
    )
    program = model.program("train", batch_size=batch)
    steps = [plans.plan(program, gpu) for gpu in gpus]
    if number is not None:
        click.echo(_kernel(steps[0], number), nl=False)
        return
    title = f"{network}, a training step on a batch of {batch} in {precision}"
    facts = [_facts(title, step, *_compiled(step)) for step in steps]
    if path is not None:
        write_file(path, program.to_html(run_by=_run_by(steps[0], facts[0])).encode())
        click.echo(f"{path}: {title}, on {gpus[0].name}", err=True)
    if as_json:
        click.echo(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2))
    elif path is None:
        shown = tuple(plan_tables.COLUMNS) if ALL in columns else columns
        plan_tables.show(facts, by or ("launch" if len(facts) == 1 else "layer"), top, shown)


def _check_precision(precision: str, gpu: Gpu) -> None:
    if precision.startswith("mixed") and not gpu.has_tensor_cores:
        raise click.UsageError(
            f"Mixed precision needs tensor cores that know bfloat16 (compute capability 8.0 or later). Received: "
            f"{precision} on {gpu.name}. Use float32."
        )


def _run_by(step: PlannedStep, described: dict[str, Any]) -> list[tuple[Node, str]]:
    """The launch that computes each node, in words."""
    rows = []
    for number, (launch, facts) in enumerate(zip(step.launches, described["launches"], strict=True)):
        kind = facts["reference"] or f"{facts['blocks']:,} blocks of {facts['threads']} threads"
        text = (
            f"launch {number} of {step.gpu.name}: {kind}, {facts['modelled_s'] * 1e6:.1f} us by the model, "
            f"{facts['roof_s'] * 1e6:.1f} us by the roof, with {len(launch.nodes) - 1} other nodes"
        )
        rows += [(node, text) for node in launch.nodes]
    return rows


def _kernel(step: PlannedStep, number: int) -> str:
    """The kernel of a launch, for people."""
    if number >= len(step.launches):
        raise click.UsageError(
            f"--kernel is the number of a launch, from 0 to {len(step.launches) - 1} here. Received: {number}. Without "
            "--kernel all launches are listed."
        )
    launch = step.launches[number]
    if launch.source is None:
        return f"launch {number} runs a reference: {launch.groups[0].reference}\n"
    return plans.in_words(launch)


def _this() -> Gpu:
    """The GPU of this machine."""
    reasons = []
    for name in ("cupy", "numba_cuda", "webgpu"):
        try:
            backend = backends.get_backend(name)
        except (ImportError, RuntimeError, ValueError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if isinstance(backend, GpuBackend) and backend.gpu is not None:
            return backend.gpu
    raise click.ClickException(f"--gpu {THIS} needs a GPU. Received: {' '.join(reasons)} Name one: {', '.join(GPUS)}.")


def _compiled(step: PlannedStep) -> tuple[list[Resources | None], str | None]:
    """Resources of each kernel once it is compiled; None, and why, if it cannot be."""
    if not step.gpu.has_cuda:
        return [None] * len(step.launches), "Registers are those of kernels that the GPU's driver compiles."
    texts = [launch.source.text for launch in step.launches if launch.source is not None]
    try:
        nvrtc.version()
    except ImportError as missing:
        return [None] * len(step.launches), f"Registers are those of compiled kernels. {missing}"
    codes = iter(compiler.compile_all(texts, step.gpu.architecture))
    return [None if launch.source is None else resources(next(codes)) for launch in step.launches], None


def _facts(title: str, step: PlannedStep, compiled: Sequence[Resources | None], why: str | None) -> dict[str, Any]:
    gpu, rows = step.gpu, []
    for number, (launch, usage) in enumerate(zip(step.launches, compiled, strict=True)):
        source = launch.source
        largest = max(launch.nodes, key=lambda node: node.cost.flops)
        declared, dynamic = usage.shared if usage else launch.declared, source.shared if source else 0
        rows.append(
            {
                "nodes": [n.op.name for n in launch.nodes],
                "layer": largest.scope,
                "operation": largest.op.name,
                "reference": launch.groups[0].reference,
                "blocks": source.blocks if source else 0,
                "threads": source.threads if source else 0,
                "shared_bytes": declared + dynamic,
                "static_shared_bytes": declared,
                "dynamic_shared_bytes": dynamic,
                "registers": usage.registers if usage else None,
                "fits": launch.misfit(gpu, usage) is None,
                "goes_on_beside": number in launch.plan.beside,
                "bytes": launch.nbytes,
                "flops": launch.flops,
                "modelled_s": launch.seconds,
                "roof_s": launch.roof,
            }
        )
    notes = [why] if why else []
    if unfitted(gpu):
        fitted = f"an {FITTED.name}, not to this GPU" if gpu.has_cuda else "no GPU"
        notes.append(
            f"The model of tile times was fitted to {fitted}: its constants are derived from the GPU's description."
        )
    if step.memory > gpu.memory:
        notes.append(f"The step needs more memory than the GPU's {gpu.memory:,} bytes: use a smaller --batch-size.")
    device = {**asdict(gpu), "max_shared_bytes_per_block": gpu.shared_block}
    totals = {
        "launches": len(rows),
        "flops": step.flops,
        "bytes": sum(launch.nbytes for launch in step.launches),
        "modelled_s": sum(launch.seconds for launch in step.launches),
        "roof_s": sum(launch.roof for launch in step.launches),
    }
    memory = {
        "weights_and_state": step.carried, "batch": step.inputs, "within_a_step": step.arena, "total": step.memory,
    }  # fmt: skip
    return {
        "title": title,
        "device": device,
        "max_shared_bytes_per_block": gpu.shared_block,
        "launches": rows,
        "totals": totals,
        "memory_bytes": memory,
        "notes": notes,
    }
