"""`minicnn predict-scaling`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minicnn.measure import local_ranks
from support.command_line import done, error_of, facts_of, minicnn

NETWORK = {"network": "platforms", "image": [28, 28, 1], "classes": 10}
predicted = partial(facts_of, "predict-scaling")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A calibration of this machine, with made figures."""
    path = tmp_path / "made.json"
    found = {
        "machine": local_ranks.name(), "ranks": 2, "missing": None,
        "alone": [{**NETWORK, "batch": n, "seconds": [1e-3 + 1e-4 * n, 1.2e-3 + 1e-4 * n]} for n in (64, 256)],
        "all_reduce": [{"bytes": n, "seconds": [1e-5 + n / 1e9]} for n in (54_000, 25_000_000)],
        "training": [{**NETWORK, "batch": 512, "seconds": [0.03]}],
    }  # fmt: skip
    path.write_text(json.dumps(found))
    return path


def test_errors_come_before_predictions(stored: Path) -> None:
    result = done("predict-scaling", "platforms", "--ranks", "1,2,4", "--network", "this", "--calibration", str(stored))
    text = result.stdout
    first = text.index("Predicted, strong scaling")
    for said in ("on 64 of 28x28x1, by itself", "all-reduce of 25,000 kB, 2 ranks", "on 512 of 28x28x1, 2 ranks",
                 "Krizhevsky 2014, arXiv:1404.5997", "Yadan et al. 2013, arXiv:1312.5853"):  # fmt: skip
        assert text.index(said) < first
    assert text.count("Choice: ") == 2
    assert first < text.index("Predicted, weak scaling") < text.index("while a group's batch is at most 99.")


def test_strategies_side_by_side(stored: Path) -> None:
    found = predicted("platforms", "--ranks", "1,2,4,...,64", "--calibration", str(stored), "--batch-size", "512")
    assert [row["ranks"] for row in found["strong"]] == [1, 2, 4, 8, 16, 32, 64]
    for row in found["strong"]:
        assert [p["strategy"] for p in row["predictions"]] == ["data", "model", "hybrid", "pipeline"]
        assert row["batch"] == 512
        assert row["chosen"] in row["why"] or row["ranks"] == 1
        times = {p["strategy"]: p["seconds"] for p in row["predictions"] if p["impossible"] is None}
        assert times[row["chosen"]] <= 1.01 * min(times.values())
    assert [row["batch"] for row in found["weak"]] == [512 * n for n in (1, 2, 4, 8, 16, 32, 64)]
    assert found["strong"][-1]["predictions"][1]["impossible"] is None
    assert found["hybrid_until_batch"] == 99
    fixed, ring = (
        predicted("platforms", "--ranks", "8", "--calibration", str(stored), "--batch-size", "512", "--bucket", "0",
                  "--network", "ethernet-1g,ranks_per_host=4", "--all-reduce", how)["strong"][0]["predictions"][0]
        for how in ("fixed", "ring")
    )  # fmt: skip
    assert fixed["exposed"] > ring["exposed"] > 0


def test_a_gpu_that_is_not_there_and_nothing_measured() -> None:
    found = predicted(
        "platforms", "--device", "rtx4090", "--ranks", "1,4", "--network", "infiniband", "--batch-size", "4096"
    )
    said = " ".join(found["notes"])
    assert "Nothing was measured on this machine" in said
    assert "No all-reduce was measured on infiniband" in said
    assert "fitted to an H200, not to it" in said
    assert [e["source"][:10] for e in found["errors"]] == ["Krizhevsky", "Krizhevsky", "Yadan et a"]
    assert found["strong"][1]["speedups"][0] > 1


def test_the_calibration_of_another_machine_does_not_count(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(runs: list[dict[str, Any]]) -> dict[str, Any]:
        asked.extend(runs)
        kept = json.loads(stored.read_text())
        return {**kept, "machine": local_ranks.name(), "all_reduce": [], "training": [], "ranks": 1}

    monkeypatch.setattr(local_ranks, "measure", measure)
    changed = {**json.loads(stored.read_text()), "machine": "another"}
    stored.write_text(json.dumps(changed))
    found = predicted("lenet5", "--ranks", "1,2", "--calibration", str(stored))
    assert [run["network"] for run in asked] == ["lenet5", "platforms"]
    assert json.loads(stored.read_text())["machine"] == local_ranks.name(), "it is kept"
    assert any("no all-reduce was measured on this machine" in note for note in found["notes"])
    assert any("No step of lenet5 was measured" in note for note in found["notes"])
    line = error_of(minicnn("predict-scaling", "mlp", "--network", "this", "--calibration", str(stored)), 1)
    assert "Received: no all-reduce was measured on this machine, which takes the extra mpi. Give --calibrate" in line


def test_each_ellipsis_goes_up_to_the_number_behind_it() -> None:
    found = predicted("platforms", "--device", "t4", "--ranks", "1,2,...,8,24,...,100")
    assert [row["ranks"] for row in found["strong"]] == [1, 2, 4, 8, 24, 72, 100]


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        (("platforms", "--ranks", "1,x"), "Received: '1,x'"),
        (("platforms", "--ranks", "0"), "such as 1,2,4,...,1024. Received: '0'"),
        *(
            (("platforms", "--ranks", ranks), f"from 1 to 1,048,576, such as 1,2,4,...,1024. Received: '{ranks}'")
            for ranks in ("...", "1,2,...", "1,2,...,x", "1,2,...,...,8", "1,\u00b2", "1,2,...,1000000000", "9" * 5000)
        ),
        (("alexnat",), "Did you mean 'alexnet'?"),
        (("platforms", "--device", "v100"), "A device is one of cpu, t4"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], wrong: str) -> None:
    assert wrong in error_of(minicnn("predict-scaling", *args), 2)


def test_wrong_values(stored: Path) -> None:
    given = ("predict-scaling", "platforms", "--calibration", str(stored))
    assert "A network is one of nvlink" in error_of(minicnn(*given, "--network", "token-ring"), 1)


@pytest.mark.parametrize("text", ["[]", "{", "{}", "null", "training"])
def test_a_damaged_calibration_is_named_and_measured_anew(
    stored: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(stored.read_text())
    stored.write_text(json.dumps({**whole, "training": None}) if text == "training" else text)
    given = ("platforms", "--ranks", "1,2", "--calibration", str(stored))
    line = error_of(minicnn("predict-scaling", *given), 1)
    assert f"A calibration is what --calibrate has measured. Received: {stored}. Measure anew with --calibrate." in line
    monkeypatch.setattr(local_ranks, "measure", lambda runs: whole)
    predicted(*given, "--calibrate")
    assert json.loads(stored.read_text()) == whole


@pytest.mark.parametrize("spoilt", [1, 5])
def test_times_that_noise_has_spoilt_are_measured_again_and_named(
    stored: Path, spoilt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside other programs, when a small sum takes longer than a large one."""
    whole = json.loads(stored.read_text())
    noisy = {**whole, "all_reduce": [{"bytes": n, "seconds": [t]} for n, t in ((54_000, 3e-3), (25_000_000, 1e-3))]}
    measurements = [*[noisy] * spoilt, whole]
    monkeypatch.setattr(local_ranks, "measure", lambda runs: measurements.pop(0))
    given = ("predict-scaling", "platforms", "--ranks", "1,2", "--calibration", str(stored))
    reason = "all-reduces took no longer with more bytes (54 kB in 3 ms, 25,000 kB in 1 ms), as happens beside other"
    result = done(*given, "--calibrate")
    assert result.stderr.count(f"measuring again: {reason} programs ...") == min(spoilt, 3)
    assert (f"is not known: {reason}" in " ".join(result.stdout.split())) == (spoilt > 1)
    if spoilt > 1:
        assert reason in error_of(minicnn(*given, "--network", "this"), 1)
