"""Timelines of a step: of ranks on the host, of launches on the emulator, and the file that is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.cupy.emulated import EmulatedBackend
from backends.cupy.emulator import needs_gxx
from minicnn.backends.base import Span
from minicnn.backends.numpy import NumpyBackend
from minicnn.distribution import NcclCommunicator, OneProcess, passes
from minicnn.trace import Timeline
from support.distributed import CLASSES, DataParallel, chain, data, dense, nn, on_ranks
from support.made_up_nccl import Late


def test_ranks_tell_when_they_compute_and_when_sums_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BUCKET", 100)
    x, y = data()

    def work(distribution: DataParallel) -> Timeline:
        layers = [nn.Flatten(), nn.Dense(8), nn.Dense(CLASSES, activation="softmax")]
        model = chain(layers, "sgd", NumpyBackend(), distribution)
        steps = model.steps_taken
        found = model.timeline(x[:16], y[:16])
        assert model.steps_taken == steps + 2  # it is trained like any
        return found

    first, second = on_ranks(2, work)
    assert first == second
    assert len(first.ranks) == 2
    for spans in first.ranks:
        assert all(span.seconds >= 0 for span in spans)
        assert {span.lane for span in spans} == {"computing", "sums"}
        sums = [span for span in spans if span.lane == "sums"]
        assert all(span.between and span.name.startswith("all_reduce of ") for span in sums)
        assert not any(span.between for span in spans if span.lane == "computing")
        names = [span.name for span in spans]
        assert any(name.startswith("backward: ") and "dense" in name for name in names)
        assert "waits for a sum" in names


def test_a_step_of_one_process_is_one_span() -> None:
    x, y = data()
    (spans,) = dense("numpy", None).timeline(x[:4], y[:4]).ranks
    assert [(span.name, span.lane) for span in spans] == [("step", "computing")]


@needs_gxx
def test_launches_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BUCKET", 100)
    monkeypatch.setattr("minicnn.backends._gpu.ranks.PLUG", 16)
    x, y = data()

    def spans_of(**about: Any) -> Any:
        model = dense(backend, DataParallel(2, **about))
        (spans,) = model.timeline(x[:12], y[:12]).ranks
        return spans

    backend = EmulatedBackend()
    alone = spans_of()
    shared = spans_of(communicator=NcclCommunicator(OneProcess(), Late(backend.runtime)))
    assert any("matmul" in span.name for span in alone)
    assert not any(span.between for span in alone)
    between = [span for span in shared if span.between]
    assert between
    assert {span.name for span in between} == {"all_reduce"}
    assert sum("matmul" in span.name for span in shared) == sum("matmul" in span.name for span in alone)


def test_clocks_are_set_by_what_ends_on_all_ranks_at_once(tmp_path: Path) -> None:
    ranks = [
        [Span("a", "computing", 10.0, 1.0), Span("sum", "sums", 11.0, 2.0, between=True)],
        [Span("sum", "sums", 700.5, 1.5, between=True), Span("b", "computing", 702.0, 0.5)],
    ]
    Timeline(ranks).write(tmp_path / "timeline.json")
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    spans = {(e["pid"], e["name"]): e for e in events if e["ph"] == "X"}
    assert spans[0, "a"]["ts"] == 0
    ends = [spans[rank, "sum"]["ts"] + spans[rank, "sum"]["dur"] for rank in (0, 1)]
    assert ends == [3e6, 3e6]
    assert spans[1, "b"]["ts"] == 3e6
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lanes[0, spans[0, "sum"]["tid"]] == "sums"
    assert lanes[1, spans[1, "b"]["tid"]] == "computing"
    assert str(Timeline(ranks)).splitlines()[0] == (
        "rank 0: 3000.000 ms, computing 1000.000 ms, sums 2000.000 ms, between ranks 2000.000 ms"
    )
