"""Every launch fits the GPU that it is planned for, and compiles for it; no GPU is needed for either.

By default a part of all this runs, which takes seconds. CONTRIBUTING.md says how all of it runs, which takes hours of
processors: each kernel text is compiled once for an architecture.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, assume, example, given, note, settings
from hypothesis import strategies as st

from backends.cupy.dense import dense_network
from backends.cupy.pipelined import convolution
from backends.gpu.launches import BATCHES, EVERYTHING, KINDS, convolution_steps, model_of
from minicnn import ops, zoo
from minicnn.backends._gpu import cubin
from minicnn.backends._gpu.device import KNOWN, Gpu
from minicnn.backends._gpu.planning import PlannedLaunch, planned
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.program import Program

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "float64")

# Of each kind; others are as one of these, with more or fewer multiprocessors.
KINDS_OF_GPU = ("t4", "a100", "rtx3060", "rtx4060", "rtx4090", "h200", "b200", "rtx5090")

ALL = [(n, g, k, p, b) for n in zoo.names() for g in KINDS_OF_GPU for k in KINDS for p in PRECISIONS for b in BATCHES]
SOME = [
    *(("two_convs", gpu, "train", "mixed_bfloat16", 96) for gpu in KNOWN if gpu not in KINDS_OF_GPU),
    *(("two_convs", gpu, "train", precision, 96) for gpu in KINDS_OF_GPU for precision in PRECISIONS),
    *(("lenet_3x3", gpu, kind, "float32", batch) for gpu in KINDS_OF_GPU for kind in KINDS for batch in (1, 128)),
    *((network, "rtx4060", "train", "float32", 128) for network in ("alexnet", "vgg11", "resnet18")),
    ("resnet18", "t4", "train", "float32", 96), ("squeezenet1_1", "rtx3060", "train", "mixed_bfloat16", 96),
]  # fmt: skip


def check(program: Program, gpu: Gpu) -> list[PlannedLaunch]:
    """Plan a Program: all launches fit, and none is a reference."""
    launches = list(planned(program, gpu, generate).launches)
    assert [launch.misfit(gpu) for launch in launches] == [None] * len(launches)
    for launch in launches:
        asked = launch.source.shared - launch.plan.tiles.shared(launch.groups)[1] if launch.source else 0
        assert 0 <= asked < 3 * 16, launch  # each of a tile's arrays begins at a multiple of 16 bytes
    return launches


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("network", "name", "kind", "precision", "batch"), ALL if EVERYTHING else SOME)
def test_every_launch_of_a_network_fits(network: str, name: str, kind: Any, precision: str, batch: int) -> None:
    gpu = KNOWN[name]
    if precision.startswith("mixed") and not gpu.has_tensor_cores:
        precision = "float32"
    launches = check(model_of(network, precision).program(kind, batch_size=batch), gpu)
    assert not [group.reference for launch in launches for group in launch.groups if group.reference]
    if EVERYTHING:
        compiled_and_checked(launches, gpu)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("channels", [32, 64, 128, 256])
@pytest.mark.parametrize("name", KNOWN)
def test_ordinary_convolutions_fit(name: str, channels: int) -> None:
    for batch, image in [(64, 8), (128, 16), (64, 32), (128, 32)] if EVERYTHING or channels < 128 else [(128, 16)]:
        check(convolution_steps(batch, image, channels, channels, 3, 1, 1), KNOWN[name])


def test_sums_of_neighbours_ask_for_no_memory_beside_what_they_declare() -> None:
    program = Program("sums")
    image = ops.cast(program.input("image", (8, 32, 32, 64)), dtype="bfloat16")
    program.outputs["image"], program.outputs["sum"] = image, ops.sum(ops.cast(image, dtype="float32"), axes=(0, 1, 2))
    sums = [one for one in check(program, KNOWN["h200"]) if one.source and "reduce_lanes<" in one.source.text]
    assert [(one.source.shared, one.plan.tiles.shared(one.groups)[1]) for one in sums if one.source] == [(0, 0)]


gpus = st.sampled_from(list(KNOWN.values()))
_settings = settings(
    max_examples=200 if EVERYTHING else 25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a smaller example is not worth the time
)


@_settings
@given(gpus, st.integers(1, 160), st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(1, 7),
       st.integers(1, 3), st.integers(1, 2))  # fmt: skip
def test_any_convolution_fits(
    gpu: Gpu, n: int, image: int, c: int, f: int, kernel: int, stride: int, dilation: int
) -> None:
    pad = dilation * (kernel - 1) // 2
    assume(image + 2 * pad >= dilation * (kernel - 1) + 1)
    note(f"{gpu.name}: {n} images of {image}x{image}x{c}, {f} filters of {kernel}, stride {stride}")
    check(convolution_steps(n, image, c, f, kernel, stride, dilation), gpu)


@_settings
@given(gpus.filter(lambda gpu: gpu.has_tensor_cores), st.sampled_from(["bfloat16", "float16"]), st.integers(1, 160),
       st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 7), st.integers(1, 3),
       st.integers(1, 2), st.integers(1, 2))  # fmt: skip
def test_any_convolution_of_operands_in_16_bits_fits(
    gpu: Gpu, dtype: str, n: int, image: int, c: int, f: int, kernel: int, stride: int, dilation: int, groups: int
) -> None:
    assume(image + 2 * (dilation * (kernel - 1) // 2) >= dilation * (kernel - 1) + 1)
    note(f"{gpu.name}: {n} images of {image}x{image}x{8 * c} in {dtype}, {8 * f} filters of {kernel}, stride {stride}")
    launches = check(convolution(dtype, n, 8 * c, 8 * f, kernel, stride, dilation, groups, image), gpu)
    assert any(group.tile and group.tile.precision == dtype for launch in launches for group in launch.groups)


@_settings
@given(gpus, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000), st.booleans(), st.booleans(),
       st.sampled_from(["float32", "float64"]))  # fmt: skip
def test_any_product_fits(gpu: Gpu, m: int, n: int, k: int, ta: bool, tb: bool, dtype: str) -> None:
    program = Program("product")
    a = program.input("a", (k, m) if ta else (m, k), dtype)
    b = program.input("b", (n, k) if tb else (k, n), dtype)
    program.outputs["y"] = ops.matmul(a, b, transpose_a=ta, transpose_b=tb)
    check(program, gpu)


@_settings
@given(gpus, st.integers(1, 900), st.lists(st.integers(1, 64), min_size=1, max_size=3), st.integers(2, 40),
       st.integers(1, 60_000), st.sampled_from(["uint8", "float32"]))  # fmt: skip
@example(KNOWN["rtx3060"], 593, [18, 60, 53], 5, 1, "uint8")  # the sum of parts came to a region that was full
def test_any_dense_network_fits(gpu: Gpu, width: int, hidden: list[int], classes: int, batch: int, dtype: str) -> None:
    note(f"{gpu.name}: {batch} rows of {width} {dtype}, layers of {hidden} and {classes}")
    check(dense_network(width, hidden, classes, dtype=dtype).program("train", batch_size=batch), gpu)


# Compiled ---------------------------------------------------------------------------------------------------


def compiled_and_checked(launches: list[PlannedLaunch], gpu: Gpu) -> None:
    """Compile launches: registers and shared memory, as machine code says, fit, and are not more than was planned."""
    for launch in launches:
        assert launch.source is not None
        found = cubin.resources(compiler.compile_kernel(launch.source.text, gpu.architecture))
        assert launch.misfit(gpu, found) is None, launch.source.title
        assert found.shared <= launch.declared, launch.source.title
        wanted = max((group.tile.resident for group in launch.groups if group.tile), default=1)
        blocks = gpu.resident(launch.source.threads, found.registers, found.shared + launch.source.shared)
        assert blocks >= wanted, launch.source.title


@pytest.fixture
def compiles() -> None:
    """Skips, by name, where there is no compiler."""
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("name", [name for name in KNOWN if name != "rtx4060"])  # the architecture of the RTX 4090
def test_the_kernels_with_most_shared_memory_and_threads_compile(name: str) -> None:
    launches = check(model_of("two_convs", "float32").program("train", batch_size=96), KNOWN[name])
    compiled_and_checked([max(launches, key=shared_of), max(launches, key=threads_of)], KNOWN[name])


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("name", ["t4", "h200"])
def test_a_depthwise_gradient_has_the_shared_memory_that_was_planned(name: str) -> None:
    program = Program("depthwise")
    dy, x = program.input("dy", (96, 16, 16, 32)), program.input("x", (96, 18, 18, 32))
    program.outputs["dw"] = ops.depthwise_conv2d_weight_gradient(dy, x, kernel=(3, 3))
    launches = check(program, KNOWN[name])
    assert shared_of(launches[0]) > 0
    compiled_and_checked(launches, KNOWN[name])


def shared_of(launch: PlannedLaunch) -> int:
    """Bytes of shared memory that a launch asks for."""
    return launch.source.shared if launch.source is not None else 0


def threads_of(launch: PlannedLaunch) -> int:
    """Threads of a block of a launch."""
    return launch.source.threads if launch.source is not None else 0


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_89", "sm_90", "sm_120"])
def test_machine_code_says_what_a_kernel_takes(architecture: str) -> None:
    declared = (
        'extern "C" __global__ void __launch_bounds__(256) kernel(float* p) {\n'
        "  __shared__ float s[300];\n  extern __shared__ float more[];\n"
        "  s[threadIdx.x] = more[threadIdx.x] = p[threadIdx.x];\n  __syncthreads();\n"
        "  p[threadIdx.x] = s[255 - threadIdx.x] + more[threadIdx.x + 1];\n}\n"
    )
    found = cubin.resources(compiler.compile_kernel(declared, architecture))
    assert (found.shared, found.stack) == (1200, 0)
    assert 4 <= found.registers <= 32
    spilling = 'extern "C" __global__ void kernel(float* p, int n) { float a[64]; for (int i = 0; i < 64; i++) a[i] = '
    spilling += "p[i]; for (int i = 0; i < n; i++) a[i * 7 % 64] += p[i]; for (int i = 0; i < 64; i++) p[i] = a[i]; }"
    assert cubin.resources(compiler.compile_kernel(spilling, architecture)).stack >= 256


def test_what_is_no_machine_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ELF file of 64 bits\. Received: b'//PTX'"):
        cubin.resources(b"//PTX")


def test_a_block_that_asks_for_too_much_is_found() -> None:
    gpu = replace(KNOWN["h200"], shared_block=227 * 1024)
    launches = planned(convolution_steps(128, 32, 256, 256, 3, 1, 1), gpu, generate).launches
    assert any(launch.misfit(KNOWN["rtx4060"]) for launch in launches)  # what was planned for another GPU
