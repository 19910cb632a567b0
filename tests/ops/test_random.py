"""random_uniform: the same bits everywhere, and the numbers of the published generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.ops.random import philox
from minicnn.program import Program
from support import oracles
from support.gradcheck import run_primitive
from support.strategies import shapes

words = st.integers(0, 2**32 - 1)

# Known answers of Philox4x32-10 as published with Random123: counter, key, result.
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def _philox(counter: list[int], key: list[int]) -> list[int]:
    arrays = [np.asarray([c], "uint32").view("int32") for c in counter]
    made = philox((arrays[0], arrays[1], arrays[2], arrays[3]), (key[0], key[1]))
    return [int(word.view("uint32")[0]) for word in made]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], result: list[int]) -> None:
    assert oracles.philox(counter, key) == result
    assert _philox(counter, key) == result


@given(counter=st.lists(words, min_size=4, max_size=4), key=st.lists(words, min_size=2, max_size=2))
def test_matches_unbounded_integers(counter: list[int], key: list[int]) -> None:
    assert _philox(counter, key) == oracles.philox(counter, key)


@given(key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), block=st.integers(0, 2**64 - 2))
def test_the_oracle_is_numpys_generator_at_64_bits(key: tuple[int, int], block: int) -> None:
    """The oracle's rounds, with NumPy's word size and constants, give NumPy's stream."""
    generator = np.random.Philox(key=np.asarray(key, "uint64"), counter=np.asarray([block, 0, 0, 0], "uint64"))
    expected = [int(w) for w in generator.random_raw(4)]
    assert oracles.philox([block + 1, 0, 0, 0], list(key), oracles.PHILOX_64) == expected


@given(shape=shapes(), step=st.integers(0, 2**31 - 1), seed=st.integers(0, 2**64 - 1), stream=st.integers(0, 2**32 - 1))
def test_is_as_documented(shape: tuple[int, ...], step: int, seed: int, stream: int) -> None:
    for dtype in ("float32", "float64"):
        found = run_primitive(
            ops.random_uniform, np.asarray(step, "int32"), shape=shape, seed=seed, stream=stream, dtype=dtype
        )
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, oracles.random_uniform(step, shape, seed, stream))


@pytest.mark.parametrize("library", ["array_api_strict", "torch", "jax"])
@pytest.mark.parametrize("jitted", [False, True])
def test_same_bits_on_every_library(library: str, jitted: bool) -> None:
    backend = get_backend(library)
    attrs: dict[str, Any] = {"shape": (33, 5), "seed": 2**63 + 11, "stream": 2**32 - 1}
    step = np.asarray(2**31 - 1, "int32")
    expected = run_primitive(ops.random_uniform, step, **attrs)
    if jitted:
        program = Program()
        program.outputs["r"] = ops.random_uniform(program.input("step", (), "int32"), **attrs)
        made = backend.compile(program)({"step": backend.asarray(step)})["r"]
    else:
        made = ops.random_uniform.reference(backend.asarray(step), xp=backend.xp, **attrs)
    np.testing.assert_array_equal(backend.to_numpy(made), expected)


def test_is_uniform_and_without_order() -> None:
    attrs: dict[str, Any] = {"seed": 1, "stream": 0}
    x = run_primitive(ops.random_uniform, np.asarray(0, "int32"), shape=(100_000,), **attrs)
    assert 0 <= x.min() < x.max() < 1
    counts, _ = np.histogram(x, bins=20, range=(0, 1))
    assert np.sum((counts - 5000) ** 2 / 5000) < 43.8  # chi-squared with 19 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("change", [{"seed": 2}, {"seed": 1 + 2**32}, {"stream": 1}, {"step": 1}])
def test_seed_stream_and_step_give_other_numbers(change: dict[str, int]) -> None:
    def draw(step: int = 0, seed: int = 1, stream: int = 0) -> Any:
        at = np.asarray(step, "int32")
        return run_primitive(ops.random_uniform, at, shape=(1000,), seed=seed, stream=stream)

    assert np.mean(draw() == draw(**change)) < 0.01
    np.testing.assert_array_equal(draw(), draw())


def test_a_longer_draw_begins_with_the_shorter() -> None:
    step = np.asarray(7, "int32")
    long = run_primitive(ops.random_uniform, step, shape=(50,), seed=3, stream=4)
    for n in (0, 1, 4, 49):
        short = run_primitive(ops.random_uniform, step, shape=(n,), seed=3, stream=4)
        np.testing.assert_array_equal(short, long[:n])


def test_errors_and_cost() -> None:
    program = Program()
    step = program.input("step", (), "int32")
    attrs: dict[str, Any] = {"shape": (3,), "seed": 0, "stream": 0}
    assert ops.random_uniform(step, **attrs).node.cost.flops == 0
    with pytest.raises(TypeError, match=r"takes the step as an int32 scalar\. Received: float32\[\]"):
        ops.random_uniform(program.input("f", ()), **attrs)
    with pytest.raises(TypeError, match=r"draws float32 or float64.*Received: 'float16'"):
        ops.random_uniform(step, dtype="float16", **attrs)
    with pytest.raises(TypeError, match=r"random_uniform takes the keyword arguments.*missing: \['stream'\]"):
        ops.random_uniform(step, shape=(3,), seed=0)
