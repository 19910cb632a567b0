"""Conformance: how far a namespace of the Array API carries a training, beside NumPy.

Every primitive's reference and gradient, and three training steps of three networks, are computed in the namespace and
compared with NumPy's. `minicnn conformance NAMESPACE` does it.
"""

from minicnn.conformance.report import conformance

__all__ = ["conformance"]
