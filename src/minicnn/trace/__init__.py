"""Traces, from `Model.trace`: the values of a step, and differences of two. Timelines, from `Model.timeline`."""

from minicnn.trace.comparison import Difference, TraceComparison
from minicnn.trace.step import Statistics, StepTrace, TracedValue, traced
from minicnn.trace.timeline import Timeline

__all__ = ["Difference", "Statistics", "StepTrace", "Timeline", "TraceComparison", "TracedValue", "traced"]
