"""Data that stay in the host's memory and go through the slots of a stage: the same training, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from minicnn import Sequential, callbacks, layers
from minicnn.backends.base import Stage
from minicnn.backends.numpy import NumpyBackend
from minicnn.program.graph import Spec
from support.model_cases import Watch


class HostStage(Stage):
    """Slots in the host's memory; slots that may not be read hold nonsense."""

    def __init__(self, specs: Mapping[str, Spec], rows: int, total: int, log: list[str]) -> None:
        self.specs, self.rows, self._log, self._kept = specs, rows, log, total > 0
        self._hidden = {n: np.zeros((total or self.slots * rows, *s.shape), s.dtype) for n, s in specs.items()}
        self.arrays = {n: np.full_like(a, 77) for n, a in self._hidden.items()}
        self._free = [True] * self.slots
        self._parts = [slice(slot * rows, (slot + 1) * rows) for slot in range(self.slots)]

    def _part(self, slot: int) -> slice:
        return self._parts[slot]

    def fill(self, slot: int, rows: int, write: Callable[[Mapping[str, Any]], None], first: int | None = None) -> None:
        assert self._free[slot], "a slot is filled while it is read"
        assert (first is not None) == self._kept
        assert self._kept or threading.current_thread() is not threading.main_thread()
        self._free[slot] = False
        if first is not None:
            self._parts[slot] = slice(first, first + rows)
        write({n: a[self._part(slot)] for n, a in self._hidden.items()})
        self._log.append(f"fill {rows}")

    def begin(self, slot: int) -> None:
        for name, array in self.arrays.items():
            array[self._part(slot)] = self._hidden[name][self._part(slot)]

    def end(self, slot: int) -> None:
        self._free[slot] = True
        for array in self.arrays.values() if not self._kept else ():
            array[self._part(slot)] = 77

    def close(self) -> None:
        self._log.append("close")


class Staging(NumpyBackend):
    """NumPy that does not keep data sets."""

    stage_bytes = 3 * 4 * 25  # three steps of 4 rows: 3 float32 inputs, 2 labels of float32, and a weight, or less

    def __init__(self, at_once: int = 16, limit: int = 0) -> None:
        super().__init__()
        self.steps_at_once = self.predictions_at_once = at_once
        self.log: list[str] = []
        self._limit = limit

    def owns(self, array: Any) -> bool:
        return False

    def keeps(self, nbytes: int) -> bool:
        return nbytes <= self._limit

    def stage(self, specs: Mapping[str, Spec], rows: int, total: int = 0) -> Stage:
        return HostStage(specs, rows, total, self.log)

    def compile(self, program: Any) -> Any:
        return _Many(super().compile(program), list(program.updates), self.log)


class _Many:
    """An Executable that takes many steps: what it carries after them, or what each of them gives."""

    def __init__(self, run: Any, carried: list[str], log: list[str]) -> None:
        self._run, self._carried, self._log = run, carried, log

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return self._run(arrays)

    def many(self, arrays: Mapping[str, Any], rows: Mapping[str, Any], steps: int, state: Any = ()) -> dict[str, Any]:
        self._log.append(f"{steps} steps")
        given, made = {**dict(state), **arrays}, []
        for k in range(steps):
            made.append(self._run({**given, **{name: row[k] for name, row in rows.items()}}))
            given |= {name: made[-1][name] for name in self._carried}
        return made[-1] if self._carried else {name: np.stack([m[name] for m in made]) for name in made[0]}


RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((26, 3)).astype("float32"), RNG.standard_normal((26, 2))
WEIGHT = RNG.random(26)


def _model(backend: Any) -> Sequential:
    model = Sequential(
        [layers.Input((3,)), layers.Dense(4, activation="relu"), layers.Dropout(0.2), layers.Dense(2)], backend=backend
    )
    model.compile("adam", "mse", ["mae"])
    return model


def _fit(backend: Any, *data: Any, **fit: Any) -> tuple[Any, ...]:
    model = _model(backend)
    history = model.fit(*data, batch_size=4, epochs=3, verbose=0, **fit)
    return history.history, model.get_weights(), model.predict(X, 4), model.evaluate(X, Y, 4)


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    assert a[0] == b[0]
    assert a[3] == b[3]
    np.testing.assert_array_equal(a[2], b[2])
    for key, array in a[1].items():
        np.testing.assert_array_equal(b[1][key], array)


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
@pytest.mark.parametrize("at_once", [1, 16])
def test_training_from_the_host_is_the_same_training(at_once: int, last_batch: str) -> None:
    extra: dict[str, Any] = {"last_batch": last_batch, "sample_weight": WEIGHT, "validation_data": (X, Y)}
    backend = Staging(at_once)
    _same(_fit("numpy", X, Y, **extra), _fit(backend, X, Y, **extra))
    fills = [entry for entry in backend.log if entry.startswith("fill")]
    # 4 rows a step, and 3 steps a slot where many are wanted together; the last batch has 2 rows.
    assert fills[0] == ("fill 12" if at_once > 1 else "fill 4")
    assert backend.log[-1] == "close"


@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_fits_comes_while_the_first_steps_run_and_is_kept(shuffle: bool, last_batch: str) -> None:
    extra: dict[str, Any] = {"last_batch": last_batch, "sample_weight": WEIGHT, "shuffle": shuffle}
    backend = Staging(limit=10**6)
    _same(_fit("numpy", X, Y, **extra), _fit(backend, X, Y, **extra))
    # 12 rows at a time; of 26 two are left over, which the second epoch may need.
    first = {"keep": ["fill 12", "fill 12", "fill 2"], "drop": ["fill 12", "fill 12"], "pad": ["fill 12", "fill 12"]}
    log = backend.log[: backend.log.index("close")]
    assert [e for e in log if e.startswith("fill")] == [*first[last_batch], *(["fill 4"] * (last_batch == "pad"))]
    assert log.index("3 steps") < 4
    later = backend.log[backend.log.index("close") + 1 :]
    assert later[: 2 if last_batch == "drop" else 0] == ["fill 2", "close"][: 2 if last_batch == "drop" else 0]
    trained = [e for e in later if e.endswith("steps")]
    assert trained[0] == ("6 steps" if last_batch != "pad" else "7 steps")


def test_what_is_as_small_as_a_slot_is_copied_at_once() -> None:
    backend = Staging(limit=10**6)
    backend.stage_bytes = 10**4
    _same(_fit("numpy", X, Y), _fit(backend, X, Y))
    assert all(entry.endswith("steps") for entry in backend.log)


def test_a_pass_that_begins_later_has_all_of_the_data() -> None:
    backend = Staging(limit=10**6)
    steps: dict[str, Any] = {"steps_per_epoch": 4}
    _same(_fit("numpy", X, Y, **steps), _fit(backend, X, Y, **steps))


def test_a_loader_s_batches_go_through_the_slots() -> None:
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 26, 4)]
    backend = Staging(limit=10**6)
    _same(_fit("numpy", batches), _fit(backend, batches))
    assert [e for e in backend.log if e.startswith("fill")][:3] == ["fill 12", "fill 12", "fill 2"]


def test_a_batch_that_comes_again_and_again_is_copied_once() -> None:
    backend = Staging(limit=10**6)
    copies: list[Any] = []
    convert = backend.asarray
    backend.asarray = lambda data, dtype=None: copies.append(data) or convert(data, dtype)  # type: ignore[assignment]
    _same(_fit("numpy", [(X, Y)] * 5), _fit(backend, [(X, Y)] * 5))
    assert sum(a is X for a in copies) == 3  # an epoch each; predict and evaluate take them piece by piece
    assert backend.log[:3] == ["5 steps"] * 3


def test_a_batch_is_evaluated_again_and_again_at_once() -> None:
    backend, batches = Staging(limit=10**6), [(X, Y)] * 5 + [(X[:4], Y[:4])]
    assert _model(backend).evaluate(batches) == _model("numpy").evaluate(batches)
    assert [entry for entry in backend.log if entry.endswith("steps")] == ["5 steps", "1 steps"]


@pytest.mark.parametrize("loader", [True, False])
def test_a_training_that_broke_off_goes_on_where_it_was(loader: bool) -> None:
    states: list[Any] = []
    given: Any = ([(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)],) if loader else (X, Y)
    first, again, whole = _model(Staging()), _model(Staging()), _model("numpy")
    keep = Watch(lambda batch, logs: states.append(first.get_state()))
    first.fit(*given, batch_size=4, epochs=2, verbose=0, callbacks=[keep])
    again.set_state(states[2])
    whole.fit(*given, batch_size=4, epochs=1, verbose=0)
    x, y, weight = (*given, None, None)[:3]
    training = again._training
    source = training.source(again._placed(x)[0], y, weight, 4, several_epochs=True)
    training.train_epoch(source, None, callbacks.Callbacks([], again, {}), True, again.seed)
    for key, array in whole.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[key], array)


def test_a_loader_that_fails_says_so() -> None:
    class Broken:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            yield X[:4], Y[:4]
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        _model(Staging()).fit(Broken(), verbose=0)
    with pytest.raises(ValueError, match="A loader gives"):
        _model(Staging()).fit([(X,)], verbose=0)
