"""Settings of all tests: hypothesis profiles (HYPOTHESIS_PROFILE=dev, ci or nightly), precision, clean registries."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.campaign import EVERY_CASE

# Libraries read these variables when they are loaded, and processes that tests start inherit them.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER:  # workers share the cores, and the memory of a GPU, of which JAX would take three quarters at once
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with suppress(ImportError):  # as in the simulator's environment
        from threadpoolctl import threadpool_limits

        threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]))  # a plugin of pytest may have loaded NumPy before
elif "MINICNN_TESTS" not in os.environ:
    FOLDER = tempfile.TemporaryDirectory(prefix="minicnn-tests-")  # removed when Python ends
    os.environ["MINICNN_TESTS"] = FOLDER.name

# Each process that a test starts would compile all of minicnn anew, for a third of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# SciPy reads it when it is loaded, and without it scikit-learn takes arrays of NumPy alone.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# What one test has compiled the others load. All workers share minicnn's own folder; JAX writes its files in place, so
# each has one.
CODE = Path(os.environ["MINICNN_TESTS"])
os.environ.setdefault("MINICNN_CACHE", str(CODE / "minicnn"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CODE / f"jax{WORKER}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Drawing an example has no deadline, either: other programs may keep the cores busy.
any_time = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", any_time, max_examples=10)
settings.register_profile("ci", any_time, max_examples=20, derandomize=True)
settings.register_profile("nightly", any_time, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Folders that answer in a minute, without the cases that compile.
QUICK, COMPILING = {"callbacks", "layers", "models", "ops", "program", "zoo"}, ("jax", "numba")

# Backends, and libraries of arrays, that come with an extra or for tests.
OPTIONAL = ("array_api_strict", "jax", "mlx", "numba", "torch")

# Hardly a line of src is run by a later case of a test only, and where many are, the test has the marker `cover`. In
# these cases lines are not counted, which makes Python up to twice as slow.
FIRST = 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the markers `quick`, `further` and `no_cover`, and leave out what is for the night."""
    if not EVERY_CASE:
        left = {item for item in left_out(items) if not is_named(item, config.args)}
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    cases: Counter[tuple[str, bool]] = Counter()
    for item in items:
        if item.path.parent.name in QUICK and not any(name in item.name for name in COMPILING):
            item.add_marker(pytest.mark.quick)
        if not any(item.iter_markers("cover")):
            kind = item.nodeid.partition("[")[0], any(item.iter_markers("no_cover"))
            cases[kind] += 1
            if cases[kind] > FIRST:
                item.add_marker(pytest.mark.further)
                item.add_marker(pytest.mark.no_cover)


def is_named(item: pytest.Item, arguments: list[str]) -> bool:
    """Whether an argument of the command names a test or its class, perhaps with a parameter: it runs by day, too."""
    name, places = item.nodeid.partition("::")[2], (argument.partition("::") for argument in arguments)
    named = [test for file, _, test in places if test and Path(file).resolve() == item.path]
    return any(name == test or name.startswith((f"{test}[", f"{test}::")) for test in named)


def left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """By day: tests with the marker `night`, and of those with `sampled(n)` all but n cases, spread evenly over all."""
    left = {item for item in items if item.get_closest_marker("night")}
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("sampled")
        count = min(marker.args[0], len(cases)) if marker else len(cases)
        left |= set(cases) - {cases[k * len(cases) // count] for k in range(count)}
    return left


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a case whose parameter `backend` or `library` names one that is not installed."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in ("backend", "library"):
        if parameters.get(name) in OPTIONAL:
            pytest.importorskip(parameters[name])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """In the processes of a test with the marker `no_cover` coverage does not look, either."""
    hidden = {}
    if item.get_closest_marker("no_cover"):
        hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COVERAGE_PROCESS")}
    try:
        return (yield)
    finally:
        os.environ.update(hidden)


@pytest.fixture(scope="module", autouse=True)
def libraries_are_no_garbage() -> None:
    """What is there stays: looking through all of PyTorch and JAX for garbage took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """PyTorch computes with one thread, on which its bits depend."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def jax_in_64_bits() -> Iterator[None]:
    """JAX has float64; the context manager for it is not in every version."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def registry() -> Iterator[None]:
    """Forgets the primitives that a test defines, and their kernels."""
    from minicnn.kernels.elements import ELEMENTS
    from minicnn.ops import REGISTRY

    tables: list[tuple[dict[str, Any], dict[str, Any]]] = [(t, dict(t)) for t in (REGISTRY, ELEMENTS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)
