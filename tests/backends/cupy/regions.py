"""Row-wise regions of a plan."""

from __future__ import annotations

from minicnn.backends._gpu import row_regions
from minicnn.backends._gpu.fusing import Plan


def regions_of(plan: Plan) -> list[row_regions.RowRegion]:
    """The regions of a plan."""
    return [n.attrs["region"] for u in plan.groups for n in u.nodes if n.op.name == "row_region"]
