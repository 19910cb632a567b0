"""What people do by mistake: each message says the rule, what was received and what to do."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from minicnn import Sequential, ops
from minicnn.callbacks import CSVLogger, EarlyStopping, LambdaCallback
from minicnn.cli import cli
from minicnn.constraints import MaxNorm
from minicnn.layers import Dense, GlobalAveragePooling2D, Input, Lambda, Layer, ReLU
from minicnn.losses import Loss
from minicnn.optimizers import Adam
from minicnn.regularizers import L1, L2
from support.model_cases import FAST, linear
from support.tolerances import ELEMENT

RNG = np.random.default_rng(0)
X, Y = RNG.random((8, 4)).astype("float32"), RNG.random((8, 3)).astype("float32")


def network(loss: Any = "mse", metrics: Any = (), backend: Any = "numpy") -> Sequential:
    return linear(backend, features=4, units=3, loss=loss, metrics=metrics)


class Forgetful(Layer):
    """Does not call super().__init__()."""

    def __init__(self) -> None:
        self.inner = Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class Holder(Layer):
    """Calls it, but holds one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Forgetful()

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)


class Eager(Layer):
    """Declares a weight where there is nothing yet to declare it in."""

    def __init__(self) -> None:
        self.gain = self.add_weight("gain", (4,))


@pytest.mark.parametrize(
    "use",
    [
        lambda: Forgetful()(Input((4,))), lambda: Holder()(Input((4,))), lambda: Sequential([Input((4,)), Forgetful()]),
        lambda: Sequential([Forgetful()]).predict(X), lambda: Forgetful().trainable, lambda: Forgetful().weights,
        Eager,
    ],
)  # fmt: skip
def test_a_layer_without_the_constructor_of_its_base(use: Any) -> None:
    message = (
        r"A layer calls super\(\)\.__init__\(name=name\) in its constructor\. Received: a \w+ that does not\. Make"
    )
    with pytest.raises(RuntimeError, match=message):
        use()
    with pytest.raises(AttributeError, match="'Dense' object has no attribute 'unknown'"):
        Dense(3).unknown  # type: ignore[attr-defined]  # noqa: B018


def forgot(y_true: Any, y_pred: Any) -> None:
    y_true - y_pred


class Nothing(Loss):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        forgot(y_true, y_pred)


@pytest.mark.parametrize("options", [{"loss": forgot}, {"loss": Nothing()}, {"metrics": [forgot]}])
def test_a_loss_or_metric_that_gives_nothing(options: dict[str, Any]) -> None:
    what = "loss" if "loss" in options else "metric"
    with pytest.raises(TypeError, match=rf"A {what} composes a Value of primitives\. Received: None from .*Return"):
        network(**options).fit(X, Y, verbose=0)


@pytest.mark.parametrize("choose", [lambda x: x if x > 0 else x * 2.0, lambda x: x if ops.less(x, 1.0) else -x])
def test_if_on_a_value(choose: Any) -> None:
    with pytest.raises(TypeError, match=r"so it has no truth value\. Use ops\.where"):
        Lambda(choose)(Input((4,)))
    with pytest.raises(TypeError, match=r"so it has no truth value\. Use ops\.where"):
        bool(Input((4,)) > 0)


def test_equality_with_a_number() -> None:
    with pytest.raises(TypeError, match=r"the same array of a Program\. Received: .* and 0\. Use ops\.equal"):
        Lambda(lambda x: x if x == 0 else x * 2.0)(Input((4,)))
    x, y = Input((4,)), Input((4,))
    assert x == x
    assert x != y
    assert x in [y, x]
    assert len({x, y}) == 2


def test_comparisons_are_operators() -> None:
    def cut(x: Any) -> Any:
        return ops.where(x > 0.5, x, 0.0) + ops.where(x <= 0.5, 1.0 - x, 0.0) + ops.where(x < 0.1, x, 0.0) / x

    expected = np.where(X > 0.5, X, 1 - X) + (X < 0.1)
    np.testing.assert_allclose(
        Sequential([Input((4,)), Lambda(cut)], backend="numpy").predict(X), expected, rtol=ELEMENT
    )
    x = Input((4,))
    symbolic = ops.where(x >= 0.5, x, 0.0)
    assert symbolic.shape == (None, 4)


@pytest.mark.parametrize("function", [np.mean, np.var, np.asarray])
def test_numpy_on_a_value(function: Any) -> None:
    with pytest.raises(TypeError, match=r"NumPy computes on elements.*Received: <input x0.*minicnn\.ops"):
        Lambda(lambda x: function(x))(Input((4,)))


def masked(array: Any) -> Any:
    return np.ma.masked_array(array, array > 0.5)


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.fit(masked(X), Y, verbose=0), lambda m: m.fit(X, masked(Y), verbose=0),
        lambda m: m.fit(X, Y, sample_weight=masked(np.ones(8)), verbose=0), lambda m: m.predict(masked(X)),
        lambda m: m.fit(X, Y, validation_data=(masked(X), Y), verbose=0), lambda m: m.fit([(masked(X), Y)], verbose=0),
        lambda m: m.set_weights({"dense/bias": masked(np.ones(3))}),
        lambda m: m.layers[0].set_weights([masked(np.ones((4, 3))), np.ones(3)]),
    ],
)  # fmt: skip
def test_masked_arrays(use: Any) -> None:
    with pytest.raises(TypeError, match=r"without a mask.*Received: a masked array\. Call filled\(value\)"):
        use(network())


def test_a_text_among_the_logs(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    note = LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(note="hello"))
    given = [note, CSVLogger(tmp_path / "log.csv")]
    history = network().fit(X, Y, epochs=2, verbose=2, callbacks=given)
    assert history.history["note"] == ["hello", "hello"]
    assert "hello" not in capsys.readouterr().out
    assert (tmp_path / "log.csv").read_text().splitlines()[1].endswith(",hello")
    with pytest.raises(ValueError, match=r"a number among the logs\. Received: 'note'; there are: loss\."):
        network().fit(X, Y, verbose=0, callbacks=[note, EarlyStopping("note", mode="min")])


def test_an_activation_that_is_a_class() -> None:
    with pytest.raises(TypeError, match=r"Received: the class ReLU\. Make a layer of it: ReLU\(\)"):
        Sequential([Input((4,)), Dense(3, ReLU)])


def test_an_optimizer_that_is_a_class() -> None:
    model = Sequential([Input((4,)), Dense(3)])
    model.compile(Adam, "mse")
    assert isinstance(model.optimizer, Adam)


# What is no number -------------------------------------------------------------------------------


def broken(array: Any, value: float = np.nan) -> Any:
    made = array.astype("float64") if abs(value) == BEYOND else array.copy()
    made[2, 1] = value
    return made


BEYOND = 1e39  # finite in float64


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, BEYOND])
@pytest.mark.parametrize(
    "use",
    [
        lambda m, x: m.fit(x, Y, 4, 3, verbose=0), lambda m, x: m.evaluate(x, Y), lambda m, x: m.train_on_batch(x, Y),
        lambda m, x: m.fit([(X, Y), (x, Y)], verbose=0), lambda m, x: m.fit(x.tolist(), Y, verbose=0),
        lambda m, x: m.fit(np.asfortranarray(x.astype("float64")), Y, verbose=0),
    ],
)  # fmt: skip
def test_inputs_that_are_no_numbers_warn_once(use: Any, value: float) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(network(), broken(X, value))
    found = [str(w.message) for w in caught if "Inputs are finite" in str(w.message)]
    assert len(found) == 1
    assert "Received: NaN, or infinity as float32, in inputs of shape (8, 4). Leave out" in found[0]


@pytest.mark.parametrize("backend", FAST)
def test_the_same_for_arrays_of_the_backend(backend: str) -> None:
    model = network(backend=backend)
    with pytest.warns(UserWarning, match="Inputs are finite numbers"):
        model.fit(model.backend.asarray(broken(X)), Y, verbose=0)


def test_what_is_large_or_whole_is_no_matter() -> None:
    model = Sequential([Input((4,)), Lambda(lambda x: x * 1e-30), Dense(3)], backend="numpy")
    model.compile("sgd", "mse")
    large = model.fit(X * np.float32(1e30), Y, verbose=0)  # whose squares float32 cannot hold
    whole = model.fit((X * 255).astype("uint8"), Y, verbose=0)
    assert np.isfinite([large.history["loss"], whole.history["loss"]]).all()
    model.predict(broken(X))  # of which one sees what becomes


def test_targets_that_are_no_numbers() -> None:
    model = network()
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"Targets are finite numbers\. Received: NaN, or infinity .*\(8, 3\)"):
        model.fit(X, broken(Y), verbose=0)
    np.testing.assert_array_equal(model.get_weights()["dense/kernel"], before["dense/kernel"])
    with pytest.raises(ValueError, match=r"Targets are .* infinity as float32, in targets of shape"):
        model.fit(X, broken(Y, -BEYOND), verbose=0)


@pytest.mark.parametrize("backend", FAST)
def test_numbers_beyond_float32(backend: str) -> None:
    """Are what infinity is, wherever they come from; in float64 they are numbers."""
    model = network(backend=backend)
    before = model.get_weights()
    kernel = before["dense/kernel"].astype("float64")
    kernel[0, 0] = -BEYOND
    message = (
        r"Weights are numbers that float32 holds, up to 3\.403e\+38\. Received: 1e\+39 in '{}'\. Scale the numbers, or"
    )
    with pytest.raises(ValueError, match=message.format("dense/kernel")):
        model.set_weights(before | {"dense/kernel": kernel})
    with pytest.raises(ValueError, match=message.format("kernel")):
        model.layers[0].set_weights([kernel, before["dense/bias"]])
    for name, array in before.items():
        np.testing.assert_array_equal(model.get_weights()[name], array)
    for limit in (L1, L2, MaxNorm):
        with pytest.raises(ValueError, match=r"is a finite number of at least 0\. Received: .*=1e\+39"):
            limit(BEYOND)
    wide = network(backend="numpy")
    wide.compile("sgd", "mse", precision="float64")
    wide.set_weights(before | {"dense/kernel": kernel})
    assert wide.get_weights()["dense/kernel"][0, 0] == -BEYOND
    wide.fit(broken(X, BEYOND), Y, verbose=0)  # warns of nothing


def test_images_without_rows() -> None:
    model = Sequential([Input((None, None, 3)), GlobalAveragePooling2D(), Dense(2)])
    with pytest.raises(
        ValueError, match=r"at least one element along each axis\. Received: inputs of shape \(2, 0, 5, 3"
    ):
        model.predict(np.zeros((2, 0, 5, 3)))


# Backends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cuda", "gpu", "cuda:1"])
def test_a_backend_called_after_the_device(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"Received: '(cuda|gpu)'\. On a GPU of NVIDIA run cupy, numba_cuda, torch:cuda"
    ):
        Sequential([Input((4,)), Dense(3)], backend=name)
    said = CliRunner().invoke(cli, ["train", "mlp", "--backend", name])
    assert said.exit_code != 0
    assert "On a GPU of NVIDIA run cupy, numba_cuda" in " ".join(said.output.split())


@pytest.mark.parametrize("name", ["tensorflow", "cuda"])
def test_the_environment_is_named_as_the_source(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICNN_BACKEND", name)
    with pytest.raises(ValueError, match=rf"Received: '{name}' from the environment variable MINICNN_BACKEND\."):
        Sequential([Input((4,)), Dense(3)]).predict(X)
