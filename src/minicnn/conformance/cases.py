"""At least one call of every primitive, with inputs where it is smooth: the base of the tests over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicnn import ops
from minicnn.ops.primitive import Primitive
from minicnn.ops.transforms import FILL_MODES
from minicnn.program import Value

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call: a primitive, its arrays in float64 (or integers), its attributes.

    Attributes:
        op: The primitive.
        arrays: Inputs.
        attrs: Attributes.
        wrt: Positions of the inputs that a gradient is checked for.
        terms: Terms that one result element sums, for the tolerance.
        smooth: How many of the results, counted from the first, can be differentiated; None for all.
    """

    op: Primitive
    arrays: tuple[Array, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    wrt: tuple[int, ...] = ()
    terms: int = 1
    smooth: int | None = None

    def differentiable(self, *values: Value, **attrs: Any) -> Any:
        """The results that a gradient is defined for."""
        results = self.op(*values, **attrs)
        return results if self.smooth is None else results[: self.smooth]

    def __str__(self) -> str:
        return "-".join([self.op.name, *(str(v).replace(" ", "") for v in self.attrs.values())])[:70]


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def _distinct(*shape: int, seed: int = 0) -> Array:
    """Values from -2 to 2 that differ from each other, and from 0 and 6, by far more than a difference step."""
    n = int(np.prod(shape))
    values = np.linspace(-2.0, 2.0, n + n % 2)[:n]
    return np.random.default_rng([seed, *shape]).permutation(values).reshape(shape)


def _positive(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(0.5, 2.0, shape)


def _ints(*shape: int, below: int, dtype: str = "int32") -> Array:
    return np.random.default_rng(shape).integers(0, below, shape).astype(dtype)


STEP = np.asarray(3, dtype="int32")
RATE = np.asarray(0.1)


def _elementwise() -> list[Case]:
    a, b = _distinct(2, 3, 4), _distinct(3, 1, seed=1) * 1.3 + 0.01
    away = _positive(3, 1)
    cases = [
        Case(ops.add, (a, b), {}, (0, 1)),
        Case(ops.subtract, (a, b), {}, (0, 1)),
        Case(ops.subtract, (b, a), {}, (0, 1)),
        Case(ops.multiply, (a, b), {}, (0, 1)),
        Case(ops.divide, (a, away), {}, (0, 1)),
        Case(ops.power, (_positive(2, 3, 4), b), {}, (0, 1)),
        Case(ops.maximum, (a, b), {}, (0, 1)),
        Case(ops.minimum, (a, b), {}, (0, 1)),
        Case(ops.where, (a > 0.3, a, b), {}, (1, 2)),
        Case(ops.sign, (a,)),
        Case(ops.cast, (a,), {"dtype": "float64"}, (0,)),
        Case(ops.cast, (a * 40,), {"dtype": "int32"}),
        Case(ops.cast, (_ints(5, below=256, dtype="uint8"),), {"dtype": "float32"}),
    ]
    cases += [Case(op, (a,), {}, (0,)) for op in (ops.negative, ops.abs, ops.square, ops.exp, ops.expm1)]
    cases += [Case(op, (_positive(2, 3, 4),), {}, (0,)) for op in (ops.sqrt, ops.log, ops.log1p)]
    cases += [
        Case(op, (np.round(a), np.round(b)))
        for op in (ops.greater, ops.greater_equal, ops.less, ops.less_equal, ops.equal)
    ]
    return cases


def _activations() -> list[Case]:
    x = _distinct(3, 10) * 4
    cases = [
        Case(op, (x,), {}, (0,))
        for op in (
            ops.relu, ops.relu6, ops.leaky_relu, ops.elu, ops.sigmoid, ops.tanh, ops.silu, ops.softplus, ops.erf,
            ops.erfc, ops.gelu, ops.softmax, ops.log_softmax,
        )
    ]  # fmt: skip
    return [
        *cases,
        Case(ops.relu_gradient, (_normal(3, 10), np.maximum(x, 0)), {}, (0,)),
        Case(ops.leaky_relu, (x,), {"negative_slope": 0.01}, (0,)),
        Case(ops.elu, (x,), {"alpha": 0.7}, (0,)),
        Case(ops.gelu, (x,), {"approximate": True}, (0,)),
        Case(ops.softmax, (x,), {"axis": 0}, (0,)),
        Case(ops.log_softmax, (x,), {"axis": 0}, (0,)),
    ]


def _reductions() -> list[Case]:
    x = _distinct(2, 3, 4)
    cases = [
        Case(op, (x,), {"axes": axes, "keepdims": keepdims}, (0,), terms=24)
        for op in (ops.sum, ops.mean, ops.max)
        for axes, keepdims in ((None, False), (1, False), ((0, -1), True), ((2, 0), False), ((), False))
    ]
    return [
        *cases,
        *(
            Case(ops.max_gradient, (_normal(*y.shape), x, y), {"axes": axes, "keepdims": keepdims}, (0,))
            for axes, keepdims in ((None, False), (1, False), ((0, -1), True), ((1, 2), False), ((), False))
            for y in (np.max(x, axis=axes, keepdims=keepdims),)
        ),
        Case(ops.argmax, (x,)),
        Case(ops.argmax, (np.round(x),), {"axis": 0}),
        Case(ops.argmax, (_ints(3, 4, below=9),), {"axis": -2}),
        Case(ops.broadcast_to, (x[:, :1, :],), {"shape": (5, 2, 3, 4)}, (0,)),
        Case(ops.broadcast_to, (x,), {"shape": (2, 3, 4)}, (0,)),
    ]


def _manipulations() -> list[Case]:
    x = _distinct(2, 3, 4)
    return [
        Case(ops.reshape, (x,), {"shape": (4, 6)}, (0,)),
        Case(ops.reshape, (x[..., ::2],), {"shape": (12,)}, (0,)),
        Case(ops.permute, (x,), {"axes": (2, 0, 1)}, (0,)),
        Case(ops.permute, (x,), {"axes": (0, 1, 2)}, (0,)),
        Case(ops.concat, (x, _normal(2, 1, 4), _normal(2, 2, 4)), {"axis": 1}, (0, 1, 2)),
        Case(ops.concat, (x, x + 9), {}, (0, 1)),
        Case(ops.concat, (x,), {}, (0,)),
        Case(ops.slice_, (x,), {"bounds": ((0, 2), (1, 3), (1, 1))}, (0,)),
        Case(ops.slice_, (x,), {"bounds": ((1, 2), (1, 3), (0, 3))}, (0,)),
        Case(ops.slice_, (x,), {"bounds": ((0, 2), (0, 3), (0, 4))}, (0,)),
        Case(ops.pad, (x,), {"widths": ((0, 0), (1, 2), (0, 3)), "value": 1.5}, (0,)),
        Case(ops.pad, (x,), {"widths": ((0, 0),) * 3}, (0,)),
        Case(ops.repeat, (x,), {"repeats": 3, "axis": 1}, (0,)),
        Case(ops.repeat, (x,), {"repeats": 1, "axis": -1}, (0,)),
        Case(ops.take, (_ints(6, 2, 2, below=256, dtype="uint8"), np.asarray([4, 0, 0, 5], "int32"))),
        Case(ops.take, (x, np.asarray([1, 1, 0], "int32")), {}, (0,)),
        Case(
            ops.take_gradient, (_normal(7, 3), np.asarray([4, 1, 1, 0, 4, 1, 1], "int32")), {"rows": 6}, (0,), terms=4
        ),
        Case(ops.one_hot, (_ints(4, below=3),), {"classes": 3}),
        Case(ops.one_hot, (_ints(4, 2, below=3, dtype="uint8"),), {"classes": 300, "dtype": "float64"}),
        *_transforms(),
        Case(ops.matmul, (_normal(3, 4), _normal(4, 5)), {}, (0, 1), terms=4),
        Case(ops.matmul, (_normal(4, 3), _normal(4, 5)), {"transpose_a": True}, (0, 1), terms=4),
        Case(ops.matmul, (_normal(3, 4), _normal(5, 4)), {"transpose_b": True}, (0, 1), terms=4),
        Case(ops.matmul, (_normal(4, 3), _normal(5, 4)), {"transpose_a": True, "transpose_b": True}, (0, 1), terms=4),
    ]


def _transforms() -> list[Case]:
    x = _normal(3, 4, 5, 2)
    # Turned, enlarged and shifted far: nothing comes from a place between two nearest pixels.
    matrix = np.asarray([1, 0, 0, 0, 1, 0]) + 0.3 * _normal(3, 6) + np.asarray([0, 0, 2.1, 0, 0, -1.3])
    cases = []
    ways = [*(("bilinear", mode) for mode in FILL_MODES), ("nearest", "wrap"), ("nearest", "constant")]
    for k, (interpolation, mode) in enumerate(ways):
        how = {"interpolation": interpolation, "fill_mode": mode}
        attrs = {**how, "size": (3, 6), "fill_value": 0.7}
        cases.append(Case(ops.affine_transform, (x, matrix), attrs, (0,), terms=8))
        if k % 2:
            attrs = {**how, "image": (4, 5)}
            cases.append(Case(ops.affine_transform_gradient, (_normal(3, 3, 6, 2), matrix), attrs, (0,), terms=40))
    return cases


def _image(data_format: str, n: int, h: int, w: int, c: int) -> tuple[int, ...]:
    sizes = {"N": n, "H": h, "W": w, "C": c}
    return tuple(sizes[a] for a in data_format)


def _windows() -> list[Case]:
    cases = []
    for data_format in ("NHWC", "NCHW", "HWCN"):
        for strides, padding, dilation, groups, kernel in (
            ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, (1, 1)),
            ((2, 1), ((1, 0), (2, 1)), (1, 2), 2, (3, 2)),
        ):
            x = _distinct(*_image(data_format, 2, 6, 7, 4))
            w = _normal(*kernel, 4 // groups, 6)
            depth = _normal(*kernel, 4, 2)
            oh, ow = (
                (n + sum(p) - d * (k - 1) - 1) // s + 1
                for n, p, d, k, s in zip((6, 7), padding, dilation, kernel, strides, strict=True)
            )
            geometry = {"strides": strides, "padding": padding, "dilation": dilation, "data_format": data_format}
            grouped = geometry | {"groups": groups}
            dy = _normal(*_image(data_format, 2, oh, ow, 6))
            ddepth = _normal(*_image(data_format, 2, oh, ow, 8))
            image, terms = (6, 7), 2 * oh * ow
            cases += [
                Case(ops.conv2d, (x, w), grouped, (0, 1), terms),
                Case(ops.conv2d_input_gradient, (dy, w), grouped | {"image": image}, (0, 1), terms),
                Case(ops.conv2d_weight_gradient, (dy, x), grouped | {"kernel": kernel}, (0, 1), terms),
                Case(ops.depthwise_conv2d, (x, depth), geometry, (0, 1), terms),
                Case(ops.depthwise_conv2d_input_gradient, (ddepth, depth), geometry | {"image": image}, (0, 1), terms),
                Case(ops.depthwise_conv2d_weight_gradient, (ddepth, x), geometry | {"kernel": kernel}, (0, 1), terms),
            ]
            pooling: dict[str, Any] = {"kernel": kernel, "strides": strides, "data_format": data_format}
            pooling["padding"] = tuple(
                tuple(min(p, k - 1) for p in pair) for pair, k in zip(padding, kernel, strict=True)
            )
            y = ops.max_pool2d.reference(x, xp=np, **pooling)
            dy = _normal(*y.shape)
            # Its gradient is known where windows have no element in common.
            apart = (0,) if kernel == strides and not any(map(any, pooling["padding"])) else ()
            cases += [
                Case(ops.max_pool2d, (x,), pooling, (0,)),
                Case(ops.max_pool2d_gradient, (dy, x, y), pooling, apart, terms=6),
                Case(ops.average_pool2d, (x,), pooling, (0,), terms=6),
                Case(ops.average_pool2d, (x,), pooling | {"count_padding": True}, (0,), terms=6),
                Case(ops.average_pool2d_gradient, (dy,), pooling | {"image": image}, (0,), terms=6),
                Case(
                    ops.average_pool2d_gradient, (dy,), pooling | {"image": image, "count_padding": True}, (0,), terms=6
                ),
            ]
    return cases


def _fused() -> list[Case]:
    body = ops.Body(
        "twice",
        2,
        (
            ops.FusedOperation(ops.multiply, (0, 1), {}),
            ops.FusedOperation(ops.normalize, (2, 1, 1), {"axes": (0,), "epsilon": 0.1, "unit": 8.0}, 3),
            ops.FusedOperation(ops.leaky_relu, (3,), {"negative_slope": 0.2}),
        ),
        (6, 2, 4),
    )
    one = ops.Body("one", 1, (ops.FusedOperation(ops.exp, (0,), {}),), (1,))
    x = _distinct(3, 4)
    return [Case(ops.fused, (x, _positive(4)), {"body": body}, terms=3), Case(ops.fused, (x,), {"body": one})]


def _others() -> list[Case]:
    x, scale, offset = _distinct(3, 4, 5), _normal(5) + 1, _normal(5, seed=1)
    full = _normal(3, 4, 5)
    cases = []
    for axes, s, o in (((0, 1), scale, offset), ((2,), scale, offset), ((1, 2), _normal(4, 1), _normal(4, 1, seed=2)),
                       ((-1,), full, full)):  # fmt: skip
        mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        attrs = {"axes": axes, "epsilon": 1e-3}
        cases += [
            Case(ops.normalize, (x, s, o), attrs, (0, 1, 2), terms=20, smooth=1),
            Case(
                ops.normalize_gradient,
                (_normal(3, 4, 5, seed=3), x, s, mean, variance),
                attrs,
                (0, 1, 2, 3, 4),
                terms=20,
            ),
        ]
    logits, labels = _distinct(4, 5) * 3, np.asarray([0, 4, 2, 2], "int32")
    p, g, state = _normal(3, 4), _normal(3, 4, seed=1), _positive(3, 4)
    return [
        *cases,
        Case(ops.softmax_cross_entropy, (logits, labels), {}, (0,), terms=5),
        Case(ops.softmax_cross_entropy, (logits, labels.astype("uint8")), {}, (0,), terms=5),
        Case(ops.softmax_cross_entropy_gradient, (_normal(4), logits, labels), {}, (0, 1), terms=5),
        Case(ops.sgd_update, (p, g, RATE)),
        Case(ops.sgd_update, (p, g, RATE), {"weight_decay": 0.1}),
        Case(ops.momentum_update, (p, state, g, RATE), {"momentum": 0.9}),
        Case(ops.momentum_update, (p, state, g, RATE), {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        Case(ops.adam_update, (p, g, state, g, RATE, STEP), {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}),
        Case(
            ops.adam_update, (p, g, state, g, RATE, STEP),
            {"beta_1": 0.0, "beta_2": 0.5, "epsilon": 1e-7, "weight_decay": 0.1},
        ),
        Case(
            ops.rmsprop_update, (p, state + 9, state, p, g, RATE),
            {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-7, "centered": True},
        ),
        Case(
            ops.rmsprop_update, (p, state, state, p, g, RATE),
            {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False, "weight_decay": 0.1},
        ),
        Case(ops.random_uniform, (STEP,), {"shape": (3, 7), "seed": 2**40 + 5, "stream": 2**31 + 3}),
    ]  # fmt: skip


# Never kernels.
COLLECTIVES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "receive"})


def _collectives() -> list[Case]:
    """Of one rank: of several they are in tests/ops/test_collectives.py."""
    x, group = _normal(4, 3), ops.Group()
    return [
        Case(ops.all_reduce, (x, _normal(2)), {"group": group}, (0, 1)),
        Case(ops.all_reduce, (x,), {"group": ops.Group(8)}, (0,)),
        Case(ops.all_gather, (x,), {"axis": 1, "group": group}, (0,)),
        Case(ops.reduce_scatter, (x,), {"axis": -1, "group": group}, (0,)),
        Case(ops.all_to_all, (x,), {"split": 0, "join": 1, "group": group}, (0,)),
        Case(ops.broadcast, (x,), {"root": 0, "group": group}, (0,)),
        Case(ops.send, (x,), {"to": 0, "tag": 1, "group": group}, (0,)),
        Case(ops.receive, (x,), {"shape": (4, 3), "source": 0, "tag": 1, "group": group}, (0,)),
    ]


CASES = [*_elementwise(), *_activations(), *_reductions(), *_manipulations(), *_windows(), *_fused(), *_others(),
         *_collectives()]  # fmt: skip
