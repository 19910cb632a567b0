"""Compiled kernels of the tests go to a folder of their own, unless one is given."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("MINICNN_CACHE", str(tmp_path_factory.mktemp("kernels")))
