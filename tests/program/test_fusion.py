"""Fusion: merged Programs compute the same, and groups that cannot run as one are refused."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.ops.fused import fused
from minicnn.program import Program, gradients, optimize
from minicnn.program.fusion import fusion_groups, merge
from minicnn.program.readers import Readers


def results(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    arrays = {v.name: rng.standard_normal(v.shape) for v in program.inputs}
    return get_backend("numpy").compile(program)(arrays)


def in_order(program: Program) -> bool:
    made = {id(v) for v in (*program.inputs, *program.constants)}
    for node in program.nodes:
        if any(id(v) not in made for v in node.inputs):
            return False
        made.update(id(v) for v in node.outputs)
    return all(id(v) in made for v in program.results)


def random_program(choices: list[tuple[int, int, int]]) -> Program:
    """Elementwise nodes and, between them, sums that are broadcast back, wired as the choices say."""
    p = Program("random")
    values = [p.input("a", (3, 4), "float64"), p.input("b", (3, 4), "float64")]
    for kind, i, j in choices:
        x, y = values[i % len(values)], values[j % len(values)]
        if kind == 0:
            values.append(x + y)
        elif kind == 1:
            values.append(ops.relu(x) * 0.5)
        elif kind == 2:
            values.append(ops.tanh(x) - ops.sum(y, axes=1, keepdims=True))
        else:
            total, *_ = (ops.sum(x, axes=0),)
            values.append(y * total)
    p.outputs = {f"v{i}": v for i, v in enumerate(values[2:])} if len(choices) % 2 else {"last": values[-1]}
    return p


CHOICES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=14)


@given(choices=CHOICES)
def test_merged_chains_compute_the_same(choices: list[tuple[int, int, int]]) -> None:
    expected = results(random_program(choices))
    program = random_program(choices)
    before = len(program.nodes)
    saved = 0
    for group in fusion_groups(program, lambda node: node.op.elementwise):
        if merge(program, group, "chain") is not None:
            saved += len(group) - 1
    assert len(program.nodes) == before - saved
    assert in_order(program)
    found = results(program)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@given(choices=CHOICES, picks=st.sets(st.integers(0, 40), min_size=2, max_size=5))
def test_any_group_is_merged_rightly_or_refused(choices: list[tuple[int, int, int]], picks: set[int]) -> None:
    expected = results(random_program(choices))
    program = random_program(choices)
    group = [program.nodes[i] for i in sorted({i % len(program.nodes) for i in picks})]
    nodes = list(program.nodes)
    if merge(program, group, "any") is None:
        assert program.nodes == nodes
    assert in_order(program)
    for name, value in results(program).items():
        np.testing.assert_array_equal(value, expected[name])


def test_a_path_that_leaves_and_comes_back_is_refused() -> None:
    p = Program("test")
    x = p.input("x", (3,), "float64")
    a = ops.exp(x)
    total = ops.sum(a)
    b = a / total
    p.outputs = {"b": b}
    exp_node, _, divide_node = p.nodes
    assert merge(p, [exp_node, divide_node], "softmax") is None
    assert merge(p, list(p.nodes), "softmax") is not None
    assert [n.op for n in p.nodes] == [fused]


def test_results_inside_the_group_vanish_and_cost_nothing() -> None:
    p = Program("test")
    x = p.input("x", (10, 10), "float32")
    y = ops.relu(x + 1.0)
    z = y * 2.0
    p.outputs = {"z": z}
    flops = p.flops
    node = merge(p, list(p.nodes), "chain")
    assert node is not None
    assert [v.name for v in node.outputs] == [z.name]
    assert node.cost.bytes == 2 * x.nbytes + 8  # in, out and two scalars
    assert node.cost.flops == flops
    assert "chain[add+relu+multiply]" in str(p)
    assert Readers(p).only(x) is node
    assert Readers(p).only(z) is None


def test_a_training_step_with_fused_chains() -> None:
    def step() -> Program:
        p = Program("train")
        x, w = p.input("x", (5, 6), "float64"), p.input("w", (6, 3), "float64", kind="parameter")
        y = ops.gelu(ops.matmul(x, w)) * 3.0 + 1.0
        loss = ops.mean(ops.square(ops.tanh(y)))
        (g,) = gradients(p, loss, [w])
        p.outputs = {"loss": loss}
        p.updates = {"w": w - g * 0.1}
        return optimize(p)

    program = step()
    groups = [merge(program, g, "chain") for g in fusion_groups(program, lambda n: n.op.elementwise)]
    assert any(groups)
    expected, found = results(step()), results(program)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
