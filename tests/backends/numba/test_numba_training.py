"""The numba backend on whole models: evaluation and prediction; training is in tests/models/test_agreement.py."""

from __future__ import annotations

import numpy as np
import pytest

from support.numba_check import backend
from support.small_training import assert_same_bits, compiled, digits
from support.tolerances import SUM

pytest.importorskip("numba")


def test_evaluation_and_prediction_agree_with_numpy() -> None:
    x, y = digits(41)
    model, expected = compiled(backend(2)), compiled("numpy")
    np.testing.assert_allclose(model.predict(x, batch_size=17), expected.predict(x, batch_size=17), rtol=SUM, atol=SUM)
    found, reference = (m.evaluate(x, y, batch_size=17, return_dict=True) for m in (model, expected))
    for name, value in reference.items():
        assert found[name] == pytest.approx(value, rel=SUM)


def test_the_callers_arrays_stay_as_they_were() -> None:
    model = compiled("numpy")
    program = model.program(batch_size=23)
    run = backend(2).compile(program)
    x, y = digits(23)
    given = {v.name: np.zeros(v.shape, v.dtype) for v in program.inputs} | {"x": x, "y": y}
    given = {v.name: given[v.name] for v in program.inputs}
    before = {name: array.copy() for name, array in given.items()}
    first = run(given)
    kept = {name: array.copy() for name, array in first.items()}
    run(given)
    assert_same_bits(given, before)
    assert_same_bits(first, kept)
    with pytest.raises(ValueError, match=r"shapes that it was traced with"):
        run(given | {"x": x[:5]})
