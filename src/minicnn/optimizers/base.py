"""The optimizer: clipping, decay, the learning rate, and state by parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypedDict

from minicnn import ops
from minicnn.configured import Configured
from minicnn.ops.normalization import factor_for_squares
from minicnn.program.graph import Kind, Program, Value
from minicnn.schedules import Schedule, is_rate


class Clipping(TypedDict, total=False):
    """Arguments that every optimizer takes by name: see `Optimizer`."""

    clipvalue: float | None
    clipnorm: float | None
    global_clipnorm: float | None


class OptimizerOptions(Clipping, total=False):
    """And that all but those with a decay of their own take."""

    weight_decay: float | None


class Optimizer(Configured):
    """Base class: clipping, decay and the learning rate; a subclass emits the update of one parameter.

    Args:
        learning_rate: Rate, or a Schedule of it.
        weight_decay: Share of each weight, times the rate, that is taken off at every step (decoupled).
        clipvalue: Gradients are clipped to +-clipvalue.
        clipnorm: Each gradient is scaled down to this Euclidean norm.
        global_clipnorm: All gradients together are scaled down to this Euclidean norm.
    """

    # State arrays of each parameter, all starting at zero.
    slots: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: float | Schedule,
        *,
        weight_decay: float | None = None,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        if not isinstance(learning_rate, Schedule):
            at_least_zero("learning_rate", learning_rate, " or a Schedule")
        at_least_zero("weight_decay", weight_decay or 0.0)
        clips = {"clipvalue": clipvalue, "clipnorm": clipnorm, "global_clipnorm": global_clipnorm}
        limits = {k: v for k, v in clips.items() if v is not None}
        if len(limits) > 1 or not all(isinstance(v, Real) and v > 0 for v in limits.values()):
            raise ValueError(
                f"At most one of clipvalue, clipnorm and global_clipnorm is set, above 0. Received: {limits}."
            )
        self.learning_rate: float | Schedule = learning_rate
        self.weight_decay = weight_decay or 0.0
        self.clipvalue, self.clipnorm, self.global_clipnorm = clipvalue, clipnorm, global_clipnorm

    # Name of a further optimizer of a step: the attribute of the model that holds it.
    _name: str | None = None

    @property
    def name(self) -> str:
        """Name in the Program."""
        return self._name or type(self).__name__.lower()

    @property
    def rate_name(self) -> str:
        """Name of the input that is its learning rate."""
        return "learning_rate" if self._name is None else f"{self._name}/learning_rate"

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0.

        Raises:
            ValueError: If what was set, or what the schedule says, is no rate.
        """
        try:
            rate = self.learning_rate(step) if isinstance(self.learning_rate, Schedule) else self.learning_rate
        except ArithmeticError:  # a schedule that grows without end
            rate = math.inf
        at_least_zero("learning_rate", rate, f", as it is in step {step}")
        return rate

    def slots_of(self, path: str, shape: Sequence[int]) -> Sequence[str]:
        """State arrays of one parameter: `slots`, unless a subclass treats parameters differently."""
        return self.slots

    def state_names(self, path: str, shape: Sequence[int]) -> list[str]:
        """Names of the state arrays of one parameter, in the order of its slots."""
        return [f"{self.name}/{slot}/{path}" for slot in self.slots_of(path, shape)]

    def apply(self, program: Program, parameters: Mapping[str, Value], gradients: Sequence[Value], step: Value) -> None:
        """Append the update nodes; new parameters and state become the Program's updates.

        Args:
            program: Program that holds the gradients.
            parameters: Trainable weights by path.
            gradients: Their gradients, in the same order.
            step: Counter of steps, an int32 scalar.
        """
        with program.scope(self.name, "update"):
            # An input, not a constant: a schedule changes it in every step, and the step is compiled once.
            rate = _latest(program, self.rate_name, (), next(iter(parameters.values())).dtype, "input")
            # All gradients at once, as their common norm needs them all.
            clipped = self._clip(list(gradients))
            states = [
                [
                    _latest(program, name, parameter.shape, parameter.dtype, "optimizer")
                    for name in self.state_names(path, parameter.shape)
                ]
                for path, parameter in parameters.items()
            ]
            updated = self.update_all(list(parameters.values()), clipped, states, rate, step)
            for (path, parameter), (new_parameter, *new_state) in zip(parameters.items(), updated, strict=True):
                program.updates[path] = new_parameter
                # By name, so that a saved state finds its weight whatever the order of the layers.
                for name, new in zip(self.state_names(path, parameter.shape), new_state, strict=True):
                    program.updates[name] = new

    def update_all(
        self, parameters: Sequence[Value], gradients: Sequence[Value], states: Sequence[list[Value]], rate: Value,
        step: Value,
    ) -> list[Sequence[Value]]:  # fmt: skip
        """Emit the updates of all parameters: that of each, unless a subclass has them share something."""
        return [self.update(p, g, s, rate, step) for p, g, s in zip(parameters, gradients, states, strict=True)]

    def decayed(self, p: Value, rate: Value) -> Value:
        """The parameter after its weight decay."""
        return p - p * (rate * self.weight_decay) if self.weight_decay else p

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        """Emit one parameter's update; returns the new parameter, then its new state in the order of `slots`."""
        raise NotImplementedError

    def _clip(self, gradients: list[Value]) -> list[Value]:
        if self.clipvalue is not None:
            return [ops.maximum(ops.minimum(g, self.clipvalue), -self.clipvalue) for g in gradients]
        if self.clipnorm is not None:
            # Each by its own norm; `global_clipnorm` scales all alike, which keeps the direction of the step.
            return [_scaled([g], self.clipnorm)[0] for g in gradients]
        return gradients if self.global_clipnorm is None else _scaled(gradients, self.global_clipnorm)


def _latest(program: Program, name: str, shape: Sequence[int], dtype: str, kind: Kind) -> Value:
    """An input of the step, which an earlier update in it may have replaced."""
    if name in program.updates:
        return program.updates[name]
    try:
        return program.value(name)
    except KeyError:
        return program.input(name, shape, dtype, kind=kind)


def _scaled(gradients: Sequence[Value], limit: float) -> list[Value]:
    """Gradients scaled down so that their norm, of all together, is at most the limit."""
    factor = factor_for_squares(*gradients)
    gradients = [g * factor for g in gradients]
    length = ops.sqrt(ops.total([ops.sum(ops.square(g)) for g in gradients]))
    # The least length keeps the quotient finite where gradients are 0; it is above 1 / factor all the same.
    share = ops.minimum(limit / ops.maximum(length, limit * 2.0**-100), 1.0 / factor)
    return [g * share for g in gradients]


def at_least_zero(name: str, value: float, otherwise: str = "") -> None:
    """Raise a ValueError unless the value is a finite number of at least 0."""
    if not is_rate(value):
        raise ValueError(f"{name} is a finite number of at least 0{otherwise}. Received: {name}={value!r:.60}.")


def share(**shares: float) -> None:
    """Raise a ValueError unless all values are at least 0 and below 1."""
    for name, value in shares.items():
        if not (isinstance(value, Real) and 0 <= value < 1):
            raise ValueError(f"{name} is at least 0 and below 1. Received: {name}={value!r}.")
