from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_folder_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINICNN_DATA", raising=False)
