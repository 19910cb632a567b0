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
    """Cycles of tiles on tensor cores; of a multiprocessor unless they are said to pass alone."""

    mma: float  # a product of fragments
    load: float  # loading four matrices
    transposed: float  # loading four matrices that lie across
    run: float  # eight elements on their way to shared memory
    staged: float  # an element that is staged before
    stage: float  # alone, before what is staged can be read
    stage_each: float  # alone, for each element that a thread stages
    latency: float  # alone, of a read from memory
    more: float  # alone, for three runs that a thread has no registers for
    fragment: float  # alone, of a product of fragments
    fragments: float  # the same, for each of several that do not depend on each other
    step: float  # alone, of 16 terms of a sum, beside the products
    halving: float  # to add a result of another slice
    barrier: float  # to wait for the results of another slice
    stored: float  # 32 results on their way out
    result: float  # alone, for each result of a thread
    block: float  # to begin and end a block
    first: float  # the share of a block in the time when not all blocks are there yet, or not any more
    patience: float  # how many warps' worth of units nobody uses while all wait
    launch: float  # alone, before and after all blocks
    registers: float  # of a thread, beside fragments and sums
    resident: float  # blocks of a multiprocessor beyond which more do not help


@dataclass(frozen=True)
class Launches:
    """Cycles of launches, and of the sums of partial sums."""

    launch: float  # before and after the blocks of a launch
    more: float  # of a launch that nothing else needs
    gradients: float  # elements of partial sums of weight gradients that are added up in a cycle
    results: float  # the same for products


@dataclass(frozen=True)
class PlainConvolution:
    """Costs of a convolution with multiply-adds, in cycles of a multiprocessor."""

    shared: float  # the share of a multiprocessor's shared memory that blocks can have
    registers: int  # of a thread
    filled: float  # an element of the image on its way to shared memory
    filters: float  # an element of the filters
    patience: float  # threads whose worth of multiply-adds nobody uses while all wait
    round: float  # alone, for a block of each multiprocessor
    launch: float  # alone, with `scored` and `stored` cycles as measured: before and after all blocks
    scored: float  # cycles for each that is counted for blocks
    stored: float  # an element of the result


@dataclass(frozen=True)
class PlainWeightGradient:
    """Costs of a weight gradient with multiply-adds, in cycles of a multiprocessor."""

    shared: float  # the share of a multiprocessor's shared memory that blocks can have
    registers: int  # of a thread
    term: float  # a multiply-add, with the reads that it needs, as multiply-adds
    filled: float  # an element on its way to shared memory
    strip: float  # a strip of rows, beside its elements
    patience: float  # threads whose worth of multiply-adds nobody uses while all wait
    halving: float  # to add the results of other slices, for each time that they halve
    gradients: float  # elements of partial sums that are added up in a cycle


@dataclass(frozen=True)
class PlainProduct:
    """Costs of a matrix product with multiply-adds, in cycles of a multiprocessor."""

    operand: float  # reads of an operand, as multiply-adds, which the rows or columns of a thread share
    filled: float  # an element on its way to shared memory
    latency: float  # alone, of a read from memory
    load: float  # alone, for each element that a thread fills
    launch: float  # alone, before and after all blocks
    more: float  # of a launch that only adds up partial sums
    results: float  # elements of partial sums that are added up in a cycle


@dataclass(frozen=True)
class Pipelined:
    """Cycles of tiles whose operands come ahead; of a multiprocessor unless they are said to pass alone."""

    mma: float  # a product of fragments
    load: float  # loading four matrices, or tensor cores reading as much
    run: float  # eight elements on their way to shared memory
    line: float  # each 128 bytes of memory that they touch
    step: float  # alone, to wait for others and to send for what comes
    fragment: float  # alone, of a product of fragments
    fragments: float  # the same, for each of several that do not depend on each other
    latency: float  # alone, from memory to shared memory
    far: float  # the same for a weight gradient, whose operands were written long ago
    forward: float  # eight results of a convolution on their way out
    back: float  # the same of an input gradient, behind which more is read
    weights: float  # the same of a weight gradient, which is stored in float32
    passing: float  # alone, for each fragment of a warp: as many of these as a multiprocessor would bring out meanwhile
    launch: float  # alone, before and after all blocks


@dataclass(frozen=True)
class ByteRowsCosts:
    """Cycles of a tile of rows of bytes."""

    mma: float  # a product of fragments, in a multiprocessor
    step: float  # of 32 terms of a sum
    fragment: float  # the same, for each fragment
    column: float  # 16 columns of the product with the gradient, shared by the warps
    tile: float  # what lies between the products
    thread_per_row: float  # the same, for each row that a thread takes by itself
    block_per_row: float  # for each row otherwise
    slice: float  # for each slice
    thread: float  # for each thread beyond 256
    arriving: float  # bytes that arrive in a cycle, while others are multiplied
    loaded: float  # bytes that arrive in a cycle, while nothing else is done
    latency: float  # of a read from memory
    alone: float  # the share of all that which does not depend on how many blocks are resident
    resident: float  # the share for each block


@dataclass(frozen=True)
class FloatRowsCosts:
    """Cycles of a tile of rows of float32."""

    loaded: float  # bytes that arrive in a cycle
    tile: float  # what lies between the products
    thread_per_row: float  # the same, for each row that a thread takes by itself
    block_per_row: float  # for each row otherwise
    slice: float  # for each slice
    step: float  # of 8 terms of a sum
    fragment: float  # the same, for each fragment
    column: float  # 8 columns of the product with the gradient, for each row
    latency: float  # of a read from memory, where rows do not come ahead
    alone: float  # the share of all that which does not depend on how many blocks are resident
    resident: float  # the share for each block
    apart: float  # the share of the shorter of arriving and multiplying that the longer does not hide
    ahead: float  # what a tile takes beside them where rows come ahead
    ahead_alone: float  # as `alone`, where rows come ahead
    ahead_resident: float  # as `resident`, where rows come ahead


@dataclass(frozen=True)
class Depthwise:
    """Costs of a depthwise convolution of images in 16 bits: of runs of eight channels, by counted instructions."""

    brought: float  # instructions that bring a run, with a normalisation and an activation on the way
    loaded: float  # instructions that load and widen it
    finished: float  # instructions that finish a result
    latency: float  # cycles of a read from memory, which pass alone
    launch: float  # the same, of a launch
    line: float  # cycles of each 128 bytes of memory, or less, that are touched at once
    alone: float  # instructions of a warp in a cycle, while it is alone
    row: float  # cycles to add up another row of sums over positions


@dataclass(frozen=True)
class Limits:
    """Sizes from which one way of computing takes less time than another."""

    step: int  # channels, of whose multiples no convolution is quicker than one whose operands come ahead
    positions: int  # of a weight gradient, from which on the same holds for it
    fetched: float  # bytes that are fetched ahead of a convolution's results at most, in L2 caches
    arrays: int  # of which they come at least
    several: float  # bytes of a convolution's results in 16 bits from which on blocks make several tiles, in L2 caches
    threads: int  # of a multiprocessor, which a launch has at least before they make several neighbours
    blocks: int  # of a multiprocessor, which a launch has at least before its threads make several runs of neighbours
    runs: int  # of a thread at most, which has registers for what it loads of them


@dataclass(frozen=True)
class Models:
    """The constants of all models, for a GPU."""

    convolution: Costs  # of convolutions and input gradients on tensor cores
    weight_gradient: Costs  # of weight gradients on tensor cores
    product: Costs  # of matrix products on tensor cores
    pipelined: Pipelined  # of convolutions of 16-bit operands
    warpgroups: Pipelined  # of the same by warpgroups
    launches: Launches
    plain_convolution: PlainConvolution  # of convolutions with multiply-adds
    plain_weight_gradient: PlainWeightGradient  # of weight gradients with multiply-adds
    plain_product: PlainProduct  # of matrix products with multiply-adds
    byte_rows: ByteRowsCosts  # of products with rows of bytes
    float_rows: FloatRowsCosts  # of products with rows of float32
    depthwise: Depthwise  # of depthwise convolutions of 16-bit operands
    limits: Limits


@cache
def _stored() -> Mapping[str, Mapping[str, Any]]:
    """Fitted constants by the name of the GPU."""
    folder = files("minicnn.backends._gpu").joinpath("fitted")
    fits = [json.loads(file.read_text("utf-8")) for file in folder.iterdir() if file.name.endswith(".json")]
    return {one["gpu"]: one for one in fits}


def fitted_on(gpu: Gpu) -> Mapping[str, Any]:
    """Constants that were fitted on a GPU; none if it was not measured."""
    names = [name for name in _stored() if name in gpu.name]
    # The longest name fits best: that of one GPU may be a part of another's.
    return _stored()[max(names, key=len)] if names else {}


@cache
def costs_on(gpu: Gpu) -> Models:
    """Constants for a GPU: those that were fitted on it, and of the others those of the H200, as its description says.

    Products of fragments take as long as its tensor cores are slow, all else stays.
    """
    fitted, constants, slower = fitted_on(gpu), {}, FITTED.tensor / (gpu.tensor or FITTED.tensor)
    kinds = get_type_hints(Models)
    for name in (field.name for field in fields(Models)):
        one = kinds[name](**fitted.get(name, _stored()[FITTED.name][name])["constants"])
        # Loads, barriers and latencies of GPUs differ little in cycles; the rate of tensor cores differs by more than
        # ten.
        if isinstance(one, Costs | Pipelined) and name not in fitted:
            one = replace(one, mma=one.mma * slower, fragments=one.fragments * max(1.0, slower))
        constants[name] = one
    return Models(**constants)


def unfitted(gpu: Gpu) -> str:
    """Remark on sizes that a model chose for a GPU to which it was not fitted; empty if it was."""
    if gpu.name == "simulator" or set(KINDS) <= fitted_on(gpu).keys():
        return ""
    return f", sizes by a model that was not fitted to {gpu.name}"
