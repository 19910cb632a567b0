"""Learning-rate schedules."""

from minicnn.schedules import *  # noqa: F403
from minicnn.schedules import Schedule as LearningRateSchedule  # noqa: F401
