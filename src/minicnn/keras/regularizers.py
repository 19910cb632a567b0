"""Regularizers by their classes' names, and `get`."""

from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.regularizers import *  # noqa: F403
from minicnn.regularizers import get_regularizer as get  # noqa: F401

l1, l2, l1_l2 = L1, L2, L1L2  # noqa: F405
