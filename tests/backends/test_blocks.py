"""Convolutions in blocks compute what their references do at once."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn import ops
from minicnn.backends import _blocks, get_backend
from support.convolutions import convolution_program
from support.numerics import assert_close
from support.strategies import normal, seeds

pads = st.tuples(st.integers(0, 2), st.integers(0, 2))
numbers = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    st.sampled_from(["NHWC", "NCHW", "HWCN"]), st.tuples(*[st.integers(6, 9)] * 2), numbers, numbers, numbers,
    st.tuples(pads, pads), st.sampled_from([1, 2]), st.integers(1, 3000), seeds,
)  # fmt: skip
def test_blocks_of_any_size_compute_what_references_do(
    data_format: str, image: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int],
    dilation: tuple[int, int], padding: Any, groups: int, nbytes: int, seed: int,
) -> None:  # fmt: skip
    sizes = {"N": 3, "H": image[0], "W": image[1], "C": 2}
    try:
        program = convolution_program(
            data_format, sizes, kernel, groups, strides=strides, dilation=dilation, padding=padding
        )  # fmt: skip
    except ValueError:
        return  # no window fits
    arrays = {id(v): normal(v.shape, seed, k) for k, v in enumerate(program.inputs)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_blocks, "BLOCK_BYTES", nbytes)
        for node in program.nodes:
            given = [arrays[id(v)] for v in node.inputs]
            function = _blocks.in_blocks(node, xp)
            if function is not None:
                assert_close(function(*given), node.op.reference(*given, xp=xp, **node.attrs), 1000)


def test_small_convolutions_and_other_primitives_stay_whole() -> None:
    program = convolution_program("NHWC", {"N": 2, "H": 8, "W": 8, "C": 2}, (3, 3), 1)
    ops.relu(program.outputs["dx"])
    assert {_blocks.in_blocks(node, xp) for node in program.nodes} == {None}


def test_no_unfolded_image_is_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a convolution with dilation, which the NumPy backend does not compute by rows."""
    sizes: list[int] = []
    for name in ("conv2d", "conv2d_weight_gradient"):
        op = ops.REGISTRY[name]
        reference = op.reference

        def seen(*arrays: Any, reference: Any = reference, **attrs: Any) -> Any:
            y = reference(*arrays, **attrs)
            height, width = (y if reference.__name__ == "conv2d" else arrays[0]).shape[1:3]
            sizes.append(len(arrays[0]) * height * width * 27 * 8)
            return y

        monkeypatch.setattr(op, "reference", seen)
    program = convolution_program("NHWC", {"N": 8, "H": 64, "W": 64, "C": 3}, (3, 3), 1, dilation=(2, 2))
    run = get_backend("numpy").compile(program)
    run({v.name: np.zeros(v.shape) for v in program.inputs})
    assert sizes
    assert max(sizes) <= _blocks.BLOCK_BYTES


@pytest.mark.parametrize("flag", [True, False])
def test_explain_says_so(flag: bool) -> None:
    program = convolution_program("NCHW", {"N": 64, "H": 32, "W": 32, "C": 8}, (3, 3), 1, dilation=(1, 2))
    rows = [
        text for node, text in get_backend("numpy", reference_only=flag).explain(program) if "conv2d" in node.op.name
    ]
    expected = "reference: reference_only is set" if flag else "kernel: conv2d_in_blocks"
    assert expected in rows
