"""All that the text of a generated kernel sees."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicnn.backends.numba_cuda.kernels import (
    bytes_product,
    convolution,
    correlation,
    elementary,
    geometry,
    matmul,
    product,
    reduction,
    regions,
    rows,
    scalars,
    sorting,
    windows,
)  # fmt: skip
from minicnn.backends.numba_cuda.kernels.decorators import (
    ALIGNED,
    block,
    device,
    index,
    read,
    read_four,
    read_word,
    slot,
)
from minicnn.backends.numba_cuda.shim import types

_FAMILIES = {
    bytes_product: ("ByteTile", "byte_rows"),
    regions: ("elements", "lane_sum", "row_statistics", "row_sums", "staged"),
    convolution: ("ConvTile", "convolve", "each", "each_pooled"),
    correlation: ("WeightTile", "correlate"),
    geometry: ("Image", "Window", "padded", "spread"),
    matmul: ("matmul",),
    product: ("ProductTile", "multiply"),
    reduction: ("ReduceTile", "reduce", "add_partial_sums"),
    rows: ("argmax", "log_softmax", "softmax", "softmax_cross_entropy", "softmax_cross_entropy_gradient"),
    sorting: ("before", "insertion"),
    windows: (
        "average_pool2d", "average_pool2d_gradient", "conv2d", "conv2d_input_gradient", "conv2d_weight_gradient",
        "depthwise_conv2d", "depthwise_conv2d_input_gradient", "depthwise_conv2d_weight_gradient",
        "depthwise_conv2d_weight_term", "max_pool2d", "max_pool2d_gradient", "max_pool2d_index", "max_pool2d_scatter",
    ),
}  # fmt: skip

NAMES: dict[str, Any] = {
    "np": np, "types": types, "device": device, "block": block, "index": index, "slot": slot, "read": read,
    "read_four": read_four, "read_word": read_word, "ALIGNED": ALIGNED, **elementary.NAMES, **scalars.NAMES,
    **{name: getattr(module, name) for module, names in _FAMILIES.items() for name in names},
}  # fmt: skip
