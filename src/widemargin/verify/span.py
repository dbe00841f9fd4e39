"""Quadratic forms on R^D seen in the span of a few vectors, where these are fewer than D.

A form  lam |v|^2 - v' M v - g . v + e  whose M and g are made of some rows (M = sum of w_ij x_i x_j', g = sum of b_i
x_i), with lam >= 0, is nonnegative for all v in R^D if and only if it is so for all v in the span of the rows: the part of v
that is orthogonal to them adds lam times its square. There v = B u for a basis B of the span, and the form in u needs
only the products x_i . B and B' B. B = R' C: R holds those rows that are no multiples of each other, and C is a
triangular integer matrix with a diagonal free of zeros, so that B spans what R spans, whatever C is. A good C makes B' B
close to a multiple of the identity; only then can a rounded Cholesky factor show what there is to show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .exact import matmul, objects, ray
from .reading import Problem, fits, in_proportion

SPAN = 512  # rows that are made orthogonal; more than that cost as much as D dimensions
PLACES = 256  # bits after the point in the search for C,
LOST = 160  # of which this many may be lost to rows that nearly depend on each other,
KEPT = 40  # and bits that are kept of C
DIGITS = 1 << 15  # rows times the bits of their products, up to which those that depend on others are looked for,
WORK = 1 << 25  # and the same times the square of their rank: some seconds


@dataclass(frozen=True)
class Span:
    """A basis B (D, r) of integers, None for the identity."""

    size: int  # r
    basis: np.ndarray | None
    gram: np.ndarray | None = None  # B' B, (r, r)

    def products(self, rows: np.ndarray) -> np.ndarray:
        """rows (m, D) times B, (m, r)"""
        return rows.astype(object) if self.basis is None else matmul(rows, self.basis)

    def norm(self, factor: int) -> np.ndarray:
        """factor B' B, (r, r)"""
        if self.gram is not None:
            return factor * self.gram
        out = np.zeros((self.size, self.size), dtype=object)
        np.fill_diagonal(out, factor)
        return out


def span(problem: Problem, rows: np.ndarray, border: int, name: str) -> Span:
    """A basis of a space that holds all `rows` (m, D): their span where that is found to be smaller than R^D.

    Refuses matrices of size r + border that are out of proportion to the data.
    """
    distinct: dict[tuple[int, ...], int] = {}
    for j, row in enumerate(rows.tolist()):
        u = ray(row)
        first = next((v for v in u if v), 0)
        if first:
            distinct.setdefault(u if first > 0 else tuple(-v for v in u), j)
    some = rows[sorted(distinct.values())]
    if len(some) < problem.D and len(some) <= SPAN:
        G = matmul(some, some.T)
        C = _triangle(G)
        if C is None and not in_proportion(problem, problem.D + border):
            kept = _independent(G)
            some, C = some[kept], _triangle(G[np.ix_(kept, kept)]) if kept else None
        if C is not None:
            fits(problem, len(some) + border, name)
            basis = matmul(some.T, C)
            return Span(len(some), basis, matmul(basis.T, basis))
    fits(problem, problem.D + border, name)
    return Span(problem.D, None)


def _independent(G: np.ndarray) -> list[int]:
    """Rows of which all others are sums, by elimination without fractions in their products G (n, n); none if that is long.

    A diagonal entry is zero if and only if its row depends on those before; the largest beside its own square is next. Of the
    others only the diagonal is kept up, and a row is made when it is chosen.
    """
    size = G.diagonal()
    bits = max(int(v).bit_length() for v in size)
    left, rows, pivots = size, list[np.ndarray](), [1]
    kept: list[int] = []
    while len(G) * bits <= DIGITS and len(G) * bits * len(kept) ** 2 <= WORK:
        j = int(((left << bits) // size).argmax())  # at least 1 where it is not zero
        if left[j] == 0:
            return sorted(kept)
        row = G[j]
        for other, before, pivot in zip(rows, pivots, pivots[1:]):
            row = (pivot * row - other[j] * other) // before
        kept.append(j)
        rows.append(row)
        pivots.append(row[j])
        left = (row[j] * left - row * row) // pivots[-2]
    return []


def _triangle(G: np.ndarray) -> np.ndarray | None:
    """An upper triangular integer matrix C without zeros on its diagonal, C' G C close to a multiple of the identity.

    Elimination in fixed point; None where the rows depend on each other, or nearly. Nothing is proved about how close.
    """
    n, unit = len(G), 1 << PLACES
    half = [(int(v).bit_length() + 1) // 2 for v in G.diagonal()]
    A = objects([[(v << PLACES) >> (a + b) for v, b in zip(row, half)] for row, a in zip(G.tolist(), half)], n, n)
    M = np.zeros((n, n), dtype=object)  # M A M' is the diagonal of the pivots
    np.fill_diagonal(M, unit)
    for j in range(n):
        pivot, rest = int(A[j, j]), slice(j + 1, n)
        if pivot < unit >> LOST:
            return None
        factor = ((A[rest, j] << PLACES) // pivot)[:, None]
        A[rest, rest] -= (factor * A[j, rest]) >> PLACES
        M[rest, : j + 1] -= (factor * M[j, : j + 1]) >> PLACES
        M[j] = (M[j] << PLACES) // math.isqrt(pivot << PLACES)
    largest = max((abs(int(v)).bit_length() for v in M.flat), default=PLACES)
    M = M >> max(0, PLACES - KEPT - (largest - PLACES))
    if any(v == 0 for v in M.diagonal()):  # never: pivots are at most 1, so that the diagonal of M is at least 1
        return None
    shift = np.array([[max(half, default=0) - h] for h in half], dtype=object).reshape(n, 1)
    return M.T << shift
