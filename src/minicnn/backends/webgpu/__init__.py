"""WebGPU: kernels in WGSL, printed from the kernel language, on GPUs of every vendor."""
