"""The foundation of the studies: candidates, parity, times, memory, stored results, tables, figures, the report.

A study says what to measure and how to present it; see `minicnn.studies`.
"""

from minicnn.bench.comparison import Comparison
from minicnn.bench.page import Column, Figure, Missing, Page, Panel, Table
from minicnn.bench.store import Store
from minicnn.bench.study import Measurement, Results, Run, Setting, Study
from minicnn.bench.timing import Spread, awaken, interleaved, stopwatch
from minicnn.bench.worker import CandidateError, Worker
from minicnn.jobs.parity import Probe, parity

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
