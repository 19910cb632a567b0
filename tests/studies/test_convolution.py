"""The study `convolution`: what is measured, and the whole with small sizes."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_compat.numpy as numpy_xp
import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing

from minicnn.layers import Conv2D
from minicnn.measure import CandidateError, Page, Setting, StudyRun
from minicnn.ops.strategies import DIRECTIONS, STRATEGIES, Problem
from minicnn.studies import convolution
from minicnn.studies.convolution import breakdown, lanes, parallelism, strategy_pages, sweeps
from support import oracles
from support.command_line import minicnn
from support.tolerances import DOUBLE, SUM

PROBLEM = Problem(2, (6, 6), 3, 4, (3, 3), padding=((1, 1), (1, 1)))


@pytest.mark.parametrize("name", ["numpy", "torch:cpu", "numba"])
def test_every_strategy_of_a_backend_is_right_and_timed(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    candidate = sweeps.Convolver(name)
    problem = replace(PROBLEM, batch=40)  # large enough that images get another layout
    skipped = candidate.begin(problem)
    errors = candidate.errors(sweeps.expected(problem))
    assert {*skipped, *errors} == {*STRATEGIES, sweeps.CHANNELS_FIRST, sweeps.OWN}
    assert set(errors) >= ({sweeps.OWN} if name == "numba" else set(STRATEGIES) - {"vendor"})
    for way, found in errors.items():
        for direction in DIRECTIONS:
            assert 0 < found[direction] <= sweeps.allowed(way, problem, direction)
    way = next(iter(errors))
    assert candidate.time(way, "forward") > 0
    assert candidate.facts(sweeps.expected(problem))["prepared"] > 0
    layouts = candidate.layouts()
    assert layouts[way] == ("NHWC" if name == "numba" else "HWCN")
    assert [layouts.get(way) for way in (sweeps.VENDOR, sweeps.CHANNELS_FIRST)] == (
        ["NHWC", "NCHW"] if name == "torch:cpu" else [None, None]
    )


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 5)])
def test_what_is_expected_is_the_definition_in_float64(kernel: tuple[int, int]) -> None:
    problem = replace(PROBLEM, kernel=kernel, padding=((1, 0), (2, 1)))
    found = sweeps.expected(problem)
    given = {name: a.astype(np.float64) for name, a in sweeps.operands(problem).items()}
    for direction in DIRECTIONS:
        (node,) = sweeps.step(replace(problem, dtype="float64"), direction).nodes
        right = node.op.reference(*(given[v.name] for v in node.inputs), xp=numpy_xp, **node.attrs)
        np.testing.assert_allclose(found[direction], right, rtol=0, atol=DOUBLE)


@pytest.mark.parametrize("name", ["numpy", "torch:cpu"])
def test_memory_as_stated_is_memory_as_measured(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    candidate = sweeps.Convolver(name)
    candidate.begin(replace(PROBLEM, batch=32, image=(24, 24), channels=16, filters=16))
    stated, measured = candidate.workspace(), candidate.measured()
    for way in ("direct", "unrolled", "implicit", "winograd4"):
        for direction in DIRECTIONS:
            assert stated[way][direction] == pytest.approx(measured[way][direction], rel=0.1, abs=2**17)


def test_a_strategy_that_errs_is_refused() -> None:
    bound = sweeps.allowed("direct", PROBLEM, "forward")
    assert sweeps.allowed("winograd4", PROBLEM, "forward") == 8 * bound
    good = dict.fromkeys(DIRECTIONS, bound / 10)
    found = sweeps._judged({"direct": {**good, "forward": 2 * bound}, "fft": good}, PROBLEM)
    assert found["direct"].startswith("its forward errs by")
    assert found["fft"] == ""
    assert sweeps._judged({"direct": {**good, "forward": float("nan")}}, PROBLEM)["direct"]


class Inside:
    """A worker of NumPy in this process, which fails in one method."""

    def __init__(self, fails: str | None = None) -> None:
        self._candidate, self._fails = sweeps.Convolver("numpy"), fails

    def send(self, method: str, *args: Any) -> None:
        self._called = method, args

    def receive(self) -> Any:
        method, args = self._called
        return self.call(method, *args)

    def call(self, method: str, *args: Any) -> Any:
        if method == self._fails:
            raise CandidateError("failing", "no memory")
        return getattr(self._candidate, method)(*args)


@pytest.mark.parametrize("method", ["begin", "facts"])
def test_who_fails_at_a_point_is_named_and_the_others_go_on(method: str) -> None:
    workers: dict[str, Any] = {"failing": Inside(method), "working": Inside()}
    found = sweeps.point_of(workers, PROBLEM, 1, 1.0)["candidates"]
    assert found["failing"]["failure"] == "no memory"
    assert not found["failing"]["times"]
    assert set(found["working"]["times"]) == set(STRATEGIES) - {"vendor"} | {sweeps.OWN}
    assert all(len(samples) == 1 for ways in found["working"]["times"].values() for samples in ways.values())


def test_sweeps_go_through_one_point() -> None:
    for sizes in (convolution.ConvolutionStudySizes(), convolution.QUICK):
        for name, varied in strategy_pages.SWEEPS.items():
            problems = convolution.sweep_of(name, sizes)
            assert convolution.base(sizes) in problems
            assert len({varied(vars(p)) for p in problems}) == len(problems)
            assert all(p.output == p.image for p in problems)


def test_slow_backends_take_part_at_one_point_only() -> None:
    setting = Setting(convolution.QUICK, ("numpy", "jax:cpu", "torch.nn:cpu"), {}, ("synthetic",))
    given = {m.name: m.inputs["candidates"] for m in convolution.measurements(setting)}
    assert given["strategies-base"] == ("numpy", "jax:cpu")
    assert given["strategies-channels"] == ("numpy",)


def test_nodes_belong_to_their_layers() -> None:
    types = {"conv1": Conv2D}
    assert breakdown.part_of("add", "conv1", types) == "convolution"
    assert breakdown.part_of("relu_gradient", "conv1", types) == "ReLU"
    assert breakdown.part_of("sum", "loss", types) == "other"


@pytest.mark.parametrize("candidate", ["numpy", "torch.nn:cpu"])
def test_layers_of_a_network(candidate: str) -> None:
    pytest.importorskip("torch")
    layers = breakdown.Layers(candidate, "squeezenet1_1", 48, 2, 5)
    assert np.isfinite(layers.loss())
    seconds, how = layers.parts(2)
    assert how == "nodes"
    assert seconds is not None
    for phase in ("forward", "backward"):
        for part in ("convolution", "pooling", "ReLU", "concat"):
            assert min(seconds[phase][part]) > 0, f"{phase} {part}"
    assert len(layers.step(2)) == 2


def test_both_candidates_have_the_same_loss() -> None:
    pytest.importorskip("torch")
    ours, theirs = (breakdown.Layers(c, "squeezenet1_1", 48, 2, 5).loss() for c in ("numpy", "torch.nn:cpu"))
    assert ours == pytest.approx(theirs, rel=SUM)


@pytest.mark.usefixtures("in_this_process")
def test_the_study_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "NETWORKS", {"squeezenet1_1": 48})
    monkeypatch.setattr(parallelism, "NETWORKS", ("platforms",))
    monkeypatch.setattr(parallelism, "RANKS", (1, 4, 16))
    lenet = {"network": "lenet5", "image": [28, 28, 1], "classes": 10}
    measured = {
        "machine": "a machine", "ranks": 2, "missing": None,
        "alone": [{**lenet, "batch": n, "seconds": [0.01 + 1e-3 * n]} for n in (8, 32)],
        "all_reduce": [{"bytes": n, "seconds": [1e-5 + n / 1e9]} for n in (1000, 10**6)],
        "training": [{**lenet, "batch": 64, "seconds": [0.05]}],
    }  # fmt: skip
    monkeypatch.setattr(parallelism, "measure", lambda: measured)
    sizes = {
        "batch": 2, "image": 6, "channels": 3, "kernels": "1,3", "channel_counts": "2,3", "images": "6,8",
        "batches": "1,2", "rounds": 3, "network_batch": 2, "iterations": 2, "network_image": 0, "lanes": "2,3",
    }  # fmt: skip
    args = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
    result = minicnn("study", "convolution", "--quick", "--backends", "numpy", *args, "--out", "out")
    assert result.exit_code == 0, result.output

    def table(name: str) -> list[dict[str, str]]:
        with Path("out/convolution", f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    ways = set(STRATEGIES) - {"vendor"} | {sweeps.OWN}
    points = [row for row in table("points") if row["sweep"] == "kernel size"]
    assert {row["strategy"] for row in points if row["at"] == "3"} == ways
    assert {row["strategy"] for row in points if row["at"] == "1"} == ways - {"winograd2", "winograd4", sweeps.OWN}
    assert len(table("winners")) == 4 * 2 * 3
    (row,) = table("layers")
    assert 0 < float(row["convolution"]) < 100
    assert float(row["step_ms"]) > 0
    assert sum(float(row[part]) for part in breakdown.PARTS) == pytest.approx(100)
    assert len(list(Path("out/convolution").glob("strategies-*.svg"))) == 1
    report = Path("out/report.html").read_text("utf-8")
    assert "Of the time of layers convolutions take " in report
    predicted = table("scaling")
    assert {(row["kind"], row["ranks"]) for row in predicted} == {
        (k, n) for k in ("strong", "weak") for n in ("1", "4", "16")
    }
    assert {row["way"] for row in predicted} == {"data", "model", "hybrid", "pipeline", "data, ring"}
    errors = {row["what"]: row["error"] for row in table("model-errors")}
    assert errors["step of lenet5 on 64 of 28x28x1, 2 ranks"].endswith(" %"), "measured, and not fitted"
    assert "speed-up of AlexNet by hybrid parallelism, 8 GPUs" in errors
    assert report.index("The model of times against what was measured") < report.index("Up to 16 GPUs give ")
    assert [row["until"] for row in table("hybrid")] == ["99"]
    cores = table("cores")
    assert [int(row["cores"]) for row in cores] == list(lanes.core_counts())
    assert float(cores[0]["gain"]) == 1
    assert [(row["varied"], row["n"]) for row in table("lanes")] == [
        (varied, n) for varied in lanes.VARIED.values() for n in ("2", "3")
    ]  # fmt: skip


def test_the_point_that_all_sweeps_go_through_is_measured_once_and_shown_in_each() -> None:
    setting = Setting(convolution.QUICK, ("numpy", "torch:cpu"), {}, ("synthetic",), None, True)
    given = {m.name: m.inputs for m in convolution.measurements(setting)}
    middle = given["strategies-base"]["problems"][0]
    assert all(middle not in given[f"strategies-{name}"]["problems"] for name in strategy_pages.SWEEPS)

    def result(problems: list[dict[str, Any]], candidates: list[str]) -> dict[str, Any]:
        return {"points": [{"problem": p, "candidates": dict.fromkeys(candidates)} for p in problems]}

    results = {"strategies-base": result([middle], ["numpy", "torch:cpu"])}
    results |= {
        f"strategies-{n}": result(given[f"strategies-{n}"]["problems"], ["numpy"]) for n in strategy_pages.SWEEPS
    }
    for name, varied in strategy_pages.SWEEPS.items():
        points = strategy_pages.points_of(StudyRun(setting, results, {}), name)
        assert [varied(p["problem"]) for p in points] == sorted(map(varied, convolution_problems(name)))
        assert all(list(p["candidates"]) == ["numpy"] for p in points)


def convolution_problems(name: str) -> list[dict[str, Any]]:
    return [asdict(p) for p in convolution.sweep_of(name, convolution.QUICK)]


def test_time_that_a_gpu_waits_is_in_no_part_of_pytorchs_profile() -> None:
    def event(key: str, device: str, kernels_us: float, *, within_us: float = 0.0) -> Any:
        total = kernels_us + within_us
        return SimpleNamespace(
            key=key, device_type=f"DeviceType.{device}", self_device_time_total=kernels_us, device_time_total=total,
            cpu_time_total=5000.0, is_user_annotation=False,
        )  # fmt: skip

    events = [
        event("aten::conv2d", "CPU", 0, within_us=900), event("aten::relu", "CPU", 100),
        event("cudnn_kernel", "CUDA", 900), event("relu_kernel", "CUDA", 100), event("softmax_kernel", "CUDA", 50),
    ]  # fmt: skip
    found = breakdown.torch_seconds(events, "forward", None)
    assert {part: s for part, s in found.items() if s} == {
        "convolution": pytest.approx(9e-4), "ReLU": pytest.approx(1e-4), "other": pytest.approx(5e-5),
    }  # fmt: skip
    on_cpu = breakdown.torch_seconds(events[:1], "forward", 0.006)
    assert on_cpu["other"] == pytest.approx(0.001)


def test_claims_on_cores_and_lanes_follow_from_ratios() -> None:
    def point(seconds: dict[str, float], **problem: int) -> dict[str, Any]:
        candidates = {name: {"times": {"own kernel": {"forward": [s]}}} for name, s in seconds.items()}
        return {"problem": problem, "candidates": candidates}

    setting = Setting(convolution.QUICK, ("numba", "cupy"), {}, ("synthetic",))
    for more, ratios, verdict in (
        (1.1, "0.55 times as long as 64 filters, 1.10 times as long as 32", "refuted"),
        (1.9, "0.95 times as long as 64 filters, 1.90 times as long as 32", "confirmed"),
    ):
        times = ((32, 1.0), (33, more), (64, 2.0))
        results = {
            "cores": {"points": [point({"numba / 1": 4.0, "numba / 2": 2.1})]},
            "lanes": {"points": [point({"numba": 1.0, "cupy": s}, filters=n, batch=n) for n, s in times * 2]},
        }
        run = StudyRun(setting, results, {"cores": 2, "devices": {"cupy cuda:0": "NVIDIA H200"}})
        cores, tasks = of_parallelism([run])
        assert cores == ("numba, 2 cores: 1.9 times on 2", "confirmed")
        assert tasks == (f"cupy, H200: {ratios}", verdict)
    assert of_parallelism([replace(run, results={})]) == [(None, "not measured")] * 2


def of_parallelism(runs: list[StudyRun]) -> list[tuple[Any, Any]]:
    """Our figure and the verdict on what is claimed of cores and of lanes."""
    page = Page()
    convolution.pages.present(page, runs)
    claims = next(table for table in page.tables if table.name == "claims").rows
    told = [row for row in claims if str(row["claim"]).startswith(("n cores", "33 tasks"))]
    return [(row["ours"], row["verdict"]) for row in told]


def test_the_figure_of_lanes_has_ticks_where_vectors_are_full() -> None:
    setting = Setting(convolution.ConvolutionStudySizes(), ("numba",), {}, ("synthetic",))
    points = [
        {"problem": {"filters": n, "batch": n}, "candidates": {"numba": {"times": {"own kernel": {"forward": [1e-3]}}}}}
        for n in setting.sizes.lanes
    ]
    _, panels = lanes.around([StudyRun(setting, {"lanes": {"points": points * 2}}, {"cores": 2, "devices": {}})])
    axes = Drawing().add_subplot()
    panels[0].draw(axes)
    assert axes.get_xticks().tolist() == [16, 32, 48, 64]


@pytest.mark.parametrize(
    ("kernel", "image", "padding", "strides"), [(3, 8, 1, 1), (11, 8, 5, 1), (3, 9, 1, 2), (1, 4, 0, 1)]
)
def test_multiplying_with_padding_is_no_useful_work(kernel: int, image: int, padding: int, strides: int) -> None:
    problem = replace(
        PROBLEM,
        kernel=(kernel, kernel),
        image=(image, image),
        padding=((padding, padding),) * 2,
        strides=(strides,) * 2,
    )
    ones = np.ones((1, image, image, 1))
    attrs = problem.strides, problem.padding, problem.dilation, problem.groups
    taps = oracles.conv2d(ones, np.ones((kernel, kernel, 1, 1)), *attrs).sum()
    assert sweeps.useful_flops(problem) == 2 * problem.batch * problem.channels * problem.filters * int(taps)
    assert sweeps.useful_flops(problem) <= problem.flops
