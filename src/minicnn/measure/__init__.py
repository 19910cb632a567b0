"""The foundation of the studies: candidates, parity, times, memory, stored results, tables, figures, the report.

A study says what to measure and how to present it; see `minicnn.studies`.
"""

from minicnn.measure.comparison import Comparison
from minicnn.measure.page import Column, Figure, Missing, Page, Panel, Table
from minicnn.measure.parity import Probe, parity
from minicnn.measure.store import ResultStore
from minicnn.measure.study import Measurement, Results, Setting, Study, StudyRun
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
    "ResultStore",
    "Results",
    "Setting",
    "Spread",
    "Study",
    "StudyRun",
    "Table",
    "Worker",
    "awaken",
    "interleaved",
    "parity",
    "stopwatch",
]
