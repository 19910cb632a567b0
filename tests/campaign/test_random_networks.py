"""Random networks, trained for five steps on every backend, come to what NumPy computes in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.cupy.emulator import needs_gxx
from support import random_networks
from support.campaign import FULL, NAMED, NIGHT, seconds_left, size
from support.killed import start

# Networks of an ordinary run: the first, and how many. One takes a tenth of a second with PyTorch, three with JAX, and
# up to ten with Numba, which compiles three steps; that is for the whole campaign. JAX was once wrong by 19,000
# tolerances on network 71, where XLA computed the elements of a maximum anew. The CUDA engines run without a GPU:
# the kernels of cupy on the host, whose memory accesses are checked, those of numba_cuda in the simulator.
SMALL = {
    "torch:cpu": (0, 5), "jax:cpu": (71, 1), "array_api_strict": (0, 5), "emulated": (49, 1), "numba_cuda": (7, 1),
    "webgpu": (3, 1),
} | ({"numba": (0, 0)} if FULL else {})  # fmt: skip
PARTS = size(10, 1)
# Many processes share a GPU and the processor: none takes all of the memory, or a pool of its own to compile with.
ENVIRONMENT = {
    "JAX_ENABLE_X64": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TORCHINDUCTOR_COMPILE_THREADS": "1",
}  # fmt: skip


@pytest.mark.no_cover
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "backend", NAMED or [pytest.param(b, marks=needs_gxx) if b == "emulated" else b for b in SMALL]
)
def test_five_steps(backend: str, part: int, tmp_path: Path) -> None:
    if not NAMED and backend != "emulated":  # one that is asked for is there, or the test fails
        pytest.importorskip({"webgpu": "backends.webgpu.running"}.get(backend, backend.partition(":")[0]))
    if (left := seconds_left()) <= 0:
        pytest.skip(f"the time was over before {backend} had its turn")
    first, count = (part * (300 // PARTS), 300 // PARTS) if FULL else SMALL.get(backend, (0, 5))
    environment = {**ENVIRONMENT, "MINICNN_CACHE": str(tmp_path), "NUMBA_ENABLE_CUDASIM": "0" if NAMED else "1"}
    process = start(backend, first, count, left, module="support.random_networks", **environment)
    with process:
        *wrong, done = process.communicate()[0].splitlines() or [""]
    assert (wrong, process.returncode) == ([], 0)
    if int(done) < count:
        pytest.skip(f"the time was over after {done} of {count} networks of {backend}, none of which disagreed")


@pytest.mark.skipif(not NIGHT, reason="compiles for ten seconds; a smaller test of tests/ops shows the same by day")
def test_images_between_pixels_on_jax() -> None:
    """Once wrong by 174 tolerances: pixels and weights of one place, which XLA computed anew for each."""
    pytest.importorskip("jax")
    assert random_networks.disagreement(153, random_networks.find("jax:cpu")) == ""


def test_a_network_follows_from_its_seed_and_seeds_differ() -> None:
    (one, _), (same, _), (other, _) = (random_networks.train(seed, "numpy", "float64") for seed in (3, 3, 4))
    assert set(one) != set(other)
    for name, array in one.items():
        np.testing.assert_array_equal(same[name], array)


def test_networks_have_layers_of_all_kinds() -> None:
    found: set[str] = set()
    for seed in range(150):
        found |= {type(layer).__name__ for layer in random_networks.network(seed, "numpy")[0].layers}
    from minicnn import layers

    classes = {c.__name__ for c in map(layers.__dict__.get, layers.__all__) if isinstance(c, type)}
    assert classes - found <= {"Layer", "CategoryEncoding", "Embedding"}


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_gradient_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that move by a thousandth more than they should are no rounding."""
    train = random_networks.train

    def wrong(seed: int, backend: Any, *args: Any) -> Any:
        found, terms = train(seed, backend, *args)
        return ({k: a * 1.001 for k, a in found.items()} if backend != "numpy" else found), terms

    numpy = random_networks.find("numpy")
    assert random_networks.disagreement(seed, numpy) == ""
    monkeypatch.setattr(random_networks, "train", wrong)
    assert "is off by" in random_networks.disagreement(seed, numpy)
