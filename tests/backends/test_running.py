"""Running Programs: node by node, kernels and references, strictness, explanations, and each backend's compile."""

from __future__ import annotations

import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.backends.base import Backend, node_by_node
from minicnn.backends.numpy import NumpyBackend
from minicnn.program import Node, Program, gradients
from support.backends import ON_CPUS, backend_or_skip
from support.numerics import assert_close
from support.strategies import normal, seeds


def _training_step() -> Program:
    """A small network, its gradients and its updates."""
    program = Program("train")
    images = program.input("images", (4, 6, 6, 2))
    labels = program.input("labels", (4,), "int32")
    shapes = {"conv": (3, 3, 2, 4), "dense": (16, 3)}
    params = {k: program.input(k, s, kind="parameter") for k, s in shapes.items()}
    moments = {k: program.input(f"{k}/v", s, kind="optimizer") for k, s in shapes.items()}
    rate = program.input("rate", ())
    h = ops.relu(ops.conv2d(images, params["conv"]))
    h = ops.max_pool2d(h, kernel=(2, 2), strides=(2, 2))
    loss = ops.mean(ops.softmax_cross_entropy(ops.reshape(h, shape=(4, 16)) @ params["dense"], labels))
    grads = gradients(program, loss, list(params.values()))
    with program.scope("sgd", "update"):
        for (name, p), g in zip(params.items(), grads, strict=True):
            program.updates[name], program.updates[f"{name}/v"] = ops.momentum_update(
                p, moments[name], g, rate, momentum=0.9
            )
    program.outputs["loss"] = loss
    return program


def _arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    program = _training_step()
    arrays = {
        v.name: (rng.standard_normal(v.shape) * (0.3 if v.kind != "optimizer" else 0)).astype("float32")
        for v in program.inputs
    }
    return arrays | {"labels": np.asarray([0, 2, 1, 1], "int32"), "rate": np.asarray(0.1, "float32")}


@pytest.mark.parametrize("name", ON_CPUS)
def test_a_training_step_runs_and_learns_alike(name: str) -> None:
    backend = backend_or_skip(name)
    program = _training_step()

    def train(backend: Backend) -> tuple[list[float], dict[str, Any]]:
        run = backend.compile(program)
        state = {k: backend.asarray(a) for k, a in _arrays().items()}
        losses = []
        for _ in range(5):
            made = run(state)
            assert set(made) == {"loss", *program.updates}
            losses.append(float(backend.to_numpy(made.pop("loss"))))
            state |= made
        return losses, {k: backend.to_numpy(state[k]) for k in program.updates}

    losses, weights = train(backend)
    expected_losses, expected = train(get_backend("numpy"))
    assert losses[-1] < losses[0]
    assert_close(np.asarray(losses), np.asarray(expected_losses), 100, dtype="float32")
    for key, array in expected.items():
        assert_close(weights[key], array, 100)


@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch"])
def test_what_the_caller_passes_stays_as_it_was(name: str) -> None:
    pytest.importorskip(name)
    backend = get_backend(name)
    before = _arrays()
    given = {k: backend.asarray(a) for k, a in before.items()}
    backend.compile(_training_step())(given)
    for key, array in given.items():
        np.testing.assert_array_equal(backend.to_numpy(array), before[key])


def test_torch_keeps_no_tape() -> None:
    torch = pytest.importorskip("torch")
    backend = get_backend("torch")
    given = {k: backend.asarray(a) for k, a in _arrays().items()}
    given["conv"].requires_grad_(True)
    made = backend.compile(_training_step())(given)
    assert not any(t.requires_grad for t in made.values())
    assert torch.is_grad_enabled()


def test_jax_gives_the_memory_of_carried_arrays_to_their_updates() -> None:
    pytest.importorskip("jax")
    backend = get_backend("jax")
    given = {k: backend.asarray(a) for k, a in _arrays().items()}
    backend.compile(_training_step())(given)
    backend.synchronize()
    assert {k for k, a in given.items() if a.is_deleted()} == set(_training_step().updates)


@pytest.mark.parametrize("name", ON_CPUS)
def test_inputs_and_constants_may_be_results(name: str) -> None:
    backend = backend_or_skip(name)
    program = Program()
    x, unread = program.input("x", (2,)), program.input("unread", (1,))
    program.outputs = {"same": x, "constant": program.constant(np.asarray([3.0, 4.0], "float32")), "twice": x + x}
    program.updates = {"unread": unread}
    one = backend.asarray(np.ones(1, "float32"))
    made = backend.compile(program)({"x": backend.asarray(np.asarray([1, 2], "float32")), "unread": one})
    found = {k: backend.to_numpy(a).tolist() for k, a in made.items()}
    assert found == {"same": [1, 2], "constant": [3, 4], "twice": [2, 4], "unread": [1]}


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_bfloat16_constants_and_gradients(name: str) -> None:
    pytest.importorskip(name)
    backend = get_backend(name)
    program = Program()
    x = program.input("x", (3,))
    y = ops.relu(ops.cast(x, dtype="bfloat16") * 1.5 + 1.0)
    (dx,) = gradients(program, ops.sum(y), [x])
    program.outputs = {"y": y, "dx": dx}
    made = backend.compile(program)({"x": backend.asarray(np.asarray([1, -2, 4], "float32"))})
    np.testing.assert_array_equal(backend.to_numpy(made["y"]), [2.5, 0, 7])
    np.testing.assert_array_equal(backend.to_numpy(made["dx"]), [1.5, 0, 1.5])


# Memory -------------------------------------------------------------------------------------------------


@given(seed=seeds)
def test_the_interpreter_lets_go_of_arrays_after_their_last_reader(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = Program()
    values: list[Any] = [program.input("x", (4,))]
    for _ in range(8):
        a, b = (values[i] for i in rng.integers(0, len(values), 2))
        if rng.integers(4):
            values.append(ops.add(a, b))
        else:
            values += ops.normalize(a, b, b, axes=(0,), epsilon=1.0)[: rng.integers(1, 3)]
            values = [v for v in values if v.shape == (4,)]
    program.outputs["y"] = values[-1]

    alive: dict[str, weakref.ref[Any]] = {}

    def function(i: int, node: Node, *inputs: Any) -> Any:
        for j, earlier in enumerate(program.nodes[:i]):
            for value in earlier.outputs:
                reads = [k for k, n in enumerate(program.nodes) if any(v is value for v in n.inputs)]
                needed = value is values[-1] or max([j, *reads]) >= i
                assert (alive[value.name]() is not None) == needed, (i, value)
        made = [np.zeros(v.shape) for v in node.outputs]
        alive.update({v.name: weakref.ref(a) for v, a in zip(node.outputs, made, strict=True)})
        return made[0] if len(made) == 1 else tuple(made)

    functions = [partial(function, i, node) for i, node in enumerate(program.nodes)]
    run = node_by_node(program, functions, np.asarray)
    assert set(run({"x": np.zeros(4)})) == {"y"}


def test_outputs_and_updates_have_different_names() -> None:
    program = Program()
    x = program.input("x", (2,))
    program.outputs["x"] = x * 2.0
    program.updates["x"] = x * 3.0
    with pytest.raises(ValueError, match=r"Outputs and updates of a Program have different names.*twice: x"):
        get_backend("numpy").compile(program)


def test_updates_are_like_the_inputs_they_replace() -> None:
    program = Program()
    x = program.input("x", (2,))
    program.updates["x"] = ops.cast(x, dtype="float64")
    with pytest.raises(
        ValueError, match=r"An update has the shape and dtype.*float64\[2\]> for <input x: float32\[2\]>"
    ):
        get_backend("numpy").compile(program)
    program.updates = {"y": x}
    with pytest.raises(KeyError, match="no input of that name"):
        get_backend("numpy").compile(program)


def test_a_program_compiles_once_and_runs_often() -> None:
    program = Program()
    program.outputs["y"] = program.input("x", (2,)) * 2.0
    run = get_backend("numpy").compile(program)
    for i in range(3):
        np.testing.assert_array_equal(run({"x": np.full(2, i, "float32")})["y"], 2 * i)


# Kernels ------------------------------------------------------------------------------------------------


class KernelBackend(NumpyBackend):
    """NumPy with kernels for two operations, one of them only for small arrays."""

    calls: list[str]

    def __init__(self, **flags: Any) -> None:
        super().__init__(**flags)
        self.calls = []

    def kernel(self, node: Node) -> Callable[..., Any] | str:
        """A kernel, or why there is none."""
        if node.op.name == "relu":
            return self._fast_relu
        if node.op.name == "exp":
            return partial(self._fast_exp, 1.0) if node.outputs[0].size < 10 else "too large: 10 elements or more"
        return super().kernel(node)

    def _fast_relu(self, x: Any) -> Any:
        self.calls.append("relu")
        return np.maximum(x, 0)

    def _fast_exp(self, scale: float, x: Any) -> Any:
        self.calls.append("exp")
        return np.exp(x) * scale


def _mixed_program() -> Program:
    program = Program("mixed")
    x = program.input("x", (3,), "float64")
    with program.scope("head"):
        wide = ops.exp(ops.broadcast_to(ops.reshape(ops.exp(ops.relu(x)), shape=(3, 1)), shape=(3, 4)))
    program.outputs["y"] = wide
    return program


def test_kernels_run_where_the_backend_has_them() -> None:
    backend, x = KernelBackend(), normal((3,), 0)
    made = backend.compile(_mixed_program())({"x": x})["y"]
    assert backend.calls == ["relu", "exp"]
    np.testing.assert_allclose(made, np.repeat(np.exp(np.exp(np.maximum(x, 0)))[:, None], 4, 1))


PAGES = """
import resource
import numpy as np
from minicnn import Sequential
from minicnn.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D
layers = [Input((28, 28, 1)), Conv2D(8, 3, activation="relu"), MaxPooling2D(), Flatten(), Dense(3)]
model = Sequential(layers, backend="numpy")
model.compile("sgd", "mse")
x, y = np.zeros((512, 28, 28, 1), "float32"), np.zeros((512, 3), "float32")
model.fit(x, y, batch_size=512, epochs=2, verbose=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
model.fit(x, y, batch_size=512, epochs=5, verbose=0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_arrays_of_a_step_take_the_memory_of_the_last() -> None:
    """A new page takes as long as computing what lies on it: they were 5,000 a step."""
    run = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 500, "pages of 4 kB in five steps of some 20 MB each"


def test_explain_names_the_kernel_or_the_reason() -> None:
    rows = [(node.op.name, text) for node, text in KernelBackend().explain(_mixed_program())]
    assert rows == [
        ("relu", "kernel: _fast_relu"),
        ("exp", "kernel: _fast_exp"),
        ("reshape", "reference: the numpy backend has no kernels"),
        ("broadcast_to", "reference: the numpy backend has no kernels"),
        ("exp", "reference: too large: 10 elements or more"),
    ]


def test_reference_only_switches_kernels_off() -> None:
    backend = KernelBackend(reference_only=True)
    x = normal((3,), 0)
    made = backend.compile(_mixed_program())({"x": x})["y"]
    assert backend.calls == []
    np.testing.assert_allclose(made, KernelBackend().compile(_mixed_program())({"x": x})["y"])
    assert {text for _, text in backend.explain(_mixed_program())} == {"reference: reference_only is set"}


def test_strict_turns_a_silent_fallback_into_an_error() -> None:
    with pytest.raises(
        RuntimeError, match=r"strict=True.*Received 3 without one, first .*reshape.* in head: the numpy"
    ):
        KernelBackend(strict=True).compile(_mixed_program())
    program = Program()
    program.outputs["y"] = ops.relu(program.input("x", (3,)))
    backend = KernelBackend(strict=True)
    backend.compile(program)({"x": np.ones(3)})
    assert backend.calls == ["relu"]


@pytest.mark.parametrize("name", ON_CPUS)
def test_strict_on_backends_without_kernels_of_float64(name: str) -> None:
    backend = type(backend_or_skip(name))(strict=True)
    with pytest.raises(RuntimeError, match=f"every node needs a kernel of the {name} backend"):
        backend.compile(_mixed_program())
