"""Muon: orthogonal steps for matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from minicnn import ops
from minicnn.ops.checks import positive
from minicnn.ops.normalization import factor_for_squares
from minicnn.optimizers.base import Clipping, Optimizer, at_least_zero, share
from minicnn.program.graph import Value
from minicnn.schedules import Schedule

_MOST_ITERATIONS = 100  # of which some five are enough


class Muon(Optimizer):
    """Muon (K. Jordan, 2024, kellerjordan.github.io/posts/muon): the steps of matrices are made orthogonal.

    m' = momentum m + g; a Newton-Schulz iteration brings the singular values of m' (of g + momentum m' with
    `nesterov`) near 1, and the step is rate rms_rate sqrt(longer side) times that (arXiv:2502.16982). Parameters
    that are no matrices, and those excluded, are updated by AdamW.

    Args:
        adam_beta_1: See `Adam`, of what is no matrix.
        adam_beta_2: See `Adam`.
        adam_weight_decay: See `Optimizer`, of what is no matrix.
        epsilon: See `Adam`.
        weight_decay: See `Optimizer`, of matrices.
        exclude_layers: Parts of paths: parameters whose path contains one are updated by AdamW. In Keras they are
            regular expressions.
        muon_a: Coefficient of x in the iteration x' = a x + (b x x^T + c (x x^T)^2) x.
        muon_b: See there.
        muon_c: See there.
        adam_lr_ratio: Learning rate of AdamW, as a share of the rate.
        momentum: Share of the last step's m that is kept.
        ns_steps: Number of iterations.
        nesterov: Look ahead along the momentum.
        rms_rate: Size of a step; None leaves its singular values near 1.
    """

    def __init__(
        self,
        learning_rate: float | Schedule = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float = 0.004,
        *,
        exclude_layers: Sequence[str] = (),
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1.0,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **options: Unpack[Clipping],
    ) -> None:
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        share(adam_beta_1=adam_beta_1, adam_beta_2=adam_beta_2, momentum=momentum)
        at_least_zero("adam_weight_decay", adam_weight_decay)
        at_least_zero("epsilon", epsilon)
        if isinstance(exclude_layers, str) or not all(isinstance(part, str) for part in exclude_layers):
            raise ValueError(
                "exclude_layers is a list of parts of weights' paths, such as ['embedding', 'dense_1/']. Received: "
                f"exclude_layers={exclude_layers!r:.60}. Give a list of strings."
            )
        if positive("ns_steps", ns_steps) > _MOST_ITERATIONS:
            raise ValueError(f"ns_steps is at most {_MOST_ITERATIONS}. Received: ns_steps={ns_steps!r}.")
        if not adam_lr_ratio > 0:
            raise ValueError(f"adam_lr_ratio is a number above 0. Received: adam_lr_ratio={adam_lr_ratio!r}.")
        self.adam_beta_1, self.adam_beta_2, self.adam_weight_decay = adam_beta_1, adam_beta_2, adam_weight_decay
        self.epsilon, self.exclude_layers, self.adam_lr_ratio = epsilon, list(exclude_layers), adam_lr_ratio
        self.muon_a, self.muon_b, self.muon_c = muon_a, muon_b, muon_c
        self.momentum, self.ns_steps, self.nesterov, self.rms_rate = momentum, ns_steps, nesterov, rms_rate

    def slots_of(self, path: str, shape: Sequence[int]) -> Sequence[str]:
        """See `Optimizer.slots_of`: the second one is AdamW's."""
        # Orthogonal directions are defined for matrices alone; biases and filters take Adam's step.
        excluded = len(shape) != 2 or any(part in path for part in self.exclude_layers)
        return ("momentum", "velocity") if excluded else ("momentum",)

    def update(self, p: Value, g: Value, state: list[Value], rate: Value, step: Value) -> Sequence[Value]:
        if len(state) == 2:
            return ops.adam_update(
                p, *state, g, rate * self.adam_lr_ratio, step, beta_1=self.adam_beta_1, beta_2=self.adam_beta_2,
                epsilon=self.epsilon, weight_decay=self.adam_weight_decay / self.adam_lr_ratio,
            )  # fmt: skip
        m = state[0] * self.momentum + g
        x = self._orthogonal(g + m * self.momentum if self.nesterov else m)
        # The step then has as large elements as Adam's, so that one learning rate serves both.
        size = 1.0 if self.rms_rate is None else math.sqrt(max(p.shape)) * self.rms_rate
        return [self.decayed(p, rate) - x * (rate * size), m]

    def _orthogonal(self, x: Value) -> Value:
        """About U V^T of the singular value decomposition U S V^T of x."""
        tall = x.shape[0] > x.shape[1]  # then the product with the transpose on the other side is smaller
        factor = factor_for_squares(x)
        x = x * factor
        # The iteration converges for singular values up to 1, which this norm ensures.
        x = x / (ops.sqrt(ops.sum(ops.square(x))) + factor * 1e-7)
        for _ in range(self.ns_steps):
            squares = ops.matmul(x, x, transpose_a=tall, transpose_b=not tall)
            factor = squares * self.muon_b + ops.matmul(squares, squares) * self.muon_c
            x = x * self.muon_a + (ops.matmul(x, factor) if tall else ops.matmul(factor, x))
        return x
