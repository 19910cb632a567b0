"""What importing minicnn loads, and how long that takes; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from minicnn.extras import install

pytestmark = pytest.mark.environment

# Third-party packages that the core must do without, and some that it could load by mistake.
OPTIONAL = {
    "PIL", "click", "cupy", "jax", "jaxlib", "matplotlib", "numba", "pooch", "psutil", "rich", "safetensors", "scipy",
    "threadpoolctl", "torch",
}  # fmt: skip

LOADED = "import json, sys\n{}\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"


def run(code: str, *options: str) -> Any:
    """What a fresh interpreter prints last, read as JSON."""
    environment = {k: v for k, v in os.environ.items() if k != "MINICNN_BACKEND" and not k.startswith("COV")}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def third_party(loaded: list[str]) -> set[str]:
    baseline = set(run(LOADED.format("")))  # what the environment itself loads at start-up
    return set(loaded) - baseline - set(sys.stdlib_module_names) - {"minicnn"}


def test_import_minicnn_loads_nothing_else() -> None:
    assert third_party(run(LOADED.format("import minicnn"))) == set()


@pytest.mark.parametrize(
    "code",
    [
        "from minicnn import Sequential, Model",
        "from minicnn import layers, losses, metrics, optimizers, schedules, initializers, callbacks, ops, zoo, data",
        "import minicnn.saving, minicnn.program, minicnn.models, minicnn.tolerance",
    ],
)
def test_the_core_loads_numpy_and_array_api_compat_alone(code: str) -> None:
    loaded = third_party(run(LOADED.format(code)))
    # NumPy's own Cython modules appear under names of their own.
    assert {m for m in loaded if "cython" not in m} == {"array_api_compat", "numpy"}


def test_training_on_numpy_needs_nothing_more() -> None:
    code = """
from minicnn import Sequential
from minicnn.data import synthetic_digits
from minicnn.layers import Conv2D, Dense, Flatten, Input, Rescaling
x, y = synthetic_digits(20, size=8)
model = Sequential([Input((8, 8, 1)), Rescaling(1 / 255), Conv2D(2, 3), Flatten(), Dense(10, "softmax")])
model.compile("adam", metrics=["accuracy"])
model.fit(x, y, 10, verbose=2)
model.evaluate(x, y)
model.predict(x)
model.summary()
model.explain()
str(model.program())
"""
    assert third_party(run(LOADED.format(code))) & OPTIONAL == set()


def test_a_backend_loads_its_own_library_only() -> None:
    pytest.importorskip("torch")
    code = "from minicnn import get_backend\nget_backend('torch')"
    loaded = third_party(run(LOADED.format(code)))
    assert "torch" in loaded
    assert loaded & {"jax", "cupy", "numba"} == set()


@pytest.mark.parametrize("blocked", ["torch", "jax", "matplotlib"])
def test_a_missing_library_is_missed_only_where_it_is_used(blocked: str) -> None:
    code = f"""
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
import minicnn
from minicnn import Sequential, get_backend, layers
Sequential([layers.Input((2,)), layers.Dense(1)]).predict([[1.0, 2.0]])
try:
    get_backend({blocked!r})
except (ImportError, ValueError) as error:
    print(json.dumps(str(error)))
"""
    message = run(code)
    assert install(blocked) in message or f"Received: '{blocked}'" in message


def test_import_time() -> None:
    """Processor time on top of NumPy's, generously: 0.06 s for `import minicnn` is what users are promised."""
    code = """
import json, time
import numpy
start = time.process_time()
import minicnn
first = time.process_time()
from minicnn import Sequential
print(json.dumps([first - start, time.process_time() - first]))
"""
    bare, whole = (min(times) for times in zip(*(run(code) for _ in range(3)), strict=True))
    assert bare < 0.06
    assert whole < 0.6
