"""Gradient descent with running means of one gradient or none: SGD, RMSprop, Adagrad, Adadelta, Lion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from minicnn import ops
from minicnn.optimizers.base import Optimizer, OptimizerOptions, at_least_zero, share
from minicnn.program.graph import Value
from minicnn.schedules import Schedule


class SGD(Optimizer):
    """Gradient descent, with momentum if asked: v' = momentum * v - rate * g, p' = p + v'.

    Args:
        momentum: Share of the last step that is kept.
        nesterov: Look ahead along the momentum.
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        share(momentum=momentum)
        self.momentum, self.nesterov = momentum, nesterov
        # Plain descent keeps nothing: a state of zeros would cost memory and time.
        self.slots = ("velocity",) if momentum else ()

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        if not self.momentum:
            return [ops.sgd_update(p, g, rate, weight_decay=self.weight_decay)]
        return ops.momentum_update(
            p, *state, g, rate, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay
        )


class RMSprop(Optimizer):
    """RMSprop: steps scaled by a running mean of squared gradients.

    Args:
        rho: Decay of the running means.
        momentum: Share of the last step that is kept.
        epsilon: Added to the mean of squares, under the root.
        centered: Subtract the square of the mean gradient.
    """

    slots = ("mean_square", "mean_gradient", "velocity")

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        share(rho=rho, momentum=momentum)
        at_least_zero("epsilon", epsilon)
        self.rho, self.momentum, self.epsilon, self.centered = rho, momentum, epsilon, centered

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        return ops.rmsprop_update(
            p, *state, g, rate, rho=self.rho, momentum=self.momentum, epsilon=self.epsilon, centered=self.centered,
            weight_decay=self.weight_decay,
        )  # fmt: skip


class Adagrad(Optimizer):
    """Adagrad (J. Duchi et al., JMLR 12, 2011): steps divided by the root of the sum of all squared gradients.

    a' = a + g^2, p' = p - rate g / sqrt(a' + epsilon). The state holds a without its initial value.

    Args:
        initial_accumulator_value: First value of a.
        epsilon: Added under the root.
    """

    slots = ("accumulator",)

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        at_least_zero("initial_accumulator_value", initial_accumulator_value)
        at_least_zero("epsilon", epsilon)
        self.initial_accumulator_value, self.epsilon = initial_accumulator_value, epsilon

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        a = state[0] + ops.square(g)
        return [self.decayed(p, rate) - rate * g / ops.sqrt(a + (self.initial_accumulator_value + self.epsilon)), a]


class Adadelta(Optimizer):
    """Adadelta (arXiv:1212.5701): steps of the size of earlier steps, divided by that of gradients.

    a' = rho a + (1 - rho) g^2, d = sqrt(s + epsilon) / sqrt(a' + epsilon) g, s' = rho s + (1 - rho) d^2,
    p' = p - rate d.

    Args:
        rho: Decay of the running means a and s.
        epsilon: Added under the roots.
    """

    slots = ("accumulator", "step")

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        share(rho=rho)
        at_least_zero("epsilon", epsilon)
        self.rho, self.epsilon = rho, epsilon

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        a = state[0] * self.rho + ops.square(g) * (1.0 - self.rho)
        d = ops.sqrt(state[1] + self.epsilon) / ops.sqrt(a + self.epsilon) * g
        return [self.decayed(p, rate) - rate * d, a, state[1] * self.rho + ops.square(d) * (1.0 - self.rho)]


class Lion(Optimizer):
    """Lion (arXiv:2302.06675): steps of one size, in the direction of the sign of a running mean.

    p' = p - rate sign(beta_1 m + (1 - beta_1) g), m' = beta_2 m + (1 - beta_2) g.

    Args:
        beta_1: Share of the running mean in a step.
        beta_2: Decay of the running mean.
    """

    slots = ("momentum",)

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        share(beta_1=beta_1, beta_2=beta_2)
        self.beta_1, self.beta_2 = beta_1, beta_2

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        (m,) = state
        p = self.decayed(p, rate) - rate * ops.sign(m * self.beta_1 + g * (1.0 - self.beta_1))
        return [p, m * self.beta_2 + g * (1.0 - self.beta_2)]
