"""Metrics, and the losses' functions as Keras has them here, too."""

from minicnn.keras.losses import *  # noqa: F403
from minicnn.layers.configured import decode as deserialize  # noqa: F401
from minicnn.layers.configured import encode as serialize  # noqa: F401
from minicnn.metrics import *  # noqa: F403
from minicnn.metrics import get_metric as get  # noqa: F401
