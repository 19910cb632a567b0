"""Matrices of Winograd's minimal filtering F(m, r): m outputs of r taps along an axis by m + r - 1 multiplications.

    y = A^T [(G g) * (B^T d)]

makes outputs y from inputs d and taps g. Polynomials whose coefficients are g and y are multiplied at some points, one
of them infinity, and d is their product's transpose (S. Winograd, 1980; A. Lavin, S. Gray, arXiv:1509.09308).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from minicnn.tolerance import EPSILON, tolerance

Matrix = tuple[tuple[Fraction, ...], ...]

# Points by their number, those that round least. Four beside 0 in two pairs of a number and its negative would halve
# the additions of a transform, but errors are two to three times as large: 1/2 and -2 balance each other.
POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
    8: tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))),
}
OUTPUTS = {3: (2, 4), 5: (2, 4)}  # of a tile along an axis, by its number of taps
ROUNDING = 10  # the largest error of many results, in EPSILON times `amplification` along both axes: measured


def _powers(points: tuple[Fraction, ...], count: int) -> list[list[Fraction]]:
    """Powers from 0 of each point; of infinity the last."""
    return [*([p**k for k in range(count)] for p in points), [Fraction(int(k == count - 1)) for k in range(count)]]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = next(j for j in range(i, size) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))


@cache
def matrices(outputs: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """A^T (m, m + r - 1), G (m + r - 1, r) and B^T (m + r - 1, m + r - 1)."""
    size = outputs + taps - 1
    points = POINTS[size]
    inverse = transposed(tuple(map(tuple, _inverse(_powers(points, size)))))
    # Inputs are transformed more often than taps: each of their rows has a 1, and the taps' row the rest.
    scales = [next(x for x in reversed(row) if x) for row in inverse]
    from_inputs = tuple(tuple(x / s for x in row) for row, s in zip(inverse, scales, strict=True))
    of_taps = tuple(tuple(x * s for x in row) for row, s in zip(_powers(points, taps), scales, strict=True))
    return transposed(tuple(map(tuple, _powers(points, outputs)))), of_taps, from_inputs


@cache
def amplification(outputs: int, taps: int, *, gradient: bool) -> float:
    """Size of the terms that a result is summed of, relative to the result, and with it of rounding errors.

    Of random inputs with random signs, along one axis; of outputs, or of the gradient of taps.
    """
    of_outputs, of_taps, of_inputs = matrices(outputs, taps)
    ends = transposed(of_outputs)
    results, factors, terms = (transposed(of_taps), ends, outputs) if gradient else (of_outputs, of_taps, taps)
    sizes = [_square(x) * _square(y) for x, y in zip(factors, of_inputs, strict=True)]
    largest = max(sum(x * x * size for x, size in zip(row, sizes, strict=True)) for row in results)
    return float(largest / terms) ** 0.5


def _square(row: tuple[Fraction, ...]) -> Fraction:
    return sum((x * x for x in row), Fraction(0))


@cache
def keeps_zeros(outputs: int, taps: int) -> bool:
    """True if results of zeros are exactly zero whatever inputs are beside: they are sums of none of these."""
    of_outputs, _, of_inputs = matrices(outputs, taps)
    return not any(
        factor and any(x for j, x in enumerate(row) if not i <= j < i + taps)
        for i, factors in enumerate(of_outputs) for factor, row in zip(factors, of_inputs, strict=True)
    )  # fmt: skip


def accurate(rows: tuple[int, int], columns: tuple[int, int], terms: int, *, gradient: bool) -> bool:
    """True if errors of sums of so many terms stay within `minicnn.tolerance`; kinds are (outputs, taps)."""
    growth = amplification(*rows, gradient=gradient) * amplification(*columns, gradient=gradient)
    return ROUNDING * EPSILON["float32"] * growth <= tolerance("float32", terms)[0]
