"""Collectives: several shards in one process as the reference, ranks beside it, gradients, and the bytes they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicnn import ops
from minicnn.backends import get_backend
from minicnn.distribution import merge
from minicnn.ops import Group
from minicnn.ops.groups import rows
from minicnn.program import Program, Value
from minicnn.program.autodiff import gradients
from support.ranks import ThreadRanks
from support.tolerances import ELEMENT, SUM

Host = np.ndarray[Any, Any]

CALLS: dict[str, dict[str, Any]] = {
    "all_reduce": {}, "all_gather": {"axis": 1}, "reduce_scatter": {"axis": 0}, "all_to_all": {"split": 0, "join": 1},
    "broadcast": {"root": 1},
}  # fmt: skip


def _oracle(name: str, xs: list[Host], rank: int) -> Host:
    count = len(xs)
    return {
        "all_reduce": lambda: np.sum(xs, axis=0, dtype="float64"),
        "all_gather": lambda: np.concatenate(xs, axis=1),
        "reduce_scatter": lambda: np.split(np.sum(xs, axis=0, dtype="float64"), count)[rank],
        "all_to_all": lambda: np.concatenate([np.split(x, count)[rank] for x in xs], axis=1),
        "broadcast": lambda: xs[1],
    }[name]()


def _data(count: int) -> list[Host]:
    rng = np.random.default_rng(count)
    return [rng.standard_normal((12, 2)).astype("float32") for _ in range(count)]


def _shard(name: str, group: Group) -> Program:
    program = Program(name)
    program.outputs["y"] = getattr(ops, name)(program.input("x", (12, 2)), group=group, **CALLS[name])
    return program


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_ranks_and_shards_of_one_process_agree_with_numpy(name: str, count: int) -> None:
    xs = _data(count)
    ranks = ThreadRanks(count)

    def work(communicator: Any) -> Host:
        group = Group(count, communicator.rank, count, communicator)
        return getattr(ops, name).reference(xs[group.rank], xp=np, group=group, **CALLS[name])

    made = ranks.run(work)
    for rank in range(count):
        np.testing.assert_allclose(made[rank], _oracle(name, xs, rank), rtol=ELEMENT, atol=ELEMENT)
    shards = [_shard(name, Group(count, r, count)) for r in range(count)]
    assert ranks.sent == [p.bytes_sent for p in shards]
    for program in shards:  # what each gets, where the result differs from shard to shard
        y = program.outputs.pop("y")
        program.outputs["all"] = ops.all_gather(
            ops.reshape(y, shape=(1, *y.shape)), group=Group(count, shards.index(program), count)
        )
    together = get_backend("numpy").compile(merge(shards, Group(count), {"x"}))({"x": np.concatenate(xs)})
    assert all(np.array_equal(a, b) for a, b in zip(made, together["all"], strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_gradient_of_each_rank_is_that_of_the_whole(name: str) -> None:
    """By the rules, on ranks; and through the sums and slices that the collectives are in one process."""
    count, xs, ranks = 3, _data(3), ThreadRanks(3)
    weights = np.random.default_rng(0).standard_normal((count * 12, 6)).astype("float32")

    def shard(group: Group) -> tuple[Program, Value]:
        program = _shard(name, group)
        y = program.outputs.pop("y")
        return program, ops.sum(y * program.input("w", (12, 6))[: y.shape[0], : y.shape[1]])

    def work(communicator: Any) -> Host:
        rank = communicator.rank
        program, loss = shard(Group(count, rank, count, communicator))
        (program.outputs["dx"],) = gradients(program, loss, [program.value("x")])
        return get_backend("numpy").compile(program)({"x": xs[rank], "w": weights[12 * rank :][:12]})["dx"]

    shards = []
    for rank in range(count):
        program, loss = shard(Group(count, rank, count))
        program.outputs["loss"] = ops.all_reduce(loss, group=Group(count, rank, count))
        shards.append(program)
    whole = merge(shards, Group(count), {"x", "w"})
    (whole.outputs["dx"],) = gradients(whole, whole.outputs["loss"], [whole.value("x")])
    found = get_backend("numpy").compile(whole)({"x": np.concatenate(xs), "w": weights})["dx"]
    np.testing.assert_allclose(np.concatenate(ranks.run(work)), found, rtol=SUM, atol=ELEMENT)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_what_a_rank_sends_another_receives(count: int) -> None:
    """Round in a ring; the bytes are those that the Program states."""
    xs, ranks, stated = _data(count), ThreadRanks(count), []

    def work(communicator: Any) -> Host:
        rank = communicator.rank
        group, before = Group(count, rank, count, communicator), (rank - 1) % count
        program = Program("ring")
        token = ops.send(program.input("x", (12, 2)), to=(rank + 1) % count, tag=3, group=group)
        program.outputs["y"] = ops.receive(token, shape=(12, 2), source=before, tag=3, group=group)
        stated.append(program.bytes_sent)
        return get_backend("numpy").compile(program)({"x": xs[rank]})["y"]

    for rank, y in enumerate(ranks.run(work)):
        np.testing.assert_array_equal(y, xs[rank - 1])
    assert ranks.sent == stated == [12 * 2 * 4] * count


def test_gradients_go_back_the_way_that_arrays_came() -> None:
    """A product on one rank, its square on another, each of which differentiates its own Program alone."""
    (x, w), ranks = _data(2), ThreadRanks(2)

    def work(communicator: Any) -> Any:
        group, program = Group(2, communicator.rank, 2, communicator), Program("stage")
        if group.rank == 0:
            made = ops.send(program.input("x", (12, 2)) * program.input("w", (12, 2)), to=1, tag=1, group=group)
            wanted = program.value("w")
        else:
            wanted = program.input("token", (0,))
            made = ops.square(ops.receive(wanted, shape=(12, 2), source=0, tag=1, group=group))
        (program.outputs["found"],) = gradients(program, ops.sum(made), [wanted])
        names = [node.op.name for node in program.nodes if "group" in node.attrs]
        given = {"x": x, "w": w, "token": np.empty(0, "float32")}
        found = get_backend("numpy").compile(program)({v.name: given[v.name] for v in program.inputs})["found"]
        return names, found

    (names, found), (others, token) = ranks.run(work)
    assert (names, others) == (["send", "receive"], ["receive", "send"])
    np.testing.assert_allclose(found, 2 * x * x * w, rtol=SUM)
    assert token.shape == (0,)


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 8, 12, 13])
def test_the_sum_has_the_same_bits_whoever_holds_which_shard(shards: int) -> None:
    xs = [np.random.default_rng(s).standard_normal(7).astype("float32") for s in range(shards)]
    whole = Group(shards).total({(s, s + 1): x for s, x in enumerate(xs)}, np.add)
    for count in (1, 2, 3, 4, 7):
        ranks = ThreadRanks(count)

        def work(communicator: Any, count: int = count) -> Host:
            group = Group(shards, communicator.rank, count, communicator)
            found = {(s, s + 1): xs[s] for s in range(shards)}
            parts = [_sum(group, span, found) for span in group.spans()] or [xs[0]]  # an idle rank's does not count
            return ops.all_reduce.reference(*parts, xp=np, group=group)

        assert all(np.array_equal(made, whole) for made in ranks.run(work))


def _sum(group: Group, span: tuple[int, int], found: dict[tuple[int, int], Host]) -> Host:
    if span in found:
        return found[span]
    left, right = group.tree[span]
    return _sum(group, left, found) + _sum(group, right, found)


def test_who_holds_what() -> None:
    assert [list(Group(8, r, 3).held()) for r in range(3)] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert Group(8, 1, 3).spans() == [(2, 4), (4, 5)]
    assert [Group(8, r, 4).spans() for r in range(4)] == [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]
    assert [len(Group(2, r, 4).spans()) for r in range(4)] == [0, 1, 0, 1]
    assert Group(12).tree[0, 12] == ((0, 8), (8, 12))
    assert [list(rows(10, 4, p)) for p in range(4)] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]


def test_one_part_a_rank_costs_as_much_as_a_ring() -> None:
    program = Program()
    ops.all_reduce(program.input("x", (1000,)), group=Group(4, 0, 4))
    assert program.bytes_sent == 2 * 1000 * 4 * 3 // 4
    assert "all_reduce(x, group=rank0of4,4shards)" in str(program)


def test_errors_name_the_rule_and_the_remedy() -> None:
    group = Group(4, 1, 2)
    with pytest.raises(RuntimeError, match=r"without one\. Compile with distribution=DataParallel"):
        ops.all_reduce.reference(np.ones(3), xp=np, group=group)
    program = Program()
    x = program.input("x", (3, 2))
    with pytest.raises(ValueError, match=r"equal parts, one for each rank\. Received: 3 along axis 0"):
        ops.reduce_scatter(x, group=group)
    with pytest.raises(ValueError, match=r"one of the ranks\. Received: root=2 of 2"):
        ops.broadcast(x, root=2, group=group)
    with pytest.raises(ValueError, match=r"of each of the 2 sums that this rank holds\. Received: float32\[3,2\]"):
        ops.all_reduce(x, group=Group(8, 0, 3, None) if Group(8, 0, 3).parts == 2 else Group(8, 1, 3))
    with pytest.raises(ValueError, match=r"another rank of the group as its partner\. Received: to=1, tag=1"):
        ops.send(x, to=1, tag=1, group=group)
    with pytest.raises(ValueError, match=r"a tag of at least 1.*Received: source=0, tag=0"):
        ops.receive(x, shape=(3, 2), source=0, tag=0, group=group)
    with pytest.raises(ValueError, match=r"the token that send returns, of shape \(0,\)\. Received: float32\[3,2\]"):
        ops.receive(x, shape=(3, 2), source=0, tag=1, group=group)
    with pytest.raises(ValueError, match="at least one shard, and ranks from 0 on"):
        Group(4, 2, 2)


def test_shards_with_other_collectives_are_refused() -> None:
    a, b = _shard("all_reduce", Group(2, 0, 2)), _shard("all_gather", Group(2, 1, 2))
    with pytest.raises(ValueError, match=r"with what they have in common\. Received: .*all_reduce in 'all_reduce'"):
        merge([a, b], Group(2), {"x"})


def test_a_result_of_one_shard_is_refused() -> None:
    program = Program()
    program.outputs["y"] = ops.exp(program.input("x", (2,)))
    other = program.copy()
    with pytest.raises(ValueError, match="'y', which depends on the samples of a shard"):
        merge([program, other], Group(2), {"x"})
