"""The performance history: two commits compared by the ratios of their stored results."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import ROOT, load


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("asv_bench/history.py")
    monkeypatch.setattr(module, "git", lambda *arguments: {"old": "a" * 40, "new": "b" * 40}[arguments[-1]])
    return module


def stored(folder: Path, commit: str, environment: str = "existing", **results: Any) -> Path:
    """A file as asv writes it: a result is a list with a number for each combination of the parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text("{}")
    rows = {name: [numbers, params] for name, (numbers, params) in results.items()}
    value = {
        "result_columns": ["result", "params"],
        "results": rows,
        "env_name": "existing-py_x",
        "python": "/x",
        "params": {"python": "/home/somebody", "ram": "1"},
    }
    path = folder / f"{commit * 8}-{environment}.json"
    path.write_text(json.dumps(value))
    return path


NETWORKS = [["'mlp'", "'kernels'"], ["'numpy'"]]


def test_regressions_are_named_and_end_with_1(
    history: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "one"
    stored(folder, "a", step=([1.0, 2.0], NETWORKS), load=([0.5], []), gone=([1.0], []), skipped=(None, []))
    stored(folder, "b", step=([1.3, 1.0], NETWORKS), load=([0.52], []), skipped=([None], []))
    assert history.compare("old", "new", None, 1.1, tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["1.30", "1.04", "0.50"]
    assert lines[0].split()[-3:] == ["SLOWER", "step('mlp',", "'numpy')"]
    assert "faster" in lines[2]
    assert lines[-1].startswith("3 benchmarks, 1 beyond 1.1 times")
    assert history.compare("old", "new", "one", 1.5, tmp_path) == 0


def test_what_has_not_been_run_is_named(
    history: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "one", "a", load=([0.5], []))
    assert history.compare("old", "new", None, 1.1, tmp_path) == 2
    assert "Received: new, which has no results of one" in capsys.readouterr().err
    stored(tmp_path / "two", "a", load=([0.5], []))
    assert history.compare("old", "new", None, 1.1, tmp_path) == 2
    assert "--machine is one of one, two. Received: None." in capsys.readouterr().err


def test_stored_results_name_the_machine_alike_and_no_path(history: ModuleType, tmp_path: Path) -> None:
    stored(tmp_path, "a", "existing-py_home_somebody_bin_python", load=([0.5], []))
    (tmp_path / "machine.json").write_text('{"machine": "one", "ram": "1", "version": 1}')
    history.tidy(tmp_path, {"machine": "one", "num_cpu": "16"})
    text = (tmp_path / f"{'a' * 8}-existing.json").read_text()
    assert "somebody" not in text
    assert json.loads(text)["env_name"] == "existing"
    assert json.loads(text)["params"] == {"machine": "one", "num_cpu": "16", "python": platform.python_version()}
    assert json.loads((tmp_path / "machine.json").read_text()) == {"machine": "one", "num_cpu": "16", "version": 1}
    assert history.values(tmp_path, "a" * 40) == {"load": 0.5}


def test_runs_of_a_commit_add_up_and_what_an_interrupted_one_has_is_kept(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path)
    monkeypatch.setattr(history, "environment_name", lambda: "existing-py_x")
    monkeypatch.setattr(history, "git", lambda *_: "a" * 40)

    def asv(command: list[str], **_: Any) -> Any:
        if "run" in command:  # as asv does: into the file of this environment, if there is one
            path = tmp_path / "one" / f"{'a' * 8}-existing-py_x.json"
            known = json.loads(path.read_text())["results"] if path.exists() else {}
            stored(tmp_path / "one", "a", "existing-py_x", **known | {command[-1]: ([1.0], [])})
            if command[-1] == "second":
                raise KeyboardInterrupt
        return type("Done", (), {"returncode": 0})()

    monkeypatch.setattr(history.subprocess, "run", asv)
    monkeypatch.setattr(history.shutil, "which", lambda _: None)
    assert history.measure(["new"], "one", ["first"], []) == 0
    with pytest.raises(KeyboardInterrupt):
        history.measure(["new"], "one", ["second"], [])
    assert history.values(tmp_path / "one", "a" * 40) == {"first": 1.0, "second": 1.0}
    assert [path.name for path in tmp_path.rglob("a*.json")] == [f"{'a' * 8}-existing.json"]


def test_the_stored_history_is_of_ten_commits_small_alike_and_names_no_interpreter() -> None:
    results = ROOT / "asv_bench" / "results"
    assert len(list(results.glob("two-cores/*-existing.json"))) >= 10
    assert sum(path.stat().st_size for path in results.rglob("*.json")) < 1e6
    assert not any("bin/python" in path.read_text() for path in results.rglob("*.json"))
    for machine in ("two-cores", "h200"):  # described in one way, or asv would draw them apart
        params = [json.loads(path.read_text())["params"] for path in results.glob(f"{machine}/*-existing.json")]
        assert all(each == params[0] for each in params)


def test_the_machine_is_described_without_its_name(history: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history.shutil, "which", lambda _: None)
    found = history.facts("one")
    assert set(found) == {"machine", "arch", "num_cpu", "os", "cpu"}
    assert found["machine"] == "one"
    assert platform.node() not in found.values()
    monkeypatch.setattr(history.shutil, "which", lambda name: name)
    said = type("Done", (), {"stdout": "NVIDIA H200\n"})()
    monkeypatch.setattr(history.subprocess, "run", lambda *_, **__: said)
    assert history.facts("one")["cpu"].startswith("NVIDIA H200")
