"""A backend that follows CONTRIBUTING.md is found by its folder, trains, and is tested without a list that names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def ran(*arguments: str) -> str:
    """The output of a Python that finds the toy backend."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tests_of_backends_take_it_up() -> None:
    files = ("tests/backends/test_running.py", "tests/backends/test_arrays.py")
    out = ran("-m", "pytest", "-q", "-p", "contributing.with_toy", "-p", "no:cacheprovider", "-k", "toy", *files)
    assert int(re.search(r"(\d+) passed", out)[1]) >= 20  # type: ignore[index]
    assert "skipped" not in out


def test_it_trains_and_its_kernel_is_explained() -> None:
    out = ran("-c", (
        "import contributing.with_toy, numpy as np\n"
        "from minicnn import Sequential\n"
        "from minicnn.layers import Dense, Input\n"
        "layers = [Input((4,)), Dense(8, activation='relu'), Dense(1)]\n"
        "model = Sequential(layers, backend='toy', seed=1)\n"
        "model.compile('adam', 'mse')\n"
        "x = np.random.default_rng(0).standard_normal((64, 4)).astype('float32')\n"
        "losses = model.fit(x, x[:, :1], 16, epochs=8, verbose=0).history['loss']\n"
        "assert losses[-1] < 0.8 * losses[0], losses\n"
        "print(model.explain())\n"
    ))  # fmt: skip
    assert "kernel: relu" in out
    assert "reference: no kernel for matmul" in out
