"""`minicnn export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicnn import Sequential, layers, losses
from minicnn.layers import Input
from support.command_line import done, error_of, minicnn
from support.onnx_runtime import session_of

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def saved(tmp_path: Path) -> str:
    model = Sequential([Input((28, 28, 1)), layers.Flatten(), layers.Dense(10)], backend="numpy")
    model.compile("sgd", losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(tmp_path / "model.safetensors")
    return str(tmp_path / "model.safetensors")


def test_files(saved: str, tmp_path: Path) -> None:
    path = str(tmp_path / "model.onnx")
    assert f"{path}: predict, 0.0 MB" in done("export", saved, path).stdout
    assert [i.name for i in session_of(path).get_inputs()] == ["x"]
    done("export", saved, path, "--inputs")
    assert [i.name for i in session_of(path).get_inputs()] == ["x", "dense/kernel", "dense/bias"]
    done("export", saved, path, "--kind", "train")
    assert "next/dense/kernel" in [o.name for o in session_of(path).get_outputs()]


def test_a_page(saved: str, tmp_path: Path) -> None:
    output = done("export", saved, "--web", str(tmp_path / "site")).stdout
    assert "npm install" in output
    assert (tmp_path / "site" / "index.html").exists()


def test_wrong_usage(saved: str, tmp_path: Path) -> None:
    for aim in ((), (str(tmp_path / "a.onnx"), "--web", str(tmp_path))):
        assert "one aim" in error_of(minicnn("export", saved, *aim), 2)
    assert "Make the folder first" in error_of(minicnn("export", saved, str(tmp_path / "no" / "a.onnx")), 1)
    assert list(tmp_path.glob("*.onnx")) == []
