"""Products by warpgroups: operands in swizzled shared memory, alone and in convolutions, and what is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cupy import emulator
from backends.cupy.emulator import Emulated
from backends.cupy.pipelined import NAMES, convolution, take_only_these, tiled_ahead
from backends.cupy.short_storage import by_numpy, distance, rounded
from minicnn import ops
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.cubin import resources
from minicnn.backends._gpu.device import H200, KNOWN
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile
from minicnn.backends._gpu.runtime import KernelText
from minicnn.backends._gpu.source import Source
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends.cupy import compiler, nvrtc
from minicnn.backends.cupy.generation import generate
from minicnn.program import Program
from minicnn.program.passes import lower_precision, shorten_images
from support.plans import plan_of

# One warpgroup multiplies 64 x K by K x N numbers, whose neighbours in memory are terms, or (`ta`, not `tb`) rows and
# columns.
KERNEL = """
#include "stages.cuh"
extern "C" __global__ void kernel(const uint16* a, const uint16* b, float* c) {{
  constexpr int N = {n}, K = {k};
  constexpr bool TA = {ta}, TB = {tb};
  using Left = SwizzledRows<TA ? K : 64, TA ? 64 : K, 64>;
  using Right = SwizzledRows<TB ? N : K, TB ? K : N, 64>;
  using A = Runs<Left, 128>;
  using B = Runs<Right, 128>;
  uint16* const as = reinterpret_cast<uint16*>(dynamic_shared() + (-shared_offset(dynamic_shared()) & 1023));
  uint16* const bs = as + Left::SIZE;
  A::send<false>(
    as, 0, 1, [&](int k, bool& real) {{ return real = true, a + A::row(k) * Left::COLUMNS + A::column(); }});
  B::send<true>(
    bs, 0, 1, [&](int k, bool& real) {{ return real = true, b + B::row(k) * Right::COLUMNS + B::column(); }});
  close_copies();
  wait_for_copies<0>();
  show_to_warpgroups();
  __syncthreads();
  float sums[1][N / 8][4] = {{}};
  hold(sums);
  begin_products();
  for (int k = 0; k < K; k += 16)
    start_product<TA, !TB>(
      Warpgroups<{kind}>(), sums[0], Left::descriptor(as + (TA ? Left::start(k, 0) : Left::start(0, k)), TA),
      Right::descriptor(bs + (TB ? Right::start(0, k) : Right::start(k, 0)), !TB));
  close_products();
  wait_for_products<0>();
  hold(sums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int n = 0; n < N / 8; n++)
    for (int r = 0; r < 4; r++)
      c[(warp * 16 + lane / 4 + r / 2 * 8) * N + n * 8 + lane % 4 * 2 + r % 2] = sums[0][n][r];
}}
"""
LAYOUTS = [
    (32, 64, False, False), (64, 64, False, True), (128, 64, True, False), (256, 64, True, True),
    (128, 32, False, True), (256, 32, True, False), (32, 32, True, True), (64, 16, False, True),
    (128, 16, False, False), (256, 64, False, False),
    (64, 128, False, True), (64, 128, True, False),
]  # fmt: skip
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


def source_of(n: int, k: int, ta: bool, tb: bool, kind: str) -> Source:
    """The kernel for 64 x k by k x n numbers."""
    text = KERNEL.format(n=n, k=k, ta=str(ta).lower(), tb=str(tb).lower(), kind=kind)
    return Source(text, (), False, 1, 128, f"product by a warpgroup of {n}, {k}, {ta}, {tb}", (64 + n) * k * 2 + 896)


def emulated(source: Source, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    emulator.prepared(source, (a, b, c), source.blocks)()


def on_gpu(source: Source, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Runs the kernel on the GPU of this machine."""
    pytest.importorskip("cupy")
    from minicnn.backends.cupy.backend import CupyBackend

    backend = CupyBackend()
    text = KernelText(source.text, ("uint16*", "uint16*", "float32*"), source.threads, source.shared, source.title)
    with backend.runtime.active():
        (kernel,) = backend.runtime.load([text])
        arrays = [backend.asarray(x) for x in (a, b, c)]
        backend.runtime.prepare(kernel, source.blocks, arrays)()
        c[:] = backend.to_numpy(arrays[2])


def product(run: Callable[..., None], layout: tuple[int, int, bool, bool], kind: str) -> Multiply:
    """What multiplies 64 x k by k x n numbers on the emulator or on the GPU."""
    n, k, ta, tb = layout
    source = source_of(n, k, ta, tb, kind)

    def bits(x: np.ndarray) -> np.ndarray:
        x = np.ascontiguousarray(x, "float32")
        return (x.view("uint32") >> 16).astype("uint16") if kind == "Bfloat16" else x.astype("float16").view("uint16")

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.full((64, n), np.nan, "float32")
        run(source, bits(a.T if ta else a), bits(b.T if tb else b), c)
        return c

    return multiply


def seen(multiply: Multiply, n: int, k: int) -> str:
    """What a wrong layout reads: for each operand, the elements that come from elsewhere, and from where they come.

    One operand picks a term of the other, whose elements say first which row or column they are of, then which term.
    """
    lines, terms = [], np.arange(k)
    for name, many in (("a", 64), ("b", n)):
        each = np.arange(many)
        found = np.empty((2, many, k))  # row or column, and term, that is read for each
        for what, numbers in enumerate((each[:, None] + 0 * terms, terms + 0 * each[:, None])):
            for first in range(0, k, n if name == "a" else 64):
                picked = np.float32(terms[:, None] == first + np.arange(n if name == "a" else 64))
                made = multiply(numbers, picked) if name == "a" else multiply(picked.T, numbers.T).T
                found[what, :, first : first + picked.shape[1]] = made[:, : k - first]
        wrong = np.argwhere((found[0] != each[:, None]) | (found[1] != terms))
        lines.append(f"{name}: {len(wrong)} of {k * many} elements come from elsewhere")
        lines += [f"  row or column {i}, term {t}: from {found[0, i, t]:g}, {found[1, i, t]:g}" for i, t in wrong[:24]]
    return "\n".join(lines)


def check_product(run: Callable[..., None], layout: tuple[int, int, bool, bool], kind: str) -> None:
    """Small integers are multiplied exactly; if not, says which elements were read in place of which."""
    n, k, *_ = layout
    rng, multiply = np.random.default_rng(0), product(run, layout, kind)
    a, b = (rng.integers(-8, 9, shape).astype("float32") for shape in ((64, k), (k, n)))
    found = multiply(a, b)
    wrong = np.argwhere(found != a @ b)
    said = f"{layout} {kind}: {len(wrong)} of {found.size} sums are wrong, the first at {wrong[:8].tolist()}"
    assert not len(wrong), f"{said}\n{seen(multiply, n, k)}"


@pytest.mark.sampled(6)
@emulator.needs_gxx
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_product_is_exact(layout: tuple[int, int, bool, bool]) -> None:
    check_product(emulated, layout, "Float16" if layout[0] == 64 else "Bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["Bfloat16", "Float16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_product_is_exact_on_the_gpu(layout: tuple[int, int, bool, bool], kind: str) -> None:
    check_product(on_gpu, layout, kind)


@pytest.mark.sampled(5)
@emulator.needs_gxx
@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("show_to_warpgroups();", "", "Who copies to shared memory shows it to warpgroups"),
        ("__syncthreads();", "", "A barrier lies between"),
        ("begin_products();", "", "follow begin_products"),
        ("wait_for_products<0>();", "", "sums are wrong"),
        ("wait_for_products", "__syncthreads(); as[threadIdx.x] = 0; wait_for_products", "stay as they are"),
        ("close_products();", "", "sums are wrong"),
        ("wait_for_copies<0>();", "", "sums are wrong"),
        ("& 1023", "& 127", "sums are wrong"),
        ("Left::start(0, k)", "Left::start(0, 0)", r"a: 3072 of 4096 elements(?s:.*)term 16: from 0, 0"),
        ("start(k, 0)), !TB)", "start(k, 0)), TB)", r"a: \d+ of 4096(?s:.*)b: \d+ of 8192 elements"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(line: str, instead: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert line in KERNEL
    monkeypatch.setattr(f"{__name__}.KERNEL", KERNEL.replace(line, instead))
    with pytest.raises(AssertionError, match=message):
        check_product(emulated, (128, 64, False, False), "Bfloat16")


def block_of(tile: Tile) -> tuple[int, ...]:
    """Sizes of a block of a product and of a warp, and the steps ahead."""
    names = ("rows", "columns", "terms", "warp_rows", "warp_columns", "stages")
    return tuple(tile.sizes[name] for name in names)


def prefer(patch: pytest.MonkeyPatch, sizes: tuple[int, ...], splits: int = 1, *, several: bool = False) -> None:
    """Products by warpgroups of these sizes, where they fit; others, other splits and other turns where not."""
    take_only_these(patch)

    def preferred(tile: PipelinedTile) -> tuple[bool, bool, bool, bool, float]:
        other = block_of(tile) != sizes
        return not tile.warpgroups, other, (tile.turns > 1) != several, tile.splits != splits, tile.score

    def best(family: type[PipelinedTile], *given: Any) -> PipelinedTile | None:
        return min(family.candidates(*given), key=preferred, default=None)

    patch.setattr(PipelinedTile, "best", classmethod(best))


TILES = [  # sizes, type, images, channels, filters, taps, strides, dilation, groups, rows, splits
    ((64, 32, 32, 1, 4, 3), "bfloat16", 2, 40, 24, 3, 1, 1, 2, 5, 1),
    ((64, 256, 64, 1, 16, 4), "float16", 3, 72, 136, 2, 1, 2, 1, 5, 2),
    ((128, 64, 64, 1, 8, 4), "bfloat16", 1, 40, 40, 3, 2, 1, 1, 9, 1),
    ((64, 32, 128, 1, 4, 3), "bfloat16", 1, 136, 136, 2, 2, 1, 1, 6, 1),
    ((128, 64, 32, 2, 8, 6), "float16", 2, 24, 40, 3, 1, 1, 1, 8, 4),
    ((128, 256, 32, 1, 32, 3), "bfloat16", 1, 104, 136, 1, 1, 1, 1, 9, 1),
    ((256, 64, 32, 2, 8, 4), "bfloat16", 5, 24, 40, 3, 3, 1, 1, 7, 1),
    ((64, 32, 64, 1, 4, 1), "bfloat16", 3, 40, 40, 1, 1, 1, 1, 7, 1),  # all steps of the sums at once, here and below
    ((128, 64, 32, 1, 8, 2), "bfloat16", 3, 40, 72, 1, 1, 1, 2, 7, 1),
]

SEVERAL = (64, 32, 64, 1, 4, 1), "float16", 5, 40, 40, 1, 1, 1, 1, 11, 1  # tiles of a block,
FEW: dict[str, Any] = {"multiprocessors": 1, "l2": 0}  # on such a GPU, which has no room for more blocks


@pytest.mark.sampled(2)
@emulator.needs_gxx
@pytest.mark.parametrize("case", TILES, ids=str)
def test_convolutions_by_warpgroups(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    check_convolution(case, lambda program, dtype: Emulated(program, tiles=tiles(dtype)), monkeypatch)


@emulator.needs_gxx
def test_blocks_make_several_tiles_of_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(tiles("float16"), gpu=replace(H200, **FEW))
    check_convolution(SEVERAL, lambda program, _: Emulated(program, tiles=few), monkeypatch, several=True)


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "gpu"), [*((case, {}) for case in TILES), (SEVERAL, FEW)], ids=str)
def test_convolutions_by_warpgroups_on_the_gpu(
    case: tuple[Any, ...], gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cupy")
    from minicnn.backends.cupy.backend import CupyBackend

    def compiled(program: Program, dtype: str) -> Any:
        backend = CupyBackend(strict=True)
        backend.tiles = replace(backend.tiles, gpu=replace(backend.tiles.gpu, **gpu))
        step: Any = backend.compile(program)

        def run(arrays: dict[str, Any]) -> dict[str, Any]:
            made = step({name: backend.asarray(a) for name, a in arrays.items()})
            return {name: backend.to_numpy(y) for name, y in made.items()}

        run.plan = step._plan  # type: ignore[attr-defined]
        return run

    check_convolution(case, compiled, monkeypatch, several=case is SEVERAL)


def tiles(dtype: str) -> TensorTiles:
    return TensorTiles(H200, precision=dtype, pipelined=True)


def check_convolution(
    case: tuple[Any, ...], compiled: Callable[[Program, str], Any], patch: pytest.MonkeyPatch, *, several: bool = False
) -> None:
    """A convolution, its gradients and sums of its results against NumPy, with a tile of these sizes."""
    sizes, dtype, n, c, f, kernel, strides, dilation, groups, size, splits = case
    prefer(patch, sizes, splits, several=several)
    program = convolution(dtype, n, c, f, kernel, strides, dilation, groups, size)
    rng, scales = np.random.default_rng(0), {"x": 1.0, "weight": 1 / (kernel * c**0.5)}
    arrays = {
        v.name: rounded((scales[v.name] * rng.standard_normal(v.shape)).astype("float32"), dtype)
        for v in program.inputs
    }
    expected = by_numpy(program, arrays)
    step = compiled(program, dtype)
    by_warpgroups = [u.tile for u in step.plan.groups if isinstance(u.tile, PipelinedTile) and u.tile.warpgroups]
    assert len(by_warpgroups) == len(NAMES)
    assert sizes in [block_of(tile) for tile in by_warpgroups]
    assert sum(tile.turns > 1 for tile in by_warpgroups) == several  # not of gradients
    found = step(arrays)
    assert distance(found, expected) < 1e-3, {
        name: np.argwhere(np.abs(found[name] - y) > 0.02 * np.abs(y).max())[:8].tolist() for name, y in expected.items()
    }


def test_planner_takes_them_on_capability_9_0_alone() -> None:
    architectures = {name: gpu.architecture for name, gpu in KNOWN.items() if gpu.has_warpgroups}
    assert architectures == {"h100": "sm_90a", "h200": "sm_90a"}
    for name in ("h200", "b200", "rtx5090", "a100"):
        program = convolution("bfloat16", 64, 128, 256, 3, 1, 1, 1, 16)
        plan = plan_of(program, TensorTiles(KNOWN[name], precision="bfloat16", pipelined=True))
        assert tiled_ahead(plan) == set(NAMES)
        by_warpgroups = {u.anchor.op.name for u in plan.groups if u.tile is not None and u.tile.warpgroups}
        assert bool(by_warpgroups) == (name == "h200")


@emulator.needs_gxx
@pytest.mark.parametrize(
    ("sizes", "turns"),
    [
        ((256, 32, 32, 2, 4, 4), 1),
        ((64, 64, 64, 1, 8, 3), 5),  # 14 tiles of three blocks
        ((64, 128, 64, 1, 16, 3), 7),  # whose warps pass their columns one half after the other
    ],
    ids=str,
)
def test_sums_of_what_is_stored(sizes: tuple[int, ...], turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(monkeypatch, sizes, several=turns > 1)
    program, f = Program("sums"), sizes[1] // 2 + 8
    x, weight = program.input("x", (7, 11, 11, 136)), program.input("weight", (1, 1, 136, f), kind="parameter")
    attrs: dict[str, Any] = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}
    y = ops.relu(ops.conv2d(ops.relu(x), weight, **attrs, data_format="NHWC"))
    for name, value in (("mean", y), ("squares", ops.square(y)), ("again", y)):
        program.outputs[name] = ops.sum(value, axes=(0, 1, 2))
    program.outputs["y"] = y * 1.0
    assert shorten_images(program, "bfloat16")
    assert lower_precision(program, "bfloat16")
    rng = np.random.default_rng(0)
    arrays = {v.name: rounded(rng.standard_normal(v.shape).astype("float32"), "bfloat16") for v in program.inputs}
    expected = by_numpy(program, arrays)
    gpu = H200 if turns == 1 else replace(H200, **FEW)
    step = Emulated(program, tiles=replace(tiles("bfloat16"), gpu=gpu))
    (group,) = (u for u in step.plan.groups if isinstance(u.tile, PipelinedTile))
    assert isinstance(group.tile, PipelinedTile)
    assert (len(group.sums), block_of(group.tile), group.tile.turns) == (3, sizes, turns)
    assert distance(step(arrays), expected) < 1e-3


@pytest.mark.parametrize("size", [14, 56])
def test_blocks_make_several_tiles_where_results_do_not_stay_in_the_cache(size: int) -> None:
    program = convolution("bfloat16", 64, 64, 256, 1, 1, 1, 1, size)
    plan = plan_of(program, tiles("bfloat16"))
    of_convolutions = [u.tile for u in plan.groups if u.anchor.op.name == "conv2d"]
    (tile,) = (one for one in of_convolutions if isinstance(one, PipelinedTile))
    room = H200.multiprocessors * tile.resident
    assert (tile.turns > 1) == (size == 56)
    assert size == 14 or room - tile.blocks < room / tile.turns


def test_machine_code_has_no_local_memory_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        nvrtc.version()
    except ImportError as missing:
        pytest.skip(str(missing))
    for sizes in ((128, 256, 64, 1, 32, 4), (256, 128, 64, 2, 16, 3), (64, 64, 64, 1, 8, 4)):
        prefer(monkeypatch, sizes)
        program = convolution("bfloat16", 64, 256, 256, 3, 1, 1, 1, 8)
        plan = plan_of(program, tiles("bfloat16"))
        ahead = [launch for launch in plan.launches if any(u.tile and u.tile.warpgroups for u in launch)]
        assert len(ahead) == len(NAMES)
        for launch in ahead:
            source = generate(plan, launch, set())
            found = resources(compiler.compile_kernel(source.text, H200.architecture))
            assert found.stack == 0
            assert H200.misfit(source.threads, found.registers, found.shared + source.shared) is None
