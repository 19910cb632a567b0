"""CUDA C++ from Programs, whatever library holds the arrays: fusion, tiles, texts of kernels, their compilation."""
