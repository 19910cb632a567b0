"""The performance history: two commits compared by the ratios of their stored results."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.scripts import ROOT, script


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("asv_bench/history.py")
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
NAN = float("nan")


def test_regressions_are_named_and_end_with_1(
    history: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "one"
    stored(folder, "a", step=([1.0, 2.0], NETWORKS), load=([0.5], []), gone=([1.0], []), skipped=(None, []))
    stored(folder, "b", step=([1.3, 1.0], NETWORKS), load=([0.52], []), skipped=([None], []))
    assert history.compare("old", "new", None, 1.1, tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["1.30", "1.04", "0.50", "MISSING"]
    assert lines[0].split()[-3:] == ["SLOWER", "step('mlp',", "'numpy')"]
    assert "faster" in lines[2]
    assert lines[-1].startswith("3 benchmarks, 1 beyond 1.1 times, 0 failed, 1 missing")
    assert history.compare("old", "new", "one", 1.5, tmp_path, chosen="step|load") == 0


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ([1.0, 2.0], [1.0, None], "FAILED"),
        ([1.0, 2.0], [1.0, NAN], "MISSING"),
        ([1.0, NAN], [1.0, None], "FAILED"),
        ([1.0, None], [1.0, None], ""),
        ([1.0, None], [1.0, NAN], ""),
        ([1.0, None], [1.0, 2.0], ""),
        ([1.0, 2.0], None, "FAILED"),
    ],
)
def test_what_failed_or_vanished_is_named_and_ends_with_1(
    old: Any, new: Any, verdict: str, history: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "one", "a", step=(old, NETWORKS), load=([0.5], []))
    stored(tmp_path / "one", "b", step=(new, NETWORKS), load=([0.5], []))
    assert history.compare("old", "new", None, 1.1, tmp_path) == int(bool(verdict))
    named = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.split()[0].isupper()]
    networks = ["kernels", "mlp"] if new is None else ["kernels"] if verdict else []
    assert named == [[verdict, f"step('{network}', 'numpy')"] for network in networks]
    assert history.compare("old", "new", None, 1.1, tmp_path, chosen="load") == 0


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


def test_a_run_names_what_failed_and_not_what_was_skipped_or_failed_before(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path)
    monkeypatch.setattr(history, "environment_name", lambda: "existing-py_x")
    monkeypatch.setattr(history, "git", lambda *_: "a" * 40)
    monkeypatch.setattr(history.shutil, "which", lambda _: None)
    codes, rows = iter([2, 0, 2, 1]), iter([
        {"step": [[1.0, None], NETWORKS], "old": [[None], []], "load": [[NAN], []]},
        {"step": [[1.0, 2.0], NETWORKS]},
        {},
        {},
    ])  # fmt: skip

    def asv(command: list[str], **_: Any) -> Any:
        if "run" not in command:
            return type("Done", (), {"returncode": 0})()
        path = stored(tmp_path / "one", "a", "existing-py_x")
        value = json.loads(path.read_text())
        value["result_columns"] = ["result", "params", "started_at"]
        now = {"old": 1000}
        value["results"] = {n: [*row, now.get(n, 2e15)] for n, row in next(rows).items()}
        path.write_text(json.dumps(value))
        (tmp_path / "one" / f"{'a' * 8}-existing.json").unlink(missing_ok=True)
        return type("Done", (), {"returncode": next(codes)})()

    monkeypatch.setattr(history.subprocess, "run", asv)
    assert history.measure(["new"], "one", [], []) == 1
    assert capsys.readouterr().err.splitlines()[1:] == ["  aaaaaaaa: step('kernels', 'numpy')"]
    assert history.measure(["new"], "one", [], []) == 0
    assert capsys.readouterr().err == ""
    assert history.measure(["new"], "one", [], []) == 1, "asv says so, whatever it has stored"
    assert capsys.readouterr().err.splitlines()[1:] == ["  aaaaaaaa: asv"]
    assert history.measure(["new"], "one", [], []) == 1


def test_results_of_another_cpu_are_not_added_to(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history, "RESULTS", tmp_path)
    monkeypatch.setattr(history, "git", lambda *_: "a" * 40)
    monkeypatch.setattr(history, "facts", lambda machine: {"machine": machine, "cpu": "X, AVX2"})
    path = stored(tmp_path / "one", "a", load=([0.5], []))
    text = path.read_text()
    monkeypatch.setattr(history.subprocess, "run", lambda *_, **__: None)
    assert history.measure(["new"], "one", [], []) == 2
    assert "The results of a commit are of one CPU. Received: X, AVX2, for those of aaaaaaaa" in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["numba", "torch:cuda"])
def test_a_backend_that_is_there_and_broken_is_not_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common = script("asv_bench/benchmarks/common.py")

    def broken(_: str) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(common, "get_backend", broken)
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(common, "gpu", lambda: True)
    with pytest.raises(RuntimeError, match=r"^broken$"):
        common.backend_or_skip(name)
    monkeypatch.setattr(common, "gpu", lambda: False)
    skipped = name in common.GPU_BACKENDS
    with pytest.raises(NotImplementedError if skipped else RuntimeError, match="NVIDIA GPU" if skipped else "broken"):
        common.backend_or_skip(name)
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NotImplementedError, match="is not installed"):
        common.backend_or_skip(name)


@pytest.mark.parametrize(("code", "text", "there"), [(0, "GPU 0: H100", True), (9, "GPU 0", False), (0, "", False)])
def test_the_driver_says_whether_there_is_a_gpu(
    code: int, text: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = script("asv_bench/benchmarks/common.py")
    monkeypatch.setattr(common.shutil, "which", lambda _: "nvidia-smi")
    done = SimpleNamespace(returncode=code, stdout=text)
    monkeypatch.setattr(common.subprocess, "run", lambda *_, **__: done)
    assert common.gpu() is there


def test_the_stored_history_is_of_ten_commits_small_alike_and_names_no_interpreter() -> None:
    results = ROOT / "asv_bench" / "results"
    assert len(list(results.glob("two-cores/*-existing.json"))) >= 10
    assert sum(path.stat().st_size for path in results.rglob("*.json")) < 1e6
    assert not any("bin/python" in path.read_text() for path in results.rglob("*.json"))
    for folder in results.glob("*/"):  # described in one way for each CPU, or asv would draw them apart
        params = [json.loads(path.read_text())["params"] for path in folder.glob("*-existing.json")]
        of = {each["cpu"]: each for each in params}
        assert all(each == of[each["cpu"]] for each in params)
        assert len(of) <= 3


def test_the_machine_is_described_without_its_name(history: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history.shutil, "which", lambda _: None)
    found = history.facts("one")
    assert set(found) == {"machine", "arch", "num_cpu", "os", "cpu"}
    assert found["machine"] == "one"
    assert platform.node() not in found.values()
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        assert found["cpu"].endswith((", AVX-512", ", AVX2"))
    monkeypatch.setattr(history.shutil, "which", lambda name: name)
    said = type("Done", (), {"stdout": "NVIDIA H200\n"})()
    monkeypatch.setattr(history.subprocess, "run", lambda *_, **__: said)
    assert history.facts("one")["cpu"].startswith("NVIDIA H200")
