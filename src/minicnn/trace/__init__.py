"""What `Model.trace` gives: the values of a step, and what differs between two."""

from minicnn.trace.comparison import Comparison, Difference
from minicnn.trace.step import Statistics, StepTrace, TracedValue, traced

__all__ = ["Comparison", "Difference", "Statistics", "StepTrace", "TracedValue", "traced"]
