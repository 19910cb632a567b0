"""Variants of the training of the study `platforms`: what the published programs do otherwise, one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Variant:
    """A training that differs in one thing.

    Attributes:
        title: What it is called.
        network: Further arguments of `minicnn.jobs.job.make_model`.
    """

    title: str
    network: Mapping[str, Any]


VARIANTS = {
    "normalised": Variant("pixels normalised by mean and deviation", {"normalised": True}),
    "frozen": Variant("convolutions frozen", {"frozen": "conv"}),
}
