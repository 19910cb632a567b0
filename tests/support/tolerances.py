"""Relative errors that tests allow, by how many terms a result sums: rows of the table in `minicnn.tolerance`.

Absolute ones are the same numbers, for results of about 1.
"""

from minicnn.tolerance import tolerance

ELEMENT = tolerance("float32")[0]  # 2e-6: a result without sums
SHORT_SUM = tolerance("float32", 8)[0]  # 5e-6
SUM = tolerance("float32", 32)[0]  # 1e-5: a small layer
LONG_SUM = tolerance("float32", 128)[0]  # 2e-5
STEP = tolerance("float32", 2**12)[0]  # 1e-4: a step of a small network
TRAINING = tolerance("float32", 2**19)[0]  # 1e-3: several of them
LONG_TRAINING = tolerance("float32", 2**21)[0]  # 3e-3
DOUBLE = tolerance("float64", 2**17)[0]  # 1e-12: the same sums in float64
