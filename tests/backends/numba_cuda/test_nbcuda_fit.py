"""Every launch of the kernels in Python fits the GPU that it is planned for, and compiles for it, without a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba_cuda")

from backends.cupy.dense import dense_network
from backends.cupy.networks import NETWORKS
from backends.gpu.launches import BATCHES, EVERYTHING, KINDS, convolution_steps, model_of
from minicnn import zoo
from minicnn.backends._gpu import cubin
from minicnn.backends._gpu.device import KNOWN, Gpu
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tiling import LIMITS
from minicnn.backends.numba_cuda import compiling
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.backends.numba_cuda.tiling import NumbaTiles
from minicnn.program import Program
from support.plans import plan_of

SOME = [
    (n, p, 128, k, 1) for n, p in (("two_convs", "float32"), ("lenet_3x3", "float64")) for k in ("train", "predict")
]
# In full, a step is compiled by several tests, so that the longest keep no processor waiting for them at the end.
SHARES = {"train": 8, "evaluate": 2, "predict": 1}
ALL = [
    (n, p, b, k, SHARES[k]) for n in zoo.names() for p in ("float32", "float64") for b in BATCHES for k in KINDS
]  # fmt: skip
CASES = [(*case, share) for case in (ALL if EVERYTHING else SOME) for share in range(case[-1])]


def check(program: Program, gpu: Gpu) -> list[tuple[Source, int]]:
    """Plan a Program: all launches fit. Returns their kernels, and the shared memory that each declares at most."""
    tiles = NumbaTiles(gpu, limits=LIMITS, simulated=False)
    plan = plan_of(program, tiles)
    made = []
    for launch in plan.launches:
        declared, asked = tiles.shared(launch)
        assert declared <= gpu.shared_unasked
        source = generate(plan, launch, set(), 256)
        assert source.shared == asked
        assert gpu.misfit(source.threads, 32, declared + asked) is None
        made.append((source, declared))
    return made


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("network", "precision", "batch", "kind", "shares", "share"), CASES)
def test_every_launch_of_a_network_fits(
    network: str, precision: str, batch: int, kind: Any, shares: int, share: int, name: str
) -> None:
    kernels = check(model_of(network, precision).program(kind, batch_size=batch), KNOWN[name])
    if EVERYTHING and not SIMULATED:
        for source, declared in kernels[share::shares]:
            compiled_and_checked(source, declared, KNOWN[name])


def compiled_and_checked(source: Source, declared: int, gpu: Gpu) -> cubin.Resources:
    """Compile a kernel: registers and shared memory, as machine code says, fit, and are not more than was planned."""
    found = cubin.resources(compiling.machine_code(source.text, source.signature, gpu.capability, source.threads))
    assert found.shared <= declared, source.title
    assert gpu.misfit(source.threads, found.registers, found.shared + source.shared) is None, source.title
    return found


@pytest.mark.parametrize(("network", "precision"), [("lenet_3x3", "float32"), ("two_convs", "float64")])
def test_sums_declare_the_shared_memory_that_was_planned(network: str, precision: str) -> None:
    sums = []
    for source, declared in check(model_of(network, precision).program("train", batch_size=96), KNOWN["t4"]):
        arrays = re.findall(r"sums = cuda\.shared\.array\((\d+), types\.(\w+), ALIGNED\)", source.text)
        # Tiles have arrays of other names, whose alignment a plan rounds up.
        if arrays and source.text.count("shared.array") == len(arrays):
            assert declared == sum(int(count) * np.dtype(dtype).itemsize for count, dtype in arrays)
            sums.append(source)
    assert sums


gpus = st.sampled_from(list(KNOWN.values()))
_settings = settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])


@_settings
@given(gpus, st.integers(1, 160), st.integers(5, 40), st.integers(1, 300), st.integers(1, 300), st.integers(1, 5),
       st.integers(1, 3))  # fmt: skip
def test_any_convolution_fits(gpu: Gpu, n: int, image: int, c: int, f: int, kernel: int, stride: int) -> None:
    check(convolution_steps(n, image, c, f, kernel, stride, 1), gpu)


@_settings
@given(gpus, st.integers(1, 900), st.lists(st.integers(1, 64), min_size=1, max_size=3), st.integers(2, 40),
       st.integers(1, 60_000), st.sampled_from(["uint8", "float32"]))  # fmt: skip
@example(KNOWN["t4"], 784, [10], 10, 59_000, "uint8")
@example(KNOWN["rtx4060"], 784, [16], 10, 59_000, "uint8")
def test_any_dense_network_fits(gpu: Gpu, width: int, hidden: list[int], classes: int, batch: int, dtype: str) -> None:
    check(dense_network(width, hidden, classes, dtype=dtype).program("train", batch_size=batch), gpu)


@pytest.mark.sampled(1)
@pytest.mark.skipif(SIMULATED, reason="compiles outside of the simulator")
@pytest.mark.parametrize("name", KNOWN if EVERYTHING else ["t4", "rtx5090"])
def test_the_kernel_with_most_shared_memory_compiles(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    gpu = KNOWN[name]
    kernels = check(NETWORKS["lenet"]("numpy").program("train", batch_size=128), gpu)
    source, declared = max(kernels, key=lambda made: made[1])
    assert compiled_and_checked(source, declared, gpu).shared > 0


def test_a_device_has_the_properties_that_its_description_is_made_of() -> None:
    core = pytest.importorskip("cuda.core._device")
    from minicnn.backends._gpu.device import ATTRIBUTES, from_attributes

    assert all(hasattr(core.DeviceProperties, name) for name in ATTRIBUTES)
    gpu = from_attributes("GPU", (9, 0), 1, {name: 7 * k + 7 for k, name in enumerate(ATTRIBUTES)})
    assert (gpu.multiprocessors, gpu.shared_unasked, gpu.shared_block, gpu.shared_multiprocessor) == (7, 14, 21, 28)
    assert (gpu.shared_reserved, gpu.registers, gpu.threads_block, gpu.threads_multiprocessor) == (35, 42, 49, 56)
    assert (gpu.blocks_multiprocessor, gpu.clock, gpu.l2) == (63, 70e3, 91)
