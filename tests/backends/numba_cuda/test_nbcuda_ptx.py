"""Kernels compile for every supported architecture, without a GPU: types, and no arrays that leave the registers."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba_cuda")

from backends.cupy.dense import dense_network, step
from backends.cupy.networks import NETWORKS
from minicnn import Sequential, ops, zoo
from minicnn.backends._gpu.device import H200
from minicnn.backends.numba_cuda import compiling, tiling
from minicnn.backends.numba_cuda.generation import generate
from minicnn.backends.numba_cuda.runtime import NumbaCudaRuntime
from minicnn.backends.numba_cuda.shim import SIMULATED
from minicnn.conformance.cases import Case
from minicnn.layers import Conv2D, Dense, Flatten, Input
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Program
from support.campaign import NIGHT
from support.kernel_check import CASES, case_program
from support.plans import plan_of

pytestmark = pytest.mark.skipif(
    SIMULATED or find_spec("nvidia") is None, reason="compiles outside of the simulator, with NVVM from pip"
)
FOLDER = Path(__file__).parent
# By day networks are compiled for the oldest, primitives for the newest.
CAPABILITIES = [(7, 5), (8, 0), (9, 0)] if NIGHT else [(7, 5)]
PTX = functools.cache(compiling.ptx)  # tiled or not, most primitives have the same kernel


@pytest.fixture
def capability(request: pytest.FixtureRequest) -> Any:
    """What to compile for."""
    return getattr(request, "param", (9, 0))


def assert_compiles(program: Program, capability: tuple[int, int], *, fuse: bool = True, tiled: bool = True) -> None:
    """All kernels of a Program compile, and tiles live in registers and shared memory only.

    There are some, unless all that a Program does is another shape, or what its reference does.
    """
    tiles = tiling.NumbaTiles(H200)
    plan = plan_of(program, tiles, fuse=fuse, tiled=tiled)
    launches = [launch for launch in plan.launches if not launch[0].reference]
    assert launches or all(n.op.name == "reshape" or tiles.unsupported(n) for n in plan.program.nodes)
    for launch in launches:
        source = generate(plan, launch, {id(v) for v in program.inputs if v.name == "index"}, 256)
        made = PTX(source.text, source.signature, capability, source.threads)
        assert ".entry kernel(" in made
        if any(group.tile for group in launch):
            assert "__local_depot" not in made, f"an array is in local memory:\n{source.text}"


def updates(model: Sequential) -> tuple[int, list[int]]:
    """Nodes of the launch of most updates, and bytes of each array of shared memory in its code."""
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True))
    plan = plan_of(model.program("train", batch_size=8), tiling.NumbaTiles(H200), fuse=True, tiled=True)
    launch = max(plan.launches, key=len)
    source = generate(plan, launch, set(), 256)
    made = compiling.ptx(source.text, source.signature, (9, 0), source.threads)
    return len(launch), [int(size) for size in re.findall(r"\.shared .*\[(\d+)\];", made)]


def test_the_updates_of_some_parameters_share_their_memory_alike() -> None:
    """What each update takes, of a few that compile in two seconds, and how many a launch of a large network has."""
    convolutions = [Conv2D(16, 3, padding="same", activation="relu") for _ in range(3)]
    count, sizes = updates(Sequential([Input((16, 16, 3)), *convolutions, Flatten(), Dense(10)], backend="numpy"))
    assert len(sizes) >= 3
    model = zoo.get_model("squeezenet1_1", input_shape=(64, 64, 3), backend="numpy")
    model.compile(SGD(0.1, momentum=0.9), SparseCategoricalCrossentropy(from_logits=True))
    plan = plan_of(model.program("train", batch_size=8), tiling.NumbaTiles(H200), fuse=True, tiled=True)
    most = max(map(len, plan.launches))
    assert most > count
    assert most * max(sizes) <= 48 * 1024


@pytest.mark.night(
    "tests/backends/numba_cuda/test_nbcuda_ptx.py::test_the_updates_of_some_parameters_share_their_memory_alike"
)
def test_the_updates_of_many_parameters_fit_into_shared_memory() -> None:
    _, sizes = updates(zoo.get_model("squeezenet1_1", input_shape=(64, 64, 3), backend="numpy"))
    assert len(sizes) > 10
    assert sum(sizes) <= 48 * 1024


@pytest.mark.sampled(1)
@pytest.mark.parametrize("capability", CAPABILITIES, indirect=True, ids="sm_{0[0]}{0[1]}".format)
@pytest.mark.parametrize("network", NETWORKS)
def test_all_kernels_of_a_step(network: str, capability: tuple[int, int]) -> None:
    assert_compiles(NETWORKS[network]("numpy").program("train", batch_size=64), capability)


def test_loads_that_may_move_ahead_of_waiting_are_of_what_nobody_writes() -> None:
    """Those through the read-only cache; where kernels do not overlap, nobody else writes what a kernel reads."""
    text = "def kernel(x, y, z):\n    z[0] = read(x, 0) + read(y, 0)\n"
    signature = "float32*", "const float32*", "float32*"
    counts = {}
    for capability in ((8, 0), (9, 0)):
        code = compiling.ptx(text, signature, capability, 32)
        counts[capability] = code.count("ld.global.nc"), code.count("ld.global"), code.count("griddepcontrol.wait")
    assert counts == {(8, 0): (2, 2, 0), (9, 0): (1, 2, 1)}


@pytest.mark.parametrize("network", ["lenet", "mlp"])
def test_nobody_writes_what_a_kernel_reads_in_any_order(network: str) -> None:
    """No other group of a launch, and no launch ahead; the first launch of a step follows one of the step before."""
    plan = plan_of(NETWORKS[network]("numpy").program("train", batch_size=64), tiling.NumbaTiles(H200))
    ahead: set[int] = set()
    settled = []
    for k, launch in enumerate(plan.launches):
        writes = {id(v) for group in launch for v in group.stored}
        source = generate(plan, launch, {id(v) for v in plan.program.inputs if v.name == "index"}, 256)
        for value, kind in zip(source.arguments, source.signature, strict=False):  # then come the cursor and an offset
            settled.append(kind.startswith("const"))
            assert not (settled[-1] and (k == 0 or id(value) in ahead | writes)), (k, value.name)
        ahead = writes
    assert any(settled)
    assert not all(settled)


def test_a_mask_that_a_convolution_keeps(capability: tuple[int, int]) -> None:
    """Bytes of a thread, since the compiler has no arrays of bool."""
    model = Sequential([Input((8, 8, 1)), Conv2D(3, 2, activation="elu"), Flatten(), Dense(2)], backend="numpy")
    model.compile("sgd", "mean_squared_error")
    assert_compiles(model.program("train", batch_size=4), capability)


@pytest.mark.night("tests/backends/numba_cuda/test_nbcuda_ptx.py::test_a_region_of_many_values")
def test_a_region_with_many_sums_keeps_them_in_registers(capability: tuple[int, int]) -> None:
    assert_compiles(step(dense_network(784, [10], 10), 59_000, 784, 10)[0](), capability)


@pytest.mark.parametrize("columns", [4, 40])
def test_rows_of_more_elements_than_32_bits_count(columns: int, capability: tuple[int, int]) -> None:
    program = Program()
    rows = ops.take(program.input("x", (2**26 + 9, 32), "uint8"), program.input("index", (999,), "int32"))
    weight = program.input("weight", (32, columns), kind="parameter")
    rows = ops.matmul(ops.cast(rows, dtype="float32"), weight, transpose_a=False, transpose_b=False)
    program.outputs["rows"] = ops.relu(rows)
    assert_compiles(program, capability)


def test_a_region_of_many_values(capability: tuple[int, int]) -> None:
    """Python makes tuples of more than thirty elements by way of a list."""
    program = Program("many biases")
    y = ops.matmul(program.input("x", (12, 8)), program.input("w", (8, 2), kind="parameter"))
    for k in range(28):
        y = y + program.input(f"b{k}", (2,), kind="parameter")
    program.outputs["y"] = ops.softmax(y, axis=1)
    (launch,) = (plan := plan_of(program, tiling.NumbaTiles(H200))).launches
    assert launch[0].anchor.op.name == "row_region"
    source = generate(plan, launch, set(), 256)
    assert ".entry kernel(" in compiling.ptx(source.text, source.signature, capability, source.threads)


@pytest.mark.sampled(43)
@pytest.mark.parametrize("tiled", [True, False], ids=["tiled", "naive"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_primitive(case: Case, tiled: bool, capability: tuple[int, int]) -> None:
    assert_compiles(case_program(case, "float32")[0], capability, fuse=tiled, tiled=tiled)


def test_all_kernels_of_the_namespace(capability: tuple[int, int]) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "collecting.py")],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kernels = json.loads(done.stdout)
    assert len(kernels) > 300
    for text, signature, threads in kernels if NIGHT else kernels[::4]:
        assert ".entry kernel(" in compiling.ptx(text, tuple(signature), capability, threads)


def test_kernels_of_the_runtime(capability: tuple[int, int]) -> None:
    """Every program without updates loads them."""
    for one in (NumbaCudaRuntime.advance, *NumbaCudaRuntime.collect):
        assert ".entry kernel(" in compiling.ptx(one.text, one.signature, capability, one.threads)


def test_threads_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "cores", lambda: 2)
    here = []
    own = compiling.machine_code
    monkeypatch.setattr(compiling, "machine_code", lambda *job: here.append(threading.get_ident()) or own(*job))
    texts = [f"def kernel(p):\n    p[0] = np.float32({k})\n" for k in range(6)]
    jobs = [(text, ("float32*",), (9, 0), 32) for text in texts]
    compiling.compile_all([*jobs, *jobs])
    assert len(here) == 6
    assert threading.get_ident() not in here
    assert len(list((tmp_path / "numba_cuda").iterdir())) == 6
    here.clear()
    compiling.compile_all(jobs)
    assert not here


def test_machine_code_is_kept_on_disk(
    capability: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.core")
    monkeypatch.setenv("MINICNN_CACHE", str(tmp_path))
    text, signature = "def kernel(p):\n    p[0] = np.float32(1)\n", ("float32*",)
    code = compiling.machine_code(text, signature, capability, 32)
    assert code.startswith(b"\x7fELF")
    assert [f.read_bytes() for f in (tmp_path / "numba_cuda").iterdir()] == [code]

    def never(*_: Any) -> str:
        raise AssertionError

    monkeypatch.setattr(compiling, "ptx", never)
    assert compiling.machine_code(text, signature, capability, 32) == code
    with pytest.raises(AssertionError):
        compiling.machine_code(text, signature, capability, 64)
