"""Products of the parts of v . x_i: a proof of  max over |v| <= 1 of sum_i c_i relu(v . x_i) <= bound  by one matrix.

With w_i = relu(t_i), s_i = relu(-t_i), t_i = v . x_i, all products of two of z = (1, w, s) are nonnegative, and w_i s_i = 0; so
are those with p - u . v for p >= |u|, which z may have at its end. So whatever g_i and N_ab >= 0 are, the bound holds if for
all v and w, with s_i = w_i - x_i . v,

    (bound - lam) + lam |v|^2 - sum_i c_i w_i - sum_ab N_ab z_a z_b + sum_i g_i w_i s_i >= 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import matmul, positive_semidefinite
from .reading import BITS, Problem, fits, integer, listed, need
from .span import span

MOST_CUTS = 4  # for each point: what the search has at most


def products(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    k, limit = problem.k, 1 << BITS
    points = [integer(i, f"{name}: points", 0, len(c) - 1) for i in listed(side.get("points"), f"{name}: points")]
    m = len(points)
    need(all(i < j for i, j in itertools.pairwise(points)), f"{name}: points are not increasing")
    inside = set(points)
    need(all(i in inside for i, v in enumerate(c) if v), f"{name}: a point with weight is missing")
    space = span(problem, problem.grid[points], 1 + m, name)  # refuses matrices out of proportion before they are made
    shift = integer(side.get("shift"), f"{name}: shift", 0, 1024)
    lam = integer(side.get("lam"), f"{name}: lam", 0, limit)
    free = [integer(g, f"{name}: free", -limit, limit) for g in listed(side.get("free"), f"{name}: free", m)]
    T = space.products(problem.grid[points])  # (m, r), 2^k x_i . B
    base, rows = _cuts(side.get("cuts"), m, f"{name}: cuts")
    most, Tc = [], np.zeros((0, space.size), dtype=object)  # p, and (cuts, r) 2^k u . B
    if len(rows):
        most, Tc = _lengths(matmul(rows, problem.grid[points][base]), k), matmul(rows, T[base])
    # The form as one of Z = 2^k z, times 2 total 2^shift: a symmetric integer matrix F over (1, w, s, cuts), and lam beside it.
    count = 1 + 2 * m + len(rows)
    fits(problem, count // 2, name)  # F is as large as it may be without cuts
    F = np.zeros((count, count), dtype=object)
    F[0, 0] = math.floor(2 * total * (bound * (1 << shift) - lam))
    for j, i in enumerate(points):
        F[0, 1 + j] = F[1 + j, 0] = -(c[i] << shift)
        F[1 + j, 1 + m + j] = F[1 + m + j, 1 + j] = free[j] * total
    pairs = listed(side.get("pairs"), f"{name}: pairs")
    for entry in pairs:
        a, b, N = listed(entry, f"{name}: pairs", 3)
        a, b = integer(a, f"{name}: pairs", 0, count - 1), integer(b, f"{name}: pairs", 0, count - 1)
        need(a < b, f"{name}: pairs are not of two different parts in order")
        weight = integer(N, f"{name}: pairs", 0, limit) * total
        F[a, b] -= weight
        F[b, a] -= weight
    # In coordinates y = (Z_0, Z_w) and u, v = B u: Z_s = Z_w - T u, and a cut is p Z_0 - Tc u.
    y, s, cut = slice(0, 1 + m), slice(1 + m, 1 + 2 * m), slice(1 + 2 * m, count)
    H = F[y].copy()  # rows in y
    H[1:] += F[s]
    for p, row in zip(most, F[cut]):
        H[0] += p * row
    S = np.zeros((1 + m + space.size, 1 + m + space.size), dtype=object)
    S[y, y] = H[:, y]
    S[y, 1 : 1 + m] += H[:, s]
    for p, column in zip(most, H[:, cut].T):
        S[y, 0] += p * column
    S[y, 1 + m :] = -matmul(H[:, 1 + m :], np.concatenate([T, Tc]))
    S[1 + m :, y] = S[y, 1 + m :].T
    S[1 + m :, 1 + m :] = space.norm(2 * total * lam << (2 * k))
    if len(rows) or F[s, s].any():
        both = np.concatenate([T, Tc])
        S[1 + m :, 1 + m :] += matmul(both.T, matmul(F[1 + m :, 1 + m :], both))
    need(positive_semidefinite(S), f"{name}: the bound is larger than upper")
    return f"{len(pairs)} products"


def _cuts(stored: Any, m: int, name: str) -> tuple[list[int], np.ndarray]:
    """Places in `points`, and the rows (cuts, places)."""
    if stored is None:
        return [], np.zeros((0, 0), dtype=object)
    need(isinstance(stored, Mapping), f"{name} is no object")
    base = [integer(j, f"{name}: base", 0, m - 1) for j in listed(stored.get("base"), f"{name}: base")]
    need(len(set(base)) == len(base), f"{name}: base has a place twice")
    limit = 1 << BITS
    rows = [
        [integer(v, f"{name}: rows", -limit, limit) for v in listed(row, f"{name}: rows", len(base))]
        for row in listed(stored.get("rows"), f"{name}: rows")
    ]
    need(len(rows) <= MOST_CUTS * m, f"{name}: there are more than {MOST_CUTS} for each point")
    return base, np.array(rows, dtype=object).reshape(len(rows), len(base))


def _lengths(U: np.ndarray, k: int) -> list[int]:
    """For each row, which is 2^k u, the least integer p >= |u|."""
    squares = [-(-sum(int(v) * int(v) for v in row) >> (2 * k)) for row in U]  # |u|^2, rounded up
    return [math.isqrt(square - 1) + 1 if square else 0 for square in squares]
