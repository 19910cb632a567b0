"""`minicnn plan`: a training step as it would run on a GPU, which need not be there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from minicnn import backends, zoo
from minicnn.backends._gpu.backend import GpuBackend
from minicnn.backends._gpu.costs import FITTED, unfitted
from minicnn.backends._gpu.cubin import Resources, resources
from minicnn.backends._gpu.device import KNOWN, Gpu
from minicnn.backends._gpu.planning import PlannedStep, planned
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.cli.options import Name
from minicnn.cli.tables import console, table
from minicnn.jobs.settings import DEFAULT, RECIPES
from minicnn.kernels import words
from minicnn.layers import Rescaling
from minicnn.loop.tracing import PRECISIONS
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD

THIS = "this"
SHORT = {name.removeprefix("mixed_"): name for name in PRECISIONS}


class Image(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Height, width and channels."""

    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """See `click.ParamType.convert`."""
        parts = str(value).split(",")
        if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
            self.fail(f"An image is H,W,C in positive numbers, such as 32,32,3. Received: {value!r}.", param, ctx)
        return tuple(int(part) for part in parts)


@click.command()
@click.argument("network", type=Name("A network", zoo.names))
@click.option(
    "--gpu", "name", required=True, type=Name("A GPU", lambda: [*KNOWN, THIS]), metavar="NAME",
    help=f"GPU: {', '.join(KNOWN)}; or {THIS}, the GPU of this machine.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples in the step.")
@click.option(
    "--precision", type=click.Choice([*PRECISIONS, *(s for s in SHORT if s not in PRECISIONS)]), default="float32",
    show_default=True, help="Number formats: one everywhere, or mixed: products and images in 16 bits.",
)  # fmt: skip
@click.option("--classes", type=click.IntRange(min=1), metavar="N", help="Classes; by default the network's own.")
@click.option("--image", type=Image(), metavar="H,W,C", help="Size of an image; by default the network's own.")
@click.option(
    "--kernel", "number", type=click.IntRange(min=0), metavar="N", help="Print the kernel of launch N instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    network: str, name: str, batch_size: int | None, precision: str, classes: int | None,
    image: tuple[int, ...] | None, number: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Plan a training step of NETWORK for a GPU that need not be there. The optimizer is SGD with momentum.

    Prints for each launch of the cupy backend its operations, blocks and threads, its shared memory and registers, the
    bytes that it moves, its FLOPs, and the time that the performance model predicts beside the least time that the
    GPU's peak rates allow. Registers are those of the compiled kernel, where NVRTC is installed.
    """
    gpu = _this() if name == THIS else KNOWN[name]
    precision = SHORT.get(precision, precision)
    if precision.startswith("mixed") and not gpu.has_tensor_cores:
        raise click.UsageError(
            f"Mixed precision needs tensor cores that know bfloat16 (compute capability 8.0 or later). Received: "
            f"{precision} on {gpu.name}. Use float32."
        )
    batch = batch_size or RECIPES.get(network, DEFAULT).batch_size or DEFAULT.batch_size or 1
    model = zoo.get_model(
        network, num_classes=classes, input_shape=image, preprocessing=[Rescaling(1 / 255)], input_dtype="uint8"
    )
    model.compile(
        SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"], precision=precision
    )
    step = planned(model.program("train", batch_size=batch), gpu, generate)
    if number is not None:
        click.echo(_kernel(step, number), nl=False)
        return
    title = f"{network}, a training step on a batch of {batch} in {precision}"
    found = _facts(title, step, *_compiled(step))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)


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
    return words.text(launch.kernel)


def _this() -> Gpu:
    """The GPU of this machine."""
    reasons = []
    for name in ("cupy", "numba_cuda"):
        try:
            backend = backends.get_backend(name)
        except (ImportError, RuntimeError, ValueError) as error:
            reasons.append(f"{name}: {error}")
            continue
        if isinstance(backend, GpuBackend) and backend.gpu is not None:
            return backend.gpu
    raise click.ClickException(
        f"--gpu {THIS} needs an NVIDIA GPU. Received: {' '.join(reasons)} Name one: {', '.join(KNOWN)}."
    )


def _compiled(step: PlannedStep) -> tuple[list[Resources | None], str | None]:
    """What each kernel takes once it is compiled; None, and why, if it cannot be."""
    texts = [launch.source.text for launch in step.launches if launch.source is not None]
    try:
        nvrtc.version()
    except ImportError as missing:
        return [None] * len(step.launches), f"Registers are those of compiled kernels. {missing}"
    codes = iter(compiler.compile_all(texts, step.gpu.architecture))
    return [None if launch.source is None else resources(next(codes)) for launch in step.launches], None


def _facts(title: str, step: PlannedStep, compiled: Sequence[Resources | None], why: str | None) -> dict[str, Any]:
    gpu, rows = step.gpu, []
    for launch, found in zip(step.launches, compiled, strict=True):
        source = launch.source
        declared, dynamic = found.shared if found else launch.declared, source.shared if source else 0
        rows.append(
            {
                "nodes": [n.op.name for n in launch.nodes],
                "reference": launch.groups[0].reference,
                "blocks": source.blocks if source else 0,
                "threads": source.threads if source else 0,
                "shared_bytes": declared + dynamic,
                "static_shared_bytes": declared,
                "dynamic_shared_bytes": dynamic,
                "registers": found.registers if found else None,
                "fits": launch.misfit(gpu, found) is None,
                "bytes": launch.nbytes,
                "flops": launch.flops,
                "modelled_s": launch.seconds,
                "roof_s": launch.roof,
            }
        )
    notes = [why] if why else []
    if unfitted(gpu):
        notes.append(
            f"The model of tile times was fitted to an {FITTED.name}, not to this GPU: its constants are derived from "
            "the GPU's description."
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


def _show(found: dict[str, Any]) -> None:
    out, gpu, totals, memory = console(), found["device"], found["totals"], found["memory_bytes"]
    out.print(f"{found['title']}, on {gpu['name']} (compute capability {'.'.join(map(str, gpu['capability']))})")
    out.print(
        f"Limits of a block: {gpu['shared_block']:,} bytes of shared memory, {gpu['threads_block']:,} threads, "
        f"{gpu['registers_thread']} registers a thread, {gpu['registers']:,} in all; {gpu['multiprocessors']} "
        f"multiprocessors; {gpu['bandwidth'] / 1e9:,.0f} GB/s; {gpu['memory'] / 1e9:,.0f} GB"
    )
    for note in found["notes"]:
        out.print(f"Note: {note}")
    columns = [
        "launch", "blocks", "threads", "static", "dynamic", "registers", "MB", "MFLOP", "modelled us", "roof us",
        "operations",
    ]  # fmt: skip
    rows = [[*_cells(k, launch), _operations(launch)] for k, launch in enumerate(found["launches"])]
    out.print()
    out.print(table("Launches", columns, rows, numbers=True))
    out.print()
    out.print(
        f"{totals['launches']} launches, {totals['flops'] / 1e9:,.3f} GFLOP, {totals['bytes'] / 1e6:,.1f} MB moved: "
        f"{totals['modelled_s'] * 1e6:,.0f} us by the model, {totals['roof_s'] * 1e6:,.0f} us by the roof"
    )
    out.print(
        f"Memory: {memory['total'] / 1e6:,.1f} MB: weights and state {memory['weights_and_state'] / 1e6:,.1f}, batch "
        f"{memory['batch'] / 1e6:,.1f}, within a step {memory['within_a_step'] / 1e6:,.1f}"
    )


def _cells(number: int, launch: dict[str, Any]) -> list[str]:
    registers = "-" if launch["registers"] is None else str(launch["registers"])
    return [
        str(number), f"{launch['blocks']:,}", str(launch["threads"]), f"{launch['static_shared_bytes']:,}",
        f"{launch['dynamic_shared_bytes']:,}", registers, f"{launch['bytes'] / 1e6:,.2f}",
        f"{launch['flops'] / 1e6:,.2f}", f"{launch['modelled_s'] * 1e6:,.1f}", f"{launch['roof_s'] * 1e6:,.1f}",
    ]  # fmt: skip


def _operations(launch: dict[str, Any]) -> str:
    names = list(dict.fromkeys(launch["nodes"]))
    text = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    text += "" if launch["fits"] else " (does not fit)"
    return text if launch["reference"] is None else f"{text} (reference: {launch['reference']})"
