"""Numba alone on an NVIDIA GPU: an Array API namespace of its own, kernels in Python, steps captured by cuda.core."""
