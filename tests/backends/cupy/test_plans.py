"""Which nodes share a kernel, and where their results live."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from backends.cupy.networks import NETWORKS
from minicnn import Input, Model, ops
from minicnn.backends._gpu.base_tile import Tile
from minicnn.backends._gpu.device import H200
from minicnn.backends._gpu.fusing import Plan
from minicnn.backends._gpu.options import Options
from minicnn.backends._gpu.pipelined_tiling import PipelinedTile
from minicnn.backends._gpu.placement import place
from minicnn.backends._gpu.planning import planned, tiles_of, tiles_on
from minicnn.backends._gpu.rewriting import rewrite
from minicnn.backends._gpu.tensor_families import TensorTile
from minicnn.backends._gpu.tensor_tiling import TensorTiles
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.cupy.cpp import Cpp
from minicnn.backends.cupy.generation import generate
from minicnn.backends.cupy.tile_texts import tile_text
from minicnn.kernels.elements import affine, broadcast
from minicnn.kernels.expressions import I
from minicnn.layers import BatchNormalization, Conv2D, Dense, Flatten, GlobalAveragePooling2D, MaxPooling2D, ReLU
from minicnn.losses import SparseCategoricalCrossentropy
from minicnn.optimizers import SGD
from minicnn.program import Node, Program
from minicnn.zoo import get_model
from support.plans import plan_of


def _plan(network: str, **options: bool) -> Plan:
    return plan_of(NETWORKS[network]("numpy").program("train", batch_size=16), **options)


def test_a_convolution_takes_bias_pooling_and_activation_along() -> None:
    plan = _plan("lenet")
    regions = [[n.op.name for n in u.every] for u in plan.groups if u.anchor.op.name == "conv2d"]
    assert regions == [["conv2d", "add", "max_pool2d", "max_pool2d_index", "relu"]] * 2


@pytest.mark.parametrize("tiles", [Tiles(H200), TensorTiles(H200)])
@pytest.mark.parametrize("size", [2, 3])
def test_a_convolution_looks_at_one_window_at_most_for_each_element_it_reads(tiles: Tiles, size: int) -> None:
    image = Input((32, 32, 8))
    y = MaxPooling2D(size, 2)(Conv2D(16, 3, padding="same")(image))  # of windows of 3 an element is in up to four
    model = Model(image, Dense(5)(Flatten()(Conv2D(16, 5, padding="same", activation="relu")(y))), backend="numpy")
    model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True))
    plan = plan_of(model.program("train", batch_size=16), tiles)
    scattered = [n.outputs[0] for n in plan.program.nodes if n.op.name == "max_pool2d_scatter"]
    stored = {id(v) for group in plan.groups for v in group.stored}
    assert [id(v) in stored for v in scattered] == [size > 2]


def test_all_updates_run_in_the_last_launch() -> None:
    plan = _plan("lenet")
    at = {
        n.op.name: k for k, launch in enumerate(plan.launches) for u in launch for n in u.every if n.phase == "update"
    }
    assert at["momentum_update"] == len(plan.launches) - 1


def test_every_carried_array_is_overwritten_where_it_is() -> None:
    assert not place(_plan("lenet")).copies


def test_without_fusion_each_node_has_a_kernel_of_its_own() -> None:
    plan = _plan("lenet", fuse=False, tiled=False)
    assert all(len(launch) == 1 and len(launch[0].every) == 1 for launch in plan.launches)
    moved = sum(n.op.name == "reshape" for n in plan.program.nodes)
    assert len(plan.launches) == len(plan.program.nodes) - moved


def test_values_that_live_together_have_memory_apart() -> None:
    for network in NETWORKS:
        plan = _plan(network)
        placement = place(plan)
        for launch in plan.launches:
            ranges = sorted(
                (placement.offsets[id(v)], placement.offsets[id(v)] + v.spec.nbytes)
                for v in {id(v): v for u in launch for v in (*plan.reads(u), *u.stored)}.values()
                if id(v) in placement.offsets
            )
            assert all(a[1] <= b[0] for a, b in pairwise(ranges))


def _written_since_the_launch_ahead(plan: Plan, launch: int) -> set[int]:
    """Ids of what is written by the launch ahead of one, and by those that go on beside what follows it."""
    return {id(v) for each in plan.launches[max(0, plan.ahead_of(launch)) : launch] for u in each for v in u.stored}


def test_what_the_launch_ahead_writes_is_not_read_early() -> None:
    for network in NETWORKS:
        plan = _plan(network)
        early = []
        for k, launch in enumerate(plan.launches):
            ahead = _written_since_the_launch_ahead(plan, k)
            for group in launch:
                for value in plan.reads(group):
                    early.append(plan.is_early(value, k))
                    assert not (early[-1] and (k == 0 or id(value) in ahead))
        assert any(early)


def test_loads_that_may_move_ahead_of_waiting_are_of_what_the_launch_ahead_does_not_write() -> None:
    """Those of restricted pointers, which go through the read-only cache."""
    for network in NETWORKS:
        plan = _plan(network)
        moving = []
        for k, launch in enumerate(plan.launches):
            ahead = _written_since_the_launch_ahead(plan, k)
            source = generate(plan, launch, set())
            parameters = re.findall(r"(__restrict__ )?p\d+[,)]", source.text.split("{")[0])
            for value, restricted in zip(source.arguments, parameters, strict=True):
                moving.append(bool(restricted))
                assert not (restricted and (k == 0 or id(value) in ahead)), (network, k, value.name)
        assert any(moving)


def test_a_product_is_cut_into_parts_where_a_region_or_an_update_adds_them_up() -> None:
    def parted(*, update: bool) -> bool:
        program = Program()
        x, y = program.input("x", (512, 64)), program.input("y", (512, 8))
        w = program.input("w", (64, 8), kind="parameter")
        program.outputs["loss"] = ops.sum(x)
        if update:
            program.updates["w"] = w - 0.1 * ops.matmul(x, y, transpose_a=True)
        else:
            program.outputs["z"] = ops.relu(ops.matmul(x, y, transpose_a=True))
        return any(
            n.op.name == "matmul_partial_sums"
            for n in rewrite(program, fuse=True, tiled=True, tiles=TensorTiles(H200)).nodes
        )

    assert parted(update=True)
    assert not parted(update=False)  # that would take another launch


def test_sums_beside_a_convolution_have_no_more_threads_than_it() -> None:
    beside = 0
    for network in NETWORKS:
        program = NETWORKS[network]("numpy").program("train", batch_size=256)
        tiles = TensorTiles(H200)
        plan = plan_of(program, tiles)
        for launch in plan.launches:
            sums = [u.tile.threads for u in launch if u.tile and u.anchor.op.name == "reduce_partial_sums"]
            others = [u.tile.threads for u in launch if u.tile and u.anchor.op.name != "reduce_partial_sums"]
            beside += bool(sums and others)
            assert not (sums and others) or max(sums) <= max(others)
    assert beside


def test_indices() -> None:
    text = Cpp().text
    assert text(affine((4, 5, 6), (30, 6, 1), I)) == "i"
    assert text(broadcast((4, 5, 6), (6,), I)) == "i % 6u"
    assert text(broadcast((4, 5, 6), (4, 1, 1), I)) == "i / 30u"
    assert text(broadcast((4, 5, 6), (), I)) == "0u"


def test_an_operation_without_a_kernel_falls_back_and_says_why() -> None:
    program = Program()
    x = program.input("x", (3,), "float16")
    program.outputs["y"] = ops.relu(x)
    (group,) = plan_of(program).groups
    assert group.reference == "kernels have no float16 yet"


def test_an_engine_with_fewer_kernels_says_so_itself() -> None:
    class Fewer(Tiles):
        def unsupported(self, node: Node) -> str | None:
            return "there is no softmax here" if node.op.name.startswith("softmax") else super().unsupported(node)

    def planned(tiles: Tiles) -> Plan:
        program = Program()
        x, w = program.input("x", (64, 8), "float32"), program.input("w", (8, 8), "float32")
        program.outputs["y"] = ops.relu(ops.softmax(ops.relu(ops.matmul(x, w)), axis=1))
        return plan_of(program, tiles)

    assert [g.anchor.op.name for g in planned(Tiles(H200)).groups] == ["row_region"]
    groups = planned(Fewer(H200)).groups
    assert [g.reference for g in groups if g.reference] == ["there is no softmax here"]


def test_images_in_16_bits_take_less_memory() -> None:
    model = get_model("resnet18", num_classes=10, input_shape=(64, 64, 3))
    arenas = []
    for precision in ("float32", "mixed_bfloat16"):
        model.compile("sgd", SparseCategoricalCrossentropy(from_logits=True), precision=precision)
        tiles = TensorTiles(H200, precision=precision.removeprefix("mixed_"))
        plan = plan_of(model.program("train", batch_size=128), tiles)
        arenas.append(place(plan).nbytes)
    assert arenas[1] < 0.85 * arenas[0]
    stored = [v for group in plan.groups for v in group.stored if v.ndim == 4 and v.shape[0] == 128]
    short = [v for v in stored if v.dtype == "bfloat16"]
    assert sum(v.nbytes for v in short) > 0.7 * sum(v.nbytes for v in stored)


def test_each_kind_of_tile_that_has_a_template_has_a_text() -> None:
    kinds: list[type[Tile]] = [Tile]
    for kind in kinds:
        kinds += kind.__subclasses__()
    templates = {kind for kind in kinds if kind.has_template} - {TensorTile}
    assert PipelinedTile in templates
    assert {kind for kind in templates if tile_text.dispatch(kind) is tile_text.dispatch(Tile)} == set()


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_squares_that_a_sum_alone_needs_are_computed_where_it_adds_them(precision: str) -> None:
    image = Input((32, 32, 3))
    y = Conv2D(16, 3, padding="same", use_bias=False)(image)
    y = ReLU()(BatchNormalization()(Conv2D(96, 1, use_bias=False)(y)))
    model = Model(image, Dense(5)(GlobalAveragePooling2D()(y)))
    model.compile(SGD(0.1), SparseCategoricalCrossentropy(from_logits=True), precision=precision)
    program = model.program("train", batch_size=128)
    plan = plan_of(program, tiles_of(program, tiles_on(H200, Options())))
    stored = [v.node.op.name for group in plan.groups for v in group.stored if v.node and v.shape == (128, 32, 32, 96)]
    assert "square" not in stored
    assert [n for n in plan.program.nodes if n.op.name == "square" and n.outputs[0].shape == (128, 32, 32, 96)]


def test_a_part_of_a_step_that_casts_weights_makes_neighbours_though_it_has_no_product() -> None:
    program = Program("casts")
    weight = program.input("weight", (1024, 4096), kind="parameter")
    program.outputs["short"] = ops.cast(weight * 2.0, dtype="bfloat16")
    (launch,) = planned(program, H200, generate).launches
    assert launch.source is not None
    assert launch.source.blocks * launch.source.threads * 8 == weight.size


def test_terms_of_a_sum_are_not_stored_where_a_part_of_a_step_is_given_what_they_are_made_of() -> None:
    """Another part of the step has left the image; here the terms alone read it."""
    program = Program("part")
    image, slope = (program.input(name, (8, 32, 32, 64), "bfloat16") for name in ("image", "slope"))
    dy = ops.cast(ops.cast(slope, dtype="float32") * ops.cast(slope, dtype="float32"), dtype="bfloat16")
    wide = ops.cast(dy, dtype="float32")
    program.outputs["dy"] = dy
    program.outputs["sum"] = ops.sum(wide, axes=(0, 1, 2))
    program.outputs["scaled"] = ops.sum(wide * (ops.cast(image, dtype="float32") - 0.5), axes=(0, 1, 2))
    launches = planned(program, H200, generate).launches
    stored = [v for launch in launches for group in launch.groups for v in group.stored]
    assert [v.name for v in stored if v.size == dy.size] == [dy.name]


def test_whether_gradients_are_finite_and_their_norm_take_no_chain_of_launches() -> None:
    """One sum for each weight, which waits for nobody else's: launches are as many however deep the network is."""

    def more(layers: int, precision: str, **clipped: float) -> int:
        """Launches beyond those of a step without."""
        image = y = Input((8, 8, 16))
        for _ in range(layers):
            y = ReLU()(Conv2D(16, 3, padding="same")(y))
        model = Model(image, Dense(5)(Flatten()(y)))
        counts = []
        for optimizer, policy in ((SGD(0.1), "mixed_bfloat16"), (SGD(0.1, **clipped), precision)):
            model.compile(optimizer, SparseCategoricalCrossentropy(from_logits=True), precision=policy)
            counts.append(len(planned(model.program("train", batch_size=8), H200, generate).launches))
        return counts[1] - counts[0]

    assert more(8, "mixed_float16") <= more(4, "mixed_float16") + 2
    limit = {"global_clipnorm": 1.0}
    assert more(8, "mixed_bfloat16", **limit) <= more(4, "mixed_bfloat16", **limit) + 2
