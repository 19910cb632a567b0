"""`minicnn plan`."""

from __future__ import annotations

from functools import partial

import pytest

from minicnn.backends.cupy import compiler, nvrtc
from support.command_line import done, error_of, facts_of, minicnn

planned = partial(facts_of, "plan")


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of this says the same without compiling, in less time."""

    def version() -> str:
        raise ImportError(nvrtc.MISSING)

    monkeypatch.setattr(nvrtc, "version", version)


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
    assert "conv2d of p3, p4 by a template: sizes = (" in text
    assert "        max_pool2d of v1 by a template: kernel = (2, 2)\n" in text
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
