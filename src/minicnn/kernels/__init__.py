"""How primitives are computed, as data: expressions, statements, lowering, interpreter. No device, no language."""
