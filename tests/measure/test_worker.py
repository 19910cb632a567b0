"""Candidates in processes of their own."""

from __future__ import annotations

import os
import signal

import pytest

from minicnn.measure import CandidateError, Comparison, Worker
from support.rivals import Rival
from support.tolerances import STEP


def test_calls_go_to_another_process_and_results_come_back() -> None:
    with Worker("a", Rival, "a", environment={"MINICNN_TEST": "set"}) as worker:
        assert worker.call("add", 2, b=3) == 5
        assert worker.call("process") != os.getpid()
        assert worker.call("variable", "MINICNN_TEST") == "set"
        with pytest.raises(CandidateError, match=r"^a: .*add.* missing 1 required"):
            worker.call("add")
        assert worker.call("add", 1) == 2, "an error of a call does not end the process"
    assert "MINICNN_TEST" not in os.environ


def test_a_process_that_dies_says_its_last_words() -> None:
    with Worker("a", Rival, "a") as worker:
        with pytest.raises(CandidateError, match=r"^a: its process ended with code 3: the last words$"):
            worker.call("leave")
        with pytest.raises(CandidateError, match="ended with code 3"):
            worker.call("add", 1)


def test_a_process_that_the_system_ends_says_by_which_signal() -> None:
    with Worker("a", Rival, "a") as worker:
        os.kill(worker.call("process"), signal.SIGKILL)
        with pytest.raises(CandidateError, match=r"was ended by signal 9 \(Killed, as when memory runs out\)"):
            worker.call("add", 1)


def test_an_object_that_cannot_be_made_says_why() -> None:
    with pytest.raises(CandidateError, match=r"^b: Rivals have a library\. Received: none\. Install it\.$"):
        Worker("b", Rival, "absent").__enter__()


def test_who_computes_something_else_is_refused_and_not_timed() -> None:
    names = ["right", "numpy", "kinked", "wrong", "mad", "nan", "broken", "absent"]
    with Comparison(names, Rival) as comparison:
        comparison.check(rtol=STEP)
        assert comparison.names == ["right", "numpy", "kinked"]
        assert {n for n, why in comparison.out.items() if why.startswith("refused")} == {"wrong", "mad", "nan"}
        assert comparison.out["wrong"].startswith(
            "refused, because its gradient of dense/kernel differs from numpy's by "
        )
        assert f"(relative; at most {STEP:.1e})" in comparison.out["wrong"]
        assert comparison.out["mad"].startswith("refused, because its loss 2.5 differs from numpy's 2.3 by 8.7e-02")
        assert "nan" in comparison.out["nan"]
        assert comparison.out["broken"] == "failed: Rivals compute. Received: nothing."
        assert comparison.out["absent"] == "failed: Rivals have a library. Received: none. Install it."
        times = comparison.time("time_once", rounds=3)
        assert list(times) == ["right", "numpy", "kinked"]
        assert all(len(samples) == 3 for samples in times.values())


def test_who_fails_while_the_others_are_timed_drops_out() -> None:
    with Comparison(["a", "leaver"], Rival) as comparison:
        times = comparison.time("time_once", rounds=2)
        assert list(times) == ["a"]
        assert comparison.out["leaver"] == "failed: its process ended with code 3: the last words"
        assert comparison.call("add", 1) == {"a": 2}
