"""Optimizers: from gradients to update nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from numbers import Real

from minicnn import ops
from minicnn.names import look_up
from minicnn.program.graph import Program, Value
from minicnn.schedules import Schedule, is_rate


class Optimizer:
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
            _least_zero("learning_rate", learning_rate, " or a Schedule")
        _least_zero("weight_decay", weight_decay or 0.0)
        clips = {"clipvalue": clipvalue, "clipnorm": clipnorm, "global_clipnorm": global_clipnorm}
        given = {k: v for k, v in clips.items() if v is not None}
        if len(given) > 1 or not all(isinstance(v, Real) and v > 0 for v in given.values()):
            message = f"At most one of clipvalue, clipnorm and global_clipnorm is set, above 0. Received: {given}."
            raise ValueError(message)
        self.learning_rate: float | Schedule = learning_rate
        self.weight_decay = weight_decay or 0.0
        self.clipvalue, self.clipnorm, self.global_clipnorm = clipvalue, clipnorm, global_clipnorm

    @property
    def name(self) -> str:
        """Name in the Program."""
        return type(self).__name__.lower()

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0.

        Raises:
            ValueError: If what was set, or what the schedule says, is no rate.
        """
        rate = self.learning_rate(step) if isinstance(self.learning_rate, Schedule) else self.learning_rate
        _least_zero("learning_rate", rate, f", as it is in step {step}")
        return rate

    def state_names(self, path: str) -> list[str]:
        """Names of the state arrays of one parameter, in the order of `slots`."""
        return [f"{self.name}/{slot}/{path}" for slot in self.slots]

    def apply(self, program: Program, parameters: Mapping[str, Value], gradients: Sequence[Value], step: Value) -> None:
        """Append the update nodes; new parameters and state become the Program's updates.

        Args:
            program: Program that holds the gradients.
            parameters: Trainable weights by path.
            gradients: Their gradients, in the same order.
            step: Counter of steps, an int32 scalar.
        """
        with program.scope(self.name, "update"):
            rate = program.input("learning_rate", (), next(iter(parameters.values())).dtype)
            clipped = self._clip(list(gradients))
            for (path, parameter), gradient in zip(parameters.items(), clipped, strict=True):
                state = [
                    program.input(name, parameter.shape, parameter.dtype, kind="optimizer")
                    for name in self.state_names(path)
                ]
                made = self.update(parameter, gradient, state, rate, step)
                program.updates[path] = made[0]
                for value, new in zip(state, made[1:], strict=True):
                    program.updates[value.name] = new

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        """Emit one parameter's update; returns the new parameter, then its new state in the order of `slots`."""
        raise NotImplementedError

    def _clip(self, gradients: list[Value]) -> list[Value]:
        if self.clipvalue is not None:
            return [ops.maximum(ops.minimum(g, self.clipvalue), -self.clipvalue) for g in gradients]
        if self.clipnorm is not None:
            return [_scaled(g, ops.sum(ops.square(g)), self.clipnorm) for g in gradients]
        if self.global_clipnorm is not None:
            total = reduce(lambda a, b: a + b, [ops.sum(ops.square(g)) for g in gradients])
            return [_scaled(g, total, self.global_clipnorm) for g in gradients]
        return gradients


def _scaled(g: Value, squares: Value, limit: float) -> Value:
    """Gradient scaled down so that the norm whose square is given is at most the limit."""
    return g * (limit / ops.maximum(ops.sqrt(squares), limit))


class SGD(Optimizer):
    """Gradient descent, with momentum if asked: v' = momentum * v - rate * g, p' = p + v'.

    Args:
        learning_rate: Rate or Schedule.
        momentum: Share of the last step that is kept.
        nesterov: Look ahead along the momentum.
        weight_decay: See `Optimizer`; so are the clipping arguments.
        clipvalue: See `Optimizer`.
        clipnorm: See `Optimizer`.
        global_clipnorm: See `Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        weight_decay: float | None = None,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay=weight_decay, clipvalue=clipvalue, clipnorm=clipnorm,
            global_clipnorm=global_clipnorm,
        )  # fmt: skip
        _share("momentum", momentum)
        self.momentum, self.nesterov = momentum, nesterov
        self.slots = ("velocity",) if momentum else ()

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        """See `Optimizer.update`."""
        if not self.momentum:
            return [ops.sgd_update(p, g, rate, weight_decay=self.weight_decay)]
        made: Sequence[Value] = ops.momentum_update(
            p, *state, g, rate, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )
        return made


class Adam(Optimizer):
    """Adam (arXiv:1412.6980): steps scaled by running moments of the gradient.

    Args:
        learning_rate: Rate or Schedule.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment ("epsilon hat" of the paper).
        weight_decay: See `Optimizer`; so are the clipping arguments.
        clipvalue: See `Optimizer`.
        clipnorm: See `Optimizer`.
        global_clipnorm: See `Optimizer`.
    """

    slots = ("m", "v")

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        weight_decay: float | None = None,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay=weight_decay, clipvalue=clipvalue, clipnorm=clipnorm,
            global_clipnorm=global_clipnorm,
        )  # fmt: skip
        _share("beta_1", beta_1)
        _share("beta_2", beta_2)
        _least_zero("epsilon", epsilon)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        """See `Optimizer.update`."""
        made: Sequence[Value] = ops.adam_update(
            p,
            *state,
            g,
            rate,
            step,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
        )
        return made


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101), 0.004 unless given.

    Args:
        learning_rate: Rate or Schedule.
        weight_decay: Share of each weight, times the rate, taken off at every step.
        beta_1: See `Adam`; so are the other arguments.
        beta_2: See `Adam`.
        epsilon: See `Adam`.
        clipvalue: See `Optimizer`.
        clipnorm: See `Optimizer`.
        global_clipnorm: See `Optimizer`.
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, clipvalue=clipvalue, clipnorm=clipnorm,
            global_clipnorm=global_clipnorm,
        )  # fmt: skip


class RMSprop(Optimizer):
    """RMSprop: steps scaled by a running mean of squared gradients.

    Args:
        learning_rate: Rate or Schedule.
        rho: Decay of the running means.
        momentum: Share of the last step that is kept.
        epsilon: Added to the mean of squares, under the root.
        centered: Subtract the square of the mean gradient.
        weight_decay: See `Optimizer`; so are the clipping arguments.
        clipvalue: See `Optimizer`.
        clipnorm: See `Optimizer`.
        global_clipnorm: See `Optimizer`.
    """

    slots = ("mean_square", "mean_gradient", "velocity")

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        *,
        weight_decay: float | None = None,
        clipvalue: float | None = None,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay=weight_decay, clipvalue=clipvalue, clipnorm=clipnorm,
            global_clipnorm=global_clipnorm,
        )  # fmt: skip
        _share("rho", rho)
        _share("momentum", momentum)
        _least_zero("epsilon", epsilon)
        self.rho, self.momentum, self.epsilon, self.centered = rho, momentum, epsilon, centered

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        """See `Optimizer.update`."""
        made: Sequence[Value] = ops.rmsprop_update(
            p, *state, g, rate, rho=self.rho, momentum=self.momentum, epsilon=self.epsilon, centered=self.centered,
            weight_decay=self.weight_decay,
        )  # fmt: skip
        return made


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}


def get_optimizer(given: str | Optimizer) -> Optimizer:
    """An optimizer by name with its defaults, or the one given."""
    if isinstance(given, Optimizer):
        return given
    return look_up("An optimizer", OPTIMIZERS, given, "an Optimizer")()  # type: ignore[call-arg]


def _least_zero(name: str, value: float, otherwise: str = "") -> None:
    if not is_rate(value):
        message = f"{name} is a finite number of at least 0{otherwise}. Received: {name}={value!r:.60}."
        raise ValueError(message)


def _share(name: str, value: float) -> None:
    if not (isinstance(value, Real) and 0 <= value < 1):
        message = f"{name} is at least 0 and below 1. Received: {name}={value!r}."
        raise ValueError(message)
