"""Networks as scikit-learn's estimators: its own checks, and what people do with estimators."""

from __future__ import annotations

import importlib.util
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.tolerances import ELEMENT, STEP, SUM

pytest.importorskip("sklearn")

from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from minicnn.layers import BatchNormalization, Dense
from minicnn.models import Model
from minicnn.optimizers import SGD
from minicnn.sklearn import CNNClassifier, CNNRegressor

# In mini-batches a weight of 2 is one step with twice the gradient, and two copies are in two steps.
NOT_REPEATED = {"check_sample_weight_equivalence_on_dense_data": "weights are not repetitions in mini-batches"}
ELSEWHERE = ("cupy", "dpnp", "cuda", "mps", "xpu")  # libraries and devices
ESTIMATORS = [
    CNNClassifier(epochs=15, learning_rate=0.02, batch_size=16, precision="float64"),
    CNNRegressor(epochs=30, learning_rate=0.01, batch_size=16, precision="float64"),
]


def checks() -> list[Any]:
    """What `parametrize_with_checks` makes, without checks for libraries and devices that no test has."""
    made = [
        pair
        for estimator in ESTIMATORS
        for pair in estimator_checks_generator(estimator, expected_failed_checks=NOT_REPEATED, mark="xfail")
    ]
    words = [*ELSEWHERE, *(["torch"] if importlib.util.find_spec("torch") is None else [])]
    return [pair for pair in made if not any(word in repr(pair) for word in words)]


def _name(value: Any) -> str:
    return type(value).__name__ if not callable(value) else getattr(value, "func", value).__name__


@pytest.mark.filterwarnings("ignore")  # what scikit-learn's checks warn of on purpose
@pytest.mark.parametrize(("estimator", "check"), checks(), ids=_name)
def test_scikit_learn_s_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def digits(count: int = 400) -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return x[:count] / 16, y[:count]


DIGITS = CNNClassifier(input_shape=(8, 8, 1), epochs=8, learning_rate=0.003, random_state=0)


def test_a_pipeline_learns_digits_and_is_cross_validated() -> None:
    x, y = digits()
    scores = cross_val_score(make_pipeline(StandardScaler(), DIGITS), x, y, cv=2)
    assert scores.min() > 0.8


def test_a_grid_over_networks_and_rates() -> None:
    x, y = digits(200)
    names = np.asarray([f"digit {label}" for label in y])
    networks = [None, partial(narrow, units=2)]
    grid = GridSearchCV(DIGITS, {"network": networks, "learning_rate": [0.003, 1e-6]}, cv=2).fit(x, names)
    assert grid.best_params_ == {"network": None, "learning_rate": 0.003}
    assert grid.predict(x[:3]).dtype == names.dtype


def narrow(x: Any, outputs: int, *, units: int) -> Any:
    from minicnn.layers import Flatten

    return Dense(outputs)(Dense(units, "relu")(Flatten()(x)))


def test_images_go_to_a_network_of_the_zoo() -> None:
    x, y = digits(60)
    images = np.pad(x.reshape(-1, 8, 8, 1), ((0, 0), (10, 10), (10, 10), (0, 0)))
    fitted = CNNClassifier("lenet5", epochs=1, random_state=1).fit(images, y)
    assert [layer.name for layer in fitted.model_.layers][:2] == ["conv1", "pool1"]
    assert fitted.predict_proba(images[:5]).shape == (5, 10)
    np.testing.assert_allclose(fitted.predict_proba(images).sum(1), 1, rtol=ELEMENT)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(images)), fitted.predict_proba(images), rtol=SUM)


def test_a_pickle_holds_the_model_as_data() -> None:
    x, y = digits(100)
    fitted = clone(DIGITS).set_params(epochs=1).fit(x, y)
    state = fitted.__getstate__()
    content, backend = state["model_"]
    assert isinstance(content, bytes)
    assert b"__metadata__" in content[:100]  # of safetensors
    assert backend is fitted.model_.backend
    pickled = pickle.dumps(fitted)
    assert b"minicnn.layers" not in pickled
    copy = pickle.loads(pickled)
    np.testing.assert_array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    copy.partial_fit(x, y)  # the optimizer's state is there, too
    fitted.partial_fit(x, y)
    np.testing.assert_array_equal(copy.predict_proba(x), fitted.predict_proba(x))
    assert isinstance(fitted.model_, Model)


def test_early_stopping_keeps_the_best_weights() -> None:
    x, y = digits(200)
    fitted = clone(DIGITS).set_params(epochs=60, learning_rate=0.02, early_stopping=True, n_iter_no_change=2).fit(x, y)
    losses = fitted.history_["val_loss"]
    assert fitted.n_iter_ == len(losses) == int(np.argmin(losses)) + 3 < 60


def test_partial_fit_takes_the_epochs_of_fit_one_by_one() -> None:
    x, y = digits(100)
    whole = clone(DIGITS).set_params(epochs=3).fit(x, y)
    parts = clone(DIGITS)
    for _ in range(3):
        parts.partial_fit(x, y, classes=range(10))
    assert parts.n_iter_ == 3
    np.testing.assert_array_equal(parts.predict_proba(x), whole.predict_proba(x))
    with pytest.raises(ValueError, match="Labels are among the classes"):
        parts.partial_fit(x, y + 5)
    with pytest.raises(ValueError, match="classes stay those of the first partial_fit"):
        parts.partial_fit(x, y, classes=range(9))
    with pytest.raises(ValueError, match="The first partial_fit names all classes"):
        clone(DIGITS).partial_fit(x, y)


def test_weights_of_classes_and_samples_count() -> None:
    x, y = make_classification(120, 6, class_sep=0.3, random_state=0)
    names = np.where(y, "yes", "no")
    weighted = CNNClassifier(class_weight={"yes": 20.0}, epochs=15, random_state=0).fit(x, names)
    plain = CNNClassifier(epochs=15, random_state=0).fit(x, names)
    assert (weighted.predict(x) == "yes").mean() > (plain.predict(x) == "yes").mean() + 0.1
    same = CNNClassifier(epochs=15, random_state=0).fit(x, names, sample_weight=np.where(y, 20.0, 1.0))
    np.testing.assert_allclose(same.predict_proba(x), weighted.predict_proba(x), rtol=STEP)
    few = np.flatnonzero((y == 0) | (np.arange(len(y)) % 10 == 0))
    balanced = CNNClassifier(class_weight="balanced", epochs=2, random_state=0)
    share = (y[few] == 1).mean()
    by_hand = clone(balanced).set_params(class_weight={"no": 0.5 / (1 - share), "yes": 0.5 / share})
    balanced.fit(x[few], names[few]), by_hand.fit(x[few], names[few])
    np.testing.assert_allclose(balanced.predict_proba(x), by_hand.predict_proba(x), rtol=SUM)
    with pytest.raises(ValueError, match=r"maps labels to weights\. Received: 'maybe'"):
        CNNClassifier(class_weight={"maybe": 1.0}).fit(x, names)


def normalized(x: Any, outputs: int) -> Any:
    return Dense(outputs)(BatchNormalization()(Dense(8, "relu")(x)))


@pytest.mark.filterwarnings("error")
def test_the_last_batch_may_be_a_single_sample() -> None:
    x, y = make_classification(33, 5, random_state=0)
    fitted = CNNClassifier(normalized, epochs=3, batch_size=32, random_state=0).fit(x, y)
    assert np.isfinite(fitted.predict_proba(x)).all()
    targets, several = make_regression(33, 5, n_targets=2, random_state=0)
    fitted = CNNRegressor(normalized, epochs=3, batch_size=32, random_state=0).fit(targets, several)
    assert fitted.predict(targets).shape == (33, 2)


def test_a_regressor_finds_a_line() -> None:
    x, y = make_regression(200, 3, random_state=0)
    scaled = (y - y.mean()) / y.std()
    fitted = CNNRegressor(optimizer=SGD(0.05, momentum=0.9), loss="huber", epochs=20, random_state=0).fit(x, scaled)
    assert fitted.score(x, scaled) > 0.95
    parts = clone(fitted)
    for _ in range(2):
        parts.partial_fit(x, scaled[:, None])
    assert parts.predict(x).shape == (200, 1)


def test_arrays_of_torch_stay_in_torch() -> None:
    torch = pytest.importorskip("torch")
    x, y = digits(200)
    given, labels = torch.asarray(x.astype("float32")), torch.asarray(y)
    with config_context(array_api_dispatch=True):
        fitted = clone(DIGITS).set_params(epochs=4).fit(given, labels)
        assert fitted.model_.backend.name == "torch"
        assert isinstance(fitted.classes_, torch.Tensor)
        assert isinstance(fitted.predict(given), torch.Tensor)
        assert fitted.score(given, labels) > 0.7
        with pytest.raises(ValueError, match="must use the same namespace"):
            fitted.predict(x)
        words = np.asarray([f"digit {label}" for label in y])  # PyTorch has no text
        assert set(clone(DIGITS).set_params(epochs=1).fit(given, words).predict(given)) <= set(words)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"network": "lenet"}, "lenet5"),
        ({"network": 3}, "a function from a symbolic tensor and a number of outputs to a symbolic tensor"),
        ({"network": lambda x, outputs: Dense(outputs + 1)(x)}, r"gives \(None, 3\) for 2"),
        ({"input_shape": (2, 2, 1)}, r"input_shape=\(2, 2, 1\) for samples of shape \(5,\)"),
        ({"class_weight": "equal"}, "class_weight is a dictionary, 'balanced' or None"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    x, y = make_classification(20, 5, random_state=0)
    with pytest.raises((ValueError, TypeError), match=said):
        CNNClassifier(**options).fit(x, y)


def test_samples_are_checked() -> None:
    x, y = make_classification(20, 5, random_state=0)
    with pytest.raises(ValueError, match="a number for each sample: shape"):
        CNNClassifier().fit(x, y, sample_weight=np.ones((20, 2)))
    with pytest.raises(ValueError, match="is a dictionary for partial_fit"):
        CNNClassifier(class_weight="balanced").partial_fit(x, y, classes=[0, 1])
