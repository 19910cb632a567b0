"""Pictures of Programs: as graphs, as kernels, below a roofline."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawing import arrow, digit, pixels, svg, text

from minicnn import Sequential, zoo
from minicnn.html import COLOURS
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.plans import PlannedStep, plan
from minicnn.program.explorer.layout import draw


def small_model() -> Sequential:
    """The network of step 7, without what makes its graph long."""
    layers = [Input((28, 28, 1)), Conv2D(8, 3, activation="relu"), MaxPooling2D(), Flatten(), Dense(10)]
    model = Sequential(layers)
    model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True))
    return model


def program_picture(kind: Any) -> str:
    """Steps 7 and 8: a Program as a graph."""
    body = draw(small_model().program(kind, batch_size=64))
    inner = body.partition(">")[2].removesuffix("</svg>")
    width, height = (float(n) for n in body.partition('viewBox="0 0 ')[2].partition('"')[0].split())
    title = "A prediction as a graph" if kind == "predict" else "A training step as a graph: forward, backward, update"
    inner = inner.replace('role="button" tabindex="-1" ', "")
    return svg(title, width, height, f'<g font-family="monospace" font-size="11">{inner}</g>')


def step_on(name: str) -> PlannedStep:
    """The training step of two convolutions, planned for a GPU."""
    model = zoo.get_model("two_convs", preprocessing=[Rescaling(1 / 255)], input_dtype="uint8")
    model.compile(SGD(0.01, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return plan(model.program("train", batch_size=64), name)


def roofline(step: PlannedStep, x: float, y: float, wide: float, high: float, marks: bool = True) -> str:
    """The launches of a step below the roof of a GPU: FLOP a byte to the right, FLOP a second up, both by decades."""
    gpu = step.gpu
    peak = gpu.peak("float32")
    left, right, low, top = -1.0, 3.0, 9.0, 14.2

    def place(intensity: float, rate: float) -> tuple[float, float]:
        across = (np.log10(max(intensity, 0.1)) - left) / (right - left)
        up = (np.log10(max(rate, 1e9)) - low) / (top - low)
        return x + wide * across, y + high * (1 - up)

    ridge = peak / gpu.bandwidth
    roof = [place(0.1, 0.1 * gpu.bandwidth), place(ridge, peak), place(1e3, peak)]
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" class="box"/>']
    line = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in roof)
    parts.append(f'<path d="{line}" fill="none" stroke="var(--blue)" stroke-width="2.5"/>')
    for launch in step.launches:
        a, b = place(launch.flops / launch.nbytes, launch.flops / launch.seconds)
        area = 3 + 30 * launch.seconds / sum(other.seconds for other in step.launches)
        parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{area:.1f}" style="fill:var(--orange)" fill-opacity=".65"/>'
        )
    if marks:
        parts += [text(place(n, 1e9)[0], y + high + 16, f"{n:g}", "soft", "middle") for n in (0.1, 10, 1000)]
        parts += [
            text(x - 6, place(1, rate)[1] + 4, unit, "soft", "end")
            for rate, unit in ((1e9, "1 G"), (1e11, "100 G"), (1e13, "10 T"))
        ]
        parts.append(text(x + wide / 2, y + high + 34, "FLOP for each byte", "soft", "middle"))
        parts.append(text(x, y - 8, "FLOP a second", "soft"))
        parts.append(text(x + wide - 8, roof[2][1] - 8, f"{peak / 1e12:.3g} TFLOP/s", "soft", "end"))
        beside = place(1.4, gpu.bandwidth)
        parts.append(text(beside[0], beside[1] + 14, f"{gpu.bandwidth / 1e9:,.0f} GB/s", "soft"))
    return "".join(parts)


def roofline_picture() -> str:
    """Step 13: where the launches of a step lie below the roofs of two GPUs."""
    body = []
    for name, left in (("h200", 70), ("rtx4060", 470)):
        step = step_on(name)
        total = sum(launch.seconds for launch in step.launches) * 1e6
        body.append(text(left, 22, f"{step.gpu.name}: {len(step.launches)} launches, {total:.0f} us", "bold"))
        body.append(roofline(step, left, 62, 300, 230))
    note = "A disc is a launch, the larger the longer it takes by the model; the line is what the GPU can do at most."
    body.append(text(70, 358, note, "soft"))
    return svg("The launches of a training step below the roofs of two GPUs", 800, 372, "".join(body))


def overview() -> str:
    """The first page: an image, layers, the Program, kernels, the roofline."""
    model = small_model()
    program = model.program("train", batch_size=64)
    step, top, high = step_on("h200"), 44, 190
    body = []
    titles = ("an image", "layers", "a Program", "kernels", "a roofline")
    places = (10, 178, 344, 560, 742)
    for k, (title, x) in enumerate(zip(titles, places, strict=True)):
        body.append(text(x, 26, title, "bold big"))
        if k:
            body.append(arrow((x - 28, top + high / 2), (x - 6, top + high / 2)))
    body.append(pixels(digit(), places[0], top + 25, 5))
    for k, layer in enumerate(("Conv2D(8, 3)", "MaxPooling2D()", "Flatten()", "Dense(10)")):
        box = f'x="{places[1]}" y="{top + 16 + 42 * k}" width="130" height="32" rx="5"'
        body.append(f'<rect class="box" {box}/>' + text(places[1] + 65, top + 36 + 42 * k, layer, "mono", "middle"))
    shown = [n for n in program.nodes if n.op.name in (
        "conv2d", "max_pool2d", "matmul", "softmax_cross_entropy", "conv2d_weight_gradient", "sgd_update")]  # fmt: skip
    kinds = list({(n.op.name, n.phase): n for n in shown}.values())
    for k, node in enumerate(kinds[:8]):
        y = top + 14 + 22 * k
        body.append(
            f'<g class="{node.phase}"><rect x="{places[2]}" y="{y}" width="6" height="16" fill="currentColor"/></g>'
        )
        body.append(text(places[2] + 14, y + 12, node.op.name, "mono"))
    total = sum(launch.seconds for launch in step.launches)
    for k, launch in enumerate(sorted(step.launches, key=lambda launch: -launch.seconds)[:6]):
        y = top + 14 + 29 * k
        wide = 135 * launch.seconds / total / 0.27
        body.append(
            f'<rect x="{places[3]}" y="{y}" width="{wide:.1f}" height="13" fill="{COLOURS[0]}" fill-opacity=".55"/>'
        )
        main = max(launch.nodes, key=lambda node: node.cost.flops).op.name
        main = main.replace("_partial_sums", "").replace("_gradient", "")
        body.append(text(places[3], y + 25, f"{launch.seconds * 1e6:.1f} us, {main}", "soft"))
    body.append(roofline(step, places[4], top + 14, 160, high - 34, marks=False))
    body.append(text(places[4], top + high - 4, "what an H200 can do at most", "soft"))
    return svg("One image becomes layers, a Program, kernels and a roofline", 920, 250, "".join(body))


def fusion_picture() -> str:
    """Step 12: the bytes that nine nodes move one by one, and those of the kernels that they are merged into."""
    layers = [Rescaling(1 / 255), Conv2D(8, 3, activation="relu"), MaxPooling2D(), Flatten(), Dense(10)]
    model = Sequential([Input((28, 28, 1), dtype="uint8"), *layers], backend="numba")
    apart = [(node.op.name, node.cost.bytes) for node in model.program("predict", batch_size=64).nodes]
    kernels = [
        (how.removeprefix("kernel: ").replace("block", "cast + multiply"), node.cost.bytes)
        for node, how in model.explain("predict", batch_size=64).rows
        if how != "kernel: no work"
    ]
    left, high, scale = 156, 25, 160 / max(size for _, size in apart)
    body, y = [], 20.0
    for rows, what, tone in ((apart, "one by one, {} nodes", "orange"), (kernels, "merged, {} kernels", "blue")):
        total = sum(size for _, size in rows) / 1e6
        body.append(text(10, y, f"{what.format(len(rows))}: {total:.2f} MB", "bold"))
        y += 10
        for name, size in rows:
            bar = f'x="{left}" y="{y:g}" width="{size * scale:.1f}" height="{high - 8}"'
            body.append(text(left - 8, y + 13, name, "mono", "end"))
            body.append(f'<rect {bar} style="fill:var(--{tone})" fill-opacity=".55"/>')
            body.append(text(left + size * scale + 5, y + 13, f"{size / 1e6:.2f}"))
            y += high
        y += 24
    body.append(text(left, y - 14, "megabytes read and written", "soft"))
    return svg("Bytes that the nodes of a prediction move one by one, and merged", 370, y, "".join(body))
