"""References on the host, for an engine whose arrays have no namespace of their own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import array_api_compat.numpy as nx
import numpy as np

from minicnn.program.spec import Shaped


def host(x: Any) -> Any:
    """NumPy arrays in place of arrays of a device, in lists, too."""
    if isinstance(x, list | tuple):
        return type(x)(map(host, x))
    return np.asarray(x) if isinstance(x, Shaped) else x


class HostNamespace(ModuleType):
    """The Array API on arrays of a device, computed by NumPy."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(nx, name)
        if not callable(function) or isinstance(function, type):
            return function

        def call(*arguments: Any, **options: Any) -> Any:
            # What is made is the host's, on whatever device its operands are.
            return function(*map(host, arguments), **{k: host(x) for k, x in options.items() if k != "device"})

        return call
