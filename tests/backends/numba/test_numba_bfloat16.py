"""`mixed_bfloat16` on the numba backend: its products to the bit, its networks beside the policy in NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from minicnn import Model, Sequential, losses, ops, zoo
from minicnn.backends import backend_class
from minicnn.layers import (
    BatchNormalization,
    Dense,
    Input,
)
from minicnn.loop.tracing import StepKind
from minicnn.optimizers import SGD
from minicnn.program import Program
from minicnn.tolerance import EPSILON
from support import random_networks, rounded
from support.bfloat16 import (
    NETWORKS,
    SHAPE,
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
from support.campaign import NIGHT

pytest.importorskip("numba")

from minicnn.backends.numba import cpus
from minicnn.backends.numba.kernel import KernelCode, assembly, callable_of
from minicnn.backends.numba.lowering import BLOCKED
from minicnn.backends.numba.rules import lower

KINDS: tuple[StepKind, ...] = ("train", "predict")


# Products --------------------------------------------------------------------------------------


def hostile(rng: np.random.Generator, count: int) -> Array:
    """Bits of float32 of all sizes: many that are tiny, huge, infinite or no numbers."""
    kind, size = rng.integers(0, 4, count), (count,)
    sizes = [rng.integers(0, 256, size), rng.integers(110, 140, size), rng.integers(0, 70, size)]
    exponent = np.select([kind == k for k in range(3)], sizes, rng.choice([0, 1, 254, 255], size)).astype(WORD)
    return rng.integers(0, 2**32, size, dtype=WORD) & WORD(0x807FFFFF) | exponent << WORD(23)


def pairs(rng: np.random.Generator, count: int) -> Array:
    return hostile(rng, count) >> WORD(16) | hostile(rng, count) & WORD(0xFFFF0000)


def products(x: Array, w: Array, sums: Array, *, emulated: bool) -> Array:
    """Bits of what kernels make of pairs x (n, 16), a pair w (n,) and sums (n,)."""
    result = np.zeros(x.shape, WORD)
    lines = (
        f"# {'multiply-adds' if emulated else 'the instruction, if there is one'}", "mode = flush_denormals()",
        "for i in range(start, stop):", "    a = bias_1_1(z + i * 4)",
        "    put_1_1(y + i * 64, spread_pairs_1_1(a, w + i * 4, x + i * 64, 1, 1, 0), 0)", "restore_mode(mode)",
    )  # fmt: skip
    code = KernelCode("products", ("x", "w", "z", "y"), lines, tiles=((1, 1),))
    table = np.array([a.ctypes.data for a in (x, w, sums, result)], np.int64)
    callable_of(code)(table.ctypes.data, 0, len(x))
    if cpus.host().multiplies_bfloat16:
        assert ("vdpbf16ps" in assembly(code)) != emulated
    return result


def describe(monkeypatch: pytest.MonkeyPatch, *, instruction: bool) -> None:
    """As if the CPU had the instruction, or had not."""
    without_tiles = "-amx-tile", "-amx-bf16"
    host, changed = cpus.host(), (*(("+avx512f", "+avx512bf16") if instruction else ("-avx512bf16",)), *without_tiles)
    kept = [name for name in host.features.split(",") if name[1:] not in [other[1:] for other in changed]]
    monkeypatch.setattr(cpus, "host", lambda: replace(host, features=",".join((*kept, *changed))))


def both_ways(x: Array, w: Array, sums: Array, monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Array]:
    by_instruction = products(x, w, sums, emulated=False)
    describe(monkeypatch, instruction=False)
    return without_nan(by_instruction), without_nan(products(x, w, sums, emulated=True))


@pytest.mark.no_cover
def test_the_instruction_and_multiply_adds_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200_000 if NIGHT else 20_000
    rng = np.random.default_rng(0)
    x = pairs(rng, 16 * count).reshape(count, 16)
    found, expected = both_ways(x, pairs(rng, count), hostile(rng, count), monkeypatch)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.no_cover
def test_products_are_rounded_as_the_instruction_is_defined() -> None:
    """The second product of a pair first, each sum rounded once, without denormal numbers."""
    rng, count = np.random.default_rng(1), 400
    x, w = pairs(rng, 16 * count).reshape(count, 16), pairs(rng, count)
    x, w = (bits & WORD(0xBFFFBFFF) for bits in (x, w))  # finite
    sums = hostile(rng, count) & WORD(0xBFFFFFFF)
    found = products(x, w, sums, emulated=False).view(np.float32)
    for n in range(count):
        for lane in range(16):
            total = exact(int(sums[n]))
            for shift in (0, 16):
                a, b = (exact(int(v) << shift & 0xFFFF0000) for v in (x[n, lane], w[n]))
                total = nearest(total + a * b)
            assert Fraction(float(found[n, lane])) == total


def rounding_kernel(name: str) -> KernelCode:
    lines = (f"# {name}", "for i in range(start, stop):", "    short_store(y + i * 32, vload(x + i * 64))")
    return KernelCode("rounding", ("x", "y"), lines)


@pytest.mark.parametrize("instruction", [True, False])
def test_numbers_are_rounded_as_the_policy_says(instruction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not instruction:
        describe(monkeypatch, instruction=False)
    bits = hostile(np.random.default_rng(2), 16 * 5000)
    bits[:4] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x007FFFFF  # two middles, the largest, the largest denormal one
    found = np.zeros(bits.size, np.uint16)
    table = np.array([bits.ctypes.data, found.ctypes.data], np.int64)
    callable_of(rounding_kernel(str(instruction)))(table.ctypes.data, 0, bits.size // 16)
    expected = rounded.bfloat16(bits.view(np.float32)).view(WORD)
    np.testing.assert_array_equal(without_nan(found.astype(WORD) << WORD(16)), without_nan(expected))
    assert list(found[:4]) == [0x3F80, 0x3F82, 0x7F80, 0]


# Networks --------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("either_at_night")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_beside_the_policy_in_numpy(name: str) -> None:
    """Activations, sums and gradients are rounded where the Program says so, and nowhere else."""
    assert_close(*step_and_policy(compiled(name, strict()), "train", 17))


@pytest.mark.usefixtures("either_at_night")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_prediction_beside_the_policy_in_numpy(name: str) -> None:
    """Without gradients other nodes follow each other, and are merged."""
    assert_close(*step_and_policy(compiled(name, strict()), "predict", 17))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("seed", range(60) if NIGHT else (0, 1, 2))
def test_random_networks_beside_the_policy_in_numpy(seed: int) -> None:
    model, _ = random_networks.network(seed, backend_class("numba")(threads=2))  # type: ignore[call-arg]
    model.compile("sgd", "mse", precision=SHORT)
    for kind in KINDS:
        with np.errstate(all="ignore"):
            assert_close(*step_and_policy(model, kind, 5))


ZOO = ["resnet18", "mobilenet_v2", "squeezenet1_1", "resnet50", "googlenet"]


@pytest.mark.night(f"{__name__.replace('.', '/')}.py::test_a_step_beside_the_policy_in_numpy")
@pytest.mark.no_cover
@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo_beside_the_policy_in_numpy(name: str) -> None:
    model = zoo.get_model(name, num_classes=10, input_shape=(32, 32, 3), backend=strict())
    model.compile("sgd", losses.CategoricalCrossentropy(from_logits=True), precision=SHORT)
    assert_close(*step_and_policy(model, "predict", 7), EPSILON["bfloat16"])
    # Where normalisations follow each other, gradients of few samples change by half if weights do in the sixth digit.
    if not any(isinstance(layer, BatchNormalization) for layer in model.layers):
        assert_close(*step_and_policy(model, "train", 7))


def weights_after(name: str, batch: int) -> bytes:
    """The weights of a network after two steps of training."""
    model, rng = compiled(name, strict(convolution_kernel="direct")), np.random.default_rng(0)
    for _ in range(2):
        model.train_on_batch(rng.standard_normal((batch, *SHAPE)), rng.standard_normal((batch, 5)))
    return b"".join(w.tobytes() for w in model.get_weights().values())


@pytest.mark.night(f"{__name__.replace('.', '/')}.py::test_the_instruction_and_multiply_adds_give_the_same_bits")
@pytest.mark.no_cover
@pytest.mark.parametrize("lacking", ["avx512bf16", "avx512"])
def test_other_cpus_train_to_the_same_bits(lacking: str) -> None:
    code = (
        "import sys; from backends.numba.test_numba_bfloat16 import cpus, weights_after\n"
        "assert not cpus.host().multiplies_bfloat16; print(weights_after('pairs', 19).hex())"
    )
    features = cpus.host().features.replace(f"+{lacking}", f"-{lacking}")
    about = {"NUMBA_CPU_FEATURES": features, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | about, capture_output=True, text=True, check=True
    )
    assert bytes.fromhex(done.stdout) == weights_after("pairs", 19)


@pytest.mark.parametrize("instruction", [True, False])
def test_explain_names_the_way_of_a_product(instruction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch, instruction=instruction)
    text = str(compiled("pairs", strict()).explain("train"))
    way = "vdpbf16ps" if instruction else "pairs of multiply-adds"
    for product in ("conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "matmul"):
        assert f"kernel: {product} in bfloat16 by {way}" in text
    assert "kernel: no work: widened where it is read" in text


def test_images_take_less_memory() -> None:
    stored = []
    for precision in (SHORT, "float32"):
        model = NETWORKS["residual"](strict(1))
        model.compile(SGD(0.1), "mse", precision=precision)
        lowering = lower(model.program("train", batch_size=64), 1)
        stored.append(sum(lowering.sizes[key] for task in lowering.tasks for key in task.writes if key[1] == BLOCKED))
    assert stored[0] < 0.75 * stored[1]


def test_nothing_computes_with_the_bits_of_bfloat16() -> None:
    program = Program()
    program.outputs["y"] = ops.cast(ops.tanh(ops.cast(program.input("x", (4, 4)), dtype="bfloat16")), dtype="float32")
    with pytest.raises(
        NotImplementedError, match=r"does not know bfloat16\. Received: tanh of .*Cast to float32 before"
    ):
        backend_class("numba")().compile(program)


@pytest.mark.usefixtures("interpreted")
def test_bfloat16_goes_in_and_out_as_float32() -> None:
    program = Program()
    x = program.input("x", (18, 2, 2, 3), "bfloat16")
    program.outputs["y"] = ops.cast(ops.cast(x, dtype="float32") * 3.0, dtype="bfloat16")
    values = np.random.default_rng(0).standard_normal(x.shape)
    backend = strict()
    found = backend.compile(program)({"x": backend.asarray(values, "bfloat16")})["y"]
    np.testing.assert_array_equal(found, rounded.bfloat16(rounded.bfloat16(values.astype("float32")) * 3))


def test_references_alone_know_no_bfloat16() -> None:
    backend = backend_class("numba")(reference_only=True)
    with pytest.raises(ValueError, match=r"The numba backend computes in float32, float64\. Received: precision="):
        compiled("pairs", backend)


@pytest.mark.usefixtures("interpreted")
def test_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 6)), rng.standard_normal((16, 3))

    def model() -> Model:
        made = Sequential([Input((6,)), Dense(5, activation="relu"), Dense(3)], backend=strict(1), seed=2)
        made.compile("adam", "mse", precision=SHORT)
        return made

    whole = model()
    whole.train_on_batch(x, y)
    whole.save(tmp_path / "m")
    again = Sequential.load(tmp_path / "m", backend=strict(1))
    for one in (whole, again):
        one.train_on_batch(x, y)
    assert again.precision == SHORT
    for path, array in whole.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[path], array)
