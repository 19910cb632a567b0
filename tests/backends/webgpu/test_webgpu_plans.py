"""Plans for webgpu, without an adapter and without wgpu: limits that every adapter has, and what kernels look like."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from minicnn import Model, ops, zoo
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.planning import PlannedStep, planned
from minicnn.backends.webgpu import devices
from minicnn.backends.webgpu.devices import BINDING_BYTES, GUARANTEED, INVOCATIONS, STORAGE_BUFFERS, WORKGROUP_BYTES
from minicnn.backends.webgpu.generation import generate
from minicnn.backends.webgpu.tiles import WebGpuTiles
from minicnn.layers import Rescaling
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import Adam
from minicnn.program import Program
from support.campaign import NIGHT

GREY = ("mlp", "lenet_3x3", "two_convs", "lenet5")
SIZES = {"mlp": 28, "lenet_3x3": 28, "two_convs": 28, "lenet5": 28, "alexnet": 63, "overfeat": 71}
# Matrices of weights that are larger than the guaranteed binding; those of OverFeat are smaller with smaller images.
BEYOND = {
    "alexnet": r"hidden1/kernel, float32\[9216,4096\]",
    "overfeat": r"hidden1/kernel, float32\[36864,3072\]",
    "vgg11": r"hidden1/kernel, float32\[25088,4096\]",
    "vgg16": r"hidden1/kernel, float32\[25088,4096\]",
}
EVERY = [name for name in zoo.names() if name not in {*BEYOND} - {"overfeat"}]
SOME = ("mlp", "lenet_3x3", "two_convs", "resnet9", "squeezenet1_1")


@cache
def model_of(network: str) -> Model:
    """A network of the zoo on small images."""
    size = SIZES.get(network, 64)
    model = zoo.get_model(
        network, num_classes=10, input_shape=(size, size, 1 if network in GREY else 3),
        preprocessing=[Rescaling(1 / 255)], input_dtype="uint8",
    )  # fmt: skip
    model.compile(Adam(0.001), SparseCategoricalCrossentropy(from_logits=True), ["accuracy"])
    return model


def step_of(program: Program, gpu: Any = GUARANTEED) -> PlannedStep:
    """A step for an adapter."""
    return planned(program, gpu, generate, tiles=WebGpuTiles(gpu))


def workgroup_bytes(text: str) -> int:
    """Bytes of shared memory that a kernel declares."""
    return sum(4 * int(n) for n in re.findall(r"var<workgroup> \w+: array<\w+, (\d+)>", text))


@pytest.mark.parametrize("kind", ["train", "predict"])
@pytest.mark.parametrize("network", EVERY if NIGHT else SOME)
def test_every_launch_fits_the_guaranteed_limits(network: str, kind: Any) -> None:
    step = step_of(model_of(network).program(kind, batch_size=96))
    offsets = place(step.launches[0].plan, BINDING_BYTES).offsets
    for launch in step.launches:
        assert launch.source is not None, launch.groups[0].reference
        text, plan = launch.source.text, launch.plan
        assert launch.source.threads <= INVOCATIONS
        assert workgroup_bytes(text) <= WORKGROUP_BYTES
        assert launch.misfit(GUARANTEED) is None
        # Weights and state share slabs, as do values of the step: pieces of the arena, and one for all else.
        roots = [plan.root(v) for v in launch.source.arguments]
        pieces = {offsets[id(v)] // BINDING_BYTES for v in roots if id(v) in offsets}
        beside = sum(v.nbytes for v in roots if id(v) not in offsets)
        assert len(pieces) + -(-beside // BINDING_BYTES) <= STORAGE_BUFFERS
        assert max(v.nbytes for v in roots) <= BINDING_BYTES
        # Words of arguments are those of one uniform buffer.
        assert 4 * (len(roots) + 2) <= 64 * 1024


@pytest.mark.parametrize("network", zoo.names() if NIGHT else ["alexnet", "squeezenet1_1"])
def test_weights_that_are_larger_than_a_binding_are_refused_by_name(network: str) -> None:
    """On images of the size that a network is for: of four networks one matrix, and of no other anything."""
    model = zoo.get_model(network)
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    plan = step_of(model.program("train", batch_size=1)).launches[0].plan
    if network not in BEYOND:
        assert place(plan, BINDING_BYTES).nbytes > 0
        return
    rule = r"fits into one binding of the GPU: 134,217,728 bytes\. Received: "
    with pytest.raises(ValueError, match=rf"{rule}{BEYOND[network]}, of [\d,]+ bytes\. Use fewer units"):
        place(plan, BINDING_BYTES)


@pytest.mark.parametrize("name", devices.KNOWN)
def test_a_step_is_planned_for_each_gpu(name: str) -> None:
    gpu = devices.KNOWN[name]
    step = step_of(model_of("lenet_3x3").program("train", batch_size=128), gpu)
    assert all(launch.misfit(gpu) is None for launch in step.launches)
    assert sum(launch.seconds for launch in step.launches) > sum(launch.roof for launch in step.launches) > 0


def test_a_step_larger_than_a_binding_comes_in_pieces() -> None:
    program = Program()
    x = program.input("x", (4, 1 << 20))
    y = ops.exp(x)
    program.outputs["z"] = ops.matmul(y, ops.exp(y), transpose_b=True)
    plan = step_of(program).launches[0].plan
    piece = 5 << 22  # of one array of 2^22 bytes, and no second
    placement = place(plan, piece)
    sizes = {id(v): v.nbytes for group in plan.groups for v in group.stored}
    for key, offset in placement.offsets.items():
        assert offset % piece + sizes[key] <= piece
    with pytest.raises(ValueError, match=r"An array of a step fits into one binding of the GPU: 1,048,576 bytes\. Rec"):
        place(plan, 1 << 20)


def test_a_kernel_in_wgsl_has_the_names_of_the_kernel_language() -> None:
    step = step_of(model_of("lenet_3x3").program("predict", batch_size=8))
    texts = [launch.source.text for launch in step.launches if launch.source]
    tile = next(t for t in texts if t.startswith("// conv2d"))
    assert "workgroupBarrier();" in tile
    assert re.search(r"s0_0 = s0_0 \+ a0 \* b0;", tile)


def test_an_array_of_few_bits_that_is_written_takes_atomics_and_others_none() -> None:
    def text(dtype: str) -> str:
        program = Program()
        program.outputs["y"] = ops.cast(program.input("x", (8,)), dtype=dtype)
        (launch,) = step_of(program).launches
        return launch.source.text if launch.source else ""

    assert "atomicOr" in text("uint8")
    assert "atomicOr" not in text("int32").split("fn random_uniform_")[1]


def test_what_wgsl_has_not_is_computed_by_references() -> None:
    program = Program()
    program.outputs["y"] = program.input("x", (8,), "float64") * 2.0
    (launch,) = step_of(program).launches
    assert launch.groups[0].reference == "WGSL has no float64"


def test_no_kernel_tells_nan_by_a_comparison() -> None:
    """WGSL lets a compiler assume that there is no NaN: then a number is itself, and a choice by <= is a maximum."""
    program = Program()
    x, y = program.input("x", (6, 8)), program.input("y", (6, 8))
    results = ops.argmax(x), ops.equal(x, x), ops.less(x, y), ops.greater_equal(x, y), ops.cast(x, dtype="bool")
    program.outputs = {f"y{k}": value for k, value in enumerate(results)}
    steps = step_of(program), step_of(model_of("two_convs").program("train", batch_size=8))
    sources = [launch.source for step in steps for launch in step.launches if launch.source]
    assert any("!equal_(" in source.text.split("fn random_uniform_")[1] for source in sources)
    for source in sources:
        own = source.text.split("fn random_uniform_")[1]
        assert not re.search(r"(?<![\w.])(\w+) (==|!=|<|<=|>|>=) \1(?!\w)", source.text)
        floats = set(re.findall(r"\b(\w+): f32", own)) - set(re.findall(r"\b(\w+): [iu]32", own))
        assert not floats & set(re.findall(r"(\w+) (?:==|!=|<|<=|>|>=) ", own))


def test_no_load_of_a_tile_waits_for_another() -> None:
    """All that a thread brings is read before any of it is stored, in functions without a branch."""
    step = step_of(model_of("two_convs").program("train", batch_size=8))
    texts = [launch.source.text for launch in step.launches if launch.source]
    loads = [(text, name) for text in texts for name in set(re.findall(r"\n +(?:left|right)\d+ = (\w+)\(", text))]
    assert loads
    while loads:
        text, name = loads.pop()
        (body,) = re.findall(rf"fn {name}\(.*?\n}}", text, re.DOTALL)
        assert "if (" not in body
        loads += [(text, other) for other in re.findall(r"\b((?:of|x)\d+)\(", body.partition("{")[2])]
