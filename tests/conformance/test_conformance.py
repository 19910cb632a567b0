"""`minicnn conformance`: what it says of a namespace that has everything, and of one that is broken in every way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.conformance import checks, conformance
from minicnn.conformance.checks import DIFFERENTIABLE, NETWORKS, PRIMITIVES, check
from support.command_line import minicnn

BROKEN = '''
"""NumPy's namespace with a function missing, one wrong, one that ends the process, and one that never does."""
import os, time
from array_api_compat.numpy import *
import array_api_compat.numpy as _np
from array_api_compat.numpy import astype, concat, permute_dims
del argsort
__version__ = "7.0"

def log1p(x):
    return _np.log1p(x) * 1.001

def sign(x):
    print("the library says something", flush=True)
    os._exit(11)

def tanh(x):
    time.sleep(1000)
'''


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the module."""
    (tmp_path / "broken_arrays.py").write_text(BROKEN)
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return "broken_arrays"


def test_what_is_broken_is_named_and_the_rest_is_checked(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PRIMITIVES", ["conv2d", "log1p", "sign", "take_gradient", "tanh", "where"])
    monkeypatch.setattr(checks, "DIFFERENTIABLE", ["conv2d", "log1p"])
    monkeypatch.setattr(checks, "NETWORKS", {"mlp": None})
    lines: list[str] = []
    report = conformance(broken, limit_s=8, tell=lines.append)
    assert report["total"] == {"primitive": 6, "gradient": 2, "training": 1}
    assert report["passed"] == {"primitive": 2, "gradient": 2, "training": 1}  # the gradient of log1p is a quotient
    assert (report["version"], report["missing"]) == ("7.0", ["argsort"])
    errors = report["failures"]
    assert errors.keys() == {f"primitive {name}" for name in ("log1p", "sign", "take_gradient", "tanh")}
    assert errors["primitive take_gradient"].startswith("AttributeError: ")
    assert "differs from NumPy's by" in errors["primitive log1p"]
    assert errors["primitive sign"] == "ended its process with 11. the library says something"
    assert errors["primitive tanh"].startswith("took more than 8 s")
    assert lines[0] == "primitive conv2d: as in NumPy"
    assert len(lines) == 9
    assert report["seconds"]["matmul"][0] > 0


@pytest.mark.parametrize("kind", ["primitive", "gradient"])
def test_a_backend_is_checked_in_this_process(kind: str) -> None:
    pytest.importorskip("array_api_strict")
    for name in ("conv2d", "max_pool2d", "take"):
        assert check(get_backend("array_api_strict"), kind, name) == {}


def test_the_command_says_what_passes_and_how_long_a_step_takes() -> None:
    result = minicnn("conformance", "array_api_compat.numpy")
    assert result.exit_code == 0, result.stderr
    first, counts, *rest = result.stdout.splitlines()
    assert first == f"array_api_compat.numpy {np.__version__}"
    assert counts == (
        f"primitive: {len(PRIMITIVES)} of {len(PRIMITIVES)}, gradient: {len(DIFFERENTIABLE)} of {len(DIFFERENTIABLE)}, "
        f"training: {len(NETWORKS)} of {len(NETWORKS)}"
    )
    assert any(line.startswith("conv2d_weight_gradient") for line in rest)


def test_json_and_a_shim_and_the_exit_code(tmp_path: Path) -> None:
    shim = tmp_path / "shim.py"
    shim.write_text("def exp(x):\n    raise NotImplementedError('no exponentials')\n")
    result = minicnn("conformance", "array_api_compat.numpy", "--shim", str(shim), "--json")
    assert result.exit_code == 1
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["failures"]["primitive exp"] == "NotImplementedError: no exponentials"
    assert report["shim"] == str(shim)


@pytest.mark.parametrize("arguments", [("no_such_library",), ("array_api_compat.numpy", "--shim", "none.py")])
def test_a_namespace_or_shim_that_is_not_there(arguments: tuple[str, ...]) -> None:
    result = minicnn("conformance", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {arguments[0]}, or its shim, cannot be used: ")
