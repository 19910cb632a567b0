"""Helpers for scripts: batches by number, one-hot labels, and a drawing of a model."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from minicnn.arguments import plain
from minicnn.data.pydataset import PyDataset
from minicnn.extras import needing
from minicnn.files import write_file
from minicnn.html import Drawing, escape
from minicnn.program.graph import Node, Program
from minicnn.program.printing import engineering

if TYPE_CHECKING:
    from minicnn.models import Model

__all__ = ["PyDataset", "plot_model", "to_categorical"]

WIDTH, HEIGHT, GAP = 190, 46, 24  # pixels of a box, and between two


def to_categorical(x: Any, num_classes: int | None = None) -> np.ndarray[Any, Any]:
    """Class numbers as one-hot rows.

    Args:
        x: Class numbers, shape (...,) or (..., 1).
        num_classes: Number of classes; the largest class number and one if None.

    Returns:
        float32 (..., num_classes).

    Raises:
        ValueError: If they are no integers from 0 to num_classes - 1.

    Example:
        >>> to_categorical([0, 2])
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    labels = np.asarray(x)
    labels = labels[..., 0] if labels.ndim > 1 and labels.shape[-1] == 1 else labels
    whole = labels.size > 0 and (labels.dtype.kind in "iub" or bool(np.all(labels == np.round(labels))))
    num_classes = plain(num_classes)
    classes = num_classes if num_classes is not None else int(labels.max()) + 1 if whole else 1
    if not whole or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"to_categorical takes class numbers from 0 to {max(classes, 1) - 1}. Received: {labels.dtype} "
            f"{f'from {labels.min()} to {labels.max()}' if labels.size else 'none'}. Relabel them, or give num_classes."
        )
    rows: np.ndarray[Any, Any] = np.eye(classes, dtype=np.float32)[labels.astype(np.int64)]
    return rows


def plot_model(
    model: Model, to_file: str | os.PathLike[str] | None = None, show_shapes: bool = True, **how: Any
) -> Drawing:
    """A model as boxes, one for each layer that computes something, with arrows between them.

    Args:
        model: The model, built.
        to_file: File to write, which ends in ".svg", or in ".png", for which Pillow draws; None for none.
        show_shapes: Whether boxes name shapes and FLOPs for one sample.
        how: Taken as scripts for Keras give it, `show_layer_names`, `rankdir`, `dpi` ..., and without effect.

    Returns:
        The drawing, which a notebook shows.
    """
    drawing = _drawing(model.program("predict", batch_size=1), f"the model {model.name!r}", show_shapes)
    if to_file is not None and os.fspath(to_file).endswith(".png"):
        write_file(to_file, _png(drawing))
    elif to_file is not None:
        drawing.save(to_file)
    return drawing


def _png(drawing: Drawing) -> bytes:
    """The boxes, lines and texts of `_drawing`, which are all that it consists of, in black on white."""
    with needing("A drawing is written as PNG with", "Pillow"):
        from PIL import Image, ImageDraw
    picture = Image.new("RGB", (drawing.width, drawing.height), "white")
    pen = ImageDraw.Draw(picture)
    for x, y, w, h in re.findall(r'<rect x="(-?\d+)" y="(-?\d+)" width="(\d+)" height="(\d+)"', drawing.body):
        pen.rounded_rectangle((int(x), int(y), int(x) + int(w), int(y) + int(h)), 5, outline="black")
    for path in re.findall(r'<path d="M([^"]*)" fill="none"', drawing.body):
        *bent, u, v = map(int, re.findall(r"-?\d+", path))
        pen.line((*bent, u, v), "gray")
        pen.polygon((u, v, u - 3, v - 6, u + 3, v - 6), "gray")
    for x, y, text in re.findall(r'<text x="(-?\d+)"[^>]*? y="(-?\d+)"[^>]*>([^<]*)</text>', drawing.body):
        pen.text((int(x), int(y)), html.unescape(text), "black", anchor="ms")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _drawing(program: Program, title: str, show_shapes: bool) -> Drawing:
    """Nodes of one layer as one box, each below those that it reads."""
    read = {id(v) for node in program.nodes for v in node.inputs}
    inputs = [v for v in program.inputs if v.kind == "input" and id(v) in read]
    owner, lines = {id(v): v.name for v in inputs}, {v.name: [v.name, str(v.spec)] for v in inputs}
    edges: dict[tuple[str, str], None] = {}
    flops: dict[str, int] = {}
    for node in program.nodes:
        name = _box_of(node, [owner[id(v)] for v in node.inputs if id(v) in owner], list(lines))
        edges |= {(owner[id(v)], name): None for v in node.inputs if owner.get(id(v), name) != name}
        owner |= {id(v): name for v in node.outputs}
        flops[name] = flops.get(name, 0) + node.cost.flops
        lines[name] = [name, f"{node.outputs[0].spec}  {engineering(flops[name])}FLOP"]
    row: dict[str, int] = {}
    for name in lines:  # in the Program's order, so that what is read has its row already
        row[name] = 1 + max((row.get(a, -1) for a, b in edges if b == name), default=-1)
    rows: dict[int, list[str]] = {}
    for name, at in row.items():
        rows.setdefault(at, []).append(name)
    width = max(map(len, rows.values())) * (WIDTH + GAP) + GAP
    place = {
        name: ((width - len(names) * (WIDTH + GAP) + GAP) // 2 + i * (WIDTH + GAP), GAP + at * (HEIGHT + GAP))
        for at, names in rows.items()
        for i, name in enumerate(names)
    }
    parts = [_arrow(place[a], place[b], GAP * (row[b] - row[a] > 1)) for a, b in edges]
    parts += [_box(*place[name], lines[name][: 1 + show_shapes]) for name in lines]
    head = '<marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    arrow_head = f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>'
    return Drawing(title, width, GAP + len(rows) * (HEIGHT + GAP), arrow_head + "".join(parts))


def _box_of(node: Node, read: Sequence[str], boxes: Sequence[str]) -> str:
    """The box of a node: that of its layer, unless it reads boxes after that one, so that no arrow goes back."""
    name = node.scope.split("/")[0] or node.op.name
    newest = max((boxes.index(box) for box in read), default=-1)
    if name not in boxes or newest <= boxes.index(name):
        return name
    prefix = f"{name}, call "
    if node.op.name == "relu" or boxes[newest].startswith(prefix):  # which a pass has put behind the pooling
        return boxes[newest]
    return f"{prefix}{2 + sum(box.startswith(prefix) for box in boxes)}"


def _box(x: int, y: int, lines: list[str]) -> str:
    outline = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="none" stroke="currentColor"/>'
    where = f'x="{x + WIDTH // 2}" text-anchor="middle"'
    bold = f'<text {where} y="{y + (20 if len(lines) > 1 else 28)}" font-weight="bold">{escape(lines[0])}</text>'
    return outline + bold + "".join(f'<text {where} y="{y + 36}">{escape(line)}</text>' for line in lines[1:])


def _arrow(start: tuple[int, int], end: tuple[int, int], aside: int) -> str:
    """From the lower edge of a box to the upper edge of another, past the boxes in between."""
    x, y = start[0] + WIDTH // 2, start[1] + HEIGHT
    u, v = end[0] + WIDTH // 2, end[1]
    out = (WIDTH // 2 + aside) if aside else 0
    path = f"M{x} {y}C{x + out} {y + GAP},{u + out} {v - GAP},{u} {v}"
    return f'<path d="{path}" fill="none" stroke="currentColor" opacity="0.7" marker-end="url(#to)"/>'
