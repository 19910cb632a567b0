"""Optimizers against plain formulas (Keras's) and torch.optim, over several steps; clipping, decay and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import Sequential, ops
from minicnn.backends import get_backend
from minicnn.layers import Dense, Input
from minicnn.optimizers import (
    OPTIMIZERS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    Muon,
    Nadam,
    Optimizer,
    RMSprop,
    get_optimizer,
)
from minicnn.program import Program
from minicnn.schedules import CosineDecay, ExponentialDecay, Schedule
from support.model_cases import FAST, MeanOutput, Watch, run
from support.numerics import assert_close
from support.strategies import normal, seeds
from support.tolerances import ELEMENT, SUM

Array = np.ndarray[Any, Any]
State = dict[str, Array]
SHAPES = {"a": (3, 2), "b": (4,)}
STEPS = 6


def parameters(seed: int = 0) -> State:
    return {name: normal(shape, seed, i) for i, (name, shape) in enumerate(SHAPES.items())}


def gradients(seed: int = 0, scale: float = 1.0) -> list[State]:
    """Gradients of each step; scaled differently, so that clipping sometimes applies."""
    return [
        {
            name: scale * 3.0 ** (step - 2) * normal(shape, seed, step, i)
            for i, (name, shape) in enumerate(SHAPES.items())
        }
        for step in range(STEPS)
    ]


def train(optimizer: Optimizer, steps: Sequence[State], backend: str = "numpy", dtype: str = "float64") -> State:
    """Parameters after steps with given gradients."""
    program = Program("update")
    values = {name: program.input(name, shape, dtype, kind="parameter") for name, shape in SHAPES.items()}
    found = [program.input(f"g/{name}", shape, dtype) for name, shape in SHAPES.items()]
    step = program.input("step", (), "int32", kind="counter")
    optimizer.apply(program, values, found, step)
    program.updates["step"] = step + 1
    chosen = get_backend(backend)
    run = chosen.compile(program)
    state: dict[str, Any] = {name: chosen.asarray(a, dtype) for name, a in parameters().items()}
    for value in program.inputs:
        if value.kind in ("optimizer", "counter"):
            state[value.name] = chosen.asarray(np.zeros(value.shape, value.dtype))
    for i, gradient in enumerate(steps):
        arrays = {f"g/{name}": chosen.asarray(g, dtype) for name, g in gradient.items()}
        rate = chosen.asarray(np.asarray(optimizer.rate(i), dtype))
        state |= run({**state, **arrays, "learning_rate": rate})
    return {name: chosen.to_numpy(state[name]) for name in SHAPES}


# Plain formulas: (parameters, gradients of each step, rate of each step, arguments) -> parameters.


def plain_sgd(p: Array, gs: list[Array], rates: list[float], momentum: float, nesterov: bool, decay: float) -> Array:
    v = np.zeros_like(p)
    for g, rate in zip(gs, rates, strict=True):
        p = p - p * decay * rate
        v = momentum * v - rate * g
        p = p + momentum * v - rate * g if nesterov else p + v
    return p


def plain_adam(p: Array, gs: list[Array], rates: list[float], b1: float, b2: float, eps: float, decay: float) -> Array:
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, (g, rate) in enumerate(zip(gs, rates, strict=True), start=1):
        p = p - p * decay * rate
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        p = p - rate * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + eps)
    return p


def plain_rmsprop(
    p: Array, gs: list[Array], rates: list[float], rho: float, momentum: float, eps: float, centered: bool, decay: float
) -> Array:
    v, a, u = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g, rate in zip(gs, rates, strict=True):
        p = p - p * decay * rate
        v = rho * v + (1 - rho) * g**2
        a = rho * a + (1 - rho) * g
        spread = v - a**2 if centered else v
        u = momentum * u + rate * g / np.sqrt(spread + eps)
        p = p - u
    return p


def plain_adagrad(p: Array, gs: list[Array], rates: list[float], initial: float, eps: float, decay: float) -> Array:
    a = np.full_like(p, initial)
    for g, rate in zip(gs, rates, strict=True):
        p = p - p * decay * rate
        a = a + g**2
        p = p - rate * g / np.sqrt(a + eps)
    return p


def plain_lion(p: Array, gs: list[Array], rates: list[float], b1: float, b2: float, decay: float) -> Array:
    m = np.zeros_like(p)
    for g, rate in zip(gs, rates, strict=True):
        p = p - p * decay * rate
        p = p - rate * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    return p


def plain_nadam(p: Array, gs: list[Array], rates: list[float], b1: float, b2: float, eps: float, decay: float) -> Array:
    m, v, product = np.zeros_like(p), np.zeros_like(p), 1.0
    for t, (g, rate) in enumerate(zip(gs, rates, strict=True), start=1):
        p = p - p * decay * rate
        u, ahead = b1 * (1 - 0.5 * 0.96**t), b1 * (1 - 0.5 * 0.96 ** (t + 1))
        product *= u
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        m_hat = ahead * m / (1 - product * ahead) + (1 - u) * g / (1 - product)
        p = p - rate * m_hat / (np.sqrt(v / (1 - b2**t)) + eps)
    return p


def plain_muon(p: Array, gs: list[Array], rates: list[float], momentum: float, nesterov: bool, decay: float) -> Array:
    m = np.zeros_like(p)
    for g, rate in zip(gs, rates, strict=True):
        p = p - p * decay * rate
        m = momentum * m + g
        x = g + momentum * m if nesterov else m
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        p = p - rate * 0.2 * np.sqrt(max(p.shape)) * x
    return p


def plain_adadelta(p: Array, gs: list[Array], rates: list[float], rho: float, eps: float, decay: float) -> Array:
    squares, steps = np.zeros_like(p), np.zeros_like(p)
    for g, rate in zip(gs, rates, strict=True):
        squares = rho * squares + (1 - rho) * g**2
        step = g * np.sqrt((steps + eps) / (squares + eps))
        steps = rho * steps + (1 - rho) * step**2
        p = p - p * decay * rate - rate * step
    return p


def compare(optimizer: Optimizer, plain: Callable[..., Array], *arguments: Any) -> None:
    """Equal parameters after steps whose rate changes."""
    steps = gradients()
    rates = [optimizer.rate(i) for i in range(STEPS)]
    found = train(optimizer, steps)
    for name, p in parameters().items():
        assert_close(found[name], plain(p, [g[name] for g in steps], rates, *arguments), 10 * STEPS)


rates = st.sampled_from([0.1, ExponentialDecay(0.2, 2, 0.5, staircase=True), ExponentialDecay(0.05, 3, 2.0)])
shares = st.sampled_from([0.0, 0.5, 0.9])
decays = st.sampled_from([0.0, 0.01])


@given(rate=rates, momentum=shares, nesterov=st.booleans(), decay=decays)
def test_sgd(rate: Any, momentum: float, nesterov: bool, decay: float) -> None:
    optimizer = SGD(rate, momentum, nesterov and momentum > 0, weight_decay=decay)
    compare(optimizer, plain_sgd, momentum, nesterov and momentum > 0, decay)


@given(rate=rates, b1=shares, b2=st.sampled_from([0.0, 0.9, 0.999]), eps=st.sampled_from([1e-7, 0.1]), decay=decays)
def test_adam(rate: Any, b1: float, b2: float, eps: float, decay: float) -> None:
    compare(Adam(rate, b1, b2, eps, weight_decay=decay), plain_adam, b1, b2, eps, decay)
    compare(AdamW(rate, decay, b1, b2, eps), plain_adam, b1, b2, eps, decay)


@given(rate=rates, rho=shares, momentum=shares, eps=st.sampled_from([1e-7, 0.1]), centered=st.booleans(), decay=decays)
def test_rmsprop(rate: Any, rho: float, momentum: float, eps: float, centered: bool, decay: float) -> None:
    if centered and rho == 0.0:
        eps = 0.1  # the spread is nothing but rounding then
    optimizer = RMSprop(rate, rho, momentum, eps, centered, weight_decay=decay)
    compare(optimizer, plain_rmsprop, rho, momentum, eps, centered, decay)


@given(rate=rates, initial=st.sampled_from([0.1, 0.0, 2.0]), eps=st.sampled_from([1e-7, 0.1]), decay=decays)
def test_adagrad(rate: Any, initial: float, eps: float, decay: float) -> None:
    compare(Adagrad(rate, initial, eps, weight_decay=decay), plain_adagrad, initial, eps, decay)


@given(rate=rates, rho=shares, eps=st.sampled_from([1e-7, 0.1]), decay=decays)
def test_adadelta(rate: Any, rho: float, eps: float, decay: float) -> None:
    compare(Adadelta(rate, rho, eps, weight_decay=decay), plain_adadelta, rho, eps, decay)


@given(rate=rates, b1=shares, b2=shares, decay=decays)
def test_lion(rate: Any, b1: float, b2: float, decay: float) -> None:
    compare(Lion(rate, b1, b2, weight_decay=decay), plain_lion, b1, b2, decay)


@given(rate=rates, b1=shares, b2=st.sampled_from([0.0, 0.9, 0.999]), eps=st.sampled_from([1e-7, 0.1]), decay=decays)
def test_nadam(rate: Any, b1: float, b2: float, eps: float, decay: float) -> None:
    compare(Nadam(rate, b1, b2, eps, weight_decay=decay), plain_nadam, b1, b2, eps, decay)


def test_nadam_after_thousands_of_steps() -> None:
    found = Nadam(0.1)
    for step in (510, 511, 512, 30_000):
        product = run(lambda s: found._product(s, ops.cast(s + 1, dtype="float64")), np.asarray(step, "int32"))
        expected = np.prod(0.9 * (1 - 0.5 * 0.96 ** np.arange(1, step + 2.0)))
        np.testing.assert_allclose(product, expected, rtol=1e-8, atol=1e-300)


@given(rate=rates, momentum=shares, nesterov=st.booleans(), decay=decays)
def test_muon_of_matrices_and_adamw_of_the_rest(rate: Any, momentum: float, nesterov: bool, decay: float) -> None:
    options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
    optimizer = Muon(rate, adam_weight_decay=decay, adam_lr_ratio=0.5, **options)
    steps = gradients()
    rates = [optimizer.rate(i) for i in range(STEPS)]
    found, p = train(optimizer, steps), parameters()
    assert_close(found["a"], plain_muon(p["a"], [g["a"] for g in steps], rates, momentum, nesterov, decay), 1000)
    halves = [rate / 2 for rate in rates]
    by_adam = plain_adam(p["b"], [g["b"] for g in steps], halves, 0.9, 0.999, 1e-7, 2 * decay)
    assert_close(found["b"], by_adam, 10 * STEPS)
    excluded = Muon(rate, exclude_layers=["a"], adam_weight_decay=0.0)
    assert_close(train(excluded, steps)["a"], train(Adam(rate), steps)["a"], 10 * STEPS)


# For epsilon 0 and a constant rate torch's formulas agree with Keras's; its AdamW alone decays as Keras does.
TORCH = {
    "sgd": (SGD(0.1), lambda o, p: o.SGD(p, 0.1)),
    "momentum": (SGD(0.1, 0.9), lambda o, p: o.SGD(p, 0.1, 0.9)),
    "nesterov": (SGD(0.1, 0.9, True), lambda o, p: o.SGD(p, 0.1, 0.9, nesterov=True)),
    "adam": (Adam(0.01, epsilon=0.0), lambda o, p: o.Adam(p, 0.01, eps=0.0)),
    "adamw": (AdamW(0.01, 0.1, epsilon=0.0), lambda o, p: o.AdamW(p, 0.01, eps=0.0, weight_decay=0.1)),
    "adagrad": (Adagrad(0.1, epsilon=0.0), lambda o, p: o.Adagrad(p, 0.1, initial_accumulator_value=0.1, eps=0.0)),
    "rmsprop": (RMSprop(0.01, epsilon=0.0), lambda o, p: o.RMSprop(p, 0.01, 0.9, eps=0.0)),
    "rmsprop_momentum": (
        RMSprop(0.01, 0.8, 0.5, 0.0), lambda o, p: o.RMSprop(p, 0.01, 0.8, eps=0.0, momentum=0.5)),
    "rmsprop_centered": (
        RMSprop(0.01, 0.9, 0.5, 0.0, True),
        lambda o, p: o.RMSprop(p, 0.01, 0.9, eps=0.0, momentum=0.5, centered=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TORCH))
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, make = TORCH[name]
    tensors = {k: torch.tensor(p, requires_grad=True) for k, p in parameters().items()}
    theirs = make(torch.optim, list(tensors.values()))
    for gradient in gradients():
        for k, tensor in tensors.items():
            tensor.grad = torch.tensor(gradient[k])
        theirs.step()
    found = train(ours, gradients())
    for k, tensor in tensors.items():
        assert_close(found[k], tensor.detach().numpy(), 100)


@pytest.mark.parametrize("backend", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("optimizer", [o for o, _ in TORCH.values()], ids=sorted(TORCH))
def test_backends_agree(backend: str, optimizer: Optimizer) -> None:
    found, expected = train(optimizer, gradients(), backend, "float32"), train(optimizer, gradients())
    for name in SHAPES:
        assert_close(found[name], expected[name], 10 * STEPS)


# Clipping ---------------------------------------------------------------------------------------


@given(limit=st.sampled_from([0.05, 1.0, 100.0]), seed=seeds)
def test_clipvalue(limit: float, seed: int) -> None:
    steps = gradients(seed)
    clipped = [{k: np.clip(g, -limit, limit) for k, g in step.items()} for step in steps]
    assert_equal(train(SGD(0.1, clipvalue=limit), steps), train(SGD(0.1), clipped))


@given(limit=st.sampled_from([0.05, 1.0, 100.0]), seed=seeds)
def test_clipnorm_scales_each_gradient(limit: float, seed: int) -> None:
    steps = gradients(seed)
    clipped = [{k: g * min(1, limit / np.linalg.norm(g)) for k, g in step.items()} for step in steps]
    assert_equal(train(Adam(0.1, clipnorm=limit), steps), train(Adam(0.1), clipped))


@given(limit=st.sampled_from([0.05, 1.0, 100.0]), seed=seeds)
def test_global_clipnorm_scales_all_gradients_alike(limit: float, seed: int) -> None:
    steps = gradients(seed)
    norms = [np.sqrt(sum(np.sum(g**2) for g in step.values())) for step in steps]
    clipped = [{k: g * min(1, limit / norm) for k, g in step.items()} for step, norm in zip(steps, norms, strict=True)]
    assert_equal(train(SGD(0.1, global_clipnorm=limit), steps), train(SGD(0.1), clipped))


def test_a_gradient_of_zero_is_not_clipped_to_nan() -> None:
    zero = [{name: np.zeros(shape) for name, shape in SHAPES.items()}] * 2
    for options in ({"clipvalue": 1.0}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0}):
        assert_equal(train(SGD(0.1, **options), zero), parameters())


def assert_equal(found: State, expected: State) -> None:
    for name in SHAPES:
        assert_close(found[name], expected[name], 10 * STEPS)


# In training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FAST)
def test_the_rate_of_step_k_is_that_of_the_schedule(backend: str) -> None:
    schedule = CosineDecay(0.1, 6, 0.2, warmup_target=0.5, warmup_steps=3)
    model = Sequential([Input((1,)), Dense(1, use_bias=False)], backend=backend)
    model.compile(SGD(schedule), MeanOutput())
    kernel = [model.get_weights()["dense/kernel"].item()]
    x, y = np.ones((4, 1), "float32"), np.zeros((4, 1))
    read = Watch(lambda batch, logs: kernel.append(model.get_weights()["dense/kernel"].item()))
    model.fit(x, y, 2, 3, 0, [read])  # three epochs of two steps
    model.fit(x, y, 2, 1, 0, [read])  # the count goes on
    model.train_on_batch(x, y)
    kernel.append(model.get_weights()["dense/kernel"].item())
    expected = [schedule(k) for k in range(9)]  # the gradient is 1
    np.testing.assert_allclose(-np.diff(kernel), expected, rtol=SUM)
    model.compile(SGD(schedule), MeanOutput())  # and starts anew
    before = model.get_weights()["dense/kernel"].item()
    model.train_on_batch(x, y)
    assert before - model.get_weights()["dense/kernel"].item() == pytest.approx(schedule(0), rel=SUM)


def test_the_rate_may_be_changed_between_steps() -> None:
    model = Sequential([Input((1,)), Dense(1, use_bias=False)], backend="numpy")
    model.compile(SGD(0.5), MeanOutput())
    x, y = np.ones((1, 1)), np.zeros((1, 1))
    found = [model.get_weights()["dense/kernel"].item()]
    for rate in (0.5, 0.25, 0.0):
        assert model.optimizer is not None
        model.optimizer.learning_rate = rate
        model.train_on_batch(x, y)
        found.append(model.get_weights()["dense/kernel"].item())
    np.testing.assert_allclose(-np.diff(found), [0.5, 0.25, 0.0], rtol=ELEMENT)


def test_one_optimizer_serves_several_models() -> None:
    """All state is the model's: two that share an optimizer do as two with one each."""
    x, y = normal((8, 2), 0), normal((8, 1), 1)

    def model(optimizer: Optimizer, seed: int) -> Sequential:
        made = Sequential([Input((2,)), Dense(1)], backend="numpy", seed=seed)
        made.compile(optimizer, "mse")
        return made

    shared = Adam(0.1)
    one, two = model(shared, 0), model(shared, 1)
    alone = model(Adam(0.1), 1)
    for _ in range(3):
        one.train_on_batch(x, y)
        two.train_on_batch(x, y)
        alone.train_on_batch(x, y)
    np.testing.assert_array_equal(two.get_weights()["dense/kernel"], alone.get_weights()["dense/kernel"])


# Arguments --------------------------------------------------------------------------------------


def test_defaults_are_keras_s() -> None:
    assert (SGD().learning_rate, SGD().momentum, SGD().nesterov) == (0.01, 0.0, False)
    adam = Adam()
    assert (adam.learning_rate, adam.beta_1, adam.beta_2, adam.epsilon) == (0.001, 0.9, 0.999, 1e-7)
    assert (AdamW().weight_decay, adam.weight_decay) == (0.004, 0.0)
    rms = RMSprop()
    assert (rms.learning_rate, rms.rho, rms.momentum, rms.epsilon, rms.centered) == (0.001, 0.9, 0.0, 1e-7, False)


def test_a_class_stands_for_its_defaults() -> None:
    assert get_optimizer(SGD).get_config() == SGD().get_config()


@pytest.mark.parametrize("kind", list(OPTIMIZERS.values()))
@pytest.mark.parametrize(
    "wrong", [-0.1, 10**400, 1e39, float("nan"), float("inf"), "0.1", None], ids=lambda r: f"{r!r:.9}"
)
def test_rate_out_of_range(kind: Any, wrong: Any) -> None:
    message = r"learning_rate is a finite number of at least 0 or a Schedule\. Received: learning_rate="
    with pytest.raises(ValueError, match=message):
        kind(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"clipvalue": 0}, {"clipnorm": -1.0}, {"global_clipnorm": float("nan")}, {"clipvalue": "1"},
        {"clipvalue": 1.0, "clipnorm": 1.0},
    ],
)  # fmt: skip
def test_clipping_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"At most one of clipvalue, clipnorm and global_clipnorm .*Received: "):
        SGD(**options)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SGD(momentum=1.0), "momentum"), (lambda: SGD(momentum=-0.1), "momentum"),
        (lambda: Adam(beta_1=1.0), "beta_1"), (lambda: Adam(beta_2=1.5), "beta_2"), (lambda: RMSprop(rho=1), "rho"),
        (lambda: RMSprop(momentum=2), "momentum"), (lambda: Adam(epsilon=-1.0), "epsilon"),
        (lambda: RMSprop(epsilon=-1.0), "epsilon"), (lambda: AdamW(weight_decay=-0.1), "weight_decay"),
    ],
)  # fmt: skip
def test_other_arguments_out_of_range(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .*at least 0.*Received: {name}="):
        make()


def test_numpy_numbers_are_numbers() -> None:
    assert SGD(np.float32(0.5), np.float64(0.5)).rate(3) == 0.5


def test_unfinished_classes() -> None:
    with pytest.raises(NotImplementedError):
        Optimizer(0.1).update(None, None, [], None, None)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        Schedule()(0)


# Largest step at learning rate 1 for gradients that are rounding errors r, by docs/numbers.md.
OF_ROUNDING: dict[str, Callable[[float], float]] = {
    "SGD": lambda r: r, "Adadelta": lambda r: r,
    "RMSprop": lambda r: r / 1e-7**0.5, "Adagrad": lambda r: r / 0.1**0.5, "Lion": lambda r: 1.0,
    **dict.fromkeys(("Adam", "AdamW", "Nadam", "Muon"), lambda r: min(1.1 * r / 1e-7, 4)),
}  # fmt: skip


@pytest.mark.parametrize("kind", dict.fromkeys(OPTIMIZERS.values()), ids=lambda k: k.__name__)
@pytest.mark.parametrize("r", [1e-17, 1e-8, 1e-3])
def test_what_becomes_of_rounding(kind: Any, r: float) -> None:
    """Of gradients that should be 0, in the vector: steps are as large as documented, and no larger."""
    decays = {"adam_weight_decay": 0.0} if kind is Muon else {"weight_decay": 0.0} if kind is AdamW else {}
    sizes = []
    for steps in range(1, 30, 7):
        rng = np.random.default_rng(steps)
        noise = [{"a": np.zeros((3, 2)), "b": r * rng.choice([-1, 1], 4)} for _ in range(steps)]
        before, after = (train(kind(1.0, **decays), noise[:n])["b"] for n in (steps - 1, steps))
        sizes.append(np.abs(after - before).max())
    most = OF_ROUNDING[kind.__name__](r)
    assert most / 100 < max(sizes) <= most * 1.0001 + 1e-15


def test_muon_makes_at_most_485_times_as_much_of_rounding() -> None:
    """Beside the one direction of a gradient of rank 1, as a batch of one sample gives it."""
    exact = np.outer([1.0, -2.0, 0.5], [3.0, 1.0])
    r = 1e-9 * normal((3, 2), 1)
    steps = [
        train(Muon(1.0, weight_decay=0.0, rms_rate=None), [{"a": g, "b": np.zeros(4)}])["a"] for g in (exact, exact + r)
    ]
    relative = np.linalg.norm(r) / np.linalg.norm(exact)
    found = np.linalg.norm(steps[1] - steps[0])
    assert 20 * relative < found <= 3.4445**5 * relative
