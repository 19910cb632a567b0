"""The memory plan: buffers that live together never overlap, and nothing is counted twice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.program import MemoryPlan, Program, gradients, plan
from minicnn.program.memory import ALIGNMENT, Buffer
from support.strategies import seeds


def _random_program(seed: int, length: int) -> Program:
    """Nodes of many sizes that read what was made before at random; some results kept, some never read."""
    rng = np.random.default_rng(seed)
    program = Program()
    values: list[Any] = [program.input(f"x{i}", (int(rng.integers(1, 60)), 4)) for i in range(3)]
    for _ in range(length):
        a, b = (values[i] for i in rng.integers(0, len(values), 2))
        kind = rng.integers(5)
        if kind == 0:
            made = ops.concat(a, b, axis=0)
        elif kind == 1:
            made = ops.exp(a)
        elif kind == 2:
            made = ops.conv2d(
                ops.reshape(a, shape=(1, *a.shape, 1)), program.constant(np.ones((1, 3, 1, 2), "float32"))
            )
            made = ops.reshape(made, shape=(a.shape[0], 4))
        elif kind == 3:
            made = ops.sum(a, axes=0, keepdims=True)
        else:
            scale = program.constant(np.ones(4, "float32"))
            made = ops.normalize(b, scale, scale, axes=(0,), epsilon=0.1)[int(rng.integers(3))]
        values.append(made)
    for i in rng.integers(0, len(values), 2):
        program.outputs[f"y{i}"] = values[i]
    made = [v for v in values if v.node]
    if made and rng.integers(2):
        new = made[int(rng.integers(len(made)))]
        old = program.input("carried", new.shape, kind="parameter")
        program.updates["carried"] = ops.add(old, new)
    return program


def _lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """First and last node at which each value made is needed, counted naively."""
    end = len(program.nodes)
    lives = {}
    for i, node in enumerate(program.nodes):
        for value in node.outputs:
            reads = [j for j, n in enumerate(program.nodes) if any(v is value for v in n.inputs)]
            kept = any(v is value for v in program.results)
            lives[value.name] = (i, end if kept else max([i, *reads]))
    return lives


def _overlap(a: Buffer, b: Buffer) -> bool:
    in_time = a.first <= b.last and b.first <= a.last
    return in_time and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _check(program: Program, made: MemoryPlan) -> None:
    lives = _lifetimes(program)
    buffers = {b.name: b for b in made.buffers}
    assert len(buffers) == len(made.buffers)
    in_place = set(lives) - set(buffers)
    assert in_place <= {v.name for v in program.updates.values()}
    for buffer in made.buffers:
        assert buffer.offset % ALIGNMENT == 0
        assert buffer.offset + buffer.nbytes <= made.arena_bytes
        if buffer.kind != "workspace":
            assert (buffer.first, buffer.last) == lives[buffer.name]
    for a, b in itertools.combinations(made.buffers, 2):
        assert not _overlap(a, b), (a, b)

    assert made.arena_bytes <= made.without_reuse_bytes
    live = [sum(b.nbytes for b in made.buffers if b.first <= i <= b.last) for i in range(len(program.nodes) + 1)]
    temporary = sum(made.by_kind[k] for k in ("activations", "gradients", "updates", "workspace"))
    assert temporary == max(live)
    assert made.arena_bytes >= max(live)
    persistent = sum(v.nbytes for v in (*program.inputs, *program.constants))
    assert sum(made.by_kind.values()) == persistent + temporary
    assert made.peak_bytes == persistent + made.arena_bytes


@given(seed=seeds, length=st.integers(0, 15))
def test_invariants(seed: int, length: int) -> None:
    program = _random_program(seed, length)
    _check(program, plan(program))


def test_a_chain_needs_two_buffers_however_long() -> None:
    program = Program()
    x = program.input("x", (64, 4))  # 1024 bytes
    for _ in range(10):
        x = ops.exp(x)
    program.outputs["y"] = x
    made = program.memory()
    _check(program, made)
    assert made.without_reuse_bytes == 10 * 1024
    assert made.arena_bytes == 2 * 1024
    assert made.by_kind["input"] == 1024
    assert made.peak_bytes == 3 * 1024


def test_activations_wait_for_the_backward_pass() -> None:
    program = Program()
    x, w = program.input("x", (64, 4)), program.input("w", (4, 4), kind="parameter")
    h = x
    for _ in range(3):
        h = ops.tanh(h @ w)
    (dw,) = gradients(program, ops.sum(h), [w])
    program.outputs["dw"] = dw
    made = plan(program)
    _check(program, made)
    assert made.by_kind["activations"] >= 3 * 1024
    assert made.by_kind["gradients"] > 0
    assert made.by_kind["parameters"] == 64


def test_workspace_lives_while_its_node_runs() -> None:
    program = Program()
    y = ops.conv2d(program.input("x", (2, 8, 8, 3)), program.input("w", (3, 3, 3, 4)))
    program.outputs["y"] = y
    made = plan(program)
    _check(program, made)
    (workspace,) = (b for b in made.buffers if b.kind == "workspace")
    assert (workspace.first, workspace.last, workspace.nbytes) == (0, 0, y.node.cost.workspace)
    assert made.by_kind["workspace"] == y.node.cost.workspace


def test_updates_overwrite_what_they_replace_when_nothing_reads_it_later() -> None:
    def build(*, late_reader: bool = False, elementwise: bool = True) -> MemoryPlan:
        program = Program()
        p, g = program.input("p", (16, 16), kind="parameter"), program.input("g", (16, 16))
        rate = program.input("rate", ())
        with program.scope("sgd", "update"):
            program.updates["p"] = ops.sgd_update(p, g, rate) if elementwise else p @ g
        if late_reader:
            program.outputs["norm"] = ops.sum(p)
        made = plan(program)
        _check(program, made)
        return made

    assert build().arena_bytes == 0
    assert build().peak_bytes == 2 * 1024 + 4
    # A later node reads the old parameter, or each element needs all of them: the new one needs room of its own.
    assert build(late_reader=True).by_kind["updates"] == 1024
    assert build(elementwise=False).by_kind["updates"] == 1024


def test_updates_need_room_where_every_result_is_in_new_memory() -> None:
    program = Program()
    program.updates["w"] = ops.multiply(program.input("w", (256,), kind="parameter"), 2.0)
    assert plan(program).arena_bytes == 0
    assert plan(program, in_place=False).arena_bytes == 1024


def test_carried_values_that_change_places() -> None:
    program = Program()
    a, b = (program.input(n, (16, 16), kind="statistic") for n in "ab")
    program.updates = {"a": ops.negative(b), "b": ops.negative(a)}
    made = plan(program)
    _check(program, made)
    # The first result may not overwrite a, which is still to be read; the second may overwrite b.
    assert [buffer.name for buffer in made.buffers] == ["v1"]


def test_an_update_that_no_node_makes_takes_no_room() -> None:
    program = Program()
    a, b = (program.input(n, (16, 16), kind="statistic") for n in "ab")
    program.updates = {"a": b, "b": program.constant(np.zeros((16, 16), "float32"))}
    program.outputs["y"] = a * 2.0
    made = plan(program)
    _check(program, made)
    assert made.arena_bytes == 1024


def test_kinds_are_counted_apart() -> None:
    program = Program()
    for kind, n in (("parameter", 1), ("input", 2), ("optimizer", 3), ("statistic", 4), ("counter", 5), ("metric", 6)):
        program.input(kind, (n,), kind=kind)  # type: ignore[arg-type]
    made = plan(program)
    labels = ["parameters", "input", "optimizer state", "statistics", "counters and metrics"]
    assert [made.by_kind[k] for k in labels] == [4, 8, 12, 16, 44]
    assert made.peak_bytes == 84


def test_text() -> None:
    program = Program()
    program.outputs["y"] = ops.exp(program.input("x", (1000, 1000)))
    assert str(program.memory()).splitlines() == [
        "input                        4.000 MB",
        "activations                  4.000 MB",
        "arena                        4.000 MB (4.000 without reuse)",
        "peak                         8.000 MB",
    ]
