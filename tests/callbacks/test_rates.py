from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.callbacks import LearningRateScheduler, ReduceLROnPlateau
from minicnn.optimizers import SGD
from minicnn.schedules import ExponentialDecay
from support.small_training import arrays, assert_same_bits, compiled, digits, network


def test_the_scheduler_sets_the_rate_of_each_epoch_and_logs_it() -> None:
    schedule = LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
    history = compiled(optimizer=SGD(0.4)).fit(*digits(), verbose=0, epochs=3, callbacks=[schedule])
    assert history.history["learning_rate"] == [0.4, 0.2, 0.1]


def test_the_rate_that_is_set_is_the_one_that_is_used() -> None:
    as_schedule, as_callback = compiled(optimizer=SGD(ExponentialDecay(0.1, 5, 0.5, True))), compiled(optimizer=SGD())
    as_schedule.fit(*digits(), 5, 3, verbose=0)
    by_epoch = LearningRateScheduler(ExponentialDecay(0.1, 1, 0.5))  # takes the epoch alone
    as_callback.fit(*digits(), 5, 3, verbose=0, callbacks=[by_epoch])
    assert_same_bits(arrays(as_callback), arrays(as_schedule))


def test_the_scheduler_says_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    compiled().fit(*digits(), verbose=0, callbacks=[LearningRateScheduler(lambda epoch: 0.25, verbose=1)])
    assert capsys.readouterr().out == "Epoch 1: the learning rate is 0.25.\n"


@pytest.mark.parametrize("wrong", [None, "fast", float("nan"), float("inf"), -0.1, 10**400], ids=lambda r: f"{r!r:.9}")
def test_a_schedule_gives_a_rate(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"finite number of at least 0. Received from the schedule for epoch 0"):
        compiled().fit(*digits(), verbose=0, callbacks=[LearningRateScheduler(lambda epoch: wrong)])


@pytest.mark.parametrize("callback", [LearningRateScheduler(lambda epoch: 0.1), ReduceLROnPlateau("loss")])
def test_a_schedule_and_a_callback_exclude_each_other(callback: Any) -> None:
    model = compiled(optimizer=SGD(ExponentialDecay(0.1, 5, 0.1, True)))
    with pytest.raises(ValueError, match=r"optimizer's is a number. Received: ExponentialDecay.*Leave out"):
        model.fit(*digits(), verbose=0, callbacks=[callback])
    assert model.get_state()["steps_taken"] == 0  # before anything was computed


def rates(callback: ReduceLROnPlateau, values: list[float], rate: float = 1.0, *, resume: int = 0) -> list[float]:
    """Learning rates that are logged, epoch by epoch."""
    callback.model = model = compiled(optimizer=SGD(rate))
    if not resume:
        callback.on_train_begin({})
    logged = []
    for epoch, value in enumerate(values, start=resume):
        logs: dict[str, Any] = {"val_loss": value}
        callback.on_epoch_end(epoch, logs)
        logged.append(logs["learning_rate"])
    assert model.optimizer is not None
    return [*logged, model.optimizer.rate(0)]


@pytest.mark.parametrize(
    ("arguments", "values", "expected"),
    [
        ({"patience": 1}, [5, 5, 5], [1, 1, 0.5, 0.25]),
        ({"patience": 2}, [5, 5, 5, 4], [1, 1, 1, 0.5, 0.5]),
        ({"patience": 1, "min_delta": 2}, [5, 4, 2.9], [1, 1, 0.5, 0.5]),
        ({"patience": 1, "cooldown": 2}, [5, 5, 5, 5, 5, 5], [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]),
        ({"patience": 1, "min_lr": 0.3}, [5, 5, 5, 5], [1, 1, 0.5, 0.3, 0.3]),
        ({"patience": 1, "mode": "max"}, [5, 6, 6], [1, 1, 1, 0.5]),
    ],
)
def test_the_rate_falls_where_it_does_in_keras(
    arguments: dict[str, Any], values: list[float], expected: list[float]
) -> None:
    assert rates(ReduceLROnPlateau(factor=0.5, **arguments), values) == expected


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 3), st.data()
)
def test_reduce_on_plateau_goes_on_from_its_state(
    values: list[float], patience: int, cooldown: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(values)))

    def new() -> ReduceLROnPlateau:
        return ReduceLROnPlateau(factor=0.5, patience=patience, cooldown=cooldown)

    first, second = new(), new()
    begun = rates(first, values[:cut])
    second.set_state(first.get_state())
    assert begun[:-1] + rates(second, values[cut:], begun[-1], resume=cut) == rates(new(), values)


def test_it_says_when_the_rate_falls(capsys: pytest.CaptureFixture[str]) -> None:
    rates(ReduceLROnPlateau(patience=1, verbose=1), [5, 5])
    assert capsys.readouterr().out == "Epoch 2: the learning rate is lowered to 0.1.\n"


@pytest.mark.parametrize("factor", [1.0, 2.0, -0.1])
def test_the_factor_lowers(factor: float) -> None:
    with pytest.raises(ValueError, match=r"at least 0 and below 1. Received: "):
        ReduceLROnPlateau(factor=factor)


def test_a_model_without_an_optimizer_is_refused() -> None:
    callback = ReduceLROnPlateau("loss")
    callback.model = network()
    with pytest.raises(RuntimeError, match=r"needs an optimizer"):
        callback.on_train_begin({})
