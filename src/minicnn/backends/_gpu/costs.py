"""The constants of the models of tile times: data fitted to times on GPUs, and what they become on another GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, get_type_hints

from minicnn.backends._gpu.device import H200, Gpu

FITTED = H200  # whose constants are scaled for a GPU on which no tiles were timed
KINDS = ("convolution", "weight_gradient", "product")  # on tensor cores, as `benchmarks/fit_tiles.py` times them
SPARE_REGISTERS = 23  # of a thread, by which the compiler may need more than the model thinks


@dataclass(frozen=True)
class Costs:
    """Cycles of tiles on tensor cores; of a multiprocessor unless they are said to pass alone.

    Attributes:
        mma: A product of fragments.
        load: Loading four matrices.
        transposed: Loading four matrices that lie across.
        run: Eight elements on their way to shared memory.
        staged: An element that is staged before.
        stage: Alone, before what is staged can be read.
        stage_each: Alone, for each element that a thread stages.
        latency: Alone, of a read from memory.
        more: Alone, for three runs that a thread has no registers for.
        fragment: Alone, of a product of fragments.
        fragments: The same, for each of several that do not depend on each other.
        step: Alone, of 16 terms of a sum, beside the products.
        halving: To add a result of another slice.
        barrier: To wait for the results of another slice.
        stored: 32 results on their way out.
        result: Alone, for each result of a thread.
        block: To begin and end a block.
        first: The share of a block in the time when not all blocks are there yet, or not any more.
        patience: How many warps' worth of units nobody uses while all wait.
        launch: Alone, before and after all blocks.
        registers: Of a thread, beside fragments and sums.
        resident: Blocks of a multiprocessor beyond which more do not help.
    """

    mma: float
    load: float
    transposed: float
    run: float
    staged: float
    stage: float
    stage_each: float
    latency: float
    more: float
    fragment: float
    fragments: float
    step: float
    halving: float
    barrier: float
    stored: float
    result: float
    block: float
    first: float
    patience: float
    launch: float
    registers: float
    resident: float


@dataclass(frozen=True)
class Launches:
    """Cycles of launches, and of the sums of partial sums.

    Attributes:
        launch: Before and after the blocks of a launch.
        more: Of a launch that nothing else needs.
        gradients: Elements of partial sums of weight gradients that are added up in a cycle.
        results: The same for products.
    """

    launch: float
    more: float
    gradients: float
    results: float


@dataclass(frozen=True)
class PlainConvolution:
    """Costs of a convolution with multiply-adds, in cycles of a multiprocessor.

    Attributes:
        shared: The share of a multiprocessor's shared memory that blocks can have.
        registers: Of a thread.
        filled: An element of the image on its way to shared memory.
        filters: An element of the filters.
        patience: Threads whose worth of multiply-adds nobody uses while all wait.
        round: Alone, for a block of each multiprocessor.
        launch: Alone, with `scored` and `stored` cycles as measured: before and after all blocks.
        scored: Cycles for each that is counted for blocks.
        stored: An element of the result.
    """

    shared: float
    registers: int
    filled: float
    filters: float
    patience: float
    round: float
    launch: float
    scored: float
    stored: float


@dataclass(frozen=True)
class PlainWeightGradient:
    """Costs of a weight gradient with multiply-adds, in cycles of a multiprocessor.

    Attributes:
        shared: The share of a multiprocessor's shared memory that blocks can have.
        registers: Of a thread.
        term: A multiply-add, with the reads that it needs, as multiply-adds.
        filled: An element on its way to shared memory.
        strip: A strip of rows, beside its elements.
        patience: Threads whose worth of multiply-adds nobody uses while all wait.
        halving: To add the results of other slices, for each time that they halve.
        gradients: Elements of partial sums that are added up in a cycle.
    """

    shared: float
    registers: int
    term: float
    filled: float
    strip: float
    patience: float
    halving: float
    gradients: float


@dataclass(frozen=True)
class PlainProduct:
    """Costs of a matrix product with multiply-adds, in cycles of a multiprocessor.

    Attributes:
        operand: Reads of an operand, as multiply-adds, which the rows or columns of a thread share.
        filled: An element on its way to shared memory.
        latency: Alone, of a read from memory.
        load: Alone, for each element that a thread fills.
        launch: Alone, before and after all blocks.
        more: Of a launch that only adds up partial sums.
        results: Elements of partial sums that are added up in a cycle.
    """

    operand: float
    filled: float
    latency: float
    load: float
    launch: float
    more: float
    results: float


@dataclass(frozen=True)
class ByteRows:
    """Cycles of a tile of rows of bytes.

    Attributes:
        mma: A product of fragments, in a multiprocessor.
        step: Of 32 terms of a sum.
        fragment: The same, for each fragment.
        column: 16 columns of the product with the gradient, shared by the warps.
        tile: What lies between the products.
        narrow: The same, for each row that a thread takes by itself.
        wide: For each row otherwise.
        slice: For each slice.
        thread: For each thread beyond 256.
        arriving: Bytes that arrive in a cycle, while others are multiplied.
        loaded: Bytes that arrive in a cycle, while nothing else is done.
        latency: Of a read from memory.
        alone: The share of all that which does not depend on how many blocks are resident.
        resident: The share for each block.
    """

    mma: float
    step: float
    fragment: float
    column: float
    tile: float
    narrow: float
    wide: float
    slice: float
    thread: float
    arriving: float
    loaded: float
    latency: float
    alone: float
    resident: float


@dataclass(frozen=True)
class FloatRows:
    """Cycles of a tile of rows of float32.

    Attributes:
        loaded: Bytes that arrive in a cycle.
        tile: What lies between the products.
        narrow: The same, for each row that a thread takes by itself.
        wide: For each row otherwise.
        slice: For each slice.
        step: Of 8 terms of a sum.
        fragment: The same, for each fragment.
        column: 8 columns of the product with the gradient, for each row.
        latency: Of a read from memory, where rows do not come ahead.
        alone: The share of all that which does not depend on how many blocks are resident.
        resident: The share for each block.
        apart: The share of the shorter of arriving and multiplying that the longer does not hide.
        ahead: What a tile takes beside them where rows come ahead.
        ahead_alone: As `alone`, where rows come ahead.
        ahead_resident: As `resident`, where rows come ahead.
    """

    loaded: float
    tile: float
    narrow: float
    wide: float
    slice: float
    step: float
    fragment: float
    column: float
    latency: float
    alone: float
    resident: float
    apart: float
    ahead: float
    ahead_alone: float
    ahead_resident: float


@dataclass(frozen=True)
class Models:
    """The constants of all models, for a GPU.

    Attributes:
        convolution: Of convolutions and input gradients on tensor cores.
        weight_gradient: Of weight gradients on tensor cores.
        product: Of matrix products on tensor cores.
        launches: Of launches.
        plain_convolution: Of convolutions with multiply-adds.
        plain_weight_gradient: Of weight gradients with multiply-adds.
        plain_product: Of matrix products with multiply-adds.
        byte_rows: Of products with rows of bytes.
        float_rows: Of products with rows of float32.
    """

    convolution: Costs
    weight_gradient: Costs
    product: Costs
    launches: Launches
    plain_convolution: PlainConvolution
    plain_weight_gradient: PlainWeightGradient
    plain_product: PlainProduct
    byte_rows: ByteRows
    float_rows: FloatRows


@cache
def _stored() -> Mapping[str, Mapping[str, Any]]:
    """What was fitted, by the name of the GPU."""
    folder = files("minicnn.backends._gpu").joinpath("fitted")
    found = [json.loads(file.read_text("utf-8")) for file in folder.iterdir() if file.name.endswith(".json")]
    return {one["gpu"]: one for one in found}


def fitted_on(gpu: Gpu) -> Mapping[str, Any]:
    """What was fitted on a GPU."""
    names = [name for name in _stored() if name in gpu.name]
    return _stored()[max(names, key=len)] if names else {}


@cache
def costs_on(gpu: Gpu) -> Models:
    """Constants for a GPU: those that were fitted on it, and of the others those of the H200, as its description says.

    Products of fragments take as long as its tensor cores are slow, all else stays.
    """
    own, made, slower = fitted_on(gpu), {}, FITTED.tensor / gpu.tensor
    kinds = get_type_hints(Models)
    for name in (field.name for field in fields(Models)):
        one = kinds[name](**own.get(name, _stored()[FITTED.name][name])["constants"])
        if isinstance(one, Costs) and name not in own:
            one = replace(one, mma=one.mma * slower, fragments=one.fragments * max(1.0, slower))
        made[name] = one
    return Models(**made)


def unfitted(gpu: Gpu) -> str:
    """What to say of sizes that a model chose for a GPU to which it was not fitted; nothing if it was."""
    if gpu.name == "simulator" or set(KINDS) <= fitted_on(gpu).keys():
        return ""
    return f", sizes by a model that was not fitted to {gpu.name}"
