"""Predicted scaling of a training over ranks that need not be there: times, bytes, memory, with their error."""

from minicnn.distribution.prediction.devices import PlannedGpu, Rates
from minicnn.distribution.prediction.evidence import Calibration, Point, calibrate, published
from minicnn.distribution.prediction.jitter import expected_maximum, normal
from minicnn.distribution.prediction.links import ALGORITHMS, Interconnect, interconnect, known
from minicnn.distribution.prediction.side_by_side import Row, counted, predict_scaling, scaling
from minicnn.distribution.prediction.strategies import STRATEGIES, Conditions, Prediction, predict
from minicnn.distribution.prediction.workload import LayerWork, Workload, workload

__all__ = [
    "ALGORITHMS", "STRATEGIES", "Calibration", "Conditions", "Interconnect", "LayerWork", "PlannedGpu",
    "Point", "Prediction", "Rates", "Row", "Workload", "calibrate", "counted", "expected_maximum", "interconnect",
    "known", "normal", "predict", "predict_scaling", "published", "scaling", "workload",
]  # fmt: skip
