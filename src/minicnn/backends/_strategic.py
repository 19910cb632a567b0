"""A backend whose convolutions run by one strategy, whatever kernels it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from minicnn.backends.base import Backend, Executable, Kernel
from minicnn.ops.strategies import PRIMITIVES, Strategy
from minicnn.program.graph import Node, Program


class Strategic(Backend):
    """Mixed in before a backend: its convolutions run by a strategy and all else by references, on its arrays.

    Attributes:
        strategy: How convolutions are computed.
    """

    strategy: Strategy

    def __init__(self, device: str | None = None, *, reference_only: bool = False, strict: bool = False) -> None:
        super().__init__(device, reference_only=True)
        self.strict, self._switched_off = strict, reference_only

    def _choose(self, node: Node) -> Kernel | str:
        if self._switched_off:
            return "reference_only is set"
        return cast("Kernel | str", self.strategy.kernel(node, self.xp))

    def _title(self, kernel: Kernel) -> str:
        return f"strategy: {self.strategy.name}"

    functions, explain = Backend.functions, Backend.explain  # of each node, whatever the backend makes of several

    def check_strict(self, missing: Sequence[tuple[Node, str]], program: Program) -> None:
        """See `Backend.check_strict`; it is about convolutions alone."""
        for node, reason in missing:
            if self.strict and node.op.name in PRIMITIVES:
                raise RuntimeError(
                    f"strict=True: the strategy {self.strategy.name!r} computes every convolution. Received: "
                    f"{node!r} in {node.scope or program.name}: {reason}. Use strict=False to run its reference."
                )

    def rewrite(self, program: Program) -> Program:
        return program if self.strategy.keeps_order else super().rewrite(program)

    def compile(self, program: Program) -> Executable:
        kind: type[Backend] = type(self).__bases__[1]
        # A backend that explains itself compiles its own kernels; here nodes run one by one instead.
        return Backend.compile(self, program) if kind.explain is not Backend.explain else super().compile(program)

    def __repr__(self) -> str:
        return f"<backend {self.name}:{self.device}, convolution={self.strategy.name!r}>"


def strategic(kind: type[Backend], strategy: Strategy) -> type[Backend]:
    """A kind of backend, with its convolutions run by a strategy."""
    return type(f"Strategic{kind.__name__}", (Strategic, kind), {"strategy": strategy})
