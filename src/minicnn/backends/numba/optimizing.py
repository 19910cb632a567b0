"""Rules for the optimizers' updates: each reads and writes every array once."""

from __future__ import annotations

from minicnn.backends._gpu.elements import element
from minicnn.backends._gpu.trees import Expr, Name
from minicnn.backends.numba import elementwise
from minicnn.backends.numba.lowering import PLAIN, Lowering, Rule
from minicnn.backends.numba.printer import Vectors
from minicnn.program.graph import Node


def _update(to: Lowering, node: Node) -> None:
    size, scalars = node.inputs[0].size, 2 if node.op.name == "adam_update" else 1  # the rate, and then the step
    registers, results = [f"v{k}" for k in range(len(node.inputs))], [f"y{k}" for k in range(len(node.outputs))]
    vectors, lines, known = Vectors(registers, [v.dtype for v in node.inputs]), [], dict[Expr, Expr]()
    for k in (*range(1, len(results)), 0):  # the parameter last, which what its state becomes goes into
        made = element(node, k)
        lines.append(f"{results[k]} = {vectors.text(made.replaced(known))}")
        known[made] = Name(results[k])
    source = elementwise.formula(node.op.name, lines, registers[:-scalars], registers[-scalars:], results, size)
    reads = [to.need(v, PLAIN) for v in node.inputs]
    to.add(node, source, reads, [to.buffer(v, PLAIN) for v in node.outputs], elementwise.items(size))


_UPDATES = ("sgd_update", "momentum_update", "adam_update", "rmsprop_update")
UPDATE_RULES: dict[str, Rule] = dict.fromkeys(_UPDATES, _update)
