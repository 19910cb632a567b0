"""Times of single nodes, memory at each stage, and the trainers' common ground."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from minicnn.backends import get_backend
from minicnn.jobs import job
from minicnn.measure import Worker
from minicnn.measure.operations import apart, step_inputs, step_times
from minicnn.measure.parity import parity
from minicnn.measure.trainer import USUAL, Work
from minicnn.measure.trainers import gradient_tolerance, settings_of, trainer
from minicnn.models import Model
from support.numba_check import without_jit
from support.small_training import compiled, digits
from support.tolerances import ELEMENT, STEP, SUM

SETTINGS = settings_of("platforms", "synthetic_digits", samples=40, batch_size=16, epochs=1)


def inputs(model: Model) -> tuple[Any, dict[str, Any]]:
    x, y = digits(6)
    program = model.program("train", batch_size=6)
    return program, step_inputs(model, program, {"x": x, "y": y, "learning_rate": np.float32(0.1)})


def test_each_node_of_a_step_is_timed_while_the_step_runs() -> None:
    model = compiled("numpy")
    program, arrays = inputs(model)
    how, found = step_times(model.backend, program, arrays, repeats=3) or ("", [])
    assert how == "nodes"
    assert [n.op for n in found].count("conv2d") == 1
    assert {n.phase for n in found} == {"forward", "backward", "update"}
    assert all(len(n.seconds) == 3 and min(n.seconds) > 0 for n in found)
    assert next(n for n in found if n.op == "conv2d").flops > 0
    assert "functions" not in vars(model.backend), "the backend itself is not changed"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["numba", "jax"])
def test_a_step_that_is_merged_has_times_of_nodes_apart_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    if name == "numba":  # which would compile each node
        without_jit(monkeypatch)
    model = compiled(name)
    program, arrays = inputs(model)
    assert step_times(get_backend(name), program, arrays, repeats=1) is None
    program, arrays = inputs(model)
    made: dict[str, list[Any]] = {}
    for backend in (get_backend(name), get_backend("numpy")):
        with monkeypatch.context() as patch:
            patch.setattr(backend, "compile", recorded(backend, made.setdefault(backend.name, [])))
            given = {key: backend.asarray(np.asarray(array)) for key, array in arrays.items()}
            found = apart(backend, program, given, repeats=2)
        assert [n.op for n in found] == [n.op.name for n in program.nodes]
        assert all(len(n.seconds) == 2 and min(n.seconds) > 0 for n in found)
    assert len(made[name]) == len(made["numpy"]) == 3 * len(program.nodes)
    for one, other in zip(made[name], made["numpy"], strict=True):
        for key, array in other.items():
            np.testing.assert_allclose(one[key], array, rtol=STEP, atol=ELEMENT)


def recorded(backend: Any, results: list[Any]) -> Any:
    """The backend's `compile`, with what its Programs return put into a list."""
    compile_program = backend.compile

    def compiled_too(program: Any) -> Any:
        run = compile_program(program)

        def call(arrays: Any) -> Any:
            made = run(arrays)
            results.append({key: np.array(backend.to_numpy(array)) for key, array in made.items()})
            return made

        return call

    return compiled_too


def test_the_time_of_a_kernel_is_divided_among_its_nodes_by_operations_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = compiled("numpy")
    program, arrays = inputs(model)

    class Merged:
        runs = 0

        def __call__(self, given: Any) -> Any:
            self.runs += 1
            return given

        def launch_times(self, given: Any, repeats: int) -> Any:
            assert given.keys() == arrays.keys()
            assert self.runs <= 2, "it is not run as often as nodes would be"
            first = program.nodes[:5]
            return [(first, [0.5] * repeats), (program.nodes[5:], [0.25] * repeats)]

    monkeypatch.setattr(model.backend, "compile", lambda _: Merged())
    assert step_times(model.backend, program, arrays, repeats=2, merged=False) is None
    how, found = step_times(model.backend, program, arrays, repeats=2) or ("", [])
    assert how == "merged"
    assert [n.op for n in found] == [n.op.name for n in program.nodes]
    assert sum(n.seconds[0] for n in found[:5]) == pytest.approx(0.5)
    assert sum(n.seconds[1] for n in found[5:]) == pytest.approx(0.25)
    assert all(n.seconds[0] > 0 for n in found if n.op == "relu"), "what is merged into a convolution is not free"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("network", "work"), [("mlp", Work(scaled=True)), ("platforms", USUAL), ("kernels", Work(scaled=True))]
)
def test_candidates_compute_the_same_and_go_on_as_if_nobody_had_looked(network: str, work: Work) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    batch = {} if network == "mlp" else {"batch_size": 16}
    settings = settings_of(network, "synthetic_digits", samples=40, hold_out=0, **batch)
    names = [
        "numpy",
        "torch.nn:cpu",
        "jax.lax:cpu",
        *(["torch:cpu", "torch.nn-loader:cpu"] if network == "platforms" else []),
    ]
    trainers = {name: trainer(name, settings, work=work) for name in names}
    if network == "mlp":
        check_forward(*(trainers[name] for name in ("numpy", "torch.nn:cpu", "jax.lax:cpu")))
    for epoch in (0, 1):
        probes = {n: t.probe(epoch) for n, t in trainers.items()}
        assert parity(probes, "numpy", gradient_tolerance(settings)) == {}
    train = "train_whole" if network == "mlp" else "train_epoch"
    rows = {n: getattr(t, train)(*([2] if network == "mlp" else [])) for n, t in trainers.items()}
    losses = [row["loss"] for row in rows.values()]
    assert losses == pytest.approx([losses[0]] * len(names), rel=STEP)
    tests = [t.evaluate("test") for t in trainers.values()]
    assert [t["loss"] for t in tests] == pytest.approx([tests[0]["loss"]] * len(names), rel=STEP)
    assert len({t["accuracy"] for t in tests}) == 1
    assert all(row["time_s"] > 0 and row["peak_mb"] >= row["process_mb"] > 10 for row in rows.values())


def check_forward(model: Any, *peers: Any) -> None:
    """A forward pass is the same for all."""
    expected = model.model.evaluate(*model.data, len(model.data[1]), return_dict=True)
    for peer in peers:
        loss, hits = peer._forward(3)
        assert loss == pytest.approx(expected["loss"], rel=STEP)
        assert hits == round(expected["accuracy"] * len(model.data[1]))
    assert all(t.forward() > 0 for t in (model, *peers))


def test_a_loader_with_workers_gives_the_same() -> None:
    pytest.importorskip("torch")
    with Worker("torch.nn-loader:cpu", trainer, "torch.nn-loader:cpu", SETTINGS, {"workers": 1}) as worker:
        found = worker.call("train_epoch")
    alone = trainer("torch.nn-loader:cpu", SETTINGS).train_epoch()
    assert found["loss"] == pytest.approx(alone["loss"], rel=SUM)


def test_a_probe_leaves_no_trace() -> None:
    looked, not_looked = trainer("numpy", SETTINGS), trainer("numpy", SETTINGS)
    assert looked.probe(0).loss != looked.probe(1).loss, "the batch is another"
    rows = [t.train_epoch() for t in (looked, not_looked)]
    assert rows[0]["loss"] == rows[1]["loss"]
    assert looked.evaluate("test")["loss"] == not_looked.evaluate("test")["loss"]


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = trainer("numpy", SETTINGS).probe()
    wrong = partial(trainer, "numpy", SETTINGS)()
    weights = wrong.model.get_weights  # type: ignore[attr-defined]
    calls = iter([0.0, 1e-3])

    def bent() -> dict[str, np.ndarray[Any, Any]]:
        found = weights()
        found["conv2/kernel"][0, 0, 0, 0] += next(calls)
        return found

    monkeypatch.setattr(wrong.model, "get_weights", bent)  # type: ignore[attr-defined]
    refused = parity({"numpy": right, "other": wrong.probe()}, "numpy", gradient_tolerance(SETTINGS))
    assert refused.keys() == {"other"}
    assert "its gradient of conv2/kernel differs from numpy's by" in refused["other"]


def test_the_account_of_memory_adds_up() -> None:
    with Worker("numpy", trainer, "numpy", SETTINGS) as worker:
        worker.call("train_epoch")
        account = worker.call("account")
    plan = account["plan"]
    assert 10 < account["bare_mb"] < account["library_mb"] < account["samples_mb"] + 1 <= account["peak_mb"] + 1
    assert account["others_mb"] == pytest.approx(40 * (28 * 28 + 4) / 1e6)  # test samples
    assert plan["peak"] >= plan["arena"] > 0
    assert account["device_mb"] is None


def test_images_can_be_scaled_beforehand() -> None:
    samples = job.load_samples(SETTINGS)
    scaled = samples.scaled()
    assert scaled["x_train"].dtype == np.float32
    assert scaled.held_out is samples.held_out is False
    np.testing.assert_array_equal(scaled["x_train"], samples["x_train"].astype(np.float32) / np.float32(255))
    assert scaled["y_train"] is samples["y_train"]


def test_a_step_of_the_study_mlp_does_what_the_published_one_does() -> None:
    settings = settings_of("mlp", "synthetic_digits", samples=200, hold_out=50)
    ours = trainer("numpy", settings, work=Work(scaled=True, rows=True, accuracy=False))
    found = ours.nodes(1)
    assert found is not None
    assert not {n["op"] for n in found["nodes"]} & {"reshape", "argmax"}, "no copy of the input, no accuracy"
    row = ours.train_whole(2)
    assert "accuracy" not in row
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    for peer in (trainer(name, settings, work=ours.work) for name in ("torch.nn:cpu", "jax.lax:cpu")):
        assert peer.train_whole(2)["loss"] == pytest.approx(row["loss"], rel=SUM)
        assert peer.evaluate("val")["accuracy"] == ours.evaluate("val")["accuracy"]


class LikeAGpu:
    """NumPy as on a device for which the host has to wait: half a millisecond each time."""

    device = "cuda"

    def __init__(self) -> None:
        self._backend = get_backend("numpy")

    def synchronize(self) -> None:
        time.sleep(0.0005)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_waiting_for_a_gpu_is_no_part_of_an_operation() -> None:
    program, arrays = inputs(compiled("numpy"))
    backend: Any = LikeAGpu()
    small = [min(n.seconds) for n in apart(backend, program, arrays, repeats=2) if n.bytes_moved < 10_000]
    assert np.quantile(small, 0.25) < 0.0005  # others may be disturbed; with the wait, all would take longer


def test_frozen_layers_keep_their_weights_and_normalised_pixels_have_mean_0_and_deviation_1() -> None:
    settings = settings_of("platforms", "synthetic_digits", samples=64, epochs=1, batch_size=32)
    samples, backend = job.load_samples(settings), get_backend("numpy")
    model = job.make_model(settings, samples, backend, frozen="conv", normalised=True)
    pixels = samples["x_train"].astype(np.float64) / 255
    scaled = ((samples["x_test"] / 255 - pixels.mean()) / pixels.std()).astype(np.float32)
    plain = job.make_model(settings, replace(samples, arrays={**samples.arrays, "x_train": scaled}), backend)
    np.testing.assert_allclose(model.predict(samples["x_test"]), plain.predict(scaled), rtol=STEP, atol=SUM)
    before = model.get_weights()
    model.fit(samples["x_train"], samples["y_train"], 32, 1, 0)
    changed = {path for path, weight in model.get_weights().items() if (weight != before[path]).any()}
    assert {path.split("/")[0] for path in changed} == {"hidden", "logits"}
