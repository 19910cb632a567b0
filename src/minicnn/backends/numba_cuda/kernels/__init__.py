"""CUDA kernels in Python: device functions of one element (`scalars`, `rows`) and of one block (the others)."""
