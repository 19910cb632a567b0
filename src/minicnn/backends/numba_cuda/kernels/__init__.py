"""CUDA kernels in Python: device functions of one element (`scalars`) and of one block (the others)."""
