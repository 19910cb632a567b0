"""Importing, training and the command line where the interpreter or the machine gives less than usual."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("click")

FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\n"
# Below a file nobody can make a folder, not even root. Matplotlib has a folder of its own, as it complains without.
NO_HOME = {
    **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), "/dev/null/home"),
    "MPLCONFIGDIR": tempfile.gettempdir(),
}
TRAINING = """
import sys
import minicnn
from minicnn.__main__ import main
from minicnn.callbacks import CSVLogger, ModelCheckpoint
from minicnn.layers import Conv2D, Dense, Dropout, Flatten, Input, MaxPooling2D, Rescaling
digits = minicnn.data.load("synthetic_digits", n_train=200, n_test=20)
layers = [Conv2D(4, 3, activation="relu"), MaxPooling2D(), Flatten(), Dropout(0.1), Dense(10, "softmax")]
model = minicnn.Sequential([Input((28, 28, 1), dtype="uint8"), Rescaling(1 / 255), *layers], backend="numpy")
model.compile("adam", metrics=["accuracy"])
callbacks = [CSVLogger("log.csv"), ModelCheckpoint("best.safetensors")]
history = model.fit(digits.x_train, digits.y_train, 20, 3, 2, callbacks, validation_data=(digits.x_test, digits.y_test))
if not history.history["loss"][-1] < history.history["loss"][0]:
    raise SystemExit("the loss does not fall")
minicnn.Model.load("best.safetensors").predict(digits.x_test)
sys.argv = ["minicnn", "train", "mlp", "--backend", "numpy", "--samples", "60", "--epochs", "2", "--out", "out"]
main()
"""


@pytest.mark.parametrize(
    ("options", "before", "environment"),
    [
        (["-O", "-W", "error"], "", {}),
        pytest.param(
            [], FEW_FILES, NO_HOME, marks=pytest.mark.skipif(os.name != "posix", reason="resource is POSIX's")
        ),
    ],
    ids=["no assertions, warnings are errors", "no home, few files"],
)
def test_training(tmp_path: Path, options: list[str], before: str, environment: dict[str, str]) -> None:
    unwanted = ("COV", "MINICNN", "OPENBLAS", "PYTHONWARNINGS")  # a note says so where OpenBLAS is told to be slow
    known = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    done = subprocess.run(
        [sys.executable, *options, "-c", before + TRAINING],
        cwd=tmp_path, env=known | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert {p.name for p in tmp_path.iterdir()} == {"log.csv", "best.safetensors", "out"}
