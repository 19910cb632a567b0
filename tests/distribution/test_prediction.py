"""The model of times: bytes and times of trials, published speed-ups, and what must hold of any network."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops, zoo
from minicnn.distribution import prediction
from minicnn.distribution.prediction import (
    Conditions,
    Interconnect,
    LayerWork,
    Rates,
    Workload,
    expected_maximum,
    known,
    normal,
    predict,
)
from minicnn.distribution.prediction.links import sent, sums_of
from minicnn.distribution.prediction.strategies import _cut
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.measure import local_ranks
from minicnn.ops.groups import Group
from minicnn.program.graph import Program
from support.tolerances import DOUBLE, ELEMENT, TRAINING

FREE = Interconnect("free", 0.0, 1e30)


def layers_of(name: str, batch: int = 2, clock: Any = None) -> Workload:
    batches = clock.batches(batch) if clock else [batch]
    return prediction.workload(partial(local_ranks.trace, {"network": name}), batches, clock)


def made(*layers: LayerWork) -> Workload:
    return Workload(layers, [1, 2], 0.0)


def layer(name: str, sample_s: float, weights: float = 0.0, **facts: Any) -> LayerWork:
    """One whose forward pass takes so long a sample, and whose backward pass takes twice that."""
    times = {"forward": [[sample_s, 2 * sample_s], [0.0, 0.0]], "backward": [[2 * sample_s, 4 * sample_s], [0.0, 0.0]]}
    return LayerWork(name, weights, width=64, seconds=times, **facts)


# Facts of trials, and published figures -----------------------------------------------------------


@pytest.mark.parametrize(("name", "batch"), [("platforms", 99), ("alexnet", 3368), ("vgg16", 3715), ("resnet50", 1000)])
def test_hybrid_moves_fewer_bytes_up_to_a_batch(name: str, batch: int) -> None:
    work = layers_of(name)
    assert math.floor(work.hybrid_until) == batch
    for samples, fewer in ((batch, True), (batch + 1, False)):
        data, hybrid = (
            predict(work, strategy, samples, samples, Conditions(FREE, group=samples)).sent
            if strategy == "data"
            else bytes_of_one_group(work, samples)
            for strategy in ("data", "hybrid")
        )
        assert (hybrid < data) == fewer


def bytes_of_one_group(work: Workload, samples: int) -> float:
    """All ranks are one group, each with one sample, however few columns there are."""
    wide = Workload([LayerWork(**{**vars(one), "width": 10**6}) for one in work.layers], work.batches, work.input)
    return predict(wide, "hybrid", samples, samples, Conditions(FREE, group=samples)).sent


def test_bytes_of_alexnet_on_8_gpus() -> None:
    work = layers_of("alexnet")
    data, hybrid = (predict(work, s, 8, 8 * 128, Conditions(FREE, group=8)).sent for s in ("data", "hybrid"))
    assert data == pytest.approx(428e6, rel=0.002)
    assert hybrid == pytest.approx(142e6, rel=0.002)


@pytest.mark.parametrize(
    ("name", "measured_us"),
    [("shared-memory", (16, 39, 5242)), ("gloo", (155, 246, 15240))],
    ids=["MPICH", "gloo"],
)
def test_all_reduces_of_the_trials(name: str, measured_us: tuple[float, ...]) -> None:
    """Least times between two ranks of 54 kB, 215 kB and 25 MB."""
    for nbytes, us in zip((54e3, 215e3, 25e6), measured_us, strict=True):
        assert known()[name].all_reduce(nbytes, 2) == pytest.approx(us * 1e-6, rel=0.20)


def test_a_shaped_link_of_1_gbit() -> None:
    """212 ms by latency and bandwidth, 225 to 267 measured."""
    seconds = known()["ethernet-1g"].all_reduce(25e6, 2)
    assert seconds == pytest.approx(0.212, rel=0.01)
    assert seconds == pytest.approx(0.225, rel=0.15)


def test_published_speedups() -> None:
    fitted, *others = prediction.published(layers_of("alexnet"))
    assert (fitted.measured, fitted.fitted) == (3.74, True)
    assert fitted.error == pytest.approx(0, abs=DOUBLE)
    assert [(p.measured, p.fitted) for p in others] == [(6.16, False), (2.0, False)]
    assert abs(others[0].error) < 0.15
    assert "1404.5997" in others[0].source
    assert "1312.5853" in others[1].source


# Collectives --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 4, 8, 12])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_bytes_of_the_fixed_tree_are_those_of_the_primitive(shards: int, ranks: int) -> None:
    if ranks > shards:
        return
    program = Program()
    x = [program.input(f"x{i}", (1200,)) for i in range(10)]
    costs = []
    for rank in range(ranks):
        group = Group(shards, rank, ranks)
        ops.all_reduce(*x[: group.parts], group=group)
        costs.append(program.nodes[-1].cost.sent)
    assert sent(4800, ranks, sums_of(shards, ranks)) == pytest.approx(max(costs), rel=0.01)


def test_a_ring_crosses_the_link_of_a_host_once_and_the_fixed_tree_as_often_as_it_has_ranks() -> None:
    alone = Interconnect("", 0.0, 1e9)
    shared = Interconnect("", 0.0, 1e9, ranks_per_host=4, within="nvlink")
    for algorithm, times in (("ring", 1), ("fixed", 4)):
        one, four = (n.all_reduce(1e9, 4096, algorithm) for n in (alone, shared))
        assert four == pytest.approx(times * one, rel=0.05)
    near = shared.all_reduce(1e9, 4, "fixed")
    assert near == pytest.approx(known()["nvlink"].all_reduce(1e9, 4), rel=ELEMENT)
    slower = Interconnect("", 0.0, 1e9, oversubscription=2.0)
    assert slower.all_reduce(1e6, 8) == pytest.approx(2 * alone.all_reduce(1e6, 8))
    twice = Interconnect("", 0.0, 1e9, ranks_per_host=4, links_per_host=2)
    assert twice.all_reduce(1e6, 64, "fixed") == pytest.approx(2 * alone.all_reduce(1e6, 64), rel=0.1)


def test_sums_go_through_the_memory_of_gpus_on_one_host() -> None:
    reached = Interconnect("", 1e-5, 1e9, peer_latency=2e-6)
    assert reached.all_reduce(1000, 2, "fixed") == pytest.approx(4e-6)
    shared = 3 * reached.peer_latency + 1.0  # each reads half of the bytes, and writes half
    assert reached.all_reduce(1e9, 2) == pytest.approx(shared, rel=ELEMENT)
    hosts = Interconnect("", 1e-5, 1e9, ranks_per_host=4, within="nvlink")
    least = known()["nvlink"].peer_latency
    assert hosts.all_reduce(4, 4) == pytest.approx(least, rel=0.01)
    assert hosts.all_reduce(4, 8) > least + 1e-5, "two hosts"


def test_ranks_of_a_host_that_sum_with_those_of_others_share_its_link() -> None:
    """Four ranks of each of two hosts: each sums with its like on the other host, all at once."""
    shared = Interconnect("", 0.0, 1e9, ranks_per_host=4, within="nvlink")
    alone = Interconnect("", 0.0, 1e9).all_reduce(1e9, 2)
    for algorithm in ("ring", "fixed"):
        assert shared.all_reduce(1e9, 2, algorithm, stride=4) == pytest.approx(4 * alone, rel=TRAINING)
        assert shared.all_reduce(1e9, 2, algorithm, stride=2) < alone / 50, "both are on one host"
    assert shared.all_reduce(1e9, 4, "fixed", stride=2) == pytest.approx(4 * alone, rel=TRAINING), (
        "of four, 3/4 of two n each, 2/3 of it away"
    )


def test_latency_makes_a_tree_the_fastest_for_few_bytes_and_many_ranks() -> None:
    net = Interconnect("", 1e-5, 1e9)
    assert net.all_reduce(100, 1024, "tree") < net.all_reduce(100, 1024, "ring") / 50
    assert net.all_reduce(1e9, 1024, "tree") > 5 * net.all_reduce(1e9, 1024, "ring")
    assert all(net.all_reduce(1e6, 1, a) == 0 for a in prediction.ALGORITHMS)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ethernet", "A network is one of nvlink, pcie, infiniband, .* Received: 'ethernet'"),
        ("latency=1e-6", "Received: 'latency=1e-6', without bandwidth"),
        ("nvlink,speed=3", "Received: 'speed=3'"),
        ("nvlink,within=here", "within is one of .* Received: 'within=here'"),
        ("latency=1e-6,bandwidth=0", "bandwidth of a network is a finite number above 0. Received: bandwidth=0.0"),
        ("nvlink,ranks_per_host=0", "of at least 1. Received: ranks_per_host=0"),
        ("nvlink,latency=nan", "Received: latency=nan"),
    ],
)
def test_networks_that_are_none(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        prediction.interconnect(text)


def test_networks_by_name_and_by_numbers() -> None:
    assert prediction.interconnect("nvlink") is known()["nvlink"]
    found = prediction.interconnect("latency=50e-6,bandwidth=1.25e8")
    assert (found.latency, found.bandwidth) == (50e-6, 1.25e8)
    assert (
        prediction.interconnect("infiniband,ranks_per_host=8,within=nvlink").link(8)[1] == known()["nvlink"].bandwidth
    )


# Stragglers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "deviations"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (100, 2.5076), (1000, 3.2414)]
)
def test_the_expected_maximum_of_a_normal_distribution(ranks: int, deviations: float) -> None:
    """H. L. Harter, Expected values of normal order statistics, 1961."""
    assert (expected_maximum(normal(0.1), ranks) - 1) / 0.1 == pytest.approx(deviations, abs=0.02)


def test_the_expected_maximum_of_measured_steps() -> None:
    assert expected_maximum([3.0, 1.0], 2) == pytest.approx(2.5)
    assert expected_maximum([1.0, 1.0, 5.0], 10**6) == pytest.approx(5.0)
    with pytest.raises(ValueError, match=r"from 0 to below 0.25. Received: 0.3"):
        normal(0.3)


# Strategies ---------------------------------------------------------------------------------------


def test_one_rank_takes_its_step_by_any_strategy() -> None:
    work = layers_of("lenet5", 64, Rates(1e10, 1e10, 1e-6))
    for strategy in prediction.STRATEGIES:
        found = predict(work, strategy, 1, 64, Conditions(known()["gloo"]))
        assert found.seconds == pytest.approx(work.total(64))
        assert found.sent == found.exposed == found.idle == 0


def test_without_a_network_data_parallelism_divides_the_work() -> None:
    work = made(layer("a", 1.0), layer("b", 1.0, 8.0))
    for ranks in (1, 2, 4):
        assert predict(work, "data", ranks, 8, Conditions(FREE)).seconds == pytest.approx(6 * 8 / ranks)
    assert predict(work, "data", 3, 8, Conditions(FREE)).seconds == pytest.approx(6 * 3), "one has three samples"
    straggling = predict(work, "data", 2, 8, Conditions(FREE, [0.5, 1.5]))
    assert straggling.seconds == pytest.approx(24 * 1.25)


def test_gradients_are_summed_while_earlier_layers_go_on() -> None:
    work = made(layer("a", 1.0, 10.0), layer("b", 1.0, 10.0))
    net = Interconnect("", 0.0, 10.0)  # 1 s for a layer's gradients, on two ranks
    after = predict(work, "data", 2, 2, Conditions(net, bucket=0))
    beside = predict(work, "data", 2, 2, Conditions(net, bucket=10.0))
    assert (after.seconds, after.exposed, after.hidden) == pytest.approx((8.0, 2.0, 0.0))
    assert (beside.seconds, beside.exposed, beside.hidden) == pytest.approx((7.0, 1.0, 1.0))


def test_shards_follow_each_other_on_a_rank() -> None:
    work = made(layer("a", 1.0, 12.0))
    whole, cut = (predict(work, "data", 2, 12, Conditions(FREE, shards=s)) for s in (None, 12))
    assert cut.seconds == pytest.approx(whole.seconds)
    assert cut.how == "6 shards a rank"
    assert cut.sent > whole.sent, "six shards of twelve are two sums"
    assert "4 shards" in str(predict(work, "data", 8, 12, Conditions(FREE, shards=4)).impossible)


def test_synchronized_batch_normalisation_costs_latency() -> None:
    work = made(layer("a", 1.0, normalized=64.0))
    found = predict(work, "data", 2, 2, Conditions(Interconnect("", 0.5, 1e30)))
    assert found.exposed == pytest.approx(4 * 2 * 0.5), "two sums forward and two backward, of two messages"


@pytest.mark.parametrize("micro", [1, 2, 8])
def test_a_pipeline_of_equal_stages_idles_as_gpipe_says(micro: int) -> None:
    work = made(*(layer(f"l{i}", 1.0, 1.0) for i in range(3)))
    found = predict(work, "pipeline", 3, micro, Conditions(FREE))
    assert found.how == f"3 stages, {micro} micro-batch{'es' * (micro > 1)}"
    assert found.seconds == pytest.approx(3.0 * (micro + 2))
    assert found.idle / found.seconds == pytest.approx(2 / (micro + 2))


def test_model_parallelism_shares_columns_and_hands_over_inputs() -> None:
    work = made(layer("a", 1.0, 8.0, activations=4.0, first=True), layer("b", 1.0, 8.0, activations=4.0))
    found = predict(work, "model", 4, 2, Conditions(Interconnect("", 0.0, 1.0)))
    assert found.compute == pytest.approx(6 * 2 / 4)
    assert found.sent == found.exposed == pytest.approx(2 * 4.0 * 2 * 3 / 4), "not of the first layer"
    assert "64 columns" in str(predict(work, "model", 65, 2, Conditions(FREE)).impossible)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 7))
def test_stages_are_as_even_as_can_be(costs: list[int], parts: int) -> None:
    parts = min(parts, len(costs))

    def largest(ends: tuple[int, ...] | list[int]) -> float:
        cuts = [0, *ends]
        return max(sum(costs[a:b]) for a, b in pairwise(cuts))

    found = _cut(costs, parts)
    assert len(found) == parts
    assert sorted(set(found)) == found
    best = min(largest((*ends, len(costs))) for ends in combinations(range(1, len(costs)), parts - 1))
    assert largest(found) == pytest.approx(best, abs=ELEMENT)


@pytest.mark.parametrize("name", ["lenet5", "alexnet", "resnet18"])
def test_memory_of_one_rank_is_that_of_the_plan(name: str) -> None:
    batch = 32
    planned = local_ranks.trace({"network": name}, batch).memory().peak_bytes
    assert predict(layers_of(name, batch), "data", 1, batch, Conditions(FREE)).memory == pytest.approx(
        planned, rel=0.01
    )


def test_what_does_not_fit_is_not_chosen() -> None:
    work = made(layer("a", 1.0, 100.0, activations=1.0), layer("b", 1.0, 100.0, activations=1.0))
    slow = Interconnect("", 1.0, 1e9)
    (row,) = prediction.scaling(work, [2], 2, Conditions(slow, memory=250.0))
    assert [p.fits for p in row.predictions if p.impossible is None] == [False, True, True]
    assert row.chosen in ("model", "pipeline")
    assert "data would be faster, but takes 400 B a rank" in row.why
    (row,) = prediction.scaling(work, [2], 2, Conditions(slow, memory=1.0))
    assert row.chosen is None
    assert row.why.startswith("None fits: ")


def test_it_says_when_one_rank_is_faster() -> None:
    work = made(layer("a", 1.0, 8.0, activations=1.0))
    for latency, said in ((1e3, True), (0.0, False)):
        (row,) = prediction.scaling(work, [2], 4, Conditions(Interconnect("", latency, 1e9)))
        assert row.why.endswith("One rank by itself is faster.") == said


def test_weak_scaling_gives_each_rank_the_batch() -> None:
    work = made(layer("a", 1.0, 1.0))
    rows = prediction.scaling(work, [1, 4], 3, Conditions(FREE), "weak")
    assert [row.batch for row in rows] == [3, 12]
    assert rows[1].speedups[0] == pytest.approx(4.0)
    with pytest.raises(ValueError, match=r"ranks is at least 1. Received: ranks=0"):
        prediction.scaling(work, [0], 3, Conditions(FREE))


def test_from_python_with_a_model() -> None:
    model = zoo.get_model("lenet5")
    model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True))
    rows = prediction.predict_scaling(
        model, [1, 8], batch_size=64, device=Rates(1e10, 1e10, 1e-6), conditions=Conditions(known()["infiniband"])
    )
    assert 1 < rows[1].speedups[0] < 8


def test_more_ranks_than_a_network_has_are_impossible() -> None:
    found = predict(made(layer("a", 1.0)), "data", 16, 16, Conditions(known()["nvlink"]))
    assert found.impossible == "nvlink connects 8 ranks"


# Calibration --------------------------------------------------------------------------------------


def measured(rates: Rates, net: Interconnect) -> dict[str, Any]:
    """What would be measured if the model were right."""
    run = {"network": "lenet5", "image": [28, 28, 1], "classes": 10}
    other = {"network": "platforms", "image": [28, 28, 1], "classes": 10}

    def step(what: dict[str, Any], batch: int) -> dict[str, Any]:
        done = prediction.devices.work(local_ranks.trace(what, batch))
        return {**what, "batch": batch, "seconds": [rates.seconds(done)] * 5}

    work = prediction.workload(partial(local_ranks.trace, run), [1, 32], rates)
    together = predict(work, "data", 2, 64, Conditions(net, bucket=0.0)).seconds
    return {
        "machine": "a machine", "ranks": 2, "missing": None,
        "alone": [step(run, 8), step(run, 32), step(other, 32), step(other, 128)],
        "all_reduce": [{"bytes": n, "seconds": [net.all_reduce(n, 2)] * 3} for n in (54_000, 215_000, 25_000_000)],
        "training": [{**run, "batch": 64, "seconds": [together] * 3}],
    }  # fmt: skip


def test_calibration_finds_what_was_measured() -> None:
    rates, net = Rates(2e10, 5e9, 3e-6), Interconnect("", 4e-6, 5e9)
    found = prediction.calibrate(measured(rates, net), local_ranks.trace)
    assert found.rates.flops == pytest.approx(rates.flops, rel=TRAINING)
    assert found.network is not None
    assert found.network.latency == pytest.approx(net.latency, rel=ELEMENT)
    assert [p.fitted for p in found.points] == 7 * [True] + [False]
    for point in found.points:
        assert point.error == pytest.approx(0, abs=TRAINING)


def test_a_network_slower_than_the_rates_is_slower_in_the_prediction() -> None:
    given = measured(Rates(2e10, 5e9, 3e-6), Interconnect("", 4e-6, 5e9))
    for step in given["alone"][2:]:
        step["seconds"] = [2 * s for s in step["seconds"]]
    found = prediction.calibrate(given, local_ranks.trace)
    factors = {name: [factor for _, factor in every] for name, every in found.factors.items()}
    assert min(factors["platforms"]) > 1.2 * max(factors["lenet5"])
    assert all(p.error == pytest.approx(0) for p in found.points[:4]), "of what was measured"
    clock = found.clock("platforms")
    trace = partial(local_ranks.trace, given["alone"][2])
    low, between, high = (sum(t.seconds for t in clock(trace(n))) for n in (32, 80, 128))
    assert between == pytest.approx((low + high) / 2, rel=0.1)


def test_a_step_that_sums_gradients_takes_longer_by_what_was_measured() -> None:
    given = measured(Rates(2e10, 5e9, 3e-6), Interconnect("", 4e-6, 5e9))
    without = prediction.calibrate(given, local_ranks.trace)
    longer = [{**step, "seconds": [s + 0.25 for s in step["seconds"]]} for step in given["alone"][1:2]]
    found = prediction.calibrate({**given, "cut": longer}, local_ranks.trace)
    assert found.cut == {"lenet5": pytest.approx(0.25)}
    assert found.points[-1].predicted - without.points[-1].predicted == pytest.approx(0.25)
    work = made(layer("a", 1.0, weights=3.0), layer("b", 1.0, weights=1.0))
    for strategy, ranks, more in (("data", 1, 0.0), ("data", 2, 0.25), ("pipeline", 4, 0.1875)):
        seconds = [predict(work, strategy, ranks, 4, Conditions(FREE, cut=c)).seconds for c in (0.0, 0.25)]
        assert seconds[1] - seconds[0] == pytest.approx(more), f"{strategy} on {ranks}"


def test_the_network_has_what_ranks_do_not_do_by_themselves() -> None:
    net = Interconnect("", 4e-6, 5e9)
    given = measured(Rates(2e10, 5e9, 3e-6), net)
    apart = [{**one, "seconds": [1e-10 * one["bytes"]] * 4} for one in given["all_reduce"]]
    whole = [{**one, "seconds": [s + 1e-10 * one["bytes"] for s in one["seconds"]]} for one in given["all_reduce"]]
    found = prediction.calibrate({**given, "apart": apart, "all_reduce": whole}, local_ranks.trace)
    assert found.network is not None
    assert found.network.bandwidth == pytest.approx(net.bandwidth, rel=TRAINING)
    assert all(p.error == pytest.approx(0, abs=TRAINING) for p in found.points)


def test_without_an_all_reduce_there_is_no_network() -> None:
    given = {**measured(Rates(2e10, 5e9), FREE), "all_reduce": [], "training": []}
    found = prediction.calibrate(given, local_ranks.trace)
    assert found.network is None
    assert found.missing == "no all-reduce was measured on this machine, which takes the extra mpi"


@pytest.mark.parametrize("seconds", [(3e-3, 2e-3, 1e-3), (1e-3, 1e-3, 1e-3), (1e-5, 9e-3, 1e-3), (1e-3, 1e-4, 2e-3)])
def test_any_times_give_a_network_or_the_reason_for_which_there_is_none(seconds: tuple[float, ...]) -> None:
    given = measured(Rates(2e10, 5e9), Interconnect("", 4e-6, 5e9))
    sums = [{**one, "seconds": [s]} for one, s in zip(given["all_reduce"], seconds, strict=True)]
    found = prediction.calibrate({**given, "all_reduce": sums}, local_ranks.trace)
    if found.network is None:
        assert found.missing.startswith("all-reduces took no longer with more bytes (54 kB in ")
        assert seconds[0] >= seconds[-1], "a bandwidth follows where more bytes take longer"
    else:
        assert (found.missing, found.network.latency >= 0) == ("", True)


def test_one_process_measures_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    no_mpi: Callable[[], None] = lambda: None  # noqa: E731
    monkeypatch.setattr(local_ranks, "mpiexec", no_mpi)
    run = {"network": "mlp", "image": (28, 28, 1), "classes": 10, "batch": 8}
    found = local_ranks.measure([run], budget_s=0.1)
    assert found["ranks"] == 1
    assert "extra mpi" in found["missing"]
    assert [step["batch"] for step in found["alone"]] == [8, 2]
    assert all(s > 0 for step in found["alone"] for s in step["seconds"])
    assert not found["all_reduce"]


def test_what_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ranks, "DEADLINE_S", 0.05)
    run = {"network": "mlp", "image": (28, 28, 1), "classes": 10, "batch": 8}
    with pytest.raises(RuntimeError, match=r"Received: mlp, which takes longer. Measure smaller batches or images."):
        local_ranks.measure([run], budget_s=0.05)


def test_two_processes_measure_each_other() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: the extra mpi")
    run = {"network": "lenet5", "image": (28, 28, 1), "classes": 10, "batch": 16}
    found = local_ranks.measure([run], ranks=2, budget_s=0.5)
    assert found["missing"] is None
    assert [(step["batch"], len(step["seconds"]) % 2) for step in found["alone"]] == [(8, 0), (2, 0)]
    assert [step["batch"] for step in found["cut"]] == [8]
    assert [one["bytes"] for one in found["apart"]] == [one["bytes"] for one in found["all_reduce"]]
    assert all(s > 0 for kind in ("cut", "apart") for one in found[kind] for s in one["seconds"])
    weights = local_ranks.trace(run, 1)
    assert sum(v.nbytes for v in weights.inputs if v.kind == "parameter") in [s["bytes"] for s in found["all_reduce"]]
    made = prediction.calibrate(found, local_ranks.trace)
    assert (made.network is None) == bool(made.missing), "beside other programs the times may be noise"
    assert [p.fitted for p in made.points][-1] is (made.network is None)
    assert made.points[-1].measured > 0
