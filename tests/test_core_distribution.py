"""minicnn-core: the sources of minicnn, less the parts of which a word takes the place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import minicnn

ROOT = Path(__file__).parent.parent
PARTS = ("backends/cupy", "backends/numba", "backends/numba_cuda", "bench", "studies")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as the wheel of minicnn-core lays it out."""
    folder = tmp_path_factory.mktemp("core")
    source = Path(minicnn.__path__[0])
    shutil.copytree(source, folder / "minicnn", ignore=shutil.ignore_patterns("__pycache__", "_gpu"))
    for part in PARTS:
        shutil.rmtree(folder / "minicnn" / part)
        (folder / "minicnn" / part).mkdir()
        shutil.copyfile(ROOT / "packaging/core/absent.py", folder / "minicnn" / part / "__init__.py")
    return folder


def run(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(core)!r}); {arguments[0]}", *arguments[1:]]
    env = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}  # a copy, which is covered as minicnn
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)


MAIN = "from minicnn.__main__ import main; main()"


def test_the_build_leaves_out_what_this_test_does() -> None:
    hook = (ROOT / "packaging/core/hatch_build.py").read_text()
    assert f"ABSENT = {PARTS!r}".replace("'", '"') in hook


@pytest.mark.parametrize("name", ["cupy", "numba", "numba_cuda"])
def test_a_backend_that_is_not_there_says_what_to_install(core: Path, name: str) -> None:
    done = run(core, f"import minicnn; minicnn.get_backend({name!r})")
    message = done.stderr.splitlines()[-1]
    assert f"minicnn.backends.{name} is a part of minicnn. Received: minicnn-core" in message
    assert message.endswith("pip install minicnn.")


def test_commands(core: Path, tmp_path: Path) -> None:
    pytest.importorskip("click")
    study = run(core, MAIN, "study", "mlp", "--quick")
    assert study.returncode == 1
    assert study.stderr.startswith("error: minicnn.studies is a part of minicnn. Received: minicnn-core")
    assert len(study.stderr.splitlines()) == 1
    info = run(core, MAIN, "info")
    assert info.stdout.count("is a part of minicnn. Received: minicnn-core") == 3
    options = ["--samples", "64", "--batch-size", "32", "--epochs", "1", "--out", str(tmp_path / "run")]
    trained = run(core, MAIN, "train", "platforms", *options)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()
    compared = run(core, MAIN, "compare", "platforms", "--backends", "numpy", *options, "--overwrite")
    assert compared.returncode == 0, compared.stderr
