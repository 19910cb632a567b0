"""Optimizer updates: new parameters and state from gradients.

Formulas are Keras's. Weight decay is decoupled (arXiv:1711.05101): p is first multiplied by 1 - rate * decay.
Shapes: parameter, gradient and state are alike; the learning rate is a scalar array, the step an int32 scalar that
counts from 0.
"""

from __future__ import annotations

import math

from minicnn.ops.arrays import copy_of
from minicnn.ops.checks import same_dtype
from minicnn.ops.primitive import Array, Namespace, Primitive, primitive
from minicnn.program.graph import Spec


def _decayed(p: Array, rate: Array, weight_decay: float) -> Array:
    return p - p * (rate * weight_decay) if weight_decay else p


def _updates(op: Primitive, results: int, scalars: int) -> None:
    @op.shape
    def shape(*specs: Spec, **_: object) -> tuple[Spec, ...]:
        arrays, rest = specs[: len(specs) - scalars], specs[len(specs) - scalars :]
        same_dtype(op.name, *arrays, rest[0])
        if any(s.shape != arrays[0].shape for s in arrays) or any(s.shape != () for s in rest):
            raise ValueError(
                f"{op.name} takes a parameter, its gradient and state of one shape, then scalars. "
                f"Received: {', '.join(map(str, specs))}."
            )
        return (arrays[0],) * results


@primitive(elementwise=True, flops=2)
def sgd_update(p: Array, g: Array, rate: Array, *, weight_decay: float = 0.0, xp: Namespace) -> Array:
    """Gradient descent: p - rate * g."""
    return _decayed(p, rate, weight_decay) - rate * g


@primitive(elementwise=True, flops=2)
def momentum_update(
    p: Array, v: Array, g: Array, rate: Array, *, momentum: float, nesterov: bool = False,
    weight_decay: float = 0.0, xp: Namespace,
) -> tuple[Array, Array]:  # fmt: skip
    """Gradient descent with momentum (Sutskever et al., ICML 2013).

    v' = momentum * v - rate * g; p' = p + v', or p + momentum * v' - rate * g with `nesterov`. Returns (p', v').
    """
    # Decay is taken of the weight itself, apart from the gradient (I. Loshchilov, F. Hutter, arXiv:1711.05101).
    p = _decayed(p, rate, weight_decay)
    descent = rate * g
    v = momentum * v - descent
    return (p + momentum * v - descent if nesterov else p + v), v


@primitive(elementwise=True, flops=5)
def adam_update(
    p: Array, m: Array, v: Array, g: Array, rate: Array, step: Array, *, beta_1: float, beta_2: float,
    epsilon: float, weight_decay: float = 0.0, xp: Namespace,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Adam (arXiv:1412.6980), with epsilon as "epsilon hat" in its section 2. Returns (p', m', v').

    m' = beta_1 m + (1 - beta_1) g, v' = beta_2 v + (1 - beta_2) g^2,
    p' = p - rate sqrt(1 - beta_2^t) / (1 - beta_1^t) m' / (sqrt(v') + epsilon), t = step + 1.
    """
    p = _decayed(p, rate, weight_decay)
    t = xp.astype(step + 1, rate.dtype)
    # 1 - beta^t by expm1: the difference itself loses four digits in float32.
    c1 = -xp.expm1(t * math.log(beta_1)) if beta_1 else xp.ones_like(t)
    c2 = -xp.expm1(t * math.log(beta_2)) if beta_2 else xp.ones_like(t)
    m = beta_1 * m + (1.0 - beta_1) * g
    v = beta_2 * v + (1.0 - beta_2) * xp.square(g)
    return p - (rate * xp.sqrt(c2) / c1) * m / (xp.sqrt(v) + epsilon), m, v


@primitive(elementwise=True, flops=4)
def rmsprop_update(
    p: Array, v: Array, a: Array, u: Array, g: Array, rate: Array, *, rho: float, momentum: float, epsilon: float,
    centered: bool, weight_decay: float = 0.0, xp: Namespace,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """RMSprop (G. Hinton, Coursera lecture 6e; centred: arXiv:1308.0850). Returns (p', v', a', u').

    v' = rho v + (1 - rho) g^2; a' = rho a + (1 - rho) g if `centered`; d = rate g / sqrt(v' - a'^2 + epsilon);
    u' = momentum u + d; p' = p - u'.
    """
    p = _decayed(p, rate, weight_decay)
    v = rho * v + (1.0 - rho) * xp.square(g)
    a = rho * a + (1.0 - rho) * g if centered else copy_of(a, xp)
    # v - a^2 is a variance, which rounding may turn negative.
    spread = xp.maximum(v - xp.square(a), xp.zeros_like(v)) if centered else v
    u = momentum * u + rate * g / xp.sqrt(spread + epsilon)
    return p - u, v, a, u


_updates(sgd_update, 1, 1)
_updates(momentum_update, 2, 1)
_updates(adam_update, 3, 2)
_updates(rmsprop_update, 4, 1)
