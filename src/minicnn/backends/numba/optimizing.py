"""Rules for the optimizers' updates: each reads and writes every array once."""

from __future__ import annotations

import math

from minicnn.backends.numba import elementwise
from minicnn.backends.numba.elementwise import splat
from minicnn.backends.numba.lowering import PLAIN, Lowering, Rule
from minicnn.program.graph import Node


def _update(to: Lowering, node: Node, lines: list[str], arrays: str, scalars: str, results: str) -> None:
    p = node.inputs[0]
    decay = node.attrs["weight_decay"]
    first = [f"p = vsub(p, vmul(p, vmul(rate, {splat(decay)})))"] if decay else []
    names = (arrays.split(), scalars.split(), results.split())
    source = elementwise.formula(node.op.name, first + lines, *names, p.size)
    reads = [to.need(v, PLAIN) for v in node.inputs]
    to.add(node, source, reads, [to.buffer(v, PLAIN) for v in node.outputs], elementwise.items(p.size))


def _sgd(to: Lowering, node: Node) -> None:
    _update(to, node, ["p1 = vsub(p, vmul(rate, g))"], "p g", "rate", "p1")


def _momentum(to: Lowering, node: Node) -> None:
    momentum = splat(node.attrs["momentum"])
    ahead = f"vsub(vadd(p, vmul({momentum}, v1)), d)" if node.attrs["nesterov"] else "vadd(p, v1)"
    lines = ["d = vmul(rate, g)", f"v1 = vsub(vmul({momentum}, v), d)", f"p1 = {ahead}"]
    _update(to, node, lines, "p v g", "rate", "p1 v1")


def _mix(name: str, share: float, value: str) -> str:
    return f"{name}1 = vadd(vmul({splat(share)}, {name}), vmul({splat(1.0 - share)}, {value}))"


def _adam(to: Lowering, node: Node) -> None:
    b1, b2, epsilon = (node.attrs[k] for k in ("beta_1", "beta_2", "epsilon"))

    def correction(beta: float) -> str:
        return f"vsub(splat(float32(0)), vexpm1(vmul(t, {splat(math.log(beta))})))" if beta else splat(1)

    lines = [
        "t = int_to_float(iadd(step, isplat(int32(1))))",
        f"pace = vdiv(vmul(rate, vsqrt({correction(b2)})), {correction(b1)})",
        _mix("m", b1, "g"),
        _mix("v", b2, "vmul(g, g)"),
        f"p1 = vsub(p, vdiv(vmul(pace, m1), vadd(vsqrt(v1), {splat(epsilon)})))",
    ]
    _update(to, node, lines, "p m v g", "rate step", "p1 m1 v1")


def _rmsprop(to: Lowering, node: Node) -> None:
    a = node.attrs
    centered = a["centered"]
    lines = [
        _mix("v", a["rho"], "vmul(g, g)"),
        _mix("a", a["rho"], "g") if centered else "a1 = a",
        f"spread = vmax(vsub(v1, vmul(a1, a1)), {splat(0)})" if centered else "spread = v1",
        f"d = vdiv(vmul(rate, g), vsqrt(vadd(spread, {splat(a['epsilon'])})))",
        f"u1 = vadd(vmul({splat(a['momentum'])}, u), d)",
        "p1 = vsub(p, u1)",
    ]
    _update(to, node, lines, "p v a u g", "rate", "p1 v1 a1 u1")


UPDATE_RULES: dict[str, Rule] = {
    "sgd_update": _sgd,
    "momentum_update": _momentum,
    "adam_update": _adam,
    "rmsprop_update": _rmsprop,
}
