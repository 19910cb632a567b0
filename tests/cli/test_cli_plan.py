"""`minicnn plan`."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from minicnn.backends.cupy import compiler, nvrtc
from minicnn.cli import cli
from support.command_line import done, error_of, facts_of, minicnn
from support.terminal import pseudo_terminal, screen

planned = partial(facts_of, "plan")


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of this says the same without compiling, in less time."""

    def version() -> str:
        raise ImportError(nvrtc.MISSING)

    monkeypatch.setattr(nvrtc, "version", version)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("gpu", "most"), [("t4", 64), ("a100", 163), ("rtx4060", 99), ("h200", 227)])
def test_every_launch_is_within_the_limits_of_the_gpu(gpu: str, most: int) -> None:
    found = planned("resnet18", "--gpu", gpu, "--batch-size", "128", "--image", "32,32,3", "--classes", "10")
    assert found["device"]["max_shared_bytes_per_block"] == most * 1024
    assert len(found["launches"]) == found["totals"]["launches"] > 50
    for launch in found["launches"]:
        assert launch["fits"]
        assert launch["nodes"]
        assert launch["blocks"] > 0
        assert 0 < launch["threads"] <= found["device"]["threads_block"]
        assert launch["shared_bytes"] == launch["static_shared_bytes"] + launch["dynamic_shared_bytes"] <= most * 1024
        assert launch["modelled_s"] >= launch["roof_s"] > 0
        assert launch["bytes"] > 0
        assert launch["registers"] is None


@pytest.mark.parametrize("gpu", ["m4pro", "rx7600", "arc-a770", "iris-xe"])
def test_a_gpu_that_is_reached_through_webgpu_has_its_guarantees(gpu: str) -> None:
    found = planned("platforms", "--gpu", gpu)
    assert found["device"]["max_shared_bytes_per_block"] == 16 * 1024
    assert all(launch["fits"] and launch["threads"] <= 256 for launch in found["launches"])
    assert any(launch["shared_bytes"] > 0 for launch in found["launches"])
    assert any("fitted to no GPU" in note for note in found["notes"])


def test_two_gpus_are_compared() -> None:
    small, large = (planned("kernels", "--gpu", name, "--batch-size", "128") for name in ("rtx4060", "rtx4090"))
    assert small["totals"]["flops"] == large["totals"]["flops"] > 1e9
    assert small["totals"]["modelled_s"] > 2 * large["totals"]["modelled_s"]
    assert small["totals"]["roof_s"] > 2 * large["totals"]["roof_s"]
    assert sum(small["memory_bytes"].values()) == 2 * small["memory_bytes"]["total"]


def test_a_larger_batch_and_a_longer_format_take_more_memory() -> None:
    def within_a_step(*args: str) -> int:
        found: int = planned("platforms", "--gpu", "a100", *args)["memory_bytes"]["within_a_step"]
        return found

    small = within_a_step("--batch-size", "64")
    assert within_a_step("--batch-size", "128") > 1.5 * small
    assert within_a_step("--batch-size", "64", "--precision", "float64") > 1.5 * small


def test_what_was_not_fitted_is_said() -> None:
    assert any("fitted to an H200, not to this GPU" in note for note in planned("mlp", "--gpu", "t4")["notes"])
    assert not any("fitted" in note for note in planned("mlp", "--gpu", "h200")["notes"])


def test_a_step_that_is_too_large_is_said() -> None:
    found = planned("vgg16", "--gpu", "rtx4060", "--batch-size", "256")
    assert found["memory_bytes"]["total"] > found["device"]["memory"]
    assert any("smaller --batch-size" in note for note in found["notes"])


def test_the_table_says_the_same() -> None:
    result = done("plan", "platforms", "--gpu", "rtx4060", "--precision", "bfloat16")
    assert "in mixed_bfloat16, on RTX 4060 (compute capability 8.9)" in result.stdout
    assert "101,376 bytes of shared memory" in result.stdout
    assert "Registers are those of compiled kernels. Kernels are compiled by NVRTC. Received: none" in result.stdout
    assert "us by the model" in result.stdout


def test_the_longest_launches_come_first() -> None:
    launches = planned("kernels", "--gpu", "h200")["launches"]
    longest = max(range(len(launches)), key=lambda number: launches[number]["modelled_s"])
    rows = done("plan", "kernels", "--gpu", "h200", "--top", "2").stdout.partition("The longest")[2].splitlines()
    assert rows[2].split()[0] == str(longest)
    assert rows[4].startswith("others")
    assert len(rows[1:5]) == len([row for row in rows[1:] if row][:4])


def test_launches_are_summed_by_layer_and_by_operation() -> None:
    launches = planned("kernels", "--gpu", "h200")["launches"]
    said = done("plan", "kernels", "--gpu", "h200", "--by", "layer").stdout
    for layer in ("conv1", "conv2", "logits"):
        mine = [launch for launch in launches if launch["layer"] == layer]
        row = next(line.split() for line in said.splitlines() if line.startswith(f"{layer} "))
        assert row[1] == str(len(mine))
        assert float(row[2]) == pytest.approx(sum(x["modelled_s"] for x in mine) * 1e6, abs=0.05)
    assert "conv2d_input_gradient " in done("plan", "kernels", "--gpu", "h200", "--by", "operation").stdout


def test_gpus_stand_side_by_side() -> None:
    first, second = planned("kernels", "--gpu", "h200,rtx4060")
    assert [p["device"]["name"] for p in (first, second)] == ["H200", "RTX 4060"]
    assert first == planned("kernels", "--gpu", "h200")
    said = done("plan", "kernels", "--gpu", "h200,rtx4060").stdout
    ratio = second["totals"]["modelled_s"] / first["totals"]["modelled_s"]
    assert f"{ratio:.2f} times" in next(line for line in said.splitlines() if line.startswith("step "))
    assert "RTX 4060: " in said
    assert "for one GPU" in error_of(minicnn("plan", "kernels", "--gpu", "h200,t4", "--kernel", "1"), 2)


def test_a_page_says_which_launch_computes_a_node(tmp_path: Path) -> None:
    done("plan", "kernels", "--gpu", "h200", "--html", str(tmp_path / "step.html"))
    text = (tmp_path / "step.html").read_text("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    heavy = [step for step in json.loads(found[1]) if step["cost"][0] > 1e6]
    assert len(heavy) > 5
    launches = {step["title"].partition("(")[0]: step["kernel"].partition(":")[0] for step in heavy}
    assert launches["conv2d_input_gradient"] == "launch 7 of H200"
    assert launches["conv2d_weight_gradient"] == "launch 8 of H200", "whose sums are computed in parts"
    assert launches["max_pool2d_gradient"] == "another node, which a pass of the backend puts in its place"


@pytest.mark.parametrize("args", [[], ["--by", "layer"], ["--gpu", "h200,rtx4060"]], ids=str)
def test_tables_fit_a_terminal_of_80_columns(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pseudo_terminal(monkeypatch, "stdout") as written:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit, match="0"):
            cli.main(["plan", "kernels", "--gpu", "h200", *args])
    lines = screen(written[0])
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "takes" in text if "h200,rtx4060" in args else "roof us" in text
    assert args or "conv2d_weight_gradient_partial_sums" in text, "no word is broken"


def test_columns_are_chosen() -> None:
    heads = done("plan", "mlp", "--gpu", "t4", "--columns", "blocks,roof").stdout
    assert "launch  blocks  roof us\n" in "\n".join(line.rstrip() for line in heads.splitlines()) + "\n"
    assert "registers" in done("plan", "mlp", "--gpu", "t4", "--columns", "all").stdout
    assert "Did you mean 'blocks'?" in error_of(minicnn("plan", "mlp", "--gpu", "t4", "--columns", "block"), 2)


def test_registers_are_those_of_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    found = planned("mlp", "--gpu", "rtx4060", "--batch-size", "64")
    assert all(0 < launch["registers"] <= 255 for launch in found["launches"])
    assert not any("NVRTC" in note for note in found["notes"])


def test_compiling_is_for_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compile_all(texts: list[str], architecture: str) -> list[bytes]:
        seen.append(architecture)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(compiler, "compile_all", compile_all)
    assert error_of(minicnn("plan", "mlp", "--gpu", "rtx3060"), 1) == "no compiler here"
    assert seen == ["sm_86"]


def test_a_kernel_is_printed_for_people() -> None:
    text = done("plan", "kernels", "--gpu", "h200", "--kernel", "1").stdout
    assert text.splitlines()[0] == "conv2d+add+max_pool2d+max_pool2d_index+relu"
    assert "conv2d of p3, p4 by a TensorConvolutionTile: result_rows = " in text
    assert "        max_pool2d of v1: kernel = (2, 2)\n" in text
    assert "            v4 = relu(v2)\n" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["mlp", "--gpu", "rtx406"], "Did you mean 'rtx4060'?"),
        (["mlp", "--gpu", "t4", "--image", "28,28"], "An image is H,W,C in positive numbers"),
        (["mlp", "--gpu", "t4", "--precision", "bfloat16"], "Received: mixed_bfloat16 on T4. Use float32."),
        (["mlp"], "Missing option '--gpu'"),
        (["mlp", "--gpu", "t4", "--kernel", "99"], "--kernel is the number of a launch, from 0 to "),
    ],
)
def test_wrong_usage(args: list[str], said: str) -> None:
    assert said in error_of(minicnn("plan", *args), 2)
