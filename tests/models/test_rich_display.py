"""What a cell ends with: a text that says what it is, and HTML; progress that is put in its own place; drawings."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, callbacks, layers, losses, metrics, optimizers, schedules, utils
from minicnn.callbacks import History, display
from minicnn.data import Loader
from minicnn.layers import Conv2D, Dense, Flatten, Input, Lambda
from minicnn.utils import plot_model, to_categorical
from support.small_training import compiled, digits

EVIL = "<script>alert(1)</script>\x01"


def model() -> Sequential:
    made = Sequential([Input((8, 8, 1)), Conv2D(2, 3, name=f"a{EVIL}".replace("/", "")), Flatten(), Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizers.Adam(schedules.CosineDecay(0.1, 5)), loss, metrics=["accuracy"])
    return made


def history() -> History:
    made = History()
    made.on_epoch_end(0, {"loss": 1.5, "val_loss": 1.25, EVIL: 1.0, "note": EVIL, "matrix": np.eye(2)})
    made.on_epoch_end(1, {"loss": float("nan"), "val_loss": 0.75, EVIL: 2.0, "note": "b", "matrix": np.eye(2)})
    return made


SHOWN: dict[str, tuple[Any, str]] = {
    "model": (lambda: model(), r"<Sequential 'model': 3 layers, 239 weights>"),
    "unbuilt": (lambda: Sequential([Dense(2)]), r"<Sequential 'model': not built yet>"),
    "layer": (lambda: model().layers[1], r"Flatten\(\)$"),
    "convolution": (lambda: model().layers[0], r"Conv2D\(2, 3, name='a"),
    "lambda": (lambda: Lambda(lambda x: x, name="own"), r"Lambda\(<lambda>, name='own'\)"),
    "program": (lambda: model().program(), r"<Program 'train': \d+ inputs, \d+ nodes>"),
    "memory": (lambda: model().program().memory(), r"parameters .* MB\n"),
    "explanation": (lambda: model().explain(), r"v\d+ = permute\(x\) .*reference: "),
    "history": (history, r"<History of 2 epochs, the last with loss nan, val_loss 0.75"),
    "empty history": (History, r"<History of 0 epochs>"),
    "loader": (
        lambda: Loader(np.zeros((9, 2, 2)), np.arange(9)),
        r"<Loader: 9 samples \(2, 2\) in 1 batches of 32, shu",
    ),
    "optimizer": (lambda: model().optimizer, r"Adam\(learning_rate=CosineDecay\(initial_learning_rate=0.1, "),
    "schedule": (lambda: schedules.CosineDecay(0.1, 5), r"CosineDecay\(initial_learning_rate=0.1, decay_steps=5"),
    "loss": (lambda: losses.Huber(2.0), r"Huber\(delta=2.0\)"),
    "function": (lambda: losses.get_loss(abs), r"FunctionLoss\(abs\)"),
    "metric": (lambda: metrics.Accuracy(EVIL), r"Accuracy\(name='<script>"),
    "trace": (lambda: model().trace(np.ones((2, 8, 8, 1)), [0, 1]), r"<StepTrace: Step 'train' on numpy"),
    "value": (lambda: model().trace(np.ones((2, 8, 8, 1)))["dense/add"], r"<dense/add: v\d = add\("),
}


class Checker(HTMLParser):
    """Knows which tags are open, and which there were."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    """HTML whose tags are closed, that has no colour of letters or paper of its own, and runs nothing."""
    parser = Checker()
    parser.feed(text)
    assert parser.open == []
    assert not {"script", "style", "link", "img", "iframe"} & set(parser.seen)
    assert not re.search(r"(?<!-)\bcolor:|background", text)  # the page's own, light or dark
    return parser


@pytest.mark.parametrize("name", SHOWN)
def test_a_text_and_html(name: str) -> None:
    make, text = SHOWN[name]
    shown = make()
    assert re.match(text, repr(shown)), repr(shown)
    assert " at 0x" not in repr(shown)
    assert {"table", "div"} & set(checked(shown._repr_html_()).seen)


def test_what_the_forms_show() -> None:
    made = model()
    html = made._repr_html_()
    for cell in ("(None, 3)", "219", "239 weights, 239 of them trainable"):
        assert cell in html
    program = made.program(batch_size=4)
    html = program._repr_html_()
    assert f"{len(program.nodes)} nodes" in html
    assert html.count("<tr>") == len(program.inputs) + len(program.nodes) + len(program.results) + 2
    assert "<path" in html  # memory from node to node
    assert "activations" in html
    explained = made.explain()
    assert explained._repr_html_().count("reference: the numpy backend") == sum(
        how.startswith("reference: the numpy backend") for _, how in explained.rows
    )
    assert checked(history()._repr_html_()).seen.count("polyline") == 3
    assert "initial_learning_rate" in made.optimizer._repr_html_()  # type: ignore[union-attr]
    assert "(3, 3, 1, 2)" in made.layers[0]._repr_html_()


def test_the_strip_of_memory_is_the_plan() -> None:
    plan = model().program(batch_size=4).memory()
    live = [sum(b.nbytes for b in plan.buffers if b.first <= i <= b.last) for i in range(500)]
    assert f"at most {max(live):,} bytes" in plan.strip()._repr_html_()


@pytest.mark.parametrize("kind", [callbacks.EarlyStopping, callbacks.TerminateOnNaN])
def test_callbacks_say_what_they_are(kind: Any) -> None:
    assert repr(kind()) == f"<{kind.__name__}>"


def test_weights_say_what_they_are() -> None:
    assert repr(model().layers[-1].weights) == "[<Weight 'kernel': (72, 3)>, <Weight 'bias': (3,)>]"


# Drawings -----------------------------------------------------------------------------------------


def elements(svg: str, tag: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def test_curves_of_a_history(tmp_path: Path) -> None:
    plot = history().plot()
    svg = plot._repr_html_()
    assert len(elements(svg, "g")) == 2  # loss and the other number; text and matrix have no curve
    assert len(elements(svg, "circle")) == 1  # of the loss one number is finite
    titles = ["".join(t.itertext()).strip("\N{BLACK SQUARE} ") for t in elements(svg, "text")]
    assert "loss" in titles
    assert EVIL.replace("\x01", "\N{REPLACEMENT CHARACTER}") in titles
    assert "validation" in titles
    plot.save(tmp_path / "history.svg")
    assert "prefers-color-scheme" in (tmp_path / "history.svg").read_text()
    with pytest.raises(ValueError, match=r"written as SVG\. Received: 'history.png'"):
        plot.save("history.png")
    assert repr(plot).startswith("<Drawing of the training by epoch")
    History().plot()._repr_html_()


def test_a_model_as_boxes(tmp_path: Path) -> None:
    x = Input((8, 8, 2), name="image")
    y = Conv2D(2, 3, padding="same", name="left")(x)
    z = Conv2D(2, 3, padding="same", name="right")(x)
    made = Model(x, Dense(3, name="end")(Flatten()(layers.Add(name="both")([y, z]))), backend="numpy")
    svg = plot_model(made, to_file=tmp_path / "model.svg")._repr_html_()
    ET.parse(tmp_path / "model.svg")
    places = {t.text: (float(t.get("x", 0)), float(t.get("y", 0))) for t in elements(svg, "text")}
    assert places["left"][1] == places["right"][1]
    assert places["x"][1] < places["left"][1] < places["both"][1] < places["flatten"][1] < places["end"][1]
    assert len(elements(svg, "rect")) == 6
    assert len([p for p in elements(svg, "path") if p.get("marker-end")]) == 6
    assert any("float32[1,3]" in (text or "") for text in places)
    assert "float32" not in plot_model(made, show_shapes=False)._repr_html_()


def test_a_drawing_has_no_arrow_that_goes_back() -> None:
    shared = Dense(4, name="shared")
    x = Input((6, 6, 1))
    y = layers.MaxPooling2D(name="pool")(Conv2D(1, 3, activation="relu", name="first")(x))
    made = Model(x, shared(Dense(4, name="inner")(shared(Flatten()(y)))))
    texts = elements(plot_model(made)._repr_html_(), "text")
    rows = {t.text: float(t.get("y", 0)) for t in texts if t.get("font-weight")}
    assert sorted(rows, key=rows.__getitem__) == ["x", "first", "pool", "flatten", "shared", "inner", "shared, call 2"]
    assert len(set(rows.values())) == 7  # one below the other: relu, which comes after the pooling, is in its box


def test_one_hot_labels() -> None:
    np.testing.assert_array_equal(to_categorical([0, 2, 1]), np.eye(3)[[0, 2, 1]])
    assert to_categorical(np.asarray([[1], [0]], "uint8"), 4).shape == (2, 4)
    assert to_categorical([1.0]).dtype == np.float32
    assert to_categorical(np.zeros((2, 3), int), 2).shape == (2, 3, 2)
    for labels, classes in (([0, 3], 3), ([-1], None), ([0.5], 2), ([], 2)):
        with pytest.raises(ValueError, match=r"takes class numbers from 0 to \d\. Received: "):
            to_categorical(labels, classes)
    assert set(utils.__all__) == {"PyDataset", "plot_model", "to_categorical"}


# Progress -----------------------------------------------------------------------------------------


class Cell:
    """The outputs of a cell, as a notebook keeps them: those with an identity are replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        ipython, shown = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
        shown.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.outputs.append(data)
        return SimpleNamespace(update=self.update)

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates += 1
        self.outputs[-1] = data


@pytest.mark.parametrize("verbose", [1, "auto"])
def test_progress_in_a_notebook(
    verbose: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, seen = Cell(monkeypatch), []
    monkeypatch.setattr(display, "_INTERVAL", 0.0)
    look = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(cell.outputs[-1]))
    compiled().fit(*digits(), 5, 2, verbose=verbose, callbacks=[look], validation_data=digits(5))
    assert re.match(r'Epoch 1/2 <progress value="5" max="5"></progress> 5/5 validation', seen[0]["text/html"])
    assert seen[1]["text/plain"].startswith("Epoch 2/2 - 5/5")
    assert cell.updates > 5
    assert cell.outputs == [{"text/plain": "", "text/html": ""}]  # one, which is empty at the end
    out = capsys.readouterr().out
    assert [line[:9] for line in out.splitlines()] == ["Epoch 1/2", "Epoch 2/2"]
    assert "\r" not in out
    assert "\x1b" not in out


def test_progress_is_gone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(monkeypatch)

    def boom(batch: int, logs: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled().fit(*digits(), 5, 1, callbacks=[callbacks.LambdaCallback(on_train_batch_end=boom)])
    assert cell.outputs == [{"text/plain": "", "text/html": ""}]


def test_ipython_on_a_terminal_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(monkeypatch)
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    compiled().fit(*digits(), 5, 1, verbose=1)
    assert cell.outputs == []
    assert capsys.readouterr().out.startswith("Epoch 1/1")
