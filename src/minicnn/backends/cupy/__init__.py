"""CuPy arrays on an NVIDIA GPU: generated CUDA C++ kernels, whole steps captured in CUDA graphs.

The class is in `backend`, which needs CuPy; all that writes and compiles C++ does not.
"""
