"""Constraints by their classes' names, and `get`."""

from minicnn.configured import decode as deserialize  # noqa: F401
from minicnn.configured import encode as serialize  # noqa: F401
from minicnn.constraints import *  # noqa: F403
from minicnn.constraints import get_constraint as get  # noqa: F401

max_norm, min_max_norm, non_neg, unit_norm = MaxNorm, MinMaxNorm, NonNeg, UnitNorm  # noqa: F405
