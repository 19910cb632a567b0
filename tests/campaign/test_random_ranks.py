"""Random networks on several GPUs that are not there: what their ranks would launch."""

from __future__ import annotations

import re

import pytest

from support.campaign import size
from support.random_networks import on_ranks
from support.rank_plans import Nobody, Planner, planned_by
from support.streams import conflicts, read_before_it_is_there

NETWORKS = size(600, 20)
PARTS = size(10, 1)
_NAMES = re.compile(r"\b[vx]\d+\b")
_DECLARED = re.compile(r"[\w>\]][*&]? (?<!return )$")  # behind a type, perhaps a pointer or a reference


def read_too_early(text: str) -> list[str]:
    """Names of variables and functions in a kernel's text that are read before they are declared."""
    first = {match.group(): match.start() for match in reversed([*_NAMES.finditer(text)])}
    return [name for name, at in first.items() if not _DECLARED.search(text[max(0, at - 40) : at])]


def test_what_is_read_too_early_is_found() -> None:
    text = (
        "auto x1 = [&](int i) { return v2 * v5; };\nconst float v2 = x1(0);\nfloat* v3;\nT& v4 = v3[v2];\nint v5 = 1;"
    )
    assert read_too_early(text) == ["v5", "v2"]


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_of_ranks(part: int) -> None:
    count = NETWORKS // PARTS
    for seed in range(part * count, (part + 1) * count):
        ranks = 2 + 2 * (seed % 2)
        backend = Planner()
        backend.exchanges = seed % 5 > 0
        runs = planned_by(backend, on_ranks(seed, backend, Nobody(ranks)))
        plans = [run._plan for run in runs if hasattr(run, "_plan")]
        assert [(seed, pair) for plan in plans for pair in (*read_before_it_is_there(plan), *conflicts(plan))] == []
        texts = [getattr(source, "text", "") for run in runs for source in getattr(run, "_sources", ())]
        assert [(seed, read_too_early(text), text) for text in texts if read_too_early(text)] == []
