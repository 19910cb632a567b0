"""PyTorch with each Program through `torch.compile`, which may compute a value anew wherever it is read."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config as config

from minicnn.backends.base import Executable
from minicnn.backends.torch import TorchBackend
from minicnn.ops.arrays import add_at
from minicnn.program import Program

# All Programs run through one function, and each is compiled: beyond its limits PyTorch would go on without compiling.
config.recompile_limit = config.accumulated_recompile_limit = 1 << 30

# PyTorch 2.11 on a GPU compiles `torch.cat` of more than eight slices of a tensor into one kernel for each, and writes
# more than half of the elements wrong, in a function of this one call too. With this they are written by one kernel.
ONE_KERNEL = {"max_pointwise_cat_inputs": 1 << 30}


class CompiledTorchBackend(TorchBackend):
    """The whole of each Program is compiled, or it is an error."""

    def __init__(self, device: str | None = None, *, compiler: str = "inductor", **options: Any) -> None:
        super().__init__(device, **options)
        self.compiler = compiler
        one = torch.ones(1, device=self.device)
        add_at(one, (slice(1),), one, self.xp)  # looks whether indices are views, which no compiler can

    def compile(self, program: Program) -> Executable:
        """See `Backend.compile`."""
        options = ONE_KERNEL if self.compiler == "inductor" else None
        compiled: Executable = torch.compile(
            super().compile(program), backend=self.compiler, dynamic=False, fullgraph=True, options=options
        )
        return compiled
