from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicnn.data import DataError, kaggle, kaggle_digits
from support.datafiles import csv_text, digits


def rows(n: int, seed: int = 0):
    return digits(n, 28, 28, seed)


def lines(n: int = 3) -> list[str]:
    return csv_text(*rows(n)).splitlines()


@settings(deadline=None, max_examples=20)
@given(n=st.integers(2, 6), seed=st.integers(0, 99), end=st.sampled_from(["\n", "\r\n"]), data=st.data())
def test_round_trip(tmp_path_factory, n, seed, end, data):
    x, y = rows(n, seed)
    path = tmp_path_factory.mktemp("kaggle") / "train.csv"
    path.write_bytes(csv_text(x, y).replace("\n", end).encode())
    held = data.draw(st.integers(0, n - 1))
    last = kaggle_digits(path, test_samples=held)
    assert np.array_equal(np.concatenate([last.x_train, last.x_test])[..., 0], x)
    assert np.array_equal(np.concatenate([last.y_train, last.y_test]), y)
    assert len(last.x_test) == held
    first = kaggle_digits(path.parent, test_samples=held, holdout="first")
    assert np.array_equal(np.concatenate([first.x_test, first.x_train])[..., 0], x)
    assert np.array_equal(np.concatenate([first.y_test, first.y_train]), y)
    assert first.input_shape == (28, 28, 1)


def test_found_by_the_environment(tmp_path, monkeypatch):
    (tmp_path / "digit-recognizer").mkdir()
    (tmp_path / "digit-recognizer" / "train.csv").write_text(csv_text(*rows(4)))
    monkeypatch.setenv("MINICNN_DATA", str(tmp_path))
    assert len(kaggle_digits(test_samples=1).x_train) == 3


def change(line: int, column: int, value: str) -> list[str]:
    result = lines()
    fields = result[line - 1].split(",")
    fields[column] = value
    result[line - 1] = ",".join(fields)
    return result


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], "line 1 is label,pixel0.*Received: ''"),
        (lines()[1:], "line 1 is label,pixel0"),
        (["pixel0,label", *lines()[1:]], "Received: 'pixel0,label'"),
        (lines()[:1], "at least one row"),
        ([*lines()[:1], "", ""], "at least one row"),
        ([*lines()[:1], "", "  "], "785 values .* Received: 1 on line 3"),
        (change(3, 17, "256"), "values from 0 to 255, the first from 0 to 9. Received: '256' on line 3"),
        (change(2, 17, "-1"), "'-1' on line 2"),
        (change(4, 784, "1.5"), "'1.5' on line 4"),
        (change(4, 3, ""), "'' on line 4"),
        (change(4, 3, "²"), "on line 4"),
        (change(4, 3, "x" * 500), f"'{'x' * 20}' on line 4"),
        (change(4, 3, "9" * 5000), "'99999999999999999999' on line 4"),
        (change(3, 0, "10"), "'10' on line 3"),
        ([*lines()[:2], "", "", lines()[3].replace(",", ";")], "Received: 1 on line 5"),
        ([*lines()[:3], lines()[3].rsplit(",", 1)[0]], "784 on line 4"),
        ([*lines()[:3], lines()[3] + ",0"], "786 on line 4"),
        ([lines()[0], "1,2,3", "1,2,3"], "3 on line 2"),
    ],
)
def test_bad_content(tmp_path, content, match):
    path = tmp_path / "train.csv"
    path.write_text("\n".join(content), encoding="utf-8")
    with pytest.raises(DataError, match=match) as info:
        kaggle_digits(path)
    assert str(path) in str(info.value)


def test_arguments_are_checked(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(csv_text(*rows(3)))
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="test_samples is from 0 to 2 of the 3 rows"):
            kaggle_digits(path, test_samples=wrong)
    with pytest.raises(ValueError, match="'first' or 'last'"):
        kaggle_digits(path, holdout="middle")


def test_a_huge_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "train.csv"
    path.write_text(csv_text(*rows(3)))
    monkeypatch.setattr(kaggle, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="at most 1,000 bytes"):
        kaggle_digits(path)


def test_speed(tmp_path):
    x, y = rows(200)
    header, *body = csv_text(x, y).splitlines()
    path = tmp_path / "train.csv"
    path.write_text("\n".join([header, *body * 20]))  # 4,000 rows, a tenth of the real file
    start = time.process_time()
    assert len(kaggle_digits(path).x_train) == 3000
    assert time.process_time() - start < 2
