"""Around the kernels without a GPU: the steps of the CUDA engines on the emulator's runtime."""

from __future__ import annotations

import numpy as np
import pytest

from backends.cupy.emulated import DeviceArray, EmulatedBackend
from backends.cupy.emulator import needs_gxx
from backends.cupy.networks import NETWORKS, data
from minicnn import ops
from minicnn.backends._gpu.options import Options
from minicnn.program import Program
from minicnn.program.graph import Spec
from support.engine import EngineSteps
from support.tolerances import STEP


@needs_gxx
class TestSteps(EngineSteps):
    """See `EngineSteps`."""

    def make(self, options: Options | None = None) -> EmulatedBackend:
        """See `EngineSteps.make`."""
        backend = EmulatedBackend(options=options)
        backend.steps_at_once = backend.predictions_at_once = 256
        return backend

    def bytes_of(self, backend: EmulatedBackend, shape: tuple[int, ...]) -> DeviceArray:
        """See `EngineSteps.bytes_of`."""
        return np.zeros(shape, "uint8").view(DeviceArray)

    @pytest.mark.parametrize("early", [False, True])
    def test_a_slot_is_not_filled_while_it_is_read(self, early: bool) -> None:
        specs, rows = {"x": Spec((3,), "float32")}, np.random.default_rng(0).normal(size=(9, 4, 3)).astype("float32")
        backend = self.make()
        backend.runtime.early = early
        stage, program = backend.stage(specs, 4), Program()
        x, total = program.input("x", (12, 3), kind="parameter"), program.input("total", (4, 3), kind="metric")
        index = program.input("index", (4,), "int32")
        program.updates["total"] = total * 2.0 + ops.take(x, index)
        run, made = backend.compile(program), {"total": backend.asarray(np.zeros((4, 3), "float32"))}
        for k, row in enumerate(rows):
            slot = k % stage.slots
            stage.fill(slot, 4, lambda host, row=row: np.copyto(host["x"], row))
            stage.begin(slot)
            at = np.arange(4 * slot, 4 * slot + 4, dtype="int32")
            made = run({**made, "x": stage.arrays["x"], "index": at})
            stage.end(slot)
        stage.close()
        expected = sum(2.0 ** (8 - k) * row for k, row in enumerate(rows))
        np.testing.assert_allclose(backend.to_numpy(made["total"]), expected, rtol=STEP, atol=STEP)

    def test_a_launch_that_does_nothing_separates_no_others(self) -> None:
        """A reference of empty arrays: the kernel behind it follows that of the step before, which moves the cursor."""
        program = Program()
        x, w = program.input("index", (2, 3), "float32"), program.input("w", (2, 3), kind="parameter")
        program.outputs["none"] = ops.slice_(w, bounds=((0, 0), (0, 3)))
        program.updates["w"] = w + x
        backend = self.make()
        assert backend.explain(program.copy())[0][1].startswith("reference")
        rows, run = np.arange(18, dtype="float32").reshape(3, 2, 3), backend.compile(program)
        made = run.many({"w": backend.asarray(np.zeros((2, 3), "float32"))}, {"index": rows}, 3)
        np.testing.assert_array_equal(backend.to_numpy(made["w"]), rows.sum(axis=0))

    @pytest.mark.parametrize("early", [False, True])
    def test_data_that_arrive_while_steps_run_give_the_same_bits(self, early: bool) -> None:
        (x, y), results = data(), []
        for stage_bytes in (0, 3 * 8 * (144 + 4)):  # all at once; three steps at a time
            backend = self.make()
            backend.runtime.early, backend.stage_bytes = early, stage_bytes
            model = NETWORKS["mlp"](backend)
            for images in (x, 255 - x):  # the second time into the same memory
                history = model.fit(images, y, batch_size=8, epochs=2, verbose=0, last_batch="drop")
                results.append((history.history, model.get_weights(), model.evaluate(images, y, 8)))
            assert len(backend._stages._spares) == (1 if stage_bytes else 0)
        for alone, arriving in zip(results[:2], results[2:], strict=True):
            assert (alone[0], alone[2]) == (arriving[0], arriving[2])
            for path, weight in alone[1].items():
                np.testing.assert_array_equal(arriving[1][path], weight)
