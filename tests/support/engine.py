"""What an engine does around its kernels, whichever runtime it has: queues, graphs, uploads, stages, predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backends.cupy.networks import NETWORKS, data
from minicnn import Sequential, get_backend, gradients, layers, losses, metrics, ops
from minicnn.backends._gpu import staging
from minicnn.backends._gpu.options import Options
from minicnn.loop.totals import Totals
from minicnn.measure.operations import step_inputs, step_times
from minicnn.optimizers import SGD
from minicnn.program import Program
from minicnn.schedules import CosineDecay
from support.kernel_check import train_by_steps
from support.overwritten import CASES, check_program, losses_with_heavy_ball
from support.steps import evaluated, one_step
from support.tolerances import ELEMENT, STEP, SUM, TRAINING

FROM_HOST = (
    Options(resident=False), Options(resident=False, pinned=False), Options(resident=False, graph=False),
    Options(data_bytes=1500),  # small slots
)  # fmt: skip


def assert_same(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    """Equal to the last bit."""
    for one, other in zip(a, b, strict=True):
        if isinstance(one, dict) and one and isinstance(next(iter(one.values())), np.ndarray):
            assert one.keys() == other.keys()
            for key, array in one.items():
                np.testing.assert_array_equal(other[key], array, err_msg=key)
        else:
            np.testing.assert_array_equal(one, other)


class EngineSteps:
    """Tests of an engine; a subclass says which.

    Attributes:
        networks: Names of the networks that are trained.
        samples: How many samples they are trained on.
        steps: How many steps are taken together; more than the 16 of one graph.
        graphs: Whether the runtime has graphs.
        rows: Rows, of 32 bytes each, of the largest array: of more elements than 32 bits count, where arrays may be so.
    """

    networks: tuple[str, ...] = ("mlp",)
    samples = 40
    steps = 37
    graphs = True
    rows = 2**31 // 32 + 9

    def make(self, options: Options | None = None) -> Any:
        """The engine's backend, with steps taken together even where there are no graphs."""
        raise NotImplementedError

    def trained(self, network: str, options: Options | None, *given: Any, **fit: Any) -> tuple[Any, ...]:
        """History, weights, predictions and evaluation."""
        model = NETWORKS[network](self.make(options))
        x, y = (a[: self.samples] for a in data())
        history = model.fit(*(given or (x, y)), batch_size=9, epochs=2, verbose=0, **fit)
        scores = model.evaluate(x, y, 11, return_dict=True)
        return history.history["loss"], model.get_weights(), model.predict(x, 7), sorted(scores.items())

    def test_many_steps_at_once_are_the_same_steps_with_graphs_and_without(self) -> None:
        ways = [(Options(graph=self.graphs), True), (Options(graph=self.graphs), False), (Options(graph=False), True)]
        for network in self.networks:
            # Without graphs the first way is the last.
            made = [train_by_steps(self.make(o), network, self.steps, at_once=way) for o, way in dict.fromkeys(ways)]
            for other in made[1:]:
                assert_same(made[0], other)

    @pytest.mark.parametrize("case", CASES)
    def test_what_is_overwritten_is_handed_out_as_it_was(self, case: str) -> None:
        for options in (Options(), Options(fused=False)):
            check_program(case, self.make(options))

    def test_an_optimizer_that_remembers_the_weights(self) -> None:
        expected = losses_with_heavy_ball("numpy")
        assert losses_with_heavy_ball(self.make()) == pytest.approx(expected, rel=SUM)

    def test_data_from_the_host_give_the_same_bits(self) -> None:
        x, y = (a[: self.samples] for a in data())
        weight = np.linspace(0.5, 2, len(y)).astype("float32")
        extra: dict[str, Any] = {"validation_data": (x[:13], y[:13]), "sample_weight": weight}
        for network in self.networks:
            expected = self.trained(network, None, **extra)
            for options in FROM_HOST:
                # Without graphs there is nothing to switch off, and no memory that is pinned.
                if self.graphs or (options.graph and options.pinned):
                    assert not self.make(options).keeps(x.nbytes)
                    assert_same(expected, self.trained(network, options, **extra))

    def test_a_loader_gives_the_same_bits(self) -> None:
        x, y = (a[: self.samples] for a in data())
        batches = [(x[i : i + 9], y[i : i + 9]) for i in range(0, len(y), 9)]
        for network in self.networks:
            assert_same(self.trained(network, None, shuffle=False), self.trained(network, None, batches))

    def test_a_written_step_has_a_learning_rate_for_each_of_its_optimizers(self) -> None:
        """Rates that are other ones in each of many steps at once; as on NumPy."""

        class Apart(Sequential):
            def __init__(self, backend: Any) -> None:
                super().__init__([layers.Input((4,)), layers.Dense(3, "tanh"), layers.Dense(2)], backend=backend)
                self.slow, self.fast = SGD(CosineDecay(0.01, 6)), SGD(CosineDecay(0.3, 4), momentum=0.9)

            def train_step(self, data: Any) -> dict[str, Any]:
                first, *others = self.trainable_weights
                loss = ops.mean(ops.square(self(data) - 1.0))
                slopes = gradients(loss, [first, *others])
                self.slow.apply(slopes[:1], [first])
                self.fast.apply(slopes[1:], others)
                return {"loss": loss}

        x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
        trained = []
        for backend in ("numpy", self.make(), self.make(Options(graph=False))):
            model = Apart(backend)
            model.compile()
            logs = model.fit(x, batch_size=3, epochs=2, verbose=0).history
            trained.append((logs["loss"], model.get_weights()))
        for curve, weights in trained[1:]:
            np.testing.assert_allclose(curve, trained[0][0], rtol=SUM)
            for path, array in weights.items():
                np.testing.assert_allclose(array, trained[0][1][path], rtol=STEP, atol=ELEMENT, err_msg=path)

    def test_places_that_are_ignored_or_weighed(self) -> None:
        """Weights, losses and metrics of a segmentation, its data on the device or on the host, as on NumPy."""
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(11, 2, 3, 2)).astype("float32"), rng.integers(0, 3, (11, 2, 3)).astype("int32")
        weight, y[rng.random(y.shape) < 0.4] = rng.random(y.shape).astype("float32"), 255
        made: list[tuple[Any, ...]] = []
        for backend in ("numpy", *(self.make(options) for options in (None, Options(resident=False)))):
            model = Sequential([layers.Input((2, 3, 2)), layers.Dense(3)], backend=backend)
            loss = losses.SparseCategoricalCrossentropy(True, ignore_class=255)
            iou = metrics.MeanIoU(3, ignore_class=255, sparse_y_pred=False)
            model.compile("sgd", loss, ["accuracy", loss, iou, "confusion_matrix"])
            history = model.fit(x, y, 4, 2, 0, sample_weight=weight).history
            made.append((model.get_weights(), *history.values()))
        assert_same(made[1], made[2])
        for one, other in zip(made[0], made[1], strict=True):
            for a, b in zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else [(one, other)]:
                np.testing.assert_allclose(b, a, rtol=SUM, atol=ELEMENT)

    def test_counts_go_on_beyond_what_float32_holds(self) -> None:
        """Steps together and one by one; a step of 3 samples makes the count odd."""
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(3, 2)).astype("float32"), np.array([0, 1, 1], "int32")
        model = Sequential([layers.Input((2,)), layers.Dense(2)], backend=self.make())
        model.compile("sgd", losses.SparseCategoricalCrossentropy(True), ["accuracy", "confusion_matrix"])
        right = int((model.predict(x).argmax(axis=1) == y).sum())
        run = one_step(model, x, y)
        one = evaluated(model, run)
        full, asarray = 2**24 - 3, model.backend.asarray
        sums = {n: asarray(np.full(a.shape, full, "float32")) for n, a in one.arrays.items()}
        for parts in ([5], [1, 1, 3]):
            totals = Totals(dict(sums), {}, 1, full)
            for steps in parts:
                totals = evaluated(model, replace(run, steps=steps), totals)
            logs = model._training.logs(totals)
            assert logs["accuracy"] == (full + 5 * right) / (full + 15)
            assert logs["confusion_matrix"].sum() == 4 * full + 15

    def test_predictions_of_many_batches_are_those_of_one(self) -> None:
        x = np.concatenate([data()[0][: self.samples]] * 2)
        for network in self.networks:
            models = [NETWORKS[network](self.make(Options(graph=graph))) for graph in {self.graphs, False}]
            assert models[0].backend.predictions_at_once > 1
            expected = models[0].predict(x[:3], 3)
            for size in (3, len(x) - 1, len(x) + 9):  # many batches, a last one of another size, a single one
                found = [m.predict(x, size) for m in models]
                assert found[0].shape == (len(x), 5)
                np.testing.assert_array_equal(found[0], found[-1])
                np.testing.assert_allclose(found[0][:3], expected, rtol=SUM, atol=ELEMENT)
            backend = models[0].backend
            on_device = models[0].predict(backend.asarray(x), 3)
            np.testing.assert_array_equal(backend.to_numpy(on_device), models[0].predict(x, 3))

    def test_outputs_of_every_step_are_collected_whatever_their_width(self) -> None:
        program = Program()
        x, index = program.input("x", (40, 3), "uint8"), program.input("index", (3,), "int32")
        program.outputs = {"bytes": ops.take(x, index), "words": ops.cast(ops.take(x, index), dtype="float32") * 0.5}
        array, rows = np.arange(120, dtype="uint8").reshape(40, 3), np.arange(39, dtype="int32").reshape(13, 3)
        backend = self.make()
        run: Any = backend.compile(program)
        whole = backend.asarray(array)
        for given in (rows[:2], rows, backend.asarray(rows)):  # the queue grows
            made = run.many({"x": whole}, {"index": given}, len(given))
            expected = array[: 3 * len(given)]
            np.testing.assert_array_equal(backend.to_numpy(made["bytes"]).reshape(-1, 3), expected)
            np.testing.assert_array_equal(backend.to_numpy(made["words"]).reshape(-1, 3), expected * 0.5)
        one = run({"x": whole, "index": rows[4]})
        np.testing.assert_array_equal(backend.to_numpy(one["bytes"]), array[12:15])

    def bytes_of(self, backend: Any, shape: tuple[int, ...]) -> Any:
        """An array of bytes on the device, of any content; where that is the host, no page of it is touched."""
        return backend.runtime.empty(shape, "uint8")

    def test_rows_of_a_very_large_array_are_gathered_in_graphs(self) -> None:
        """By kernels of their own, beside a product, and by a region that begins with the product."""
        backend, rng, samples = self.make(), np.random.default_rng(0), self.rows
        index = np.array([0, samples - 10, samples - 9, samples - 1, 5], "int32")
        whole, given = self.bytes_of(backend, (samples, 32)), rng.integers(0, 256, (5, 32)).astype("uint8")
        for row, at in zip(given, index, strict=True):
            backend.runtime.copy(backend.asarray(row), backend.runtime.view(whole, int(at) * 32, (32,), "uint8"))
        for columns in (0, 4, 40):
            program = Program()
            x = ops.take(program.input("x", (samples, 32), "uint8"), program.input("index", (5,), "int32"))
            rows = ops.cast(x, dtype="float32") * 0.5
            arrays, expected = {"x": whole, "index": index}, given * 0.5
            if columns:
                weight = rng.normal(size=(32, columns)).astype("float32")
                matrix = program.input("weight", weight.shape, kind="parameter")
                rows = ops.relu(ops.matmul(rows, matrix, transpose_a=False, transpose_b=False))
                arrays["weight"], expected = backend.asarray(weight), np.maximum(expected @ weight, 0)
            program.outputs["rows"] = rows
            run: Any = backend.compile(program)
            assert run.captures == self.graphs
            np.testing.assert_allclose(backend.to_numpy(run(arrays)["rows"]), expected, rtol=SUM, atol=TRAINING)

    def test_the_host_goes_on_while_rows_are_copied(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows that come through pinned memory, as they are, or as one row that is repeated."""
        program = Program()
        total = program.input("total", (3,), kind="metric")
        program.updates["total"] = total * 2.0 + program.input("learning_rate", (3,))
        rows = np.random.default_rng(0).normal(size=(6, 4, 3)).astype("float32")
        rows[3:] = rows[3:, :1]
        given = [*rows[:3], *(np.broadcast_to(r[0], r.shape) for r in rows[3:])]
        expected = np.ones(3)
        for row in rows.reshape(-1, 3):
            expected = expected * 2 + row
        for pinned in (staging.PINNED_BYTES, 0):
            monkeypatch.setattr(staging, "PINNED_BYTES", pinned)
            monkeypatch.setattr(staging, "BROADCAST_BYTES", 0)
            backend = self.make()
            run: Any = backend.compile(program.copy())
            made = {"total": backend.asarray(np.ones(3, "float32"))}
            for each in given:
                made = run.many(made, {"learning_rate": each}, 4)
            np.testing.assert_allclose(backend.to_numpy(made["total"]), expected, rtol=STEP)

    def test_rows_that_are_one_row_again_and_again_are_sent_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        program = Program()
        total = program.input("total", (3,), kind="metric")
        program.updates["total"] = total + program.input("learning_rate", (3,)) * 2.0
        backend, sent = self.make(), list[int]()
        run: Any = backend.compile(program)
        ones, send = backend.asarray(np.ones(3, "float32")), backend.runtime.send
        monkeypatch.setattr(backend.runtime, "send", lambda a, *rest: sent.append(a.nbytes) or send(a, *rest))
        monkeypatch.setattr(staging, "BROADCAST_BYTES", 0)
        rows = np.broadcast_to(np.arange(3, dtype="float32"), (4, 3))
        made = run.many({"total": ones}, {"learning_rate": rows}, 4)
        np.testing.assert_array_equal(backend.to_numpy(made["total"]), [1.0, 9.0, 17.0])
        assert sent == [12]

    def test_a_node_without_a_kernel_runs_its_reference_among_kernels(self) -> None:
        program = Program()
        x, w = program.input("index", (2, 3), "float32"), program.input("w", (2, 3), kind="parameter")
        y = x * 2.0
        none = ops.slice_(y, bounds=((0, 0), (0, 3)))
        program.outputs = {"y": ops.concat(none, x, axis=0) + 1.0}
        program.updates = {"w": ops.concat(none, w + y, axis=0)}
        backend = self.make()
        assert any(text.startswith("reference") for _, text in backend.explain(program.copy()))
        rows = np.arange(18, dtype="float32").reshape(3, 2, 3)
        run: Any = backend.compile(program)
        made = run.many({"w": backend.asarray(-rows[0])}, {"index": rows}, 3)
        np.testing.assert_array_equal(backend.to_numpy(made["y"]), rows[2] + 1)
        np.testing.assert_array_equal(backend.to_numpy(made["w"]), 2 * rows.sum(axis=0) - rows[0])

    def test_every_launch_has_its_times(self) -> None:
        for network in self.networks:
            model = NETWORKS[network](self.make())
            x, y = (a[: self.samples] for a in data())
            program = model.program("train", batch_size=len(x))
            given = {"x": x, "y": y, "learning_rate": np.float32(0.1)}
            how, found = step_times(model.backend, program, step_inputs(model, program, given), repeats=3) or ("", [])
            assert how == "merged"
            assert found
            assert {n.phase for n in found} <= {"forward", "backward", "update"}
            assert all(len(n.seconds) == 3 and min(n.seconds) >= 0 for n in found)
            assert min(map(sum, zip(*(n.seconds for n in found), strict=True))) > 0
            assert sum(n.flops for n in found) > 0

    def test_executables_of_a_backend_share_their_memory(self) -> None:
        backend, made = self.make(), {}
        for size in (3, 200, 50, 3):  # graphs of the first were captured before its memory became another
            program = Program()
            y = program.input("x", (size, 5)) * 2.0
            program.outputs["y"] = ops.sum(ops.softmax(y, axis=1), axes=(0,), keepdims=False)
            program.updates["count"] = program.input("count", (), kind="metric") + 1.0
            run = made.get(size) or backend.compile(program.copy())
            made[size] = run
            given = {"x": np.random.default_rng(size).normal(size=(size, 5)).astype("float32")}
            given["count"] = np.zeros((), "float32")
            expected = get_backend("numpy").compile(program)(given)["y"]
            found = run(given | {"count": backend.asarray(given["count"])})["y"]
            np.testing.assert_allclose(backend.to_numpy(found), expected, rtol=SUM)
        runs: list[Any] = list(made.values())
        assert len({id(run._arena) for run in runs}) == 1
        assert runs[0]._arena.nbytes == max(run.arena_bytes for run in runs) > runs[0].arena_bytes

    def test_graphs_of_many_arrays_are_bounded(self) -> None:
        backend, program = self.make(), Program()
        program.outputs["y"] = program.input("x", (4,), kind="parameter") * 2.0
        run: Any = backend.compile(program)
        arrays = [backend.asarray(np.full(4, k, "float32")) for k in range(9)]
        for k in (*range(9), 2):
            np.testing.assert_array_equal(backend.to_numpy(run({"x": arrays[k]})["y"]), np.full(4, 2.0 * k))
        assert len(run._graphs) <= 4

    def test_rows_of_a_wrong_shape_and_arrays_in_between_are_refused(self) -> None:
        backend, program = self.make(), Program()
        program.outputs["y"] = program.input("w", (3,), kind="parameter") * program.input("x", (3,))
        run: Any = backend.compile(program)
        w, x = backend.asarray(np.arange(4, dtype="float32")), np.ones(3, "float32")
        with pytest.raises(ValueError, match=r"which begins in between\. Convert it with backend.asarray"):
            run({"w": w[1:], "x": x})
        np.testing.assert_array_equal(backend.to_numpy(run({"w": backend.asarray(w[1:]), "x": x})["y"]), [1, 2, 3])
        for wrong in (np.zeros(3, "float32"), w, backend.asarray(np.zeros(3, "int32"))):
            with pytest.raises(ValueError, match=rf"w is a contiguous array of \w+, float32\[3\], on {backend.device}"):
                run({"w": wrong, "x": x})
        for given, rows in (({"x": x[:2]}, {}), ({}, {"x": np.ones((2, 3), "float32")})):
            with pytest.raises(ValueError, match=r"x has shape .* one row for each step"):
                run.many({"w": backend.asarray(w[1:]), **given}, rows, 2)

    def test_programs_that_are_compiled_side_by_side_share_their_memory(self) -> None:
        backend, programs = self.make(), [Program(f"{n}") for n in range(6)]
        for n, program in enumerate(programs):
            x = program.input("x", (3 + n,))
            program.outputs["y"] = ops.sum(x * x + n, axes=(0,))
        steps = backend.compile_each(programs)
        assert len({id(step._arena) for step in steps}) == 1
        for n, step in enumerate(steps):
            made = step({"x": np.full(3 + n, 2.0, "float32")})["y"]
            np.testing.assert_allclose(backend.to_numpy(made), (3 + n) * (4 + n))

    def test_options_work_or_are_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match=r"products='bfloat16'.* Use products='float32'"):
            self.make(Options(products="bfloat16", tensor_cores=False))
