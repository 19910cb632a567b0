"""`minicnn study`, from end to end with small sizes."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from minicnn import data
from minicnn.cli import study as command
from minicnn.jobs import job
from minicnn.measure import comparison
from minicnn.measure.candidates import Field
from minicnn.measure.trainer import Work
from minicnn.measure.trainers import settings_of, trainer
from minicnn.studies import get_study
from support.command_line import error_of, minicnn
from support.tolerances import STEP

SMALL = ("--data", "synthetic_digits", "--set", "samples=130")
SWEEP = ("--set", "hidden=16", "--set", "counts=130", "--set", "rounds=1")
SIZES = ("--set", "iterations=9", "--set", "per_round=3", "--set", "hold_out=20", "--set", "repeats=2", *SWEEP)
MLP = ("study", "mlp", *SMALL, *SIZES, "--out", "out")
PLATFORMS = ("study", "platforms", *SMALL, "--set", "epochs=2", "--out", "out", "--backends", "numpy,cupy")
KERNELS = (
    "study",
    "kernels",
    *SMALL,
    "--set",
    "epochs=2",
    "--set",
    "sweep_epochs=1",
    "--set",
    "workers=2",
    "--out",
    "out",
)


def done(*args: str) -> str:
    result = minicnn(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def table(path: str) -> list[dict[str, str]]:
    with Path("out", path).open(newline="") as file:
        return list(csv.DictReader(file))


def cells(path: str) -> dict[str, Any]:
    """Rows of a table's JSON by its first column."""
    rows = json.loads(Path("out", path).read_text())["rows"]
    return {next(iter(row.values())): row for row in rows}


def assert_complete(name: str, tables: set[str], figures: set[str]) -> None:
    """A study has written all of its files, and a report that holds them."""
    found = {p.name for p in Path("out", name).iterdir()}
    assert found == {f"{t}.{e}" for t in tables for e in ("csv", "json")} | {
        f"{f}.{e}" for f in figures for e in ("png", "svg")
    }
    report = Path("out/report.html").read_text("utf-8")
    assert report.count("<figcaption>") == len(figures)
    assert report.count("<caption>") == len(tables)


@pytest.mark.usefixtures("in_this_process")
def test_mlp_fills_its_three_tables_for_torch_and_its_peer() -> None:
    pytest.importorskip("torch")
    done(*MLP, "--backends", "numpy,torch:cpu")
    assert_complete(
        "mlp",
        {"claims", *(f"{t}-synthetic_digits" for t in ("totals", "operations", "speedups", "sweep", "memory"))},
        {"iterations-synthetic_digits"},
    )
    report = Path("out/report.html").read_text("utf-8")
    assert "Held-out accuracies of all candidates of a machine " in report, "in words, as lines would lie on each other"
    totals = cells("mlp/totals-synthetic_digits.json")
    names = {name.partition(",")[0]: row for name, row in totals.items()}
    ours = ["numpy", "torch", "PyTorch modules"]
    assert list(names)[:5] == [*ours, "published: NumPy", "published: CuPy"]
    for row in [names[name] for name in ours]:
        spread = row["iteration_ms"]
        assert spread["count"] + spread["outliers"] == 2  # of three rounds, less the first
        assert row["total_s"] > row["first_s"] > 0
        assert row["accuracy"] == pytest.approx(names["numpy"]["accuracy"], abs=5.1)  # one of 20 samples
    assert names["published: NumPy"]["iteration_ms"] == 84.6
    operations = {k: by_library(row) for k, row in cells("mlp/operations-synthetic_digits.json").items()}
    assert "input" not in operations, "the study's iteration does not copy it"
    assert operations["matrix products"]["numpy"]["median"] > 0
    parts = [row["torch"]["median"] for name, row in operations.items() if name[:3] not in ("sum", "an ")]
    assert operations["sum of the operations"]["torch"] == pytest.approx(sum(parts))
    memory = {k: by_library(row) for k, row in cells("mlp/memory-synthetic_digits.json").items()}
    assert memory["parameters"]["plan"] == pytest.approx(7960 * 4 / 1e6)
    assert memory["input"]["plan"] == pytest.approx((130 * (784 * 4 + 4) + 4) / 1e6)  # and the learning rate
    for name in ("numpy", "PyTorch modules"):
        whole = memory["total of the process"][name]
        stages = [row[name] for row in memory.values() if isinstance(row[name], float)][:-1]
        assert whole == pytest.approx(sum(stages))
    swept = table("mlp/sweep-synthetic_digits.csv")
    assert [row["units"] for row in swept] == ["16"] * 3, "other hidden units, the same gradients"
    assert all(float(row["ms"]) > 0 for row in swept)
    verdicts = [row["verdict"] for row in cells("mlp/claims.json").values()]
    assert "not measured" in verdicts, "there is no GPU"
    assert set(verdicts) <= {"confirmed", "refuted", "not comparable", "not measured"}


def by_library(row: dict[str, Any]) -> dict[str, Any]:
    """Cells by the candidate's name without what it ran on."""
    return {key.partition(",")[0]: cell for key, cell in row.items()}


def test_the_file_of_kaggle_is_offered_to_the_study(tmp_path: Path) -> None:
    digits = data.load("synthetic_digits", n_train=1150, n_test=10)
    rows = np.concatenate([digits.y_train[:, None], digits.x_train.reshape(1150, -1)], 1)
    header = ",".join(["label", *(f"pixel{i}" for i in range(784))])
    np.savetxt(tmp_path / "train.csv", rows, "%d", ",", header=header, comments="")
    samples = job.load_samples(settings_of("mlp", "kaggle_digits", str(tmp_path), hold_out=50))
    assert "kaggle_digits" in get_study("mlp").others
    assert [len(samples[f"x_{part}"]) for part in ("train", "val", "test")] == [100, 50, 1000]
    settings = settings_of("mlp", "kaggle_digits", str(tmp_path), hold_out=50)
    assert trainer("numpy", settings, work=Work(rows=True)).train_whole(2)["loss"] > 0


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """A folder for what one test has measured and another needs."""
    with tempfile.TemporaryDirectory(prefix="minicnn-test-") as folder:
        yield Path(folder) / "out"


def carry_out_platforms(kept: Path) -> str:
    """Carry out `PLATFORMS` in the working folder, unless a test has done so."""
    if kept.exists():
        shutil.copytree(kept, "out")
    output = done(*PLATFORMS)
    shutil.copytree("out", kept, dirs_exist_ok=True)
    return output


def test_platforms_goes_on_after_an_interruption(monkeypatch: pytest.MonkeyPatch, kept: Path, field: Field) -> None:
    output = carry_out_platforms(kept)
    assert "without cupy: " in output
    assert_complete(
        "platforms",
        {"claims", *(f"{t}-synthetic_digits" for t in ("summary", "variants", "epochs"))},
        {"epochs-synthetic_digits", "memory-synthetic_digits"},
    )
    rows = table("platforms/epochs-synthetic_digits.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(float(row[key]) > 0 for row in rows for key in ("time_s", "samples_per_s", "loss", "process_mb"))
    assert "PyTorch CPU, Core Ultra 7" in Path("out/platforms/summary-synthetic_digits.csv").read_text()
    report = Path("out/report.html").read_text("utf-8")
    assert "<code>cupy</code>: Backend" in report
    assert "accuracies of one machine differ" not in report, "there is one candidate"
    before = Path("out/platforms/summary-synthetic_digits.csv").read_bytes()
    shutil.rmtree("out/platforms")
    Path("out/report.html").unlink()
    assert "kept" in done(*PLATFORMS, "--measure-only")
    assert {p.name for p in Path("out").iterdir()} == {"results"}, "nothing is presented"

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(comparison.Comparison, "__enter__", never)
    assert "1/3 training-synthetic_digits: kept" in done(*PLATFORMS)
    assert Path("out/platforms/summary-synthetic_digits.csv").read_bytes() == before
    with_part = *PLATFORMS, "--part", "training-*", "--part", "frozen-*"
    assert "1/2 training-synthetic_digits: kept" in done(*with_part, "--measure-only")
    assert "A part of the study is one of training-" in error_of(minicnn(*PLATFORMS, "--part", "froze"), 1)
    assert "--part is for measuring one study." in error_of(minicnn(*with_part, "--stored"), 2)
    monkeypatch.setattr(command, "find", never)
    done("study", "platforms", "--stored", "--out", "out", "--docs", "docs")
    page = Path("docs/platforms.md").read_text("utf-8")
    assert "](figures/platforms-epochs-synthetic_digits.svg)" in page
    assert Path("docs/figures/platforms-epochs-synthetic_digits.svg").exists()
    assert "minicnn study platforms --backends numpy,cupy --data synthetic_digits " in page
    assert "--set samples=130" in page
    shutil.copytree("out", "other")
    for record in Path("other/results/platforms").iterdir():
        record.write_text(record.read_text().replace('"cores": ', '"cores": 9'))
    stored = "study", "platforms", "--stored", "--out", "out", "--beside", "other", "--docs", "both"
    done(*stored)
    page = Path("both/platforms.md").read_text("utf-8")
    assert page.count("minicnn study platforms --backends numpy,cupy") == 2, "two machines on one page"
    assert "--beside is for results that are stored." in error_of(minicnn(*PLATFORMS, "--beside", "out"), 2)
    monkeypatch.setattr(command, "find", lambda: field)
    before = {path: path.read_bytes() for path in Path("other").rglob("*.*")}
    other = error_of(minicnn(*PLATFORMS, "--out", "other", "--part", "frozen-*"), 1)
    assert other.startswith("A folder holds the results of one machine. Received: training-synthetic_digits, measured")
    assert {path: path.read_bytes() for path in Path("other").rglob("*.*")} == before


@pytest.mark.night("tests/measure/test_hybrid.py::test_two_backends_train_as_one")
@pytest.mark.usefixtures("in_this_process")
def test_platforms_trains_a_hybrid_beside_the_others() -> None:
    given = [*PLATFORMS[:-1], "numpy,numpy+numpy"]
    assert "numpy, numpy+numpy" in done(*given)
    summary = {row["candidate"].partition(",")[0]: row for row in table("platforms/summary-synthetic_digits.csv")}
    assert summary["numpy+numpy"]["accuracy"] == summary["numpy"]["accuracy"]
    assert "A hybrid, such as the candidate" in Path("out/platforms/claims.csv").read_text()


@pytest.mark.no_cover  # Numba would compile for twice as long
@pytest.mark.usefixtures("in_this_process")
def test_kernels_shows_levels_and_loaders() -> None:
    pytest.importorskip("numba")
    done(*KERNELS, "--backends", "numpy,numba")
    name = "synthetic_digits"
    assert_complete(
        "kernels",
        {"claims", "training", "ablation", "optimisations", "loaders"},
        {f"{f}-{name}" for f in ("epochs", "ablation", "loaders")},
    )
    ablation = cells("kernels/ablation.json")
    assert next(r for n, r in ablation.items() if n.endswith("fused kernels, all threads"))[f"{name}_speedup"] > 0
    assert next(r for n, r in ablation.items() if n.startswith("numpy, "))[f"{name}_speedup"] == 1.0
    losses = {row[f"{name}_loss"] for row in cells("kernels/loaders.json").values()}
    assert max(losses) == pytest.approx(min(losses), rel=STEP), "loaders give the same batches as arrays"


def test_several_studies_each_with_sizes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out: dict[str, Any] = {}

    def carry_out(name: str, _: Any, setting: Any, *__: Any, **___: Any) -> Any:
        carried_out[name] = setting.sizes
        if len(carried_out) == 2:
            raise click.ClickException("enough")

    monkeypatch.setattr(command, "_carried_out", carry_out)
    given = (
        "--set",
        "kernels.epochs=2",
        "--set",
        "samples=7",
        "--set",
        "platforms.samples=9",
        "--set",
        "mlp.samples=3",
    )
    error_of(minicnn("study", "platforms", "kernels", *given, "--out", "out"), 1)
    assert list(carried_out) == ["platforms", "kernels"]
    assert (carried_out["platforms"].epochs, carried_out["platforms"].samples) == (10, 9)
    assert (carried_out["kernels"].epochs, carried_out["kernels"].samples) == (2, 7)


def test_who_was_refused_is_named_and_the_code_is_1(kept: Path) -> None:
    carry_out_platforms(kept)
    path = Path("out/results/platforms/training-synthetic_digits.json")
    record = json.loads(path.read_text())
    rows = record["result"]["history"].pop("numpy")
    why = "refused, because its loss 2 differs from numpy's 1 by 1.0e+00 (relative; at most 1.0e-05)"
    record["result"] |= {"history": {"torch:cpu": rows}, "out": {"numpy": why}}
    path.write_text(json.dumps(record))
    said = "Every candidate that is here computes the same. Received: platforms: numpy refused, because its"
    assert error_of(minicnn(*PLATFORMS), 1).startswith(said)
    presented = minicnn("study", "platforms", "--stored", "--out", "out")  # that was known when they were stored
    assert presented.exit_code == 0
    assert f"note: {said}" in presented.output
    assert "<code>numpy</code> has no figures here: refused" in Path("out/report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("study", "mpl"), 2, "A study is one of mlp, platforms"),
        (("study", "mlp", "--backends", "numpi"), 2, "Did you mean 'numpy'?"),
        (("study", "platforms", "--backends", "numpy+numpi"), 2, "Did you mean 'numpy'?"),
        (("study", "platforms", "--backends", "numpy+torch.nn:cpu"), 2, "A hybrid is two backends, of which the"),
        (("study", "mlp", "--backends", "numpy+numpy"), 1, "Received: This study has no hybrids of two backends."),
        (("study", "mlp", "--set", "epochs"), 2, "--set takes SIZE=VALUE with a size among counts, hidden, hold"),
        (("study", "mlp", "--set", "mpl.epochs=2"), 2, "with the name of a study. Received: 'mpl.epochs=2'."),
        (("study", "mlp", "--set", "mlp.epochs=2"), 2, "with a size among counts, hidden, hold_out, input, "),
        (("study", "mlp", "--measure-only", "--stored"), 2, "--measure-only presents nothing."),
        (("study", "mlp", "mpl"), 2, "A study is one of mlp, platforms"),
        (("study", "mlp", "--set", "iterations=many"), 2, "iterations is like 500. Received: 'many'. Give a whole"),
        (
            ("study", "platforms", "mlp", "--set", "per_round=0"),
            2,
            "Received: '0'. Give a whole number that is at least 1",
        ),
        (("study", "mlp", "--set", "input=int8"), 2, "Received: 'int8'. Give one of float32, uint8."),
        (("study", "mlp", "--set", "hold_out=99999", "--data", "synthetic_digits"), 1, "99999 of the 60000 training"),
        (
            ("study", "roofline", "--set", "left_out=numpi"),
            2,
            "Received: 'numpi'. Give nothing, one of array_api_strict,",
        ),
        (("study", "roofline", "--set", "samples=100"), 2, "An epoch has a batch at least. Received: samples=100 for"),
        (("study", "roofline", "--set", "image=8"), 2, "Received: 8, with which in squeezenet1_1 max_pool2d needs an"),
        (("study", "convolution", "--set", "network_image=32"), 2, "Received: 32, with which in alexnet max_pool2d"),
        (("study", "mlp", "--data", "cifar10"), 2, "The study mlp works with mnist, "),
        (("study", "mlp", "--backends", "cupy:cuda:99"), 1, "A study needs a backend that can run."),
        (("study", "mlp", "--stored"), 1, "Stored results are there, and can be read. Received: not measured yet."),
        (("study", "mlp", "--data-dir", "."), 1, "mnist needs the files"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], code: int, said: str) -> None:
    assert said in error_of(minicnn(*args, "--out", "out"), code)
    assert not Path("out").exists(), "nothing was written"
