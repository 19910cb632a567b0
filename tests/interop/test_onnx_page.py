"""A page that trains a model in a browser tab: its files, and the training, which Node runs as a browser does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, data, layers, losses, optimizers
from minicnn.interop import export_page
from minicnn.interop.onnx.pages import PAGE
from minicnn.layers import Input
from support.browser import browser, needs_browser

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[2]
STEPS = 40


def classifier(*first: layers.Layer, shape: tuple[int, ...] = (28, 28, 1)) -> Sequential:
    """A small one, of images or of vectors."""
    model = Sequential([Input(shape), *first, layers.Flatten(), layers.Dense(10)], backend="numpy")
    model.compile(optimizers.Adam(0.005), losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("synthetic_digits", n_train=1000, n_test=200)


def test_training_in_node(digits: data.Dataset, tmp_path: Path) -> None:
    """It takes seconds, most of which Node compiles WebAssembly."""
    packages = os.environ.get("MINICNN_NODE_MODULES", "")
    if not shutil.which("node") or not packages:
        pytest.skip("needs Node, and MINICNN_NODE_MODULES: a folder node_modules with onnxruntime-web")
    export_page(classifier(layers.Conv2D(6, 5, 2, activation="relu")), tmp_path, digits)
    command = ["node", str(ROOT / "tests/support/train_page.mjs"), str(tmp_path), packages, str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["before"] < 0.3
    assert found["after"] > 0.6
    assert np.mean(found["losses"][-10:]) < np.mean(found["losses"][:10]) / 2


class Quiet(SimpleHTTPRequestHandler):
    """Static files, and no line on the terminal for each."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Context manager: the address of a folder of static files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@needs_browser
def test_training_in_a_browser(digits: data.Dataset, tmp_path: Path) -> None:
    """The page itself, from a server of static files: it trains, draws the curves, and takes a drawing."""
    packages = os.environ.get("MINICNN_NODE_MODULES", "")
    if not packages:
        pytest.skip("needs MINICNN_NODE_MODULES: a folder node_modules with onnxruntime-web")
    export_page(classifier(layers.Conv2D(6, 5, 2, activation="relu")), tmp_path, digits)
    (tmp_path / "node_modules").symlink_to(packages)
    with served(tmp_path) as address, browser() as page:
        page.open(f"{address}/index.html#train")
        page.wait("/accuracy [6-9]\\d/.test(document.body.textContent)", 60)
        page.click("#run")  # pause
        x, y = page.middle("#pad")
        page.mouse("mousePressed", x, y - 70)
        for step in range(8):
            page.mouse("mouseMoved", x, y - 70 + 20 * step)
        page.mouse("mouseReleased", x, y + 70)
        page.wait("document.querySelectorAll('#bars div').length === 10")
        assert page.complaints == []
        assert {url.startswith(address) for url in page.asked} == {True}


def test_the_files_of_a_page(digits: data.Dataset, tmp_path: Path) -> None:
    export_page(classifier(shape=(784,)), tmp_path / "new" / "page", digits)
    made = {p.name: p for p in (tmp_path / "new" / "page").iterdir()}
    assert set(made) == {"state.onnx", "train.onnx", "predict.onnx", "samples.bin", "model.json", *PAGE}
    about = json.loads(made["model.json"].read_text("utf-8"))
    assert (about["shape"], about["classes"], about["train"], about["test"]) == ([784], 10, 1000, 200)
    assert made["samples.bin"].stat().st_size == 1200 * 785
    assert f'"onnxruntime-web": "{pinned()}"' in made["package.json"].read_text("utf-8")


def pinned() -> str:
    """The version that the documentation names."""
    (version,) = {w for line in (ROOT / "docs/interop.md").read_text("utf-8").splitlines() if "onnxruntime-web" in line
                  for w in line.replace(",", " ").split() if w[:1].isdigit()}  # fmt: skip
    return version


def test_what_a_page_does_not_train(digits: data.Dataset, tmp_path: Path) -> None:
    model: Any = classifier()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"compiled classifier of one input.*MeanSquaredError"):
        export_page(model, tmp_path, digits)
    with pytest.raises(ValueError, match=r"samples that its model takes\. Received: images of bytes \(28, 28, 1\)"):
        export_page(classifier(shape=(9, 9, 1)), tmp_path, digits)
    assert list(tmp_path.iterdir()) == []


def test_the_example(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/browser/build.py"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(PAGE) <= {p.name for p in (tmp_path / "site").iterdir()}
