"""CUDA graphs whose launches keep the priorities of the streams that they were captured in, which CuPy's do not."""

from __future__ import annotations

import ctypes
import weakref

import cupy

from minicnn.backends._gpu.driver import driver

_PRIORITIES = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


class Graph:
    """A graph that can be launched.

    Args:
        graph: The driver's handle of what was captured, which is given up.
    """

    def __init__(self, graph: int) -> None:
        handle, self._executable = ctypes.c_void_p(graph), ctypes.c_void_p()
        try:
            place = ctypes.byref(self._executable)
            _call("cuGraphInstantiateWithFlags", place, handle, ctypes.c_ulonglong(_PRIORITIES))
        finally:
            driver().cuGraphDestroy(handle)
        weakref.finalize(self, driver().cuGraphExecDestroy, self._executable).atexit = False

    def launch(self) -> None:
        """Run it in the current stream."""
        _call("cuGraphLaunch", self._executable, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr))


def _call(name: str, *arguments: object) -> None:
    status = getattr(driver(), name)(*arguments)
    if status:
        raise cupy.cuda.driver.CUDADriverError(status)
