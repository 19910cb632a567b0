"""Ways to compute a convolution, each written once for every array library.

The primitives conv2d, conv2d_input_gradient and conv2d_weight_gradient say what is computed; a `Strategy` says how. To
train a network with one, choose it with the backend: `get_backend("numpy", convolution="winograd4")`.
"""

from __future__ import annotations

from minicnn.names import known_name
from minicnn.ops.strategies.direct import Direct
from minicnn.ops.strategies.fft import Fft
from minicnn.ops.strategies.implicit import Implicit
from minicnn.ops.strategies.strategy import DIRECTIONS, PRIMITIVES, Direction, Problem, Strategy
from minicnn.ops.strategies.unrolled import Unrolled
from minicnn.ops.strategies.vendor import Vendor
from minicnn.ops.strategies.winograd import Winograd

__all__ = ["DIRECTIONS", "PRIMITIVES", "STRATEGIES", "Direction", "Problem", "Strategy", "get_strategy"]

STRATEGIES: dict[str, Strategy] = {
    s.name: s for s in (Direct(), Unrolled(), Implicit(), Fft(), Winograd(2), Winograd(4), Vendor())
}


def get_strategy(name: str | Strategy) -> Strategy:
    """A strategy by its name.

    Raises:
        ValueError: If there is none of that name.
    """
    if isinstance(name, Strategy):
        return name
    return STRATEGIES[known_name("A strategy of convolution", name, STRATEGIES)]
