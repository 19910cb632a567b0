"""Draw the pictures of the first page and of the steps: docs/figures/step-*.svg and overview.svg.

    python docs/pictures.py

Numbers in them are computed here, and a test compares the files with what this draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minicnn import Sequential, data, zoo
from minicnn.html import COLOURS, escape
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.plans import PlannedStep, plan
from minicnn.program.explorer.layout import draw

FIGURES = Path(__file__).resolve().parent / "figures"
BLUE, ORANGE, GREEN, PINK = COLOURS[:4]
STYLE = (
    "<style>svg{--ink:#1c1d21;--soft:#5a5d66;--paper:#fdfdfe;--card:#f1f2f5;--line:#b9bcc4;--blue:#0072b2;"
    "--orange:#b04a00;--green:#007a57;--pink:#8a3f70;color:var(--ink);background:var(--paper)}"
    "@media(prefers-color-scheme:dark){svg{--ink:#e6e7ea;--soft:#a9adb6;--paper:#15171b;--card:#1f2228;--line:#50545d;"
    "--blue:#6db9ea;--orange:#f0a35e;--green:#4fc79f;--pink:#e0a1c8}}"
    ".bold{font-weight:700}.soft{fill:var(--soft)}.big{font-size:15px}.mono{font-family:monospace}"
    ".box{fill:var(--card);stroke:var(--line)}.band{fill:var(--card)}.layer,.spec{fill:var(--soft)}"
    ".step rect{fill:var(--paper);stroke:currentColor}.step text{fill:var(--ink)}.step .spec{fill:var(--soft)}"
    ".given{color:var(--pink)}.forward{color:var(--blue)}.backward{color:var(--orange)}.update{color:var(--green)}"
    "text.given,text.forward,text.backward,text.update{fill:currentColor}"
    ".edge{fill:none;stroke:var(--soft);stroke-opacity:.5}.arrow{fill:none;stroke:var(--soft);stroke-width:1.5}</style>"
)
HEAD = (
    '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:var(--soft)"/></marker></defs>'
)


def svg(title: str, width: float, height: float, body: str) -> str:
    """A picture, whose colours follow the reader's light or dark setting."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    font = 'font-family="sans-serif" font-size="12" fill="currentColor" role="img"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}><title>{escape(title)}</title>{STYLE}{HEAD}{body}'
        "</svg>\n"
    )


def text(x: float, y: float, words: Any, kind: str = "", anchor: str = "start") -> str:
    """A line of text."""
    where = f'x="{x:g}" y="{y:g}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f"<text {where}{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(words)}</text>"


def arrow(*points: tuple[float, float]) -> str:
    """A line with a head at its end."""
    return f'<path class="arrow" marker-end="url(#to)" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>'


def grey(pixel: int) -> str:
    """The colour of a pixel."""
    return f"#{int(pixel):02x}{int(pixel):02x}{int(pixel):02x}"


def pixels(image: Any, x: float, y: float, side: float) -> str:
    """A grey image (H, W) as squares; neighbours of one colour are one."""
    parts = [f'<rect x="{x:g}" y="{y:g}" width="{side * image.shape[1]:g}" height="{side * len(image):g}"/>']
    for i, row in enumerate(np.asarray(image) // 17 * 17):
        j = 0
        while j < len(row):
            end = j + 1
            while end < len(row) and row[end] == row[j]:
                end += 1
            if row[j]:
                box = f'x="{x + side * j:g}" y="{y + side * i:g}" width="{side * (end - j):g}" height="{side:g}"'
                parts.append(f'<rect {box} fill="{grey(row[j])}"/>')
            j = end
    return f'<g shape-rendering="crispEdges" fill="#000">{"".join(parts)}</g>'


def numbers(table: Any, x: float, y: float, side: float, form: str = "{:.0f}", fills: Any = None) -> str:
    """A table of numbers in squares."""
    parts = []
    for i, row in enumerate(np.asarray(table)):
        for j, value in enumerate(row):
            fill = "none" if fills is None else fills[i][j]
            box = f'x="{x + side * j:g}" y="{y + side * i:g}" width="{side:g}" height="{side:g}"'
            parts.append(f'<rect {box} fill="{fill}" stroke="var(--line)"/>')
            parts.append(text(x + side * (j + 0.5), y + side * (i + 0.5) + 4, form.format(value), "mono", "middle"))
    return "".join(parts)


def digit() -> Any:
    """The digit of the first step."""
    return data.load("synthetic_digits", n_train=64, n_test=16).x_train[0, :, :, 0]


def image_picture() -> str:
    """Step 1: an image, a part of it as numbers, and a batch."""
    image, side = digit(), 8
    top, rows, columns = 34, slice(9, 15), slice(5, 11)
    part = image[rows, columns]
    body = [text(10, 20, "An image of 28 x 28 pixels", "bold"), pixels(image, 10, top, side)]
    mark = f'x="{10 + side * columns.start}" y="{top + side * rows.start}" width="{6 * side}" height="{6 * side}"'
    body.append(f'<rect {mark} fill="none" stroke="{ORANGE}" stroke-width="2.5"/>')
    left = 330
    body += [text(left, 20, "is numbers: image[9:15, 5:11, 0]", "bold"), numbers(part, left, top, 34)]
    body.append(arrow((10 + side * columns.stop + 4, top + side * 12), (left - 8, top + 100)))
    body.append(text(left, top + 230, "0 is black, 255 is white", "soft"))
    left = 590
    body.append(text(left, 20, "A batch has one more axis", "bold"))
    batch = data.load("synthetic_digits", n_train=64, n_test=16).x_train[:4, :, :, 0]
    for k in range(3, -1, -1):
        x, y = left + 26 * k, top + 18 * (3 - k)
        frame = f'<rect x="{x}" y="{y}" width="126" height="126" fill="none" stroke="var(--line)"/>'
        body += [pixels(batch[k], x, y, 4.5), frame]
    body.append(text(left, top + 230, "(N, H, W, C) = (4, 28, 28, 1)", "mono"))
    return svg("An image as pixels, a part of it as numbers, and four images as a batch", 810, 280, "".join(body))


def window_picture() -> str:
    """Step 2: a window of an image times a kernel is one element of the result."""
    image = digit()[9:16, 5:12].astype(int)
    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    result = np.array([[(image[i : i + 3, j : j + 3] * kernel).sum() for j in range(5)] for i in range(5)])
    row, column, side, top = 1, 2, 34, 44
    body = [text(10, 24, "image (7, 7)", "bold"), text(300, 24, "kernel (3, 3)", "bold"),
            text(470, 24, "result (5, 5)", "bold")]  # fmt: skip
    body.append(numbers(image, 10, top, side))
    frame = f'x="{10 + side * column}" y="{top + side * row}" width="{3 * side}" height="{3 * side}"'
    body.append(f'<rect {frame} fill="{ORANGE}" fill-opacity=".18" stroke="{ORANGE}" stroke-width="3"/>')
    body.append(numbers(kernel, 300, top + side, side))
    body.append(text(275, top + 2.6 * side, "×", "big", "middle"))
    body.append(text(435, top + 2.6 * side, "→", "big", "middle"))
    body.append(numbers(result, 470, top, 44))
    frame = f'x="{470 + 44 * column}" y="{top + 44 * row}" width="44" height="44"'
    body.append(f'<rect {frame} fill="{ORANGE}" fill-opacity=".18" stroke="{ORANGE}" stroke-width="3"/>')
    terms = [
        f"{image[row + i, column + j]} · {kernel[i, j]}".replace("-", "−")
        for i in range(3) for j in range(3) if kernel[i, j]
    ]  # fmt: skip
    sum_said = f"{' + '.join(terms)} = {result[row, column]}".replace("-", "−")
    body.append(text(10, top + 7 * side + 28, sum_said, "mono"))
    said = "The window moves by one; each place gives one element."
    body.append(text(10, top + 7 * side + 50, said, "soft"))
    return svg("A window of an image times a kernel is summed to one element of the result", 710, 350, "".join(body))


def padding_picture() -> str:
    """Step 6: where three pixels fit on an axis of seven."""
    n, k, side, left, gap = 7, 3, 26, 46, 7
    body, y = [], 0.0
    for padding, stride in ((0, 1), (1, 1), (0, 2), (1, 2)):
        places = range(0, n + 2 * padding - k + 1, stride)
        said = f"{'1 zero at each end' if padding else 'no padding'}, stride {stride}: {len(places)} places"
        body.append(text(10, y + 16, said, "bold"))
        top = y + 26
        for i in range(-padding, n + padding):
            x, inside = left + side * i, 0 <= i < n
            look = 'fill="var(--card)" stroke="var(--soft)"' if inside else 'fill="none" stroke="var(--line)"'
            dash = "" if inside else ' stroke-dasharray="3 3"'
            body.append(f'<rect x="{x}" y="{top}" width="{side}" height="{side}" {look}{dash}/>')
            body.append(text(x + side / 2, top + 17, i + 1 if inside else 0, "" if inside else "soft", "middle"))
        for row, place in enumerate(places):
            x, below = left + side * (place - padding), top + side + 8 + gap * row
            line = f'x1="{x + 2}" x2="{x + k * side - 2}" y1="{below}" y2="{below}"'
            body.append(f'<line {line} stroke="var(--blue)" stroke-width="3"/>')
            middle = x + k * side / 2
            body.append(f'<circle cx="{middle:g}" cy="{below}" r="4" style="fill:var(--orange)"/>')
        y = top + side + 8 + gap * len(places) + 8
    body.append(text(10, y + 12, "A bar is a window of 3, the dot the result that it gives.", "soft"))
    return svg("Windows of three pixels on an axis of seven, by padding and stride", 340, y + 24, "".join(body))


def normalization_picture() -> str:
    """Step 9: two channels of four samples, before and after."""
    before = np.array([[2.0, 110.0], [4.0, 90.0], [6.0, 100.0], [8.0, 60.0]])
    mean, deviation = before.mean(axis=0), before.std(axis=0)
    after = (before - mean) / deviation
    side, top, right = 56, 62, 300
    fills = [["rgba(0,114,178,.16)", "rgba(176,74,0,.16)"]] * 4
    body = [text(76, 18, "before", "bold"), text(right, 18, "after", "bold")]
    for x, table, form in ((76, before, "{:.0f}"), (right, after, "{:.2f}")):
        body += [
            text(x + side * (j + 0.5), 40, "channel", "soft", "middle") for j, name in enumerate(("channel", "channel"))
        ]
        body += [text(x + side * (j + 0.5), 54, j, "soft", "middle") for j in range(2)]
        body.append(numbers(table, x, top, side, form, fills))
    body += [text(70, top + side * (i + 0.5) + 4, f"image {i}", "soft", "end") for i in range(4)]
    body.append(arrow((76 + 2 * side + 16, top + 2 * side), (right - 16, top + 2 * side)))
    for row, (name, values) in enumerate((("mean", mean), ("deviation", deviation))):
        y = top + 4 * side + 24 + 20 * row
        body.append(text(70, y, name, "soft", "end"))
        body += [text(76 + side * (j + 0.5), y, f"{value:.1f}", "mono", "middle") for j, value in enumerate(values)]
        body += [text(right + side * (j + 0.5), y, f"{row:.1f}", "mono", "middle") for j in range(2)]
    return svg("Two channels of four images before and after normalisation", 440, top + 4 * side + 60, "".join(body))


def learning_picture() -> str:
    """Step 10: gradient descent on a parabola, at four rates."""
    body = []
    for number, (rate, said) in enumerate(((0.1, "slow"), (1.0, "at once"), (1.9, "swinging"), (2.1, "away"))):
        x, y, wide, high = 20 + 220 * (number % 2), 34 + 190 * (number // 2), 190, 130

        def place(w: float, x: float = x, y: float = y, wide: float = wide, high: float = high) -> tuple[float, float]:
            return x + wide * (w + 1.8) / 3.6, y + high * (1 - w * w / 3.24)

        steps = [(1 - rate) ** n for n in range(6)]
        points = [place(w) for w in steps]
        curve = "M" + " L".join("{:.1f} {:.1f}".format(*place(w)) for w in np.linspace(-1.8, 1.8, 37))
        path = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        body.append(text(x, y - 12, f"rate {rate}: {said}", "bold"))
        body.append(f'<path d="{curve}" fill="none" stroke="var(--soft)" stroke-width="1.5"/>')
        body.append(f'<path d="{path}" fill="none" stroke="var(--orange)" stroke-width="1"/>')
        body += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size}" style="fill:var(--{tone})"/>'
            for (a, b), (size, tone) in zip(points, [(6, "blue"), *[(4.5, "orange")] * 5], strict=True)
        ]
        body.append(text(x + wide / 2, y + high + 18, "weight w", "soft", "middle"))
    note = "Upwards the loss; the large dot is the beginning."
    body.append(text(20, 400, note, "soft"))
    return svg("Five steps on a parabola with four learning rates", 450, 412, "".join(body))


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
        body.append(f'<rect x="{places[3]}" y="{y}" width="{wide:.1f}" height="13" fill="{BLUE}" fill-opacity=".55"/>')
        main = max(launch.nodes, key=lambda node: node.cost.flops).op.name
        main = main.replace("_partial_sums", "").replace("_gradient", "")
        body.append(text(places[3], y + 25, f"{launch.seconds * 1e6:.1f} us, {main}", "soft"))
    body.append(roofline(step, places[4], top + 14, 160, high - 34, marks=False))
    body.append(text(places[4], top + high - 4, "what an H200 can do at most", "soft"))
    return svg("One image becomes layers, a Program, kernels and a roofline", 920, 250, "".join(body))


def pictures() -> dict[str, str]:
    """All pictures, by the names of their files."""
    return {
        "overview": overview(),
        "step-01-image": image_picture(),
        "step-02-window": window_picture(),
        "step-06-padding": padding_picture(),
        "step-07-program": program_picture("predict"),
        "step-08-training-step": program_picture("train"),
        "step-09-normalization": normalization_picture(),
        "step-10-learning": learning_picture(),
        "step-13-roofline": roofline_picture(),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FIGURES / f"{name}.svg").write_text(picture, "utf-8")
