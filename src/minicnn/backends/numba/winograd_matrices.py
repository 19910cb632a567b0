"""Matrices of Winograd's minimal filtering F(m, r): m outputs of r taps along an axis by m + r - 1 multiplications.

    y = A^T [(G g) * (B^T d)]

makes outputs y from inputs d and taps g. Polynomials whose coefficients are g and y are multiplied at some points, one
of them infinity, and d is their product's transpose (S. Winograd, 1980; A. Lavin, S. Gray, arXiv:1509.09308).
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

Matrix = tuple[tuple[Fraction, ...], ...]

# Points by their number, those that round least. Four beside 0 in two pairs of a number and its negative would halve
# the additions of a transform, but errors are two to three times as large: 1/2 and -2 balance each other.
POINTS = {
    4: (Fraction(0), Fraction(1), Fraction(-1)),
    6: (Fraction(0), Fraction(1), Fraction(-1), Fraction(1, 2), Fraction(-2)),
    8: tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))),
}
# Outputs of a tile along an axis by its number of taps: those whose errors stay within `minicnn.tolerance`.
OUTPUTS = {3: (2, 4), 5: (2, 4)}


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
