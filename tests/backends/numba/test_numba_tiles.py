"""Products by tiles: the instruction beside multiply-adds to the bit, kernels of every geometry, the choice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.program import Program
from support import rounded
from support.campaign import NIGHT

pytest.importorskip("numba")

from minicnn.backends.numba import cpus
from minicnn.backends.numba.kernel import KernelCode, assembly, callable_of
from minicnn.backends.numba.rules import lower
from support.bfloat16 import (
    NETWORKS,
    SHORT,
    WORD,
    Array,
    assert_close,
    compiled,
    exact,
    nearest,
    step_and_policy,
    strict,
    without_nan,
)
from support.machine_code import inner_loops

FEATURES = "+amx-tile", "+amx-bf16"
SIDES = [(2, 2), (2, 1), (1, 2), (1, 1)]
HAS_TILES = cpus.host().tiles is not None
needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="the CPU has no tiles")


def tiled(threads: int = 2, kernel: str | None = "tiles") -> Any:
    return strict(threads, convolution_kernel=kernel)


def describe(monkeypatch: pytest.MonkeyPatch, *, tiles: bool) -> None:
    """As if the CPU had tiles, or had none."""
    host = cpus.host()
    kept = [name for name in host.features.split(",") if name not in FEATURES]
    features = ",".join((*kept, *(FEATURES if tiles else ())))
    monkeypatch.setattr(cpus, "host", lambda: replace(host, features=features))


# The instruction -------------------------------------------------------------------------------

# Ranges of exponents of operands, and of the sums before: usual, products that become denormal, all that differ.
RANGES = [(110, 140, 110, 140), (60, 70, 0, 12), (40, 90, 0, 40), (0, 130, 100, 130), (126, 129, 120, 135)]


def floats(rng: np.random.Generator, count: int, low: int, high: int, special: float = 0.001) -> Array:
    """Bits of float32 with exponents of a range, a few of them 0, denormal, infinite, huge or no numbers."""
    exponent = rng.integers(low, high, count)
    exponent = np.where(rng.random(count) < special, rng.choice([0, 1, 254, 255], count), exponent).astype(WORD)
    return rng.integers(0, 2**32, count, dtype=WORD) & WORD(0x807FFFFF) | exponent << WORD(23)


def pairs(rng: np.random.Generator, count: int, low: int, high: int, special: float = 0.001) -> Array:
    first, second = (floats(rng, count, low, high, special) for _ in range(2))
    return first >> WORD(16) | second & WORD(0xFFFF0000)


def multiplied(a: Array, b: Array, sums: Array, count: int, side: tuple[int, int], how: str) -> Array:
    """Bits of sums (n, R x C tiles) plus products of `count` tiles of each, odd n from 0 on."""
    rows, columns = side
    n, result = len(sums), sums.copy()
    steps = [f"{t * count * 1024}" for t in side]
    lines = (
        f"# {how}", "mode = flush_denormals()", "begin_tiles()", "for i in range(start, stop):",
        f"    multiply_tiles_{rows}_{columns}(s + i * {rows * columns * 1024}, 64, {rows * 1024}, a + i * {steps[0]}, "
        f"{count * 1024}, 1024, b + i * {steps[1]}, {count * 1024}, 1024, {count}, i % 2)",
        "end_tiles()", "restore_mode(mode)",
    )  # fmt: skip
    code = KernelCode("tiles", ("a", "b", "s"), lines, tiles=(side,))
    table = np.array([x.ctypes.data for x in (a, b, result)], np.int64)
    callable_of(code)(table.ctypes.data, 0, n)
    assert ("tdpbf16ps" in assembly(code)) == (cpus.host().tiles is not None)
    return result


@needs_tiles
@pytest.mark.no_cover
@pytest.mark.parametrize("side", SIDES)
def test_tiles_and_multiply_adds_give_the_same_bits(side: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng, count, n = np.random.default_rng(0), 3, 200 if NIGHT else 20
    (rows, columns), ways = side, []
    made = [
        (pairs(rng, n * rows * count * 256, *r[:2]), pairs(rng, n * columns * count * 256, *r[:2]),
         floats(rng, n * rows * columns * 256, *r[2:]).reshape(n, -1))
        for r in RANGES
    ]  # fmt: skip
    a, b, sums = (np.concatenate(parts) for parts in zip(*made, strict=True))
    for tiles in (True, False):
        describe(monkeypatch, tiles=tiles)
        ways.append(without_nan(multiplied(a, b, sums, count, side, str(tiles))))
    np.testing.assert_array_equal(*ways)
    assert 0.01 < np.mean(np.isnan(ways[0].view(np.float32))) < 0.5


@pytest.mark.no_cover
@pytest.mark.parametrize("tiles", [pytest.param(True, marks=needs_tiles), False])
def test_products_are_rounded_as_the_instruction_is_defined(tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """First elements of all pairs one after the other, then second ones, then both sums, then what was there."""
    describe(monkeypatch, tiles=tiles)
    rng = np.random.default_rng(1)
    a, b, sums = [], [], []
    for low, high, first, last in RANGES:
        a.append(pairs(rng, 2 * 256, low, high, 0))
        b.append(pairs(rng, 2 * 256, low, high, 0))
        sums.append(floats(rng, 2 * 256, first, last, 0).reshape(2, 256))
    x, y, z = (np.concatenate(parts) for parts in (a, b, sums))
    found = multiplied(x, y, z, 1, (1, 1), f"defined {tiles}").view(np.float32).reshape(-1, 16, 16)
    x, y, z = (array.reshape(-1, 16, 16) for array in (x, y, z))
    for n, (r, c) in enumerate(zip(*(rng.integers(0, 16, (2, len(z)))), strict=True)):
        halves = []
        for shift in (16, 0):
            total = Fraction(0)
            for q in range(16):
                left, right = (exact(int(v) << shift & 0xFFFF0000) for v in (x[n, r, q], y[n, q, c]))
                total = nearest(total + left * right)
            halves.append(total)
        before = Fraction(0) if n % 2 else exact(int(z[n, r, c]))
        assert Fraction(float(found[n, r, c])) == nearest(before + nearest(sum(halves, Fraction(0))))


SAPPHIRE = cpus.Target("x86_64-unknown-linux-gnu", "sapphirerapids", "+avx512f,+avx512bf16,+amx-tile,+amx-bf16")


@pytest.mark.no_cover
def test_a_product_loads_each_tile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four products for four loads, without access to the stack, on any machine."""
    monkeypatch.setattr(cpus, "host", lambda: SAPPHIRE)
    program = Program()
    x, w = (ops.cast(program.input(*a), dtype="bfloat16") for a in (("x", (64, 8, 8, 64)), ("w", (3, 3, 64, 64))))
    program.outputs["y"] = ops.cast(ops.conv2d(x, w), dtype="float32")
    (source,) = (t.source for t in lower(program, 2).tasks if t.source is not None and "tdpbf16ps" in t.source.name)
    text = assembly(source, SAPPHIRE)
    loops = ["\n".join(lines) for lines in inner_loops(text, r"\tj\w+\t(\S+)")]
    loops = [lines for lines in loops if "tdpbf16ps" in lines]
    assert loops
    for lines in loops:
        assert lines.count("tdpbf16ps") == lines.count("tileloadd") > 0
        assert lines.count("tdpbf16ps") % 4 == 0
        assert "(%rsp" not in lines


# Kernels ---------------------------------------------------------------------------------------

# Kernel, strides, padding, dilation, channels, filters, size.
GEOMETRIES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "one filter": (1, 1, 0, 1, 1, 1, 3),
    "whole tiles": (1, 1, 0, 1, 32, 32, 2),
    "same": (3, 1, 1, 1, 34, 19, 4),
    "odd channels": (3, 2, 1, 1, 3, 49, 5),
    "strides beyond the taps": (1, 2, 0, 1, 32, 16, 4),
    "dilation": (2, 1, 1, 2, 5, 7, 5),
    "a large kernel": (5, 2, 2, 1, 2, 3, 7),
}


def program_of(name: str, samples: int) -> Program:
    """A convolution and both of its gradients, of operands rounded to bfloat16."""
    size, stride, padding, dilation, channels, filters, image = GEOMETRIES[name]
    program = Program()
    attrs = {"strides": (stride, stride), "padding": ((padding, padding),) * 2, "dilation": (dilation, dilation)}

    def short(name: str, shape: tuple[int, ...], parameter: bool = False) -> Any:
        kind: Any = "parameter" if parameter else "input"
        return ops.cast(program.input(name, shape, kind=kind), dtype="bfloat16")

    x, w = short("x", (samples, image, image, channels)), short("w", (size, size, channels, filters), parameter=True)
    y = ops.conv2d(x, w, **attrs)
    dy = short("dy", y.shape)
    results = {
        "y": y, "dx": ops.conv2d_input_gradient(dy, w, image=(image, image), **attrs),
        "dw": ops.conv2d_weight_gradient(dy, x, kernel=(size, size), **attrs),
    }  # fmt: skip
    program.outputs.update({key: ops.cast(value, dtype="float32") for key, value in results.items()})
    return program


def whole_numbers(program: Program) -> dict[str, Array]:
    """Inputs whose products and sums are exact in any order."""
    rng = np.random.default_rng(0)
    return {v.name: rng.integers(-3, 4, v.shape).astype("float32") for v in program.inputs}


@pytest.mark.no_cover
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_convolution_and_its_gradients(name: str) -> None:
    check_geometry(name)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", GEOMETRIES if NIGHT else ["one filter"])
def test_kernels_as_python(name: str) -> None:
    check_geometry(name)


def check_geometry(name: str) -> None:
    program = program_of(name, 18)
    inputs = whole_numbers(program)
    found, expected = tiled().compile(program.copy())(inputs), rounded.results(program, inputs)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, key)


@pytest.mark.no_cover
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_beside_the_policy_in_numpy(name: str) -> None:
    """With bias, activation and the mask of its gradient; dense layers."""
    assert_close(*step_and_policy(compiled(name, tiled()), "train", 17))


@pytest.mark.no_cover
@pytest.mark.parametrize("name", ["same", "whole tiles"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    program, rng = program_of(name, 600), np.random.default_rng(0)
    inputs = {v.name: rng.standard_normal(v.shape).astype("float32") for v in program.inputs}
    results = [tiled(threads).compile(program.copy())(inputs) for threads in (1, 2, 3, 8, 64)]
    for other in results[1:]:
        for key, array in results[0].items():
            np.testing.assert_array_equal(other[key], array, key)


def weights_after(name: str, batch: int) -> bytes:
    """The weights of a network after two steps of training by tiles."""
    model, rng = compiled(name, tiled()), np.random.default_rng(0)
    for _ in range(2):
        model.train_on_batch(rng.standard_normal((batch, 6, 5, 3)), rng.standard_normal((batch, 5)))
    return b"".join(w.tobytes() for w in model.get_weights().values())


@needs_tiles
@pytest.mark.night(f"{__name__.replace('.', '/')}.py::test_tiles_and_multiply_adds_give_the_same_bits")
@pytest.mark.no_cover
def test_a_cpu_without_tiles_trains_to_the_same_bits() -> None:
    code = (
        "from backends.numba.test_numba_tiles import cpus, weights_after\n"
        "assert cpus.host().tiles is None; print(weights_after('pairs', 19).hex())"
    )
    features = cpus.host().features.replace("+amx-tile", "-amx-tile")
    about = {"NUMBA_CPU_FEATURES": features, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | about, capture_output=True, text=True, check=True
    )
    assert bytes.fromhex(done.stdout) == weights_after("pairs", 19)


# The choice ------------------------------------------------------------------------------------


def ways(kernel: str | None, name: str = "whole tiles", samples: int = 64) -> list[str]:
    """How a convolution and its gradients are computed."""
    rows = tiled(kernel=kernel).explain(program_of(name, samples))
    return [text for _, text in rows if "conv2d" in text]


@pytest.mark.parametrize(
    ("tiles", "kernel", "way"),
    [(True, None, "tdpbf16ps"), (False, None, "(?!.*t(iles|dp))"), (False, "tiles", "tiles of multiply-adds"),
     (True, "direct", "(?!.*t(iles|dp))")],
)  # fmt: skip
def test_tiles_are_taken_where_the_cpu_has_them(
    tiles: bool, kernel: str | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(monkeypatch, tiles=tiles)
    found = ways(kernel)
    assert len(found) == 3
    for text in found:
        assert re.match(f"kernel: conv2d\\w* in bfloat16 by {way}", text)


def test_a_tile_is_not_filled_for_one_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch, tiles=True)
    assert not [text for text in ways(None, "one filter") if "tdpbf16ps" in text]


def test_a_system_may_refuse_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "sapphirerapids")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx512f,+amx-tile,+amx-bf16")
    describe_host = cpus.host.__wrapped__
    monkeypatch.setattr(cpus, "tiles_permitted", lambda: True)
    assert describe_host().tiles == cpus.AMX
    monkeypatch.setattr(cpus, "tiles_permitted", lambda: False)
    assert describe_host().tiles is None


def test_float32_knows_no_tiles() -> None:
    model = NETWORKS["pairs"](tiled())
    model.compile("sgd", "mse")
    assert "tiles" not in str(model.explain("train"))
    assert SHORT not in str(model.explain("train"))
