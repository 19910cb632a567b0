"""The optimizers under the name that Keras 2 had for them for a time."""

from minicnn.keras.optimizers import *  # noqa: F403
