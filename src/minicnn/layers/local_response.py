"""Local response normalisation, which AlexNet and its relatives use."""

from __future__ import annotations

from typing import Any, Unpack

from minicnn import ops
from minicnn.layers.arguments import number
from minicnn.layers.image import ImageLayer
from minicnn.layers.layer import Options
from minicnn.ops.checks import positive


class LocalResponseNormalization(ImageLayer):
    """Each element divided by the activity of its neighbour channels.

    y = x / (k + alpha / size * sum of x ** 2 over the window of channels) ** beta, where the window of
    channel c is the channels from c - size // 2 to c + (size - 1) // 2 that exist (A. Krizhevsky et al.,
    NIPS 2012, section 3.3). Keras has no such layer; arguments, defaults and result are those of
    torch.nn.LocalResponseNorm.

    Args:
        size: Channels in a window.
        alpha: Weight of the mean square.
        beta: Exponent.
        k: Added to the weighted mean square.
    """

    def __init__(
        self,
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        data_format: str = "channels_last",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(data_format, **options)
        self.size = positive("size", size)
        self.alpha = number("alpha", alpha, least=0)
        self.beta = number("beta", beta)
        self.k = number("k", k, least=0)

    def call(self, inputs: Any) -> Any:
        """Average the squares along the channels, pooling images with H * W rows or columns; divide."""
        axes = self._axes(inputs.shape)
        n, positions = inputs.shape[0], inputs.shape[axes.h] * inputs.shape[axes.w]
        channels = inputs.shape[axes.c]
        last = axes.c == 3
        neighbours = (self.size // 2, (self.size - 1) // 2)
        squares = ops.reshape(
            ops.square(inputs), shape=(n, positions, channels, 1) if last else (n, channels, positions, 1)
        )
        means = ops.average_pool2d(
            squares,
            kernel=(1, self.size) if last else (self.size, 1),
            strides=(1, 1),
            padding=((0, 0), neighbours) if last else (neighbours, (0, 0)),
            count_padding=True,
        )
        scale = ops.reshape(means, shape=inputs.shape) * self.alpha + self.k
        return inputs * ops.power(scale, -self.beta)
