"""Traces, from `Model.trace`: the values of a step, and the differences of two."""

from minicnn.trace.comparison import Comparison, Difference
from minicnn.trace.step import Statistics, StepTrace, TracedValue, traced

__all__ = ["Comparison", "Difference", "Statistics", "StepTrace", "TracedValue", "traced"]
