"""NVIDIA's libraries, found by its package cuda-pathfinder."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def load(name: str, missing: str) -> Any:
    """A library, looked for in Python's packages, conda's environment, where the system's loader looks and CUDA_PATH.

    Args:
        name: NVIDIA's short name, such as "nvrtc", which is libnvrtc.so.13 on Linux and nvrtc64_130_0.dll on Windows.
        missing: What the error says if there is none.

    Raises:
        ImportError: If there is none, or it cannot be loaded.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(missing) from error
