"""What the studies make of results, also of those of machines that are not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minicnn import backends
from minicnn.measure import Page, ResultStore, Setting, StudyRun
from minicnn.measure.drawing import to_svg
from minicnn.measure.page import Paragraph
from minicnn.measure.study import recall
from minicnn.studies import ORDER, convolution, get_study, kernels, mlp, names, platforms
from minicnn.studies.convolution.breakdown import PARTS, PHASES


def rows(time: float, *, epochs: int = 3, accuracy: float = 0.97) -> list[dict[str, Any]]:
    """Epochs of a candidate; the first takes ten times as long."""
    return [
        {
            "epoch": i + 1, "time_s": 10 * time if i == 0 else time, "samples_per_s": 600 / time, "loss": 1.0 / (i + 1),
            "accuracy": 0.9, "test_loss": 0.5, "test_accuracy": accuracy, "test_time_s": time / 10,
            "process_mb": 100.0, "peak_mb": 120.0, "device_mb": None,
        }
        for i in range(epochs)
    ]  # fmt: skip


def result(**times: float) -> dict[str, Any]:
    return {"history": {name: rows(t) for name, t in times.items()}, "out": {}}


def presented(study: str, *carried_out: tuple[Setting, dict[str, Any]]) -> Page:
    """The page of a study from machines with 2, 4, .. cores, one with a GPU."""
    page = Page()
    devices = {"cupy cuda:0": "NVIDIA H200"}
    runs = [
        StudyRun(setting, results, {"cores": 2 * i, "devices": devices if i == len(carried_out) else {}})
        for i, (setting, results) in enumerate(carried_out, start=1)
    ]
    get_study(study).present(page, runs)
    for figure in page.figures:
        to_svg(figure)
    return page


def text_of(page: Page) -> str:
    return " ".join(block.text for block in page.blocks if isinstance(block, Paragraph))


@pytest.mark.parametrize("name", names())
def test_a_page_is_made_of_whatever_was_measured(name: str) -> None:
    study = get_study(name)
    stored = Path(__file__).parents[2] / "docs" / "studies"
    runs = [recall(study, ResultStore(place, {})) for place in sorted(stored.glob(f"**/results/{name}"))]
    for i, run in enumerate(runs):
        for part in run.results:
            alone = replace(run, results={part: run.results[part]})
            study.present(Page(), [alone])
            if i == 0:  # a part of one machine beside all of the others
                study.present(Page(), [alone, *runs[1:]])
    if name == "roofline":
        page = Page()
        run = next(run for run in runs if "ceilings" in run.results)
        study.present(page, [replace(run, results={"ceilings": run.results["ceilings"]})])
        assert page.figures == [], "there is nothing to draw"


def test_the_studies_are_those_of_the_package_in_their_order() -> None:
    found = names()
    assert {"mlp", "platforms", "kernels"} <= set(found)
    assert [n for n in ORDER if n in found] == found
    for name in found:
        study = get_study(name)
        assert study.question.endswith("?")
        assert type(study.full) is type(study.quick)
    with pytest.raises(ValueError, match="A study is one of mlp"):
        get_study("mpl")


def test_platforms_says_what_the_loader_costs_and_leaves_the_first_epoch_out() -> None:
    names = ("numpy", "torch.nn:cpu", "torch.nn-loader:cpu")
    setting = Setting(platforms.PlatformsSizes(3), names, {"cupy": "no GPU"}, ("mnist",))
    own = {"training-mnist": result(**dict(zip(names, (4.0, 2.0, 5.0), strict=True)))}
    torch = {"torch.nn:cuda": 0.2, "torch.nn:cpu": 0.5, "torch.nn-loader:cuda": 1.0, "torch.nn-loader:cpu": 1.2}
    gpu = {"training-mnist": result(numba_cuda=0.1, numba=0.4, **torch)}
    page = presented("platforms", (setting, own), (replace(setting, candidates=("numba_cuda", "numba")), gpu))
    summary = next(table for table in page.tables if table.name == "summary-mnist").rows
    assert [row["candidate"] for row in summary][:4] == [
        "numpy, 2 cores", "PyTorch modules, 2 cores", "PyTorch DataLoader, 2 cores", "numba_cuda, H200"
    ]  # fmt: skip
    assert summary[0]["time_s"].median == 4.0  # type: ignore[union-attr]
    assert summary[0]["first_s"] == 40.0
    published = {str(row["candidate"]): row for row in summary}
    cuda = published["published: PyTorch CUDA, RTX 4060"]
    assert (cuda["total_s"], cuda["accuracy"], cuda["process_mb"], cuda["device_mb"]) == (87.2, 98.5, 1363.5, 16.9)
    assert published["the study's Numba, dense layers only, 2 cores"]["time_s"] == 14.0
    assert "variants-mnist" not in [table.name for table in page.tables], "what was not measured has no table"
    verdicts = {str(row["claim"]): row["verdict"] for row in page.tables[0].rows}
    assert verdicts["Numba CUDA is the fastest of the five (epoch times)"] == "confirmed"
    assert verdicts["Numba on a CPU is faster than PyTorch on a GPU (epoch times)"] == "confirmed", "with its loader"
    assert verdicts["PyTorch on a GPU is hardly faster than on a CPU (epoch times)"] == "confirmed", "likewise"
    assert verdicts["MPS (M4 Pro) takes as long as CUDA (epoch times)"] == "not measured"


def test_platforms_shows_what_frozen_convolutions_cost_by_one_candidate_for_all() -> None:
    setting = Setting(platforms.PlatformsSizes(3), ("numpy", "torch.nn:cpu", "numba"), {}, ("mnist",))
    assert platforms.standing(setting) == ("numba",)
    assert platforms.standing(replace(setting, candidates=("torch.nn:cpu",))) == ()
    given = {m.name: m.inputs for m in platforms.measurements(setting)}
    assert given["frozen-mnist"]["network"] == {"frozen": "conv"}
    assert given["frozen-mnist"]["settings"] == given["training-mnist"]["settings"]
    results = {"training-mnist": result(numpy=4.0, numba=1.0)}
    for name, accuracy in (("normalised", 0.98), ("frozen", 0.93)):
        results[f"{name}-mnist"] = {"history": {"numba": rows(0.9, accuracy=accuracy)}, "out": {}}
    page = presented("platforms", (setting, results))
    variants = next(table for table in page.tables if table.name == "variants-mnist").rows
    assert [(row["variant"], row["accuracy"]) for row in variants] == [
        ("as it is", 97.0), ("pixels normalised by mean and deviation", 98.0), ("convolutions frozen", 93.0)
    ]  # fmt: skip
    why = next(row["why"] for row in page.tables[0].rows if str(row["claim"]).startswith("PyTorch reaches"))
    assert str(why).endswith("with frozen convolutions ours reach 93.00 %")


def test_kernels_draws_the_ablation_and_the_block_sizes_of_gpus() -> None:
    engines = [e for e in ("cupy", "numba_cuda") if e in backends.names()]
    setting = Setting(kernels.KernelsSizes(), ("numpy", *engines, "torch.nn:cuda"), {}, ("mnist", "fashion_mnist"))
    ablation, blocks, loaders = kernels.ablation(setting), kernels.blocks(setting), kernels.loaders(setting)
    assert ablation[0] == "numpy"
    assert f"{engines[0]} / graph alone" in ablation
    assert f"{engines[-1]} / block 1024" in blocks
    assert "torch.nn-loader:cuda / 8 workers, pinned" in loaders
    halves = {name: 1 / (i + 1) for i, name in enumerate(ablation)}
    results = {
        "training-mnist": result(numpy=1.0, **{engines[0]: 0.5, "torch.nn:cuda": 0.4}),
        "training-fashion_mnist": result(**{engines[0]: 0.25}),
        "ablation-mnist": result(**halves),
        "ablation-fashion_mnist": result(**halves),
        "blocks-mnist": result(**dict.fromkeys(blocks[:-1], 1.0)),
    }
    results["blocks-mnist"]["out"] = {blocks[-1]: "failed: too many resources requested"}
    page = presented("kernels", (setting, results))
    assert [f.name for f in page.figures] == ["epochs-mnist", "cumulative-mnist", "ablation-mnist", "blocks-mnist"]
    whole = page.figures[1]  # of all from the host that overlaps copies, 92.3 s
    assert whole.title == "3 epochs take 600 s with naive kernels, 120 s with optimised ones"
    assert page.figures[-1].title.startswith("The size of a block changes an epoch by up to ")
    by_name = {table.name: table for table in page.tables}
    assert "loaders" not in by_name, "what was not measured has no table"
    for data in setting.data:
        assert [row[f"{data}_speedup"] for row in by_name["ablation"].rows][:3] == pytest.approx([1, 2, 3])
    trained = {str(row["candidate"]).partition(",")[0]: row for row in by_name["training"].rows}
    assert trained[engines[0]]["mnist_epoch_s"].median == 0.5  # type: ignore[union-attr]
    assert trained[engines[0]]["fashion_mnist_epoch_s"].median == 0.25  # type: ignore[union-attr]
    assert "fashion_mnist_epoch_s" not in trained["numpy"]
    own = next(row for row in by_name["training"].rows if row["candidate"] == "the study's CUDA, naive, H200")
    assert own["mnist_total_s"] == pytest.approx(24.35)
    assert f"`{blocks[-1]}` has no figures here: failed: too many resources requested" in text_of(page)
    published = [row for row in by_name["training"].rows if str(row["candidate"]).startswith("published")]
    assert (published[0]["mnist_total_s"], published[0]["fashion_mnist_accuracy"]) == ("155 to 185", 74.91)
    verdicts = {str(row["claim"]): row["verdict"] for row in by_name["claims"].rows}
    assert verdicts["Its own optimised CUDA is faster than PyTorch on the GPU (training times)"] == "refuted"
    assert verdicts["More workers and pinned memory make loading faster (data loaders)"] == "not measured"


def test_kernels_says_what_each_optimisation_brings_alone_and_last() -> None:
    levels = {
        "naive": 12.0, "fusion alone": 8.0, "tiling alone": 4.0, "graph alone": 12.0, "all but fusion": 2.0,
        "fusion, tiling and graph": 1.0,
        "all, with tensor cores": 0.5, "all, products in bfloat16": 0.25,
    }  # fmt: skip
    setting = Setting(kernels.KernelsSizes(), ("cupy",), {}, ("mnist",))
    ablation = result(**{f"cupy / {level}": seconds for level, seconds in levels.items()})
    page = presented("kernels", (setting, {"ablation-mnist": ablation}))
    table = next(table for table in page.tables if table.name == "optimisations")
    assert {row["what"]: (row.get("mnist_alone"), row.get("mnist_last")) for row in table.rows} == {
        "fusion": (1.5, 2.0), "tiling": (3.0, None), "graph": (1.0, None), "tensor cores": (None, 2.0),
        "products in bfloat16": (None, 2.0),
    }  # fmt: skip


def test_loaders_take_whole_epochs_unless_told_otherwise() -> None:
    def samples(**sizes: int) -> dict[str, int]:
        setting = Setting(kernels.KernelsSizes(samples=1000, **sizes), ("cupy",), {}, ("mnist",))
        return {m.name: m.inputs["settings"]["samples"] for m in kernels.measurements(setting)}

    every = {f"{name}-mnist" for name in ("training", "ablation", "blocks", "loaders")}
    assert samples() == dict.fromkeys(every, 1000)
    whole = {"training-mnist": 1000, "loaders-mnist": 1000}
    assert samples(sweep_samples=640) == dict.fromkeys(every, 640) | whole, "the start of workers takes its time"
    fewer = samples(sweep_samples=640, loader_samples=128)
    assert fewer == dict.fromkeys(every, 640) | {"training-mnist": 1000, "loaders-mnist": 128}


def test_mlp_tells_operations_apart_and_explains_the_memory() -> None:
    def node(op: str, scope: str, phase: str, ms: float) -> dict[str, Any]:
        return {"op": op, "scope": scope, "phase": phase, "flops": 1, "bytes": 1, "seconds": [ms / 1e3] * 3}

    nodes = [
        node("reshape", "flatten", "forward", 1), node("matmul", "hidden", "forward", 10),
        node("add", "hidden", "forward", 0.5), node("relu", "hidden", "forward", 2),
        node("softmax_cross_entropy", "loss", "forward", 3), node("argmax", "metrics", "forward", 4),
        node("matmul", "hidden", "backward", 20), node("relu_gradient", "hidden", "backward", 5),
        node("sgd_update", "sgd", "update", 6),
    ]  # fmt: skip
    account = {
        "bare_mb": 40.0, "library_mb": 50.0, "samples_mb": 90.0, "others_mb": 10.0, "process_mb": 120.0,
        "peak_mb": 130.0, "device_mb": None,
        "plan": {"parameters": 1e6, "input": 3e7, "activations": 2e7, "gradients": 1e7, "arena": 3.5e7, "peak": 6.5e7},
    }  # fmt: skip
    one = {"steps": 10, "time_s": 0.5, "loss": 1.0, "accuracy": 0.5, "val_accuracy": 0.6}
    rounds = [{"iteration": 10, **one, "time_s": 3.0}, {"iteration": 20, **one}]  # compiles in the first
    found = {
        "rounds": {"numpy": rounds, "jax:cpu": rounds}, "forward": {"numpy": [0.02] * 3, "jax:cpu": [0.06] * 3},
        "nodes": {
            "numpy": {"apart": False, "nodes": nodes}, "jax:cpu": {"apart": True, "nodes": nodes}, "torch.nn:cpu": None
        },
        "account": {"numpy": account, "jax:cpu": account},
        "out": {"torch:cpu": "failed: it broke"},
    }  # fmt: skip
    setting = Setting(mlp.MlpSizes(20), ("numpy", "jax:cpu", "torch:cpu"), {}, ("mnist",))
    page = presented("mlp", (setting, {"training-mnist": found}))
    totals, operations, speedups, memory = page.tables[1:]
    assert totals.rows[-1]["iteration_ms"] == 0.465, "the study's own way of writing it"
    assert next(r for r in speedups.rows if r["operation"] == "ReLU")["jax, 2 cores"] == 1.0
    assert "numpy, 2 cores" not in [c.head for c in speedups.columns]
    assert totals.rows[0]["total_s"] == 3.5
    assert totals.rows[0]["first_s"] == 3.0
    assert totals.rows[0]["iteration_ms"].median == pytest.approx(45), "less 1 ms of input and 4 ms of accuracy"
    assert totals.rows[0]["backward_ms"] == pytest.approx(30)
    assert totals.rows[1]["backward_ms"] is None
    assert "`torch:cpu` has no figures here: failed: it broke" in text_of(page)
    medians: dict[Any, Any] = {row["operation"]: row["numpy, 2 cores"] for row in operations.rows}
    expected = {
        "matrix products": 30, "ReLU": 2, "softmax and loss": 3, "other gradients": 5, "input": 1, "biases": 0.5,
        "running loss and accuracy": 4, "update": 6,
    }  # fmt: skip
    assert {name: medians[name].median for name in expected} == pytest.approx(expected)
    assert medians["sum of the operations"] == pytest.approx(51.5)
    assert [c.head for c in operations.columns][3:] == ["numpy, 2 cores", "jax, 2 cores, apart"]
    measured = {row["component"]: row["numpy, 2 cores"] for row in memory.rows}
    assert measured["input"] == 30.0
    assert next(v for k, v in measured.items() if str(k).startswith("growth")) == 40.0
    assert "Of NumPy's iteration on 2 cores matrix products are 65%" in text_of(page)
    anew = presented("mlp", (setting, {"training-mnist": found | {"work": {"accuracy": False}}}))
    assert anew.tables[1].rows[0]["iteration_ms"].median == pytest.approx(50)  # type: ignore[union-attr]


def test_mlp_judges_its_hypothesis_by_the_sweeps_over_hidden_units_and_samples() -> None:
    sizes = mlp.MlpSizes(20, hidden=(10, 64), counts=(100, 1000, 70_000), samples=1000)
    assert mlp.sweeps.points(sizes) == [(10, 1000), (64, 1000), (10, 100)]
    setting = Setting(sizes, ("numpy", "cupy"), {}, ("mnist",))
    given = {m.name: m.inputs for m in mlp.measurements(setting)}
    assert given["sweep-mnist-64-units-1000-samples"]["hidden"] == 64
    assert given["sweep-mnist-10-units-100-samples"]["settings"]["samples"] == 100
    assert not {"hidden", "counts"} & given["training-mnist"]["sizes"].keys(), "the training does not depend on them"

    def verdict(**seconds: tuple[float, float]) -> tuple[Any, Page]:
        swept = {
            f"sweep-mnist-{units}-units-{count}-samples": {"seconds": {"numpy": [slow], "cupy": [fast] * 3}, "out": {}}
            for (units, count), (slow, fast) in zip(mlp.sweeps.points(sizes), seconds.values(), strict=True)
        }
        page = Page()
        run = StudyRun(setting, swept, {"cores": 2, "devices": {"cupy cuda:0": "NVIDIA H200"}})
        get_study("mlp").present(page, [run])
        for figure in page.figures:
            to_svg(figure)
        return mlp.sweeps.lead("mnist", [run]), page

    lead, page = verdict(middle=(10.0, 1.0), most=(100.0, 1.0), least=(2.0, 1.0))
    assert lead.grows(model=False)
    assert lead.grows(model=True)
    assert lead.with_samples == "`cupy` leads NumPy 2 times at the fewest samples, 10 at all"
    assert lead.with_units == "10 times with the fewest hidden units, 100 with the most"
    assert [panel.title for panel in page.figures[-1].panels] == ["1,000 samples", "10 hidden units"]
    swept = next(table for table in page.tables if table.name == "sweep-mnist")
    assert [row["speedup"] for row in swept.rows if str(row["candidate"]).startswith("cupy")] == [10, 100, 2]
    lead, _ = verdict(middle=(10.0, 1.0), most=(9.0, 1.0), least=(2.0, 1.0))
    assert lead.grows(model=False)
    assert not lead.grows(model=True), "it grows with the samples alone"
    assert mlp.sweeps.lead("mnist", []) is None


def test_gradients_that_other_kernels_compute_are_named() -> None:
    """A merged kernel that scatters a pooling's gradient where it reads it has the time of both."""
    seconds = {
        name: {
            phase: {part: [share] for part, share in zip(PARTS, (first, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), strict=True)}
            for phase in PHASES
        }
        for name, first in (("cupy", 54.0), ("torch.nn:cuda", 14.0))
    }
    setting = Setting(convolution.ConvolutionStudySizes(), tuple(seconds), {}, ("synthetic",))
    found = {
        "seconds": seconds, "steps": {"cupy": [1.0], "torch.nn:cuda": [2.0]}, "merged": ["cupy"], "apart": [],
        "out": {"numba": "it had no memory"}, "refused": {},
    }  # fmt: skip
    for pooling, said, shares in ((1.0, False, "70 to 90 %"), (0.0, True, "70 to 91 %")):
        seconds["cupy"]["backward"]["pooling"] = [pooling]
        page = presented("convolution", (setting, {"layers-vgg16": found}))
        assert f"convolutions take {shares} on H200" in text_of(page)
        layers, judged = (next(table for table in page.tables if table.name == n) for n in ("layers", "claims"))
        assert ("The gradient of pooling by cupy, H200 (vgg16) is computed within the kernels" in layers.note) == said
        assert ("its kernels compute" in str(judged.rows[0]["why"])) == said
        assert "vgg16 by numba, 2 cores was not timed: it had no memory." in layers.note


@pytest.mark.parametrize("name", ["mlp", "platforms"])
def test_a_single_candidate_is_neither_the_fastest_nor_the_slowest(name: str) -> None:
    """All the same it has a page; with two, one of them leads."""
    study = get_study(name)
    folder = sorted((Path(__file__).parents[2] / "docs" / "studies").glob(f"**/results/{name}"))[0]
    run = recall(study, ResultStore(folder, {}))
    only, other, *_ = sorted({n for r in run.results.values() for n in r.get("history", r.get("rounds", {}))})

    def text(*candidates: str) -> str:
        results = {
            part: {**result, **{k: {n: result[k][n] for n in candidates if n in result[k]} for k in (
                "history", "rounds", "nodes", "account") if k in result}}
            for part, result in run.results.items() if "history" in result or "rounds" in result
        }  # fmt: skip
        page = Page()
        study.present(page, [replace(run, results=results)])
        return text_of(page) + " ".join(figure.title for figure in page.figures)

    alone, both = text(only), text(only, other)
    assert f"The only candidate, {run.label(only)}, takes " in alone
    assert "fastest" not in alone
    assert "slowest" not in alone
    assert f" with {run.label(only)}, " not in alone
    assert "The only candidate" not in both
    assert "fastest" in both
