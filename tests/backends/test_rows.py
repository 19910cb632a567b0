"""Convolutions by rows compute what their references do, and are chosen where they are faster."""

from __future__ import annotations

from typing import Any

import array_api_compat.numpy as xp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicnn.backends import _rows, get_backend
from support.convolutions import convolution_program
from support.numerics import assert_close
from support.strategies import DATA_FORMATS, normal, seeds

numbers = st.tuples(st.integers(1, 4), st.integers(1, 4))
pads = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(
    st.sampled_from(DATA_FORMATS), st.tuples(*[st.integers(3, 9)] * 2), st.integers(1, 3), st.integers(1, 3), numbers,
    numbers, st.tuples(pads, pads), st.booleans(), st.sampled_from([1, 500, 10**6]), seeds,
)  # fmt: skip
def test_rows_compute_what_references_do(
    data_format: str, image: tuple[int, int], batch: int, channels: int, kernel: tuple[int, int],
    strides: tuple[int, int], padding: Any, unfolded: bool, nbytes: int, seed: int,
) -> None:  # fmt: skip
    sizes = {"N": batch, "H": image[0], "W": image[1], "C": channels}
    try:
        program = convolution_program(data_format, sizes, kernel, strides=strides, padding=padding)
    except ValueError:
        return  # no window fits
    arrays = {id(v): normal(v.shape, seed, k) for k, v in enumerate(program.inputs)}
    for array in arrays.values():
        array.flags.writeable = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rows, "second_level_cache", lambda: nbytes)
        patch.setattr(_rows, "pays", lambda problem, direction: True)
        patch.setattr(_rows, "is_unfolded", lambda problem, direction: unfolded)
        for node in program.nodes:
            given = [arrays[id(v)] for v in node.inputs]
            function = _rows.by_rows(node)
            assert function is not None
            result = function(*given)
            assert_close(result, node.op.reference(*given, xp=xp, **node.attrs), 1000)
            assert result.flags.c_contiguous


SMALL = {"N": 64, "H": 16, "W": 16, "C": 8}


@pytest.mark.parametrize("attrs", [{"groups": 2}, {"dilation": (1, 2)}, {"kernel": (1, 1)}])
def test_references_take_what_rows_do_not(attrs: dict[str, Any]) -> None:
    program = convolution_program("NHWC", SMALL, attrs.pop("kernel", (3, 3)), **attrs)
    assert {_rows.by_rows(node) for node in program.nodes} == {None}


def test_a_row_is_long_enough_for_a_product() -> None:
    one = convolution_program("NHWC", {"N": 1, "H": 4, "W": 3, "C": 8}, (3, 3))
    assert [node.op.name for node in one.nodes if _rows.by_rows(node)] == ["conv2d"]
    many = convolution_program("NHWC", SMALL, (3, 3))
    assert all(_rows.by_rows(node) for node in many.nodes)


@pytest.mark.parametrize(("channels", "unfolded"), [(1, [True, False, True]), (16, [False, True, False])])
def test_few_channels_are_unfolded_along_the_width(channels: int, unfolded: list[bool]) -> None:
    program = convolution_program("NHWC", {**SMALL, "C": channels}, (3, 3))
    functions: list[Any] = [_rows.by_rows(node) for node in program.nodes]
    assert [function.args[0].unfolded for function in functions] == unfolded


def test_explain_says_so() -> None:
    rows = get_backend("numpy").explain(convolution_program("NHWC", SMALL, (3, 3)))
    assert [text for node, text in rows if "conv2d" in node.op.name] == [
        "kernel: conv2d_by_rows", "kernel: conv2d_input_gradient_by_rows", "kernel: conv2d_weight_gradient_by_rows",
    ]  # fmt: skip
