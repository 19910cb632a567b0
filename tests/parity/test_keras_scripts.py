"""Scripts with Keras's names run on minicnn; and, where Keras is installed, on Keras, so that they are such scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicnn
from parity import keras_scripts

PAGE = (Path(__file__).parents[2] / "docs" / "keras.md").read_text(encoding="utf-8")


def numbers(found: Any) -> Iterator[Any]:
    for part in found if isinstance(found, list) else [found]:
        yield from numbers(part) if isinstance(part, list) else [np.asarray(part)]


def check(script: Any, library: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = list(numbers(script(library)))
    assert found
    assert all(np.isfinite(array).all() for array in found)


@pytest.mark.parametrize("script", keras_scripts.SCRIPTS, ids=lambda s: s.__name__)
def test_on_minicnn(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_BACKEND", raising=False)
    check(script, minicnn, tmp_path, monkeypatch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", keras_scripts.SCRIPTS, ids=lambda s: s.__name__)
def test_on_keras(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    check(script, pytest.importorskip("keras"), tmp_path, monkeypatch)


def test_the_page_names_the_scripts() -> None:
    table = PAGE.partition("| guide or example | script |\n")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)` \|$", table, re.M))
    assert named == {script.__name__ for script in keras_scripts.SCRIPTS}
