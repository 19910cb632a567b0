"""Functions of `keras.ops`, composed of primitives: on Values, symbolic tensors and arrays.

Names and arguments are Keras's. Integers beside floating-point numbers become such.
"""

from typing import Any

from minicnn.keras.ops import elements, networks, shapes
from minicnn.keras.ops import image as image

for _module in (elements, networks, shapes):
    _functions = {n: f for n, f in vars(_module).items() if getattr(f, "__module__", "") == _module.__name__}
    globals().update({n: f for n, f in _functions.items() if not n.startswith("_")})


def __getattr__(name: str) -> Any:  # for type checkers, which see no names that a table gives
    raise AttributeError(f"minicnn.keras.ops has no {name!r}: docs/keras.md says what it has.")
