"""Kernels compiled for the CPU at hand, on a planned arena, without Python between them."""
