"""The demo: what the server answers, whom it refuses, and a digit that is drawn in a browser."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Model, Sequential, data
from minicnn.demo import Demo, serve
from minicnn.layers import Conv2D, Dense, Flatten, GroupNormalization, Input, MaxPooling2D, Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.tolerance import tolerance
from support.browser import CONTRAST, NO_ALTERNATIVE, OVERFLOW, Browser, browser, needs_browser
from support.command_line import error_of, minicnn
from support.tolerances import ELEMENT

NAMES = [f"digit {k}" for k in range(10)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a network that has seen some digits."""
    digits = data.load("synthetic_digits", n_train=2000, n_test=10)
    layers = [
        Input((28, 28, 1), dtype="uint8"), Rescaling(1 / 255), Conv2D(8, 5, strides=2, activation="relu", name="first"),
        Conv2D(16, 3, activation="relu", name="second"), MaxPooling2D(), Flatten(), Dense(10),
    ]  # fmt: skip
    model = Sequential(layers, name="digits <b>")
    model.compile("adam", SparseCategoricalCrossentropy(from_logits=True))
    model.fit(digits.x_train, digits.y_train, epochs=4, verbose=0)
    model.class_names = NAMES
    path = tmp_path_factory.mktemp("demo") / "digits.safetensors"
    model.save(path)
    return path


@contextmanager
def served(demo: Demo) -> Iterator[int]:
    """The port of a server of the demo."""
    with serve(demo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def port(saved: Path) -> Iterator[int]:
    with served(Demo(Model.load(saved), NAMES)) as port:
        yield port


def ask(port: int, body: Any, path: str = "/predict", **headers: str) -> tuple[int, Any]:
    """Status and answer of a question."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()


def encoded(pixels: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(pixels.tobytes()).decode()


def test_an_answer_is_what_the_model_predicts(port: int, saved: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (28, 28, 1), np.uint8)
    status, found = ask(port, {"pixels": encoded(image), "target": None, "layer": None})
    assert status == 200
    scores = Model.load(saved).predict(image[None])[0]
    shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    np.testing.assert_allclose(found["probabilities"], shares, atol=ELEMENT)
    assert found["target"] == scores.argmax()
    assert found["layer"] == "second"
    assert found["caption"].startswith("second: 16 maps of 10 x 10")
    assert base64.b64decode(found["overlay"]).startswith(b"\x89PNG")
    _, other = ask(port, {"pixels": encoded(image), "target": 3, "layer": "first"})
    assert (other["target"], other["layer"]) == (3, "first")
    assert other["caption"].startswith("first: 8 maps of 12 x 12")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "as JSON"), (b"[1]", "an object"), ({"pixels": "AAAA"}, r"784 bytes\. Received: 3"),
        ({"pixels": "?"}, "base64"), ({}, "base64"), (b"[" * 10**5, "as JSON"),
        ({"pixels": encoded(np.zeros(784, np.uint8)), "target": 10}, "from 0 to 9"),
        ({"pixels": encoded(np.zeros(784, np.uint8)), "target": True}, "from 0 to 9"),
        ({"pixels": encoded(np.zeros(784, np.uint8)), "layer": "none"}, "one of first, second"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_image_is_refused(port: int, body: Any, said: str) -> None:
    status, found = ask(port, body)
    assert status == 400
    assert re.search(said, found["wrong"])


def test_others_are_refused(port: int) -> None:
    image = {"pixels": encoded(np.zeros(784, np.uint8))}
    assert ask(port, image, Host="example.org")[0] == 403, "a name that leads here is not this machine's own"
    assert ask(port, image, Host="127.0.0.1:1")[0] == 403
    assert ask(port, image, **{"Content-Type": "text/plain"})[0] == 400, "a form of another page sends no JSON"
    assert ask(port, image, "/other")[0] == 400
    assert ask(port, image, **{"Content-Length": str(1 << 40)})[0] == 400
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/etc/passwd")
    assert connection.getresponse().status == 404
    connection.close()


def test_a_model_without_convolutions_and_in_colour() -> None:
    model = Sequential([Input((4, 6, 3)), Flatten(), Dense(2)])
    demo = Demo(model, ["a", "b"], scale=1 / 255)
    image = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    found = demo.answer(image)
    assert set(found) == {"probabilities", "target"}
    assert found["target"] == model.predict(image[None] / np.float32(255))[0].argmax()
    assert "Grad-CAM" not in demo.page
    with pytest.raises(ValueError, match="a model of 2 channels"):
        Demo(Sequential([Input((4, 4, 2)), Flatten(), Dense(2)]), ["a", "b"])


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def draw(chromium: Browser, *points: tuple[float, float]) -> None:
    """A stroke on the pad through points in shares of its sides."""
    box = chromium.run("(() => { const b = pad.getBoundingClientRect(); return [b.left, b.top, b.width, b.height] })()")
    places = [(box[0] + x * box[2], box[1] + y * box[3]) for x, y in points]
    chromium.mouse("mousePressed", *places[0])
    for place in places[1:]:
        chromium.mouse("mouseMoved", *place)
    chromium.mouse("mouseReleased", *places[-1])


@needs_browser
def test_a_digit_is_drawn_and_read(chromium: Browser, port: int) -> None:
    chromium.open(f"http://127.0.0.1:{port}/")
    chromium.wait("rows[0].share.textContent !== '–'")
    assert chromium.run("best.textContent") == "–", "nothing is drawn yet"
    draw(chromium, (0.5, 0.2), (0.5, 0.35), (0.5, 0.5), (0.5, 0.65), (0.5, 0.8))
    chromium.wait("!asking && best.textContent.startsWith('digit 1 ')")
    assert chromium.run("document.getElementById('target').textContent") == "digit 1"
    before = chromium.run("document.getElementById('overlay').src")
    chromium.click("#classes button:nth-child(8)")
    chromium.wait("!asking && document.getElementById('target').textContent === 'digit 7'")
    assert chromium.run("document.getElementById('overlay').src") != before
    chromium.run("(() => { const s = document.getElementById('layer'); s.value = 'first';"
                 "s.dispatchEvent(new Event('change')) })()")  # fmt: skip
    chromium.wait("document.getElementById('caption').textContent.startsWith('first: 8 maps')")
    chromium.click("#clear")
    chromium.wait("best.textContent === '–'")
    assert chromium.complaints == []
    assert {url.rpartition("/")[0] for url in chromium.asked} == {f"http://127.0.0.1:{port}"}


@needs_browser
def test_the_keyboard_draws(chromium: Browser, port: int) -> None:
    chromium.open(f"http://127.0.0.1:{port}/")
    chromium.run("pad.focus()")
    chromium.key(" ", " ")
    for _ in range(16):
        chromium.key("ArrowDown")
    chromium.wait("!asking && best.textContent.startsWith('digit 1 ')")
    assert chromium.complaints == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_width_and_light(chromium: Browser, port: int, width: int, dark: bool) -> None:
    chromium.open(f"http://127.0.0.1:{port}/", width=width, dark=dark)
    draw(chromium, (0.3, 0.3), (0.7, 0.3))
    chromium.wait("!asking && best.textContent !== '–'")
    for check in (OVERFLOW, CONTRAST, NO_ALTERNATIVE):
        assert chromium.run(check) == []
    assert chromium.run("document.title") == "minicnn: digits <b>"


@needs_browser
def test_a_file_alone_answers_as_the_server_does(chromium: Browser, saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "digits.html"
    minicnn("demo", str(saved), "--html", str(page))
    chromium.open(page)
    draw(chromium, (0.5, 0.2), (0.5, 0.35), (0.5, 0.5), (0.5, 0.65), (0.5, 0.8))
    chromium.wait("!asking && best.textContent.startsWith('digit 1 ')")
    drawn = np.asarray(chromium.run("Array.from(pixels())"), np.uint8).reshape(28, 28, 1)
    expected = Demo(Model.load(saved), NAMES).answer(drawn, 7, "first")
    found = chromium.run("computed(pixels(), 7, 'first')")
    rtol, atol = tolerance("float32", reduction_length=16 * 9)
    assert found["probabilities"] == pytest.approx(expected["probabilities"], rel=rtol, abs=atol)
    assert {name: found[name] for name in ("target", "layer", "caption")} == {
        name: expected[name] for name in ("target", "layer", "caption")
    }
    assert pixels_of(chromium, found["overlay"]) == pytest.approx(pixels_of(chromium, expected["overlay"]), abs=1)
    assert chromium.complaints == []
    assert {url.partition(":")[0] for url in chromium.asked} <= {"file", "data"}, "it asks no network"


def pixels_of(chromium: Browser, png: str) -> list[int]:
    """The colours of a picture, as the browser shows it."""
    script = (
        "(async text => { const i = new Image(); i.src = 'data:image/png;base64,' + text; await i.decode();"
        "const c = document.createElement('canvas'); c.width = i.width; c.height = i.height;"
        "const p = c.getContext('2d'); p.drawImage(i, 0, 0);"
        "return Array.from(p.getImageData(0, 0, i.width, i.height).data) })"
    )
    return list(chromium.run(f"{script}('{png}')"))


def test_a_model_that_a_page_cannot_compute_is_refused(tmp_path: Path) -> None:
    layers = [Input((8, 8, 1)), Conv2D(2, 3), GroupNormalization(2), Flatten(), Dense(2)]
    Sequential(layers).save(tmp_path / "groups")
    said = error_of(minicnn("demo", str(tmp_path / "groups"), "--html", str(tmp_path / "page.html")), 1)
    assert "by the elements of its values. Received: normalize" in said
    assert not (tmp_path / "page.html").exists()


def test_the_command_serves_until_it_is_interrupted(saved: Path) -> None:
    command = [sys.executable, "-m", "minicnn", "demo", str(saved), "--no-open"]
    # What a shell starts in the background ignores the signal, and hands that on.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as it:  # fmt: skip
        try:
            assert it.stdout
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", it.stdout.readline())
            assert found
            assert ask(int(found[1]), {"pixels": encoded(np.zeros(784, np.uint8))})[0] == 200
            it.send_signal(signal.SIGINT)
            assert it.wait(60) == 0
        finally:
            it.kill()


def test_what_is_no_classifier_of_images(tmp_path: Path) -> None:
    Sequential([Input((4,)), Dense(2)]).save(tmp_path / "rows")
    assert "A classifier of images takes" in error_of(minicnn("demo", str(tmp_path / "rows"), "--no-open"), 1)
