"""Candidates of comparisons without processes of their own, each of which would load its library for seconds."""

from __future__ import annotations

from typing import Any

import pytest

from minicnn.measure.worker import CandidateError, Worker, describe


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers make and call their objects here."""

    def start(self: Any) -> None:
        self._process, self._made = None, None
        answer(self, lambda: setattr(self, "_made", self._make(*self._args)))

    def wait(self: Any, patience: float | None = None) -> None:
        self.receive()

    def answer(self: Any, call: Any) -> None:
        try:
            self._answer = True, call()
        except Exception as error:
            self._answer = False, describe(error)

    def send(self: Any, method: str, *args: Any, **kwargs: Any) -> None:
        answer(self, lambda: getattr(self._made, method)(*args, **kwargs))

    def receive(self: Any) -> Any:
        good, result = self._answer
        if not good:
            raise CandidateError(self.name, result)
        return result

    for method in (start, wait, send, receive):
        monkeypatch.setattr(Worker, method.__name__, method)
