"""`minicnn info`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicnn import backends, data, machine
from minicnn.extras import install
from support.command_line import done, facts_of, minicnn
from support.datafiles import idx_files, write_idx


@pytest.mark.environment
def test_it_names_backends_versions_and_the_machine() -> None:
    found = facts_of("info")
    assert found["backends"].keys() == set(backends.names())
    assert found["backends"]["numpy"] == {"found": True, "facts": {"numpy": np.__version__}, "remedy": None}
    assert found["machine"]["cores"] == machine.cores()
    assert found["packages"]["numpy"]["version"] == np.__version__
    text = minicnn("info").stdout
    for part in ("CPU: ", "BLAS: ", machine.processor().model, np.__version__, "synthetic_digits", *backends.names()):
        assert part in text
    assert max(map(len, text.splitlines())) > 80  # no line is broken where the output is no terminal


def test_what_is_missing_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> type[backends.Backend]:
        if name == "jax":
            raise ImportError(f"Backend 'jax' needs jax: {install('jax')}.")
        if name == "torch":
            raise OSError("libcudart.so: cannot open shared object file")
        return known(name)

    known = backends.backend_class
    monkeypatch.setattr(backends, "backend_class", broken)
    versions = {**machine.versions(), "pooch": None, "torch": None}
    monkeypatch.setattr(machine, "versions", lambda: versions)
    found = facts_of("info")
    assert found["backends"]["jax"]["remedy"].endswith(f"{install('jax')}.")
    assert found["backends"]["torch"]["remedy"].startswith("OSError: libcudart.so")
    assert found["packages"]["pooch"]["remedy"] == install("cli")
    assert found["packages"]["torch"]["remedy"] == install("torch")
    text = minicnn("info").stdout
    assert "missing. Backend 'jax' needs jax" in text
    assert f"missing: {install('cli')}" in text


def test_data_sets_are_found_where_load_would_find_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data.places, "_downloaded", lambda name: tmp_path if name == "cifar10" else None)
    folder = write_idx(tmp_path / "sets" / "mnist", idx_files())
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "sets"))
    found = facts_of("info")["data"]
    assert found["mnist"] == {"place": str(folder), "remedy": None}
    assert found["cifar10"]["place"] == str(tmp_path)
    assert found["fashion_mnist"]["remedy"] == "downloaded when asked for; else name its folder by MINICNN_DATA"
    assert found["tiny_imagenet"]["remedy"] == "name its folder by MINICNN_DATA"
    assert str(folder) in minicnn("info").stdout


def test_a_folder_that_does_not_hold_what_it_should_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (write_idx(tmp_path / "mnist", idx_files()) / "t10k-labels-idx1-ubyte").unlink()
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path))
    assert "the four IDX files are together" in facts_of("info")["data"]["mnist"]["remedy"]
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path / "nowhere"))
    result = done("info")
    assert "MINICNN_DATA names a folder that exists" in result.stdout


def test_it_says_what_the_command_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "warnings", lambda: ["OpenBLAS is mistaken"])
    monkeypatch.setattr(machine, "set_by_us", True)
    monkeypatch.setenv(machine.CORETYPE, "SKYLAKEX")
    notes = facts_of("info")["notes"]
    assert notes[0] == "OpenBLAS is mistaken"
    assert "export OPENBLAS_CORETYPE=SKYLAKEX before Python starts" in notes[1]
    assert "Note: OpenBLAS is mistaken" in minicnn("info").stdout
    monkeypatch.undo()


def test_the_download_cache_is_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    import pooch

    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    assert data.locate("mnist") is None
    folder = tmp_path / "minicnn" / "mnist"
    folder.mkdir(parents=True)
    assert data.locate("mnist") is None
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")
    assert data.locate("mnist") == folder
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert data.locate("mnist") is None
