"""Pictures of a network's predictions: confusion, mistakes, and the places that a score depends on.

Models have it as methods: `report`, `saliency`, `grad_cam`, `filters`.
"""

from __future__ import annotations

from minicnn.visual.attribution import Attribution, Attributor
from minicnn.visual.confusion import ConfusionMatrixDisplay
from minicnn.visual.report import ClassificationReport

__all__ = ["Attribution", "Attributor", "ClassificationReport", "ConfusionMatrixDisplay"]
