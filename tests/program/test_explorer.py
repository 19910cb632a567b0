"""The page of a Program that one can explore: what it says, that names stay text, and how it answers in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.layers import Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.program import Program
from support.browser import CONTRAST, NO_ALTERNATIVE, OVERFLOW, Browser, browser, needs_browser

EVIL = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">\u202e'\"&"


def model() -> Sequential:
    convolution = Conv2D(4, 3, activation="relu", name="conv")
    made = Sequential([Input((8, 8, 1)), convolution, MaxPooling2D(), Flatten(), Dropout(0.2), Dense(3)])
    made.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    return made


def steps_of(page: str) -> list[dict[str, Any]]:
    """The data of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    steps: list[dict[str, Any]] = json.loads(found[1])
    return steps


def by_title(page: str, start: str) -> dict[str, Any]:
    return next(step for step in steps_of(page) if step["title"].startswith(start))


def test_a_page_says_of_each_node_what_there_is_to_know() -> None:
    program = model().program(batch_size=5)
    steps = steps_of(program.to_html())
    assert [s["phase"] for s in steps] == ["given"] * len(program.inputs) + [n.phase for n in program.nodes]
    convolution = by_title(program.to_html(), "conv2d(")
    node = next(n for n in program.nodes if n.op.name == "conv2d")
    assert convolution["scope"] == "conv"
    assert convolution["cost"] == [node.cost.flops, node.cost.bytes]
    assert convolution["values"][0]["spec"] == "float32[5,6,6,4]"
    assert [name for name, _ in convolution["reads"]] == ["x", "conv/kernel"]
    assert [steps[source]["title"] for _, source in convolution["reads"]] == ["x", "conv/kernel"]
    assert {steps[reader]["title"].partition("(")[0] for reader in convolution["read"]} == {"add"}
    update = next(
        s for s in steps if s["phase"] == "update" and "new value of conv/kernel" in s["values"][0]["becomes"]
    )
    assert update["title"].startswith("sgd_update(conv/kernel") or "conv/kernel" in update["title"]


def test_what_runs_a_node_and_its_values_are_told_where_they_are_known() -> None:
    trained = model()
    page = trained.trace(np.ones((2, 8, 8, 1), np.float32), [0, 1]).to_html()
    convolution = by_title(page, "conv2d(")
    assert convolution["kernel"] == "kernel: conv2d_by_rows"
    (value,) = convolution["values"]
    assert "standard deviation" in value["statistics"]
    assert value["caption"].startswith("conv/conv2d, sample 0: 4 maps of 6 x 6")
    assert value["picture"].startswith("iVBORw0KGgo")
    loss = next(s for s in steps_of(page) if "output loss" in s["values"][0]["becomes"])
    assert float(loss["values"][0]["statistics"]) > 0
    assert "picture" not in by_title(trained.explain().to_html(), "conv2d(")["values"][0]
    assert by_title(trained.explain().to_html(), "conv2d(")["kernel"] == convolution["kernel"]
    assert by_title(trained.program().to_html(), "conv2d(")["kernel"] == ""


def test_pictures_end_where_a_page_would_grow_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = model().trace(np.ones((2, 8, 8, 1), np.float32))
    monkeypatch.setattr("minicnn.program.explorer.MOST_PICTURE_BYTES", 400)
    values = [value for step in steps_of(trace.to_html()) for value in step["values"]]
    assert 0 < sum("picture" in value for value in values) < len(values)
    assert all("statistics" in value for value in values)


def hostile() -> Program:
    program = Program(EVIL)
    with program.scope(EVIL):
        program.outputs[EVIL] = program.input(EVIL, (2,)) * 2.0
    return program


def test_names_are_text() -> None:
    page = hostile().to_html()
    assert page.count("<script") == 2
    assert "<img" not in page
    step = steps_of(page)[-1]
    assert step["title"] == f"multiply({EVIL}, 2.0)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explorer") / "step.html"
    images = np.random.default_rng(0).random((2, 8, 8, 1), np.float32)
    path.write_text(model().trace(images, [0, 1]).to_html(), "utf-8")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def shown(chromium: Browser) -> str:
    title: str = chromium.run("document.querySelector('#detail h2').textContent")
    return title


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_width_and_light(chromium: Browser, page: Path, width: int, dark: bool) -> None:
    chromium.open(page, width=width, dark=dark)
    for button in ("#as-list", "#as-graph"):
        chromium.click(button)
        assert chromium.run(OVERFLOW) == []
        assert chromium.run(CONTRAST) == []
        assert chromium.run(NO_ALTERNATIVE) == []
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(21, 23, 27)" if dark else "rgb(253, 253, 254)"
    )
    assert chromium.complaints == []
    assert chromium.asked == [page.as_uri()], "the page needs nothing but itself"


@needs_browser
@pytest.mark.parametrize("view", ["list", "graph"])
def test_hover_shows_and_click_and_keys_choose(chromium: Browser, page: Path, view: str) -> None:
    chromium.open(page)
    chromium.click(f"#as-{view}")
    steps = steps_of(page.read_text("utf-8"))
    numbers = {step["title"]: i for i, step in enumerate(steps)}
    convolution = next(i for title, i in numbers.items() if title.startswith("conv2d("))
    first = shown(chromium)
    chromium.hover(f"#{view} [data-step='{convolution}']")
    assert shown(chromium) == steps[convolution]["title"]
    assert chromium.run("document.querySelector('#detail img').naturalWidth") > 0
    chromium.hover("h1")
    assert shown(chromium) == first, "pointing chooses nothing"
    chromium.click(f"#{view} [data-step='{convolution}']")
    chromium.hover("h1")
    assert shown(chromium) == steps[convolution]["title"]
    chromium.key("ArrowRight")  # to what reads it
    assert shown(chromium) == steps[steps[convolution]["read"][0]]["title"]
    chromium.key("ArrowLeft")
    chromium.key("ArrowLeft")  # to what it reads
    assert shown(chromium) == "x"
    chromium.key("End")
    assert shown(chromium) == steps[-1]["title"]
    chromium.key("ArrowUp")
    assert shown(chromium) == steps[-2]["title"]
    assert chromium.run("document.activeElement.dataset.step") == str(len(steps) - 2)
    marked = chromium.run("[...document.querySelectorAll('.edge.in')].map(e => Number(e.dataset.from))")
    drawn = [i for _, i in steps[-2]["reads"] if i >= 0]
    assert set(marked) <= set(drawn)


@needs_browser
def test_phases_and_words_narrow_the_list(chromium: Browser, page: Path) -> None:
    chromium.open(page)
    visible = "[...document.querySelectorAll('#list .step')].filter(e => e.offsetParent).length"
    steps = steps_of(page.read_text("utf-8"))
    assert chromium.run(visible) == len(steps)
    chromium.click("[data-phase=given]")
    assert chromium.run(visible) == sum(step["phase"] != "given" for step in steps)
    chromium.click("#search")
    chromium.call("Input.insertText", text="max_pool2d(")
    assert chromium.run(visible) == 1


@needs_browser
def test_names_run_nothing_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(hostile().to_html(), "utf-8")
    chromium.open(path, width=400)
    chromium.click("#as-graph")
    chromium.click("#graph [data-step='1']")
    assert chromium.run("document.title") == f"Program {EVIL!r}"
    assert shown(chromium) == f"multiply({EVIL}, 2.0)"
    assert chromium.run("document.images.length") == 0
    assert chromium.run(OVERFLOW) == []
    assert chromium.complaints == []
