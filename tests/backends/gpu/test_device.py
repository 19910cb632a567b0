"""What is known of GPUs: the limits that NVIDIA publishes, and those that a device says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.cupy.emulated import EmulatedBackend, EmulatedRuntime
from minicnn.backends._gpu import costs
from minicnn.backends._gpu.costs import KINDS, costs_on, unfitted
from minicnn.backends._gpu.device import H200, KNOWN, from_attributes, gpu_of
from minicnn.backends._gpu.tiles import Tiles
from support.tolerances import TRAINING

KB = 1024
# Capability, KB of shared memory of a block and of a multiprocessor, threads and blocks of a multiprocessor.
LIMITS = {
    "t4": ((7, 5), 64, 64, 1024, 16),
    "a100": ((8, 0), 163, 164, 2048, 32),
    "rtx3090": ((8, 6), 99, 100, 1536, 16),
    "rtx3060": ((8, 6), 99, 100, 1536, 16),
    "rtx4060": ((8, 9), 99, 100, 1536, 24),
    "rtx4070": ((8, 9), 99, 100, 1536, 24),
    "rtx4090": ((8, 9), 99, 100, 1536, 24),
    "l40s": ((8, 9), 99, 100, 1536, 24),
    "l4": ((8, 9), 99, 100, 1536, 24),
    "h100": ((9, 0), 227, 228, 2048, 32),
    "h200": ((9, 0), 227, 228, 2048, 32),
    "b200": ((10, 0), 227, 228, 2048, 32),
    "rtx5090": ((12, 0), 99, 100, 1536, 24),
}


@pytest.mark.parametrize("name", KNOWN)
def test_limits_are_those_that_nvidia_publishes(name: str) -> None:
    gpu = KNOWN[name]
    shared = gpu.shared_block // KB, gpu.shared_multiprocessor // KB
    assert (gpu.capability, *shared, gpu.threads_multiprocessor, gpu.blocks_multiprocessor) == LIMITS[name]
    assert (gpu.registers, gpu.registers_thread, gpu.threads_block, gpu.shared_unasked) == (65536, 255, 1024, 48 * KB)


@pytest.mark.parametrize(
    ("name", "precision", "teraflops"),
    [("t4", "float16", 65), ("a100", "float16", 312), ("a100", "float32", 19.5), ("rtx4090", "float32", 82.6),
     ("rtx4060", "float32", 15.1), ("h200", "float16", 989), ("h200", "float64", 31), ("rtx5090", "float16", 209.5),
     ("h100", "float16", 989), ("l4", "float32", 30.3), ("l40s", "float32", 91.6), ("rtx3090", "float32", 35.6),
     ("rtx4070", "float32", 29.15)],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(name: str, precision: str, teraflops: float) -> None:
    assert KNOWN[name].peak(precision) / 1e12 == pytest.approx(teraflops, rel=0.03)


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared", "blocks"),
    [
        ("h200", 256, 32, 0, 8), ("t4", 256, 32, 0, 4), ("rtx3060", 32, 16, 0, 16), ("rtx4060", 32, 16, 0, 24),
        ("h200", 512, 128, 0, 1), ("h200", 512, 129, 0, 0), ("h200", 1056, 16, 0, 0), ("h200", 32, 256, 0, 0),
        ("rtx4060", 128, 32, 49 * KB, 2), ("rtx4060", 128, 32, 49 * KB + 1, 1),  # 1 KB of each is the system's
        ("t4", 128, 32, 32 * KB, 2), ("rtx4060", 128, 32, 99 * KB, 1), ("rtx4060", 128, 32, 99 * KB + 1, 0),
    ],
)  # fmt: skip
def test_blocks_of_a_multiprocessor(name: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    gpu = KNOWN[name]
    assert gpu.resident(threads, registers, shared) == blocks
    assert (gpu.misfit(threads, registers, shared) is None) == (blocks > 0)


def test_what_does_not_fit_is_named() -> None:
    misfit = KNOWN["rtx4060"].misfit(128, 32, 200 * KB)
    assert misfit == "204800 bytes of shared memory, of which RTX 4060 has 101376"


@pytest.mark.parametrize("style", ["runtime", "driver"])
def test_a_device_is_described_by_what_it_says(style: str) -> None:
    said = {
        "multi_processor_count" if style == "driver" else "MultiProcessorCount": 46,
        "max_shared_memory_per_block_optin" if style == "driver" else "MaxSharedMemoryPerBlockOptin": 99 * KB,
        "clock_rate" if style == "driver" else "ClockRate": 2_475_000,
        "memory_clock_rate" if style == "driver" else "MemoryClockRate": 10_501_000,
        "global_memory_bus_width" if style == "driver" else "GlobalMemoryBusWidth": 192,
        "l2_cache_size" if style == "driver" else "L2CacheSize": 36 * KB * KB,
        "max_blocks_per_multiprocessor" if style == "driver" else "MaxBlocksPerMultiprocessor": 20,
    }
    gpu = from_attributes("NVIDIA GeForce RTX 4070", (8, 9), 12 << 30, said)
    assert (gpu.multiprocessors, gpu.shared_block, gpu.blocks_multiprocessor) == (46, 99 * KB, 20)
    assert gpu.clock == pytest.approx(2.475e9)
    assert gpu.bandwidth == pytest.approx(504e9, rel=TRAINING)
    assert (gpu.architecture, gpu.has_tensor_cores, gpu.overlaps) == ("sm_89", True, False)
    assert gpu.shared_multiprocessor == 100 * KB  # which it did not say: its architecture has so much


def test_a_newer_architecture_has_the_figures_of_the_newest_known_before_it() -> None:
    gpu = gpu_of("new", (12, 1), multiprocessors=10, clock=1e9, bandwidth=1e9, l2=1, memory=1)
    assert (gpu.shared_block, gpu.architecture) == (99 * KB, "sm_121")


def test_an_old_gpu_is_refused_in_one_line() -> None:
    with pytest.raises(RuntimeError, match=r"7\.5 or later.*Received: Tesla V100 with 7\.0\. Use another GPU") as error:
        gpu_of("Tesla V100", (7, 0))
    assert "\n" not in str(error.value)


def test_the_model_says_where_it_was_fitted() -> None:
    assert not unfitted(H200)
    assert not unfitted(replace(H200, name="NVIDIA H200"))
    assert "not fitted to RTX 4060" in unfitted(KNOWN["rtx4060"])


def test_an_unknown_gpu_has_the_constants_of_the_h200_as_its_description_says() -> None:
    fitted, scaled = costs_on(H200).convolution, costs_on(KNOWN["rtx4060"]).convolution
    assert scaled.mma == pytest.approx(8 * fitted.mma)  # 256 multiply-adds a cycle on tensor cores beside 2048
    assert replace(scaled, mma=fitted.mma, fragments=fitted.fragments) == fitted
    assert costs_on(replace(H200, name="new")) == costs_on(H200)


def test_a_gpu_has_the_constants_that_were_fitted_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, gpu = costs._stored(), KNOWN["rtx4060"]
    product = {**stored["H200"]["product"]["constants"], "mma": 7.0}
    own = {"gpu": "RTX 4060", "product": {"constants": product}}
    monkeypatch.setattr(costs, "_stored", lambda: {**stored, "RTX 4060": own})
    found = costs_on.__wrapped__(gpu)
    assert (found.product.mma, found.convolution) == (7.0, costs_on(gpu).convolution)
    assert unfitted(gpu)  # the other kinds were not
    own |= {kind: {"constants": product} for kind in KINDS}
    assert not unfitted(gpu)
    assert "RTX 3060" in unfitted(KNOWN["rtx3060"])


@pytest.mark.parametrize(("device", "rank", "expected"), [
    (None, "1", [1]), ("cuda", "1", [1]), ("cuda:0", "1", []), ("cuda:2", "1", []), (None, "0", []),
])  # fmt: skip
def test_a_rank_makes_the_gpu_of_its_number_current(
    device: str | None, rank: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    class Runtime(EmulatedRuntime):
        number = 0

        def use(self) -> None:
            used.append(self.number)

    class Watched(EmulatedBackend):
        def open(self, number: int) -> tuple[EmulatedRuntime, Tiles]:
            Runtime.number = number
            return Runtime(), super().open(number)[1]

    monkeypatch.setenv("MPI_LOCALRANKID", rank)
    Watched(device)
    assert used == expected
