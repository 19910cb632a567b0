"""A kernel that does not load: the next smaller tiles are taken, and explain() says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from backends.cupy.networks import NETWORKS
from minicnn.backends._gpu.device import KNOWN
from minicnn.backends._gpu.errors import FitError, explanation
from minicnn.backends._gpu.loading import check, load, load_all, notes
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.program import Program
from support.plans import MULTIPLY_ADDS, plan_of


@dataclass
class Planner:
    """An engine, as far as loading goes."""

    tiles: Tiles


def most_shared(planner: Planner, program: Program) -> int:
    """Bytes of shared memory of that launch of a step which needs most."""
    tiles = planner.tiles
    plan = plan_of(program, tiles)
    return max(sum(tiles.shared(launch)) for launch in plan.launches)


@pytest.mark.parametrize("given", [99, 60, 47])
def test_smaller_tiles_are_taken_until_all_load(given: int) -> None:
    planner, tried = Planner(TensorTiles(KNOWN["h200"])), []

    def make(program: Program) -> int:
        tried.append(most_shared(planner, program))
        if tried[-1] > given * 1024:
            received = "CUDA_ERROR_INVALID_VALUE: invalid argument"
            raise explanation(received, "conv2d")
        return tried[-1]

    program = NETWORKS["lenet"]("numpy").program("train", batch_size=4096)
    made = load(planner, program, make)
    assert made == tried[-1] <= given * 1024
    assert notes(KNOWN["h200"], planner.tiles).startswith(", smaller than planned") == (len(tried) > 1)


def test_an_engine_ends_with_one_error_where_nothing_loads() -> None:
    planner, tried = Planner(Tiles(KNOWN["h200"])), []

    def make(program: Program) -> None:
        tried.append(planner.tiles.gpu.shared_block // 1024)
        raise explanation("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested")

    with pytest.raises(FitError, match="none was left: please report") as error:
        load(planner, NETWORKS["mlp"]("numpy").program("train", batch_size=8), make)
    assert tried == [227, 163, 99, 64, 48]
    assert "tiled=False" not in str(error.value)


def test_other_errors_are_not_taken_for_this_one() -> None:
    planner = Planner(Tiles(KNOWN["h200"]))

    def make(program: Program) -> None:
        raise explanation("CUDA_ERROR_ILLEGAL_ADDRESS")

    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        load(planner, NETWORKS["mlp"]("numpy").program("train", batch_size=8), make)
    assert planner.tiles.gpu == KNOWN["h200"]


def test_what_machine_code_needs_is_checked_before_it_is_launched() -> None:
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    text = (
        'extern "C" __global__ void kernel(float* p) { extern __shared__ float s[]; s[threadIdx.x] = *p; *p = s[1]; }'
    )
    code = compiler.compile_kernel(text, "sm_89")
    check(KNOWN["rtx4060"], "copy", 256, 99 * 1024, code)
    with pytest.raises(FitError, match="102400 bytes of shared memory, of which RTX 4060 has 101376 in copy"):
        check(KNOWN["rtx4060"], "copy", 256, 100 * 1024, code)
    # As many are loaded as differ in more than their titles.
    threads = ((256, "a"), (128, "b"), (256, "c"))
    texts = [KernelText(text, ("float32*",), count, 1024, title) for count, title in threads]
    kernels = load_all(KNOWN["rtx4060"], texts, [code] * 3, lambda one, code: (one.title, code))
    assert kernels == [("a", code), ("b", code), ("a", code)]
    with pytest.raises(FitError, match="in large"):
        load_all(KNOWN["rtx4060"], [KernelText(text, (), 256, 100 * 1024, "large")], [code], lambda *_: None)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_copy_of_a_program_computes_the_same_and_changes_alone(network: str) -> None:
    program = NETWORKS[network]("numpy").program("train", batch_size=8)
    before, copy = str(program), program.copy()
    assert str(copy) == before
    rewrite(copy, tiles=MULTIPLY_ADDS, fuse=True, tiled=True)
    assert str(program) == before
    assert not {id(v) for n in program.nodes for v in (*n.inputs, *n.outputs)} & {
        id(v) for n in copy.nodes for v in (*n.inputs, *n.outputs)
    }
