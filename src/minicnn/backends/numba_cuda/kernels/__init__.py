"""CUDA kernels in Python: device functions of one element (`scalars`, `windows`) and of one block (the others)."""
