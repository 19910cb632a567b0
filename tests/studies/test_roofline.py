"""The study `roofline`: counts, words, and the whole with small sizes."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path as Way

from minicnn import ops, zoo
from minicnn.data import DataError
from minicnn.measure import Page, ResultStore, Setting, Spread, StudyRun
from minicnn.measure.drawing import to_svg
from minicnn.measure.parity import loss_parity
from minicnn.measure.study import recall
from minicnn.program import Program
from minicnn.studies import get_study, roofline
from minicnn.studies.roofline import ceilings, counting, images, pages, steps, tables, trained, training
from minicnn.studies.roofline.verdict import Floor, TimedKernel, Verdict, floor, judge, near
from support.command_line import minicnn
from support.tolerances import DOUBLE, ELEMENT

STORED = Path(__file__).parents[2] / "docs" / "studies"

SMALL = (48, 48, 3)


# Words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "largest"),
    [
        (Floor(0.5, 0.2, 0.01, 0.02), "compute"),
        (Floor(0.2, 0.5, 0.01, 0.02), "memory"),
        (Floor(0.1, 0.2, 0.5, 0.02), "launch"),
        (Floor(0.1, 0.2, 0.01, 0.5), "input"),
    ],
)
def test_the_largest_floor_is_the_bottleneck_if_it_is_half_of_the_time(least: Floor, largest: str) -> None:
    assert judge(1.0, least) == Verdict(largest, largest, 0.5)
    assert judge(1.1, least).bottleneck == "none", "a ceiling that explains 45 % of the time is not what holds it back"
    assert judge(1.1, least).largest == largest


def test_kernels_are_near_a_ceiling_or_none() -> None:
    kernels = [
        TimedKernel(60.0, 1.0, 1.0),
        TimedKernel(1.0, 6.0, 1.0),
        TimedKernel(10.0, 1.0, 2.0),
    ]  # at 100 FLOP/s and 10 byte/s
    found = near(kernels, 5.0, 100.0, 10.0)
    assert found == pytest.approx({"compute": 0.2, "memory": 0.2, "none": 0.4, "between": 0.2})
    found = near(kernels, 2.0, 100.0, 10.0)
    assert found == pytest.approx({"compute": 0.25, "memory": 0.25, "none": 0.5, "between": 0.0}), "they overlap"


def test_verdicts_are_on_the_batch_in_which_kernels_are_timed_on_each_machine() -> None:
    setting = Setting(roofline.RooflineSizes(), ("cupy",), {}, ("synthetic",))
    first, second = (
        StudyRun(setting, {"training-resnet18": {"epoch_batch": batch}}, {"cores": 16, "devices": {}})
        for batch in (64, 128)
    )
    every = [
        steps.NetworkStep(run, "resnet18", candidate, batch, Spread(1.0, 1.0, 1.0, 1), 0.0)
        for run in (first, second)
        for candidate in ("cupy", "numba")
        for batch in (32, 64)
    ]
    found = [(step.run, step.candidate, step.batch) for step in steps.at_epoch(every)]
    assert found == [(run, name, 64) for run in (first, second) for name in ("cupy", "numba")]
    assert [step.batch for step in steps.at_epoch(every[:1])] == [32], "where that of the epoch was not timed"


def test_what_stays_within_a_kernel_is_not_moved() -> None:
    program = Program("two kernels")
    x = program.input("x", (8, 4), "float32")
    a = ops.relu(x)
    b = ops.square(a)
    program.outputs["c"] = ops.add(b, a)
    relu, square, add = program.nodes
    (first, second) = training.account_of([([relu, square], [0.2, 0.3, 0.1]), ([add], [0.5])])
    assert first["bytes"] == 3 * x.nbytes, "x is read, a and b are written, as the second kernel reads both"
    assert second["bytes"] == 3 * x.nbytes
    (whole,) = training.account_of([([relu, square, add], [0.2])])
    assert whole["bytes"] == 2 * x.nbytes
    assert (first["seconds"], whole["flops"]) == (0.2, sum(n.cost.flops for n in program.nodes))


def test_floors_are_of_the_operations_that_each_ceiling_limits() -> None:
    # At 100 FLOP/s and 10 byte/s the ridge is at 10 FLOP per byte.
    nodes = [(1000.0, 10.0), (5.0, 50.0), (200.0, 20.0)]
    assert floor(nodes, 100.0, 10.0, launches_s=1.5, input_s=3.0) == Floor(10.0 + 2.0, 5.0, 1.5, 3.0)


# Counts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", counting.NETWORKS)
def test_flops_equal_those_of_the_counter_of_torch(name: str) -> None:
    pytest.importorskip("torch")
    counted = counting.count(name, (1, 2), SMALL)
    theirs = counting.torch_count(name, SMALL)
    assert counted["products"]["forward"] == pytest.approx(theirs["forward"], rel=DOUBLE)
    assert counted["products"]["backward"] == pytest.approx(theirs["backward_grouped"], rel=DOUBLE)
    # The counter ignores groups in the backward pass, which only one of the networks has.
    assert (theirs["backward"] > 2 * theirs["backward_grouped"]) == (name == "mobilenet_v2")
    assert tables.differs({**counted, "torch": theirs}) < 0.01


def test_costs_of_any_batch_follow_from_two() -> None:
    counted = counting.count("squeezenet1_1", (2, 3), SMALL)
    program = counting.network("squeezenet1_1", "numpy", SMALL).program("train", batch_size=7)
    assert counting.at_batch(counted, 7) == [(n.cost.flops, n.cost.bytes) for n in program.nodes]
    layers = counted["layers"]
    assert sum(of.get("parameters", 0) for of in layers.values()) == counted["parameters"]
    assert sum(of.get(f"{p}_flops", 0) for of in layers.values() for p in ("forward", "backward", "update")) == sum(
        flops for flops, _ in counting.at_batch(counted, 3)
    )
    assert layers["conv1"]["kind"] == "Conv2D"


# Ceilings -----------------------------------------------------------------------------------------


def test_levels_of_memory() -> None:
    caches = {"L1": 100, "L2": 1000}
    assert [ceilings.level_of(n, caches) for n in (100, 101, 1500, 2001)] == ["L1", "L2", "between", "memory"]
    assert ceilings.level_of(5, {}) == "memory"


@given(call=st.floats(0, 1e-4), rate=st.floats(1e9, 1e13))
def test_the_call_of_a_copy_is_told_from_its_bytes(call: float, rate: float) -> None:
    copies = {str(n): [2 * n / (call + 2 * n / rate)] * 3 for n in (2**25, 2**15, 2**13)}
    assert ceilings.call_s(copies) == pytest.approx(call, rel=ELEMENT, abs=DOUBLE)


def test_copies_that_are_mostly_the_call_say_so() -> None:
    rates = {str(n): [2 * n / (10e-6 + 2 * n / 1e12)] * 3 for n in (2**13, 2**15, 2**22, 2**24)}  # 10 us and 1 TB/s
    found = {"copies": {"numpy": rates, "cupy": rates}, "caches": {"L1": 2**17}, "l2": {"cupy": 2**26}}
    machine = {"cores": 2, "devices": {"cupy cuda:0": "NVIDIA H200"}}
    setting = Setting(roofline.RooflineSizes(), ("numpy", "cupy"), {}, ("tiny_imagenet",))
    rows, _ = tables.copies([StudyRun(setting, {"ceilings": found | {"products": {}, "launches": {}}}, machine)])
    call = ", mostly the call"
    assert [row["level"] for row in rows] == [
        f"L1{call}",
        f"L1{call}",
        f"memory{call}",
        "memory",
        *[f"L2{call}"] * 3,
        "L2",
    ]
    spreads: Any = [row["us"] for row in rows[-2:]]
    assert [f"{spread.median:.1f}" for spread in spreads] == ["18.4", "43.6"]


def test_caches_as_linux_tells_them(tmp_path: Path) -> None:
    for i, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert ceilings.cpu_caches(tmp_path) == {"L1": 48 * 1024, "L2": 1024 * 1024}
    assert ceilings.cpu_caches(tmp_path / "none") == {}


@pytest.mark.usefixtures("in_this_process")
def test_a_peer_has_launches_only() -> None:
    pytest.importorskip("torch")
    found = ceilings.measure(["torch.nn:cpu"], [2**14], {"cpu": 64}, 2)
    assert [seconds > 0 for seconds in found["launches"]["torch.nn:cpu"]] == [True, True]
    assert not any(found[what] for what in ("copies", "products", "out"))


@pytest.mark.parametrize("name", ["numpy", "torch:cpu", "jax:cpu"])
def test_ceilings_are_rates(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    found = ceilings.Ceilings(name)
    library = name.partition(":")[0]
    rates = [*found.product(64, "float32", 2), *(found.copy(2**14, 2) if library in ceilings.COPIES else [])]
    if library == "torch":
        rates += found.product(64, "bfloat16", 1)
    assert all(rate > 1e6 for rate in rates)
    assert 0 < min(found.launch(2)) < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch:cuda"])
def test_copies_on_a_gpu_are_told_by_level(name: str) -> None:
    library = pytest.importorskip(name.partition(":")[0])
    if not library.cuda.is_available():
        pytest.skip("needs a GPU")
    measured = ceilings.Ceilings(name)
    for _ in range(5):  # others may use the GPU for a moment
        copies = {str(n): measured.copy(n, 3) for n in (2**13, 2**15, 2**23, 2**28, 2**29)}
        cache, memory, more = (float(np.median(copies[str(n)])) for n in (2**23, 2**28, 2**29))
        if ceilings.call_s(copies) < 3e-6 and cache > memory and more == pytest.approx(memory, rel=0.1):
            break
    assert ceilings.call_s(copies) < 3e-6  # many are one launch
    assert cache > memory
    assert more == pytest.approx(memory, rel=0.1)


def test_each_way_of_computing_has_its_ceiling() -> None:
    found = {
        "products": {
            "numpy": {"float32": [5.0, 7.0]}, "cupy": {"float32": [80.0], "float16": [600.0]},
            "torch:cuda": {"float32": [90.0], "tf32": [300.0]},
        },
        "copies": {"numpy": {"10": [100.0], "20": [3.0, 4.0]}, "torch:cuda": {"20": [50.0]}},
    }  # fmt: skip
    plain, split = "float32, multiply-adds", "float32 as 3 float16 products"
    assert ceilings.peaks(found, gpu=False) == {plain: 7.0}
    assert ceilings.peaks(found, gpu=True) == {plain: 90.0, split: 200.0, "TF32": 300.0, "float16": 600.0}
    assert [ceilings.way_of(c) for c in ("cupy", "numba_cuda", "torch.nn:cuda")] == [split, plain, plain]
    assert [ceilings.bandwidth(found, gpu) for gpu in (False, True)] == [4.0, 50.0]


def test_launches_while_a_library_starts_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"launches": {"torch.nn:cuda": [10.4e-3, 73e-6, 12e-6, 17e-6, 19e-6]}}
    spread = ceilings.launch_s(stored, "torch.nn:cuda")
    assert spread is not None
    assert spread.median == pytest.approx(17e-6)
    assert ceilings.launch_s(stored, "numba") is None
    found, calls = ceilings.Ceilings("numpy"), iter([0.2, 0.1])
    monkeypatch.setattr(found, "_operations", lambda: (lambda: time.sleep(next(calls, 0.001)), 1))
    assert min(found.launch(2)) < 0.1


# Training -----------------------------------------------------------------------------------------


def test_synthetic_images_have_classes_that_can_be_told_apart() -> None:
    x, y = images.synthetic(400, SMALL, 1)
    again, labels = images.synthetic(400, SMALL, 2)
    assert (x.shape, x.dtype, y.dtype) == ((400, *SMALL), np.uint8, np.int32)
    assert 0 <= y.min() <= y.max() < counting.CLASSES
    shared = next(c for c in y if c in labels)
    a, b = x[y == shared][0].astype(float), again[labels == shared][0].astype(float)
    other = again[labels != shared][0].astype(float)
    assert np.abs(a - b).mean() < np.abs(a - other).mean()


def test_tiny_imagenet_is_replaced_by_images_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_DATA", raising=False)
    with pytest.raises(DataError, match="tiny_imagenet needs"):  # where the folder was named, it is an error
        images.prepare(tmp_path, "tiny_imagenet", str(tmp_path), 4, 2, SMALL)
    note, classes = images.prepare(tmp_path, "tiny_imagenet", None, 4, 2, SMALL)
    assert note.startswith("synthetic images of 48x48 in 2 classes, because Tiny-ImageNet is not there")
    assert classes == 2, "as many as leave some images for each"
    assert np.load(tmp_path / "x_test.npy").shape == (2, *SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    images.prepare(tmp_path, "synthetic", None, 8, 4, SMALL)
    return str(tmp_path)


def test_the_peer_trains_the_same(folder: str) -> None:
    pytest.importorskip("torch")
    ours, peer = (training.Runner(c, "squeezenet1_1", folder) for c in ("numpy", "torch.nn:cpu"))
    for a, b, rtol in zip(ours.losses(4), peer.losses(4), training.RTOLS, strict=True):
        assert a == pytest.approx(b, rel=rtol)
    before = ours.losses(4)
    assert 0 < ours.sensitivity(4) < 1e-3, "no normalisation makes more of rounding"
    assert ours.losses(4) == before, "the first weights are back"
    assert peer.sensitivity(4) == 0
    for runner in (ours, peer):
        runner.begin(2)
        assert runner.time() > 0
        assert runner.input(2) > 0
        found = runner.epoch(4)
        assert 0 <= found["top1"] <= found["top5"] <= 1
        assert 0 < found["cpu"] <= 1.1
        assert found["images_per_s"] > 0
        assert runner.memory()["peak_mb"]  # type: ignore[truthy-bool]
    assert peer.account(2) is None


def test_other_gradients_are_refused_but_not_what_rounding_makes() -> None:
    losses = {"cupy": [6.0, 3.5], "torch:cuda": [6.0, 3.395], "torch.nn:cuda": [6.0, 2.9], "jax:gpu": [6.1, 3.5]}
    assert list(loss_parity(losses, training.rtols(0.0))) == ["torch:cuda", "torch.nn:cuda", "jax:gpu"]
    found = loss_parity(losses, training.rtols(0.02))
    assert list(found) == ["torch.nn:cuda", "jax:gpu"]
    assert found["torch.nn:cuda"].endswith("by 0.0e+00 (relative; at most 1e-04) and 1.7e-01 (relative; at most 6e-02)")
    assert loss_parity({"cupy": [6.0, float("nan")]}, training.rtols(0.02)), "a loss is a number"


def test_losses_are_kept_up_to_the_first_that_is_no_number(folder: str) -> None:
    runner = training.Runner("numpy", "squeezenet1_1", folder)
    usual = runner.diverging(2, counting.LEARNING_RATE, 3)
    assert len(usual) == 3
    assert usual == runner.diverging(2, counting.LEARNING_RATE, 3), "each begins with the first weights"
    with np.errstate(all="ignore"):
        gone = runner.diverging(2, 1e10, 5)
    assert 0 < len(gone) < 5
    assert gone[0] == usual[0]
    assert np.isfinite(gone).all()


def test_top_is_among_the_largest_logits() -> None:
    logits = np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]])
    labels = np.array([1, 0, 1])
    assert [training.top(k, logits, labels) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert training.top(2, np.full((1, 3), np.nan), np.array([2])) == 0, "no numbers are no answer"


def test_made_images_have_as_many_classes_as_there_are_images_to_learn_them_from() -> None:
    assert [images.classes_of(n) for n in (8, 512, 3840, 100_000)] == [2, 8, 60, 200]
    assert set(images.synthetic(100, SMALL, 1, 4)[1]) == {0, 1, 2, 3}


def test_operations_that_the_peer_launches_are_counted(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ours, peer = (training.Runner(c, "squeezenet1_1", folder) for c in ("numpy", "torch.nn:cpu"))
    assert ours.launched() is None, "its Program tells"
    peer.begin(2)
    launched = peer.launched()
    assert launched is not None
    assert launched > 3 * 26, "26 convolutions, forward and backward, each with an activation"
    x = torch.ones(3, requires_grad=True)
    monkeypatch.setattr(peer, "step", lambda: torch.relu(x).sum())
    assert peer.launched() == 2, "what an operation calls is within it"


def test_the_plan_is_within_ten_percent_of_the_memory_measured(folder: str) -> None:
    account = training.Runner("numpy", "squeezenet1_1", folder).account(8)
    assert account is not None
    assert account["plan_mb"] == pytest.approx(account["measured_mb"], rel=0.1)


# The whole ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_this_process")
def test_the_study_from_end_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path))
    for module in (roofline, counting, pages, steps, tables, trained):
        monkeypatch.setattr(module, "NETWORKS", ("squeezenet1_1",))
    sizes = {
        "image": 48, "batches": "2,4", "rounds": 1, "samples": 8, "tests": 4, "epoch_batch": 4, "account_batch": 2,
        "copies": "8192,65536", "side": 64, "repeats": 2, "diverging_batches": "2", "diverging_rates": "0.01",
        "diverging_steps": 2,
    }  # fmt: skip
    args = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
    result = minicnn("study", "roofline", "--quick", "--backends", "numpy", *args, "--out", "out")
    assert result.exit_code == 0, result.output

    def table(name: str) -> list[dict[str, Any]]:
        with Path("out/roofline", f"{name}.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    assert {row["batch"] for row in table("steps")} == {"2", "4"}
    held = {"compute", "memory", "launching operations", "the input", "none of them"}
    assert {row["bottleneck"] for row in table("verdicts")} <= held
    assert 0 <= float(table("epochs")[0]["batch_top1"]) <= 100
    assert float(table("epochs")[0]["chance"]) == 50
    (diverging,) = table("diverging")
    assert float(diverging["rate_0.01"]) > 0
    assert float(table("machines")[0]["cpu_rate"]) > 0
    assert (
        int(table("counts")[0]["parameters"])
        == zoo.get_model("squeezenet1_1", num_classes=200, input_shape=SMALL).count_params()
    )
    assert abs(float(table("accounts")[0]["off"])) < 10
    report = Path("out/report.html").read_text("utf-8")
    assert "is near a ceiling" in report or "half of their time or more" in report
    assert "synthetic images of 48x48" in report

    Path("out/results/roofline/training-squeezenet1_1.json").unlink()  # what other sizes make another one
    result = minicnn("study", "roofline", "--quick", "--backends", "numpy", *args, "--set", "swept=", "--out", "out")
    assert result.exit_code == 0, result.output
    assert {row["batch"] for row in table("steps")} == {"4"}, "a network that is not swept has the epoch's batches only"


def test_a_candidate_without_ceilings_has_no_place_under_the_roofline() -> None:
    page, nothing = Page(), {"copies": {}, "products": {}, "launches": {}, "caches": {}, "l2": {}}
    steps = {"32": {"numba": [1.0]}}
    training = {
        f"training-{n}": {
            "steps": steps, "inputs": steps, "refused": {}, "accounts": {}, "memory": {"32": {}}, "epochs": {},
            "losses": {"numba": [5.0, 4.0]}, "data": "none",
        }
        for n in counting.NETWORKS
    }  # fmt: skip
    counts = {
        f"counts-{n}": counting.count("squeezenet1_1", (2, 3), SMALL) | {"torch": None} for n in counting.NETWORKS
    }
    setting = Setting(roofline.RooflineSizes(), ("numba",), {}, ("tiny_imagenet",))
    found = {"ceilings": nothing, **training, **counts}
    pages.present(page, [StudyRun(setting, found, {"cores": 2, "devices": {}})])
    assert [figure.name for figure in page.figures] == ["rates"]
    assert any("has ceilings" in getattr(block, "text", "") for block in page.blocks)


def run_with(results: dict[str, Any], *, gpu: bool = False) -> StudyRun:
    setting = Setting(roofline.RooflineSizes(), ("numba", "cupy"), {}, ("tiny_imagenet",))
    return StudyRun(setting, results, {"cores": 2, "devices": {"cupy cuda:0": "NVIDIA H200"} if gpu else {}})


def test_squeezenet_takes_its_epoch_in_batches_of_64_as_published() -> None:
    given = {
        m.name: m.inputs
        for m in roofline.measurements(Setting(roofline.RooflineSizes(), ("numpy",), {}, ("synthetic",)))
    }
    assert [given[f"training-{name}"]["epoch_batch"] for name in counting.NETWORKS] == [128, 128, 128, 64]
    assert given["training-resnet18"]["batches"] == (32, 64, 128, 256)
    assert (given["diverging"]["candidate"], given["diverging"]["batches"]) == ("numpy", (64, 128))


@pytest.mark.parametrize(("lost", "verdict"), [({(128, 0.1)}, "confirmed"), ({(64, 0.1), (128, 0.1)}, "refuted")])
def test_the_published_nan_is_judged_by_learning_rates_at_which_only_the_larger_batch_diverges(
    lost: set[tuple[int, float]], verdict: str
) -> None:
    tried = [(batch, rate) for batch in (64, 128) for rate in (0.01, 0.1)]
    runs = [{"batch": b, "rate": r, "losses": [5.3] * (2 if (b, r) in lost else 9)} for b, r in tried]
    diverging = {"candidate": "numba", "steps": 9, "runs": runs}
    claim, rows = of_squeezenet(run_with({"diverging": diverging}))
    assert claim["verdict"] == verdict
    assert str(claim["ours"]).endswith("batch 128: NaN from a learning rate of 0.1")
    assert (rows[1]["rate_0.01"], rows[1]["rate_0.1"]) == ("5.300", "no number after step 2")
    assert of_squeezenet(run_with({}))[0]["verdict"] == "not measured"


def of_squeezenet(run: StudyRun) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The claim on SqueezeNet's losses, and the rows of their table."""
    page = Page()
    pages.present(page, [run])
    tables = {table.name: table.rows for table in page.tables}
    claim = next(row for row in tables["claims"] if str(row["claim"]).startswith("SqueezeNet"))
    return claim, tables.get("diverging", ())


def test_one_table_has_the_best_of_the_cpu_beside_that_of_the_gpu() -> None:
    counted = counting.count("squeezenet1_1", (2, 3), SMALL)
    seconds = {"32": {"numba": [1.0], "cupy": [0.01]}, "64": {"numba": [1.6], "cupy": [0.01]}}
    inputs = {batch: {name: [0.0] for name in times} for batch, times in seconds.items()}
    run = run_with({"counts-resnet18": counted, "training-resnet18": {"steps": seconds, "inputs": inputs}}, gpu=True)
    every = list(steps.steps([run]))
    row: Any = trained.machines(every)[0]
    panels, where, leader = trained.sweep(every)
    assert (row["cpu"], row["cpu_batch"], row["gpu"], row["gpu_batch"]) == ("numba, 2 cores", 64, "cupy, H200", 64)
    assert row["ratio"] == pytest.approx(160)
    assert [panel.title for panel in panels] == ["ResNet-18"]
    assert where == "GPU: H200; CPU: 2 cores"
    assert leader == "cupy, GPU is the fastest at 2 of 2 points"


@pytest.mark.parametrize("where", ["results", "h100/results"])
def test_the_names_under_a_roofline_lie_on_no_line_and_no_other_text(where: str) -> None:
    page = Page()
    pages.present(page, [recall(get_study("roofline"), ResultStore(STORED / where / "roofline", {}))])
    (figure,) = (figure for figure in page.figures if figure.name.startswith("roofline-"))
    (panel,) = figure.panels
    shown: list[Any] = []

    def draw(axes: Any) -> None:
        panel.draw(axes)
        shown.append(axes)

    to_svg(replace(figure, panels=[replace(panel, draw=draw)]))
    (axes,) = shown  # as large as in the file
    axes.figure.draw_without_rendering()
    boxes = {" ".join(text.get_text().split()): text.get_window_extent() for text in axes.texts}
    assert boxes.keys() >= {steps.TITLES[name] for name in counting.NETWORKS}
    tones = {text.get_color() for text in axes.texts if text.get_text() in steps.TITLES.values()}
    assert len(tones & {line.get_color() for line in axes.lines}) == len(steps.TITLES), "each has its path's colour"
    for name, box in boxes.items():
        assert not box.count_overlaps([other for text, other in boxes.items() if text != name]), name
        assert axes.bbox.x0 < box.x0 < box.x1 <= axes.bbox.x1, name
        assert axes.bbox.y0 < box.y0 < box.y1 <= axes.bbox.y1, name
        for line in axes.lines:
            way = Way(axes.transData.transform(line.get_xydata())).interpolated(50)
            assert not box.count_contains(way.vertices), name
