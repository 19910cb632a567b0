"""The folder of compiled kernels: code that others can have written is not run, and no folder is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from minicnn.backends import _code

OWNERS = pytest.mark.skipif(sys.platform == "win32", reason="no owners and modes of files")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(_code, "_REFUSED", set())
    _code.write(_code.place("cuda", "a"), b"code")
    return tmp_path / "cache"


def test_what_is_written_is_read(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _code.read(_code.place("cuda", "a")) == b"code"
        assert _code.read(_code.place("cuda", "b")) is None
    assert os.listdir(root / "cuda") == ["a"]


@OWNERS
@pytest.mark.parametrize(("name", "mode"), [(".", 0o777), ("cuda", 0o777), ("cuda/a", 0o666), ("cuda/a", 0o620)])
def test_what_others_can_write_is_not_run(root: Path, name: str, mode: int) -> None:
    (root / name).chmod(mode)
    rule = rf"Compiled kernels are code: .* Received: .*, of user \d+ with mode {mode:o}\. .* MINICNN_CACHE"
    with pytest.warns(RuntimeWarning, match=rule) as said:
        found = [_code.read(_code.place("cuda", "a")) for _ in range(2)]
    assert found == [None, None]
    assert len(said) == 1


@OWNERS
def test_what_others_have_written_is_not_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    if os.stat(root).st_uid == 0:  # the superuser's files are trusted
        os.chown(root / "cuda" / "a", 12345, -1)
    with pytest.warns(RuntimeWarning, match="Compiled kernels are code"):
        assert _code.read(_code.place("cuda", "a")) is None


@OWNERS
def test_every_backend_keeps_its_code_by_that_rule(root: Path) -> None:
    pytest.importorskip("numba")
    from minicnn.backends.numba import store

    root.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="Compiled kernels are code"):
        assert store.place("kernel") is None
    store.save("kernel", "symbol", b"code")
    assert [f.name for f in root.rglob("*") if f.is_file()] == ["a"]


HOMELESS = """
    import os, pwd

    def nobody(_):
        raise KeyError

    pwd.getpwuid = nobody
    for name in ("HOME", "XDG_CACHE_HOME", "MINICNN_CACHE"):
        os.environ.pop(name, None)
    from minicnn import Sequential
    from minicnn.backends import backend_class
    from minicnn.backends.numba import store
    from minicnn.layers import Dense, Input

    assert store.place("kernel") is None
    model = Sequential([Input((2,)), Dense(1)], backend=backend_class("numba")(threads=1))
    print(model.predict([[1.0, 2.0]]).shape)
"""


@OWNERS
def test_a_user_without_a_home_or_an_entry_in_passwd() -> None:
    pytest.importorskip("numba")
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(HOMELESS)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "(1, 1)\n"), done.stderr
