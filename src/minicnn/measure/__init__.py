"""The foundation of the studies: candidates, parity, times, memory, stored results, tables, figures, the report.

A study says what to measure and how to present it; see `minicnn.studies`.
"""

from minicnn.measure.comparison import Comparison
from minicnn.measure.page import Column, Figure, Missing, Page, Panel, Table
from minicnn.measure.parity import Probe, parity
from minicnn.measure.store import Store
from minicnn.measure.study import Measurement, Results, Run, Setting, Study
from minicnn.measure.timing import Spread, awaken, interleaved, stopwatch
from minicnn.measure.worker import CandidateError, Worker

__all__ = [
    "CandidateError",
    "Column",
    "Comparison",
    "Figure",
    "Measurement",
    "Missing",
    "Page",
    "Panel",
    "Probe",
    "Results",
    "Run",
    "Setting",
    "Spread",
    "Store",
    "Study",
    "Table",
    "Worker",
    "awaken",
    "interleaved",
    "parity",
    "stopwatch",
]
