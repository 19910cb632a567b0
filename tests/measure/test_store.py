"""Results that are kept, and studies that go on after an interruption."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minicnn.measure import Measurement, Page, ResultStore, Setting, Study, StudyRun
from minicnn.measure import study as module
from minicnn.measure.page import Paragraph
from minicnn.measure.store import Record
from minicnn.measure.study import changed, measure, recall, recall_all

STAMP = {"cpu": "a", "versions": {"numpy": "2"}}


def test_what_is_kept_is_found_as_json_holds_it(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results", STAMP)
    assert store.find("Training, MNIST", {}) == "not measured yet"
    store.keep("Training, MNIST", {"sizes": (1, 2)}, {"times": (1.0, 2.0), 3: None})
    found = store.find("Training, MNIST", {"sizes": (1, 2)})
    assert found == Record({"sizes": [1, 2]}, STAMP, {"times": [1.0, 2.0], "3": None})
    assert [p.name for p in (tmp_path / "results").iterdir()] == ["training-mnist.json"]


@pytest.mark.parametrize(
    ("given", "stamp", "reason"),
    [
        ({"epochs": 2}, STAMP, "measured with other epochs"),
        ({"epochs": 1, "samples": 5}, STAMP, "measured with other samples"),
        ({"epochs": 1}, {**STAMP, "cpu": "b"}, "measured with other cpu"),
        ({"epochs": 1}, {**STAMP, "versions": {"numpy": "3"}}, "measured with other versions"),
    ],
)
def test_other_sizes_machine_or_versions_make_a_result_useless(
    tmp_path: Path, given: dict[str, int], stamp: dict[str, Any], reason: str
) -> None:
    ResultStore(tmp_path, STAMP).keep("a", {"epochs": 1}, 1.0)
    assert ResultStore(tmp_path, stamp).find("a", given) == reason


@pytest.mark.parametrize("text", ["", "{", "[]", '{"result": 1}', "\x00", '{"given": {}, "stamp": {}}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, text: str) -> None:
    store = ResultStore(tmp_path, STAMP)
    store.keep("a", {}, 1.0)
    store.path("a").write_text(text)
    found = store.find("a", {})
    assert isinstance(found, str)
    assert "a.json" in found


def test_a_result_that_is_no_plain_data_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, STAMP)
    store.keep("a", {}, 1.0)
    for value in (float("nan"), {"x": object()}):
        with pytest.raises(ValueError, match="plain data with finite numbers"):
            store.keep("a", {}, value)
    found = store.find("a", {})
    assert isinstance(found, Record)
    assert found.result == 1.0
    assert len(list(tmp_path.iterdir())) == 1


# Studies ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    count: int = 3
    fail_at: int = -1
    names: tuple[str, ...] = ("a", "b")
    most: int = 0
    budget_s: float = 1.0
    kind: str = field(default="x", metadata={"known": ("x", "y")})
    held: int = field(default=5, metadata={"least": 0})


class Journal:
    """A study that writes down what it measures."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def measurements(self, setting: Setting) -> Iterator[Measurement]:
        for i in range(setting.sizes.count):
            yield Measurement(f"part {i}", {"i": i}, partial(self.run, i, setting.sizes.fail_at))

    def run(self, i: int, fail_at: int) -> dict[str, int]:
        if i == fail_at:
            raise KeyboardInterrupt
        self.done.append(i)
        return {"square": i * i}

    def present(self, page: Page, runs: Sequence[StudyRun]) -> None:
        page.extend([Paragraph(str([r["square"] for run in runs for r in run.results.values()]))])

    @property
    def study(self) -> Study:
        return Study("Squares", "?", "nobody", Sizes(), Sizes(2), ("none",), self.measurements, self.present)


def setting_of(**sizes: Any) -> Setting:
    return Setting(replace(Sizes(), **sizes), ("numpy",), {"cupy": "no GPU"}, ("none",))


def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path) -> None:
    journal, said = Journal(), []
    store = ResultStore(tmp_path, STAMP)
    with pytest.raises(KeyboardInterrupt):
        measure(journal.study, setting_of(fail_at=1), store, said.append)
    assert journal.done == [0]
    assert recall(journal.study, store).lacks(journal.study) == ["part 1", "part 2"]
    with pytest.raises(ValueError, match=r"Stored results are there, and can be read\. Received: not measured yet"):
        recall(journal.study, ResultStore(tmp_path / "none", STAMP))
    measure(journal.study, setting_of(), store, said.append)
    assert journal.done == [0, 1, 2]
    assert "1/3 part 0: kept" in said
    found = recall(journal.study, store)
    assert found.setting == setting_of()
    assert [r["square"] for r in found.results.values()] == [0, 1, 4]
    assert found.machine == STAMP
    assert found.lacks(journal.study) == []


def test_how_busy_others_were_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.5, 0.05, None])
    monkeypatch.setattr(module, "Others", lambda: SimpleNamespace(busy=lambda: next(shares)))
    journal, said, store = Journal(), [], ResultStore(tmp_path, STAMP)
    measure(journal.study, setting_of(), store, said.append)
    spoken = [line for line in said if "others" in line or "other programs" in line]
    assert spoken == ["1/3 part 0: 0 s; other programs kept the cores busy for 50% of their time"]
    assert recall(journal.study, store).others == {"part 0": 0.5, "part 1": 0.05}
    text = store.path("part 0").read_text()
    store.path("part 0").write_text(text.replace('"others": 0.5', '"others": "much"'))
    assert "is no record of a measurement" in str(store.read("part 0"))


def test_a_damaged_record_is_measured_anew(tmp_path: Path) -> None:
    journal, said = Journal(), []
    store = ResultStore(tmp_path, STAMP)
    measure(journal.study, setting_of(), store, said.append)
    store.path("part 1").write_text("{")
    measure(journal.study, setting_of(), store, said.append)
    assert journal.done == [0, 1, 2, 1]
    assert any("cannot be read" in line for line in said)
    assert json.loads(store.path("part 1").read_text())["result"] == {"square": 1}


def test_a_part_is_measured_by_itself(tmp_path: Path) -> None:
    journal, store = Journal(), ResultStore(tmp_path, STAMP)
    measure(journal.study, setting_of(), store, lambda line: None, parts=["part 2"])
    assert journal.done == [2]
    assert recall(journal.study, store).lacks(journal.study) == ["part 0", "part 1"]
    measure(journal.study, setting_of(), store, lambda line: None, parts=["part 2", "*1"])
    assert journal.done == [2, 1], "what is there is kept"
    with pytest.raises(ValueError, match=r"A part of the study is one of part 0, part 1, part 2, or a pattern"):
        measure(journal.study, setting_of(), store, lambda line: None, parts=["part 1", "part 7"])
    assert journal.done == [2, 1]


def test_a_folder_holds_one_set_of_sizes(tmp_path: Path) -> None:
    class Grown(Journal):
        def measurements(self, setting: Setting) -> Iterator[Measurement]:
            for measurement in super().measurements(setting):
                yield replace(
                    measurement, inputs={**measurement.inputs, "count": setting.sizes.count, "candidates": ()}
                )

    journal, store = Grown(), ResultStore(tmp_path, STAMP)
    measure(journal.study, setting_of(count=2), store, lambda line: None, parts=["part 1"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for again in (False, True):
        with pytest.raises(ValueError, match=r"one set of sizes\. Received: part 1 with other count than in"):
            measure(journal.study, setting_of(), store, lambda line: None, remeasure=again, parts=["part 0"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is lost, nor added"


def test_a_folder_holds_the_results_of_one_machine(tmp_path: Path) -> None:
    journal = Journal()
    gpu = {"cpu": "a", "cores": 2, "devices": {"torch cuda": "NVIDIA H200"}}
    measure(journal.study, setting_of(), ResultStore(tmp_path, gpu), lambda line: None, parts=["part 1"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for other in ({**gpu, "cpu": "b"}, {**gpu, "cores": 4}, {**gpu, "devices": {"torch cuda": "NVIDIA T4"}}):
        for again in (False, True):
            with pytest.raises(
                ValueError, match=r"one machine\. Received: part 1, measured on a, 2 cores, NVIDIA H200, for [ab], "
            ):
                measure(journal.study, setting_of(), ResultStore(tmp_path, other), lambda line: None, remeasure=again)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is lost, nor added"
    newer = ResultStore(tmp_path, {**gpu, "versions": {"numpy": "3"}, "devices": {"cupy cuda:0": "NVIDIA H200"}})
    measure(journal.study, setting_of(), newer, lambda line: None, parts=["part 1"])
    assert journal.done == [1, 1], "it is measured anew with other versions"
    ResultStore(tmp_path, {**gpu, "cores": 4}).keep("part 2", {"i": 2}, {"square": 4})
    with pytest.raises(
        ValueError, match=r"part 2, measured on a, 4 cores, NVIDIA H200, for a, 2 cores, NVIDIA H200 in"
    ):
        recall(journal.study, newer)


def test_what_cannot_be_measured_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(Journal().study, setting_of(fail_at=0), ResultStore(tmp_path, STAMP), lambda line: None)
    assert not list(tmp_path.iterdir())


def test_a_page_shows_each_measurement_of_a_machine_once_and_says_in_which_form(tmp_path: Path) -> None:
    machine = {"cpu": "a", "cores": 2, "devices": {}, "versions": {}}
    gpu = {"cpu": "b", "cores": 16, "devices": {"cupy cuda:0": "NVIDIA H100 80GB HBM3"}, "versions": {}}
    journal, stores = Journal(), []
    for place, stamp, quick, parts in (
        ("full", machine, False, ["part 1"]), ("quick", machine, True, []), ("gpu", gpu, False, ["part 0"]),
        ("gpu-old", gpu, False, ["part 0", "part 2"]),
    ):  # fmt: skip
        stores.append(ResultStore(tmp_path / place, stamp))
        given = replace(setting_of(), quick=quick)
        measure(journal.study, given, stores[-1], lambda line: None, parts=parts)
    runs = recall_all(journal.study, stores)
    shown = {run.label("numpy") + f" on {run.gpu}": list(run.results) for run in runs}
    assert shown == {
        "numpy, 2 cores on None": ["part 1"], "numpy, 2 cores (quick form) on None": ["part 0", "part 2"],
        "numpy, 16 cores on H100": ["part 0"],
        "numpy, 16 cores (earlier sizes) on H100 (earlier sizes)": ["part 2"],
    }  # fmt: skip
    assert runs[1].found("part 1") == {"square": 1}, "for what depends on it"
    assert runs[0].found("part 0") is None
    assert [run.label("numpy") for run in recall_all(journal.study, stores[1:2])] == ["numpy, 2 cores"]
    assert len(recall_all(journal.study, [stores[1], stores[1]])) == 1, "nothing is left to show"


def test_all_can_be_measured_again(tmp_path: Path) -> None:
    journal = Journal()
    for again in (False, True):
        measure(journal.study, setting_of(), ResultStore(tmp_path, STAMP), lambda line: None, remeasure=again)
    assert journal.done == [0, 1, 2] * 2


def test_measurements_need_names_of_their_own(tmp_path: Path) -> None:
    def same(setting: Setting) -> Iterator[Measurement]:
        yield from [Measurement("a", {}, dict)] * 2

    study = replace(Journal().study, measurements=same)
    with pytest.raises(ValueError, match="Received twice: a"):
        measure(study, setting_of(), ResultStore(tmp_path, STAMP), lambda line: None)


def test_sizes_are_changed_by_text() -> None:
    assert changed(Sizes(), {"count": "5", "names": "x,y,z"}) == Sizes(5, -1, ("x", "y", "z"))
    assert changed(
        replace(Sizes(), most=9), {"most": "0", "budget_s": "0", "held": "0", "names": "", "kind": "y"}
    ) == Sizes(3, -1, ("",), 0, 0.0, "y", 0)
    with pytest.raises(ValueError, match=r"one of count, fail_at, names, most, .*\. Received: 'size'"):
        changed(Sizes(), {"size": "5"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *(("count", text, "Give a whole number that is at least 1.") for text in ("many", "0", "-1", "1.5", "", "1,2")),
        ("most", "-1", "Give a whole number that is at least 0."),
        *(("budget_s", text, "Give a number that is at least 0.") for text in ("nan", "inf", "-0.1")),
        ("names", "a,a", "Give a text, or several different ones with commas between them."),
        ("kind", "z", "Give one of x, y."),
        ("kind", "", "Give one of x, y."),
    ],
)
def test_a_size_that_cannot_be_is_refused(name: str, text: str, said: str) -> None:
    usual = getattr(Sizes(), name)
    with pytest.raises(ValueError, match=f"^{re.escape(f'{name} is like {usual!r}. Received: {text!r}. {said}')}$"):
        changed(Sizes(), {name: text})
