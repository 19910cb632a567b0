"""Kernels as data: expressions, statements, lowering of primitives, interpreter. No device, no language."""
