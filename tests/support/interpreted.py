"""A Program run by its kernels in the interpreter: plans and statements without a GPU or a compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicnn.backends._gpu.lowering import lowered
from minicnn.backends._gpu.tiles import Tiles
from minicnn.backends.base import EACH_STEP
from minicnn.kernels.interpreter import Interpreter
from minicnn.program import Program
from minicnn.program.graph import Value
from support.plans import plan_of

Array = np.ndarray[Any, Any]


def interpreted(
    program: Program, arrays: Mapping[str, Array], *, fuse: bool = False, threads: int = 8, tiles: Tiles | None = None
) -> dict[str, Array]:
    """Outputs and updates of a Program by kernels without templates: a thread for each result, or by tiles."""
    plan = plan_of(program, fuse=fuse, tiled=False) if tiles is None else plan_of(program, tiles, fuse=fuse)
    queued = {id(v) for v in program.inputs if v.name in EACH_STEP}
    memory: dict[int, Array] = {}

    def array(value: Value) -> Array:
        root = plan.root(value)
        if id(root) not in memory:
            known = arrays.get(root.name) if root.kind != "constant" else root.data
            fresh = np.full(root.shape, 123, root.dtype) if known is None else np.array(known, root.dtype, order="C")
            memory[id(root)] = fresh
        return memory[id(root)]

    for group in plan.groups:  # updates have the memory of what they replace
        memory |= {id(plan.root(new)): array(program.value(name)) for name, new in plan.carried(group).items()}
    for launch in plan.launches:
        kernel, values = lowered(plan, launch, queued, threads)
        names = (one.name for one in kernel.arrays)
        Interpreter(kernel, {name: array(value) for name, value in zip(names, values, strict=True)}).run()
    results = program.outputs | program.updates
    return {name: array(value).reshape(value.shape) for name, value in results.items()}
