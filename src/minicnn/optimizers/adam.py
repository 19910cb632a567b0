"""Adam and its kin: steps scaled by running moments of the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from minicnn import ops
from minicnn.optimizers.base import Clipping, Optimizer, OptimizerOptions, at_least_zero, share
from minicnn.program.graph import Value
from minicnn.schedules import Schedule


class Adam(Optimizer):
    """Adam (arXiv:1412.6980): steps scaled by running moments of the gradient.

    Args:
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment ("epsilon hat" of the paper).
    """

    slots = ("m", "v")

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        super().__init__(learning_rate, **options)
        share(beta_1=beta_1, beta_2=beta_2)
        at_least_zero("epsilon", epsilon)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        return ops.adam_update(
            p, *state, g, rate, step, beta_1=self.beta_1, beta_2=self.beta_2, epsilon=self.epsilon,
            weight_decay=self.weight_decay,
        )  # fmt: skip


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101), 0.004 unless given.

    Args:
        weight_decay: Share of each weight, times the rate, taken off at every step.
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[Clipping],
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, weight_decay=weight_decay, **options)


class Nadam(Adam):
    """Adam with Nesterov's momentum (T. Dozat, Incorporating Nesterov momentum into Adam, ICLR workshop 2016).

    With u_t = beta_1 (1 - 0.96^t / 2), U_t their product and t = step + 1,
    p' = p - rate (u_{t+1} m' / (1 - U_{t+1}) + (1 - u_t) g / (1 - U_t)) / (sqrt(v' / (1 - beta_2^t)) + epsilon).
    """

    def update_all(
        self, parameters: Sequence[Value], gradients: Sequence[Value], states: Sequence[list[Value]], rate: Value,
        step: Value,
    ) -> list[Sequence[Value]]:  # fmt: skip
        """See `Optimizer.update_all`: factors that depend on the step alone are computed once."""
        t = ops.cast(step + 1, dtype=rate.dtype)
        u, ahead = ((1.0 - ops.exp(n * math.log(0.96)) * 0.5) * self.beta_1 for n in (t, t + 1.0))
        # The factors of m and g are the same for all weights: computed once, in scalars.
        product = self._product(step, t)
        of_m, of_g = rate * ahead / (1.0 - product * ahead), rate * (1.0 - u) / (1.0 - product)
        of_v = 1.0 / _one_minus_power(self.beta_2, t)
        updates: list[Sequence[Value]] = []
        for p, g, (m, v) in zip(parameters, gradients, states, strict=True):
            m = m * self.beta_1 + g * (1.0 - self.beta_1)
            v = v * self.beta_2 + ops.square(g) * (1.0 - self.beta_2)
            descent = (of_m * m + of_g * g) / (ops.sqrt(v * of_v) + self.epsilon)
            updates.append([self.decayed(p, rate) - descent, m, v])
        return updates

    def _product(self, step: Value, t: Value) -> Value:
        """U_t: beta_1^t times the product of (1 - 0.96^i / 2), which no longer changes after some 500 steps."""
        # The running product as a table: as a state it would be one more scalar to be kept, saved and shared. Beyond
        # 512 steps its factors are 1 in float32.
        table = np.cumprod(1.0 - 0.5 * 0.96 ** np.arange(1, 512.0))
        row = ops.reshape(ops.minimum(step, len(table) - 1), shape=(1,))
        rest = ops.take(step.program.constant(table, t.dtype), row)
        return ops.reshape(rest, shape=()) * (ops.exp(t * math.log(self.beta_1)) if self.beta_1 else 0.0)


def _one_minus_power(base: float, t: Value) -> Value:
    """1 - base^t by expm1: the difference itself loses four digits in float32."""
    return -ops.expm1(t * math.log(base)) if base else t * 0.0 + 1.0
