"""TensorBoard, MLflow and Weights & Biases, each with the real library writing to a folder."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential
from minicnn.callbacks import Callback, MLflowLogger, TensorBoard, WandbLogger
from minicnn.extras import install
from minicnn.layers import Dense, Input
from minicnn.optimizers import SGD
from minicnn.schedules import ExponentialDecay

EPOCHS = 3


def trained(*callbacks: Callback, validation: bool = True) -> dict[str, list[float]]:
    """The history of a small training with callbacks."""
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 4), "float32"), rng.integers(0, 3, 20)
    model = Sequential([Input((4,)), Dense(3, "softmax")], backend="numpy")
    model.compile(SGD(ExponentialDecay(0.5, 2, 0.5, staircase=True)), metrics=["accuracy"])
    data = (x[:8], y[:8]) if validation else None
    return model.fit(x, y, 10, EPOCHS, verbose=0, callbacks=list(callbacks), validation_data=data).history


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by tag, as TensorBoard's own reader gives them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_what_its_callback_writes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    history = trained(TensorBoard(tmp_path))
    found = scalars(tmp_path / "train")
    assert set(found) == {"epoch_loss", "epoch_accuracy", "epoch_learning_rate"}
    assert found["epoch_loss"] == [(i, pytest.approx(v)) for i, v in enumerate(history["loss"])]
    assert [rate for _, rate in found["epoch_learning_rate"]] == [0.5, 0.25, 0.125]  # of the last step of each
    validation = scalars(tmp_path / "validation")
    assert validation["epoch_accuracy"] == [(i, pytest.approx(v)) for i, v in enumerate(history["val_accuracy"])]


def test_tensorboard_without_validation_has_no_folder_of_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    trained(TensorBoard(tmp_path / "new" / "logs"), validation=False)
    assert [path.name for path in (tmp_path / "new" / "logs").iterdir()] == ["train"]


def test_mlflow_has_settings_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    history = trained(MLflowLogger("digits"))
    assert mlflow.active_run() is None
    client = mlflow.tracking.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.run_name == "digits"
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == str(EPOCHS)
    assert run.data.params["optimizer"].startswith("SGD(")
    values = [m.value for m in client.get_metric_history(run.info.run_id, "val_loss")]
    assert values == pytest.approx(history["val_loss"])
    with mlflow.start_run() as own:
        trained(MLflowLogger())
        assert mlflow.active_run().info.run_id == own.info.run_id  # it stays open


def test_wandb_has_settings_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(project="digits", mode="offline", dir=str(tmp_path))
    history = trained(logger)
    assert wandb.run is None
    content, deadline = b"", time.monotonic() + 20
    while b"val_accuracy" not in content and time.monotonic() < deadline:  # a process of its own writes the file
        content = next(tmp_path.rglob("*.wandb")).read_bytes()
    assert b"val_accuracy" in content
    assert repr(history["loss"][-1])[:12].encode() in content


@pytest.mark.parametrize(
    ("name", "make", "remedy"),
    [
        ("tensorboard", TensorBoard, install("tensorboard")),
        ("mlflow", MLflowLogger, "pip install mlflow"),
        ("wandb", WandbLogger, "pip install wandb"),
    ],
)
def test_a_missing_library_is_named_with_its_remedy(
    name: str, make: Any, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=re.escape(f"needs {name}: {remedy}")):
        trained(make())
    assert not list(tmp_path.iterdir())


def test_of_several_ranks_only_the_first_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(TensorBoard, "chief", False)
    trained(TensorBoard(tmp_path / "logs"))
    assert not list(tmp_path.iterdir())
