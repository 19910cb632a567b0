"""Draw the pictures of the first page and of the steps: docs/figures/step-*.svg and overview.svg.

    python docs/pictures.py

Numbers in them are computed here, and a test compares the files with what this draws.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from drawing import arrow, digit, frame, numbers, pixels, svg, text
from program_pictures import fusion_picture, overview, program_picture, roofline_picture

from minicnn import Sequential, data
from minicnn.html import COLOURS
from minicnn.layers import Conv2D, Input

FIGURES = Path(__file__).resolve().parent / "figures"
ORANGE = COLOURS[1]


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
        edge = f'<rect x="{x}" y="{y}" width="126" height="126" fill="none" stroke="var(--line)"/>'
        body += [pixels(batch[k], x, y, 4.5), edge]
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
    body.append(frame(10 + side * column, top + side * row, 3 * side, 3 * side))
    body.append(numbers(kernel, 300, top + side, side))
    body.append(text(275, top + 2.6 * side, "×", "big", "middle"))
    body.append(text(435, top + 2.6 * side, "→", "big", "middle"))
    body.append(numbers(result, 470, top, 44))
    body.append(frame(470 + 44 * column, top + 44 * row, 44, 44))
    terms = [
        f"{image[row + i, column + j]} · {kernel[i, j]}".replace("-", "−")
        for i in range(3) for j in range(3) if kernel[i, j]
    ]  # fmt: skip
    sum_said = f"{' + '.join(terms)} = {result[row, column]}".replace("-", "−")
    body.append(text(10, top + 7 * side + 28, sum_said, "mono"))
    said = "The window moves by one; each place gives one element."
    body.append(text(10, top + 7 * side + 50, said, "soft"))
    return svg("A window of an image times a kernel is summed to one element of the result", 710, 350, "".join(body))


def unfold_picture() -> str:
    """Step 3: the pixels under the filter, one place a row, times the filter as a column."""
    image, filters = digit()[9:13, 6:10].astype(int), np.array([[1, 0, -1]] * 3)
    places = [(i, j) for i in range(2) for j in range(2)]
    columns = np.array([image[i : i + 3, j : j + 3].ravel() for i, j in places])
    y = columns @ filters.reshape(9, 1)
    side, wide, top, below = 27, 40, 34, 208
    body = [
        text(10, 22, "image (4, 4)", "bold"), numbers(image, 10, top, side),
        text(154, 22, "filter (3, 3)", "bold"), numbers(filters, 154, top, side),
        text(280, 22, "result (2, 2)", "bold"), numbers(y.reshape(2, 2), 280, top, side, wide=wide),
        text(10, below - 36, "The same as one product of matrices", "bold"),
        text(10, below - 12, "a row for each place (4, 9)", "soft"), text(292, below - 12, "(9, 1)", "soft", "middle"),
        text(340, below - 12, "(4, 1)", "soft", "middle"),
        numbers(columns, 10, below, side), text(266, below + 56, "×", "big", "middle"),
        numbers(filters.reshape(9, 1), 279, below, side), text(313, below + 56, "=", "big", "middle"),
        numbers(y, 320, below, side, wide=wide),
    ]  # fmt: skip
    for row, tone in ((0, "orange"), (3, "blue")):
        i, j = places[row]
        body.append(frame(10 + side * j, top + side * i, 3 * side, 3 * side, tone))
        body.append(frame(280 + wide * j, top + side * i, wide, side, tone))
        body.append(frame(10, below + side * row, 9 * side, side, tone))
        body.append(frame(320, below + side * row, wide, side, tone))
    said = "A convolution as a product of matrices, with a row for each place of the filter"
    return svg(said, 370, below + 9 * side + 12, "".join(body))


def gradient_picture() -> str:
    """Step 4: an element of a filter's gradient as a sum of products, and as the slope of the loss."""
    x, dy = digit()[9:14, 6:11].astype(int) // 26, np.array([[1, 0, 2], [-1, 1, 0], [0, -2, 1]])
    dw = np.array([[(x[i : i + 3, j : j + 3] * dy).sum() for j in range(3)] for i in range(3)])
    row, column, side, top = 0, 1, 26, 66
    slope = dw[row, column]
    body = [text(10, 20, "The gradient of an element is a sum of products", "bold")]
    for words, left in (("pixels x", 10), ("times dy", 158), ("summed: dw", 258)):
        body.append(text(left, top - 14, words, "soft"))
    body += [numbers(x, 10, top, side), numbers(dy, 158, top, side), numbers(dw, 258, top, side, wide=34)]
    body += [frame(10 + side * column, top + side * row, 3 * side, 3 * side), frame(158, top, 3 * side, 3 * side)]
    body += [frame(258 + 34 * column, top + side * row, 34, side), text(148, top + 44, "·", "big", "middle")]
    body.append(text(247, top + 44, "→", "big", "middle"))
    left, above, wide, high = 62, 254, 290, 150

    def place(change: float) -> tuple[float, float]:
        return left + wide * (change + 1) / 2, above + high * (1 - (change + 1) / 2)

    (x0, y0), (x1, y1), (xa, ya), (xb, yb) = (place(change) for change in (-1, 1, -0.5, 0.5))
    body.append(text(10, above - 30, f"and the slope of the loss as it changes: {slope}", "bold"))
    body.append(f'<rect x="{left}" y="{above}" width="{wide}" height="{high}" class="box"/>')
    body.append(f'<path d="M{x0:g} {y0:g}L{x1:g} {y1:g}" stroke="var(--blue)" stroke-width="2.5"/>')
    corner = f"M{xa:g} {ya:g}H{xb:g}V{yb:g}"
    body.append(f'<path d="{corner}" fill="none" stroke="var(--soft)" stroke-dasharray="4 3"/>')
    body += [f'<circle cx="{a:g}" cy="{b:g}" r="5" style="fill:var(--orange)"/>' for a, b in ((xa, ya), (xb, yb))]
    body.append(text((xa + xb) / 2, ya + 16, "1", "", "middle"))
    body.append(text(xb + 8, (ya + yb) / 2 + 4, slope))
    body += [text(place(c)[0], above + high + 16, f"{c:+g}" if c else 0, "soft", "middle") for c in (-1, 0, 1)]
    body += [text(left - 6, place(c)[1] + 4, f"{c * slope:+g}" if c else 0, "soft", "end") for c in (-1, 0, 1)]
    body.append(text(left + wide / 2, above + high + 34, "change of the element of the filter", "soft", "middle"))
    body.append(text(10, above - 12, "change of the loss", "soft"))
    said = "An element of a filter's gradient as a sum of products, and as the slope of the loss"
    return svg(said, 370, above + high + 44, "".join(body))


def layer_picture() -> str:
    """Step 5: the three nodes of a layer, its filters, and what each makes of a digit."""
    model = Sequential([Input((28, 28, 1)), Conv2D(8, 3, activation="relu")], seed=0)
    nodes = model.program("predict", batch_size=1).nodes
    kernel = np.asarray(model.get_weights()["conv2d/kernel"])[:, :, 0, :]
    maps = np.asarray(model.predict(digit()[None, :, :, None] / np.float32(255)))[0]
    body, x = [text(10, 20, "A layer calls primitives ...", "bold")], 10
    for k, node in enumerate(nodes):
        wide, words = 84, node.op.name
        body.append(f'<rect x="{x}" y="34" width="{wide}" height="28" rx="5" class="box"/>')
        body.append(text(x + wide / 2, 53, words, "mono", "middle"))
        if k:
            body.append(arrow((x - 36, 48), (x - 4, 48)))
        x += wide + 40
    body += [text(52, 80, "kernel", "soft", "middle"), text(176, 80, "bias", "soft", "middle")]
    body.append(text(10, 114, "... and holds weights: eight filters, before training", "bold"))
    side, strong = 1 / np.abs(kernel).max(), maps.max()
    for f in range(8):
        left, top = 10 + 90 * (f % 4), 130 + 132 * (f // 4)
        for i in range(3):
            for j in range(3):
                value = kernel[i, j, f]
                box = f'x="{left + 26 + 9 * j}" y="{top + 9 * i}" width="9" height="9"'
                tone = "blue" if value > 0 else "orange"
                body.append(f'<rect {box} style="fill:var(--{tone})" fill-opacity="{abs(value) * side:.2f}"/>')
        body.append(f'<rect x="{left + 26}" y="{top}" width="27" height="27" fill="none" stroke="var(--line)"/>')
        shades = np.round(maps[:, :, f] / strong * 5) * 51
        body.append(pixels(shades.astype("uint8"), left, top + 36, 3))
    body.append(text(10, 404, "Below each filter its feature map of the digit.", "soft"))
    return svg("The primitives of a layer, its eight filters, and the feature maps of a digit", 370, 420, "".join(body))


def power(value: Any) -> str:
    """A number as 1e8 or 1; one below zero in brackets."""
    words = f"{value:.0e}".replace("e+0", "e") if abs(value) > 9 else f"{value:g}"
    return f"(−{words[1:]})" if value < 0 else words


def backends_picture() -> str:
    """Step 11: one Program on the arrays of five libraries; and a sum whose value depends on its order."""
    terms = np.asarray([1e8, 1, -1e8], "float32")
    orders = ((0, 1, 2), (0, 2, 1))
    libraries = (
        ("numpy", "plain NumPy"), ("array_api_strict", "the bare standard"),
        ("torch", "PyTorch's tensors"), ("jax", "one function for XLA"),
        ("numba", "kernels for the CPU"), ("cupy, numba_cuda", "kernels for CUDA GPUs"),
        ("webgpu", "kernels for any GPU"),
    )  # fmt: skip
    high, top = 30, 40
    end = top + high * len(libraries)
    body = [text(10, 20, "One Program, run by each backend", "bold")]
    body.append(f'<rect x="10" y="{top}" width="22" height="{end - top - 6}" rx="4" class="box"/>')
    middle = (top + end - 6) / 2
    body.append(f'<g transform="translate(25 {middle:g}) rotate(-90)">{text(0, 0, "the Program", "", "middle")}</g>')
    for k, (name, words) in enumerate(libraries):
        y = top + high * k
        body.append(f'<rect x="58" y="{y}" width="302" height="24" rx="4" class="box"/>')
        body += [text(68, y + 16, name, "mono"), text(206, y + 16, words, "soft"), arrow((34, y + 12), (56, y + 12))]
    body.append(text(10, end + 24, "The last digit depends on the order of a sum", "bold"))
    for k, order in enumerate(orders):
        a, b, c = terms[list(order)]
        y = end + 36 + 32 * k
        parts = (
            (10, 128, f"{power(a)} + {power(b)}"),
            (166, 56, power(a + b)),
            (250, 110, f"+ {power(c)} = {a + b + c:g}"),
        )
        for x, wide, words in parts:
            body.append(f'<rect x="{x}" y="{y}" width="{wide}" height="24" rx="4" class="box"/>')
            body.append(text(x + wide / 2, y + 16, words, "mono", "middle"))
        body += [arrow((140, y + 12), (164, y + 12)), arrow((224, y + 12), (248, y + 12))]
    return svg("One Program on many backends, and a sum in two orders", 370, end + 108, "".join(body))


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


def pictures() -> dict[str, str]:
    """All pictures, by the names of their files."""
    return {
        "overview": overview(),
        "step-01-image": image_picture(),
        "step-02-window": window_picture(),
        "step-03-unfold": unfold_picture(),
        "step-04-gradient": gradient_picture(),
        "step-05-layer": layer_picture(),
        "step-06-padding": padding_picture(),
        "step-07-program": program_picture("predict"),
        "step-08-training-step": program_picture("train"),
        "step-09-normalization": normalization_picture(),
        "step-10-learning": learning_picture(),
        "step-11-backends": backends_picture(),
        "step-12-fusion": fusion_picture(),
        "step-13-roofline": roofline_picture(),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FIGURES / f"{name}.svg").write_text(picture, "utf-8")
