"""Products of the parts of v . x_i: a proof of  max over |v| <= 1 of sum_i c_i relu(v . x_i) <= bound  by one matrix.

With w_i = relu(t_i), s_i = relu(-t_i), t_i = v . x_i, all products of two of z = (1, w, s) are nonnegative, and w_i s_i = 0. So
whatever g_i and N_ab >= 0 are, the bound holds if for all v and w, with s_i = w_i - x_i . v,

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
from .reading import BITS, Problem, integer, listed, need
from .span import span


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
    # The form as one of Z = 2^k z, times 2 total 2^shift: a symmetric matrix F of integers over (1, w, s), and lam beside it.
    F = np.zeros((1 + 2 * m, 1 + 2 * m), dtype=object)
    F[0, 0] = math.floor(2 * total * (bound * (1 << shift) - lam))
    for j, i in enumerate(points):
        F[0, 1 + j] = F[1 + j, 0] = -(c[i] << shift)
        F[1 + j, 1 + m + j] = F[1 + m + j, 1 + j] = free[j] * total
    pairs = listed(side.get("pairs"), f"{name}: pairs")
    for entry in pairs:
        a, b, N = listed(entry, f"{name}: pairs", 3)
        a, b = integer(a, f"{name}: pairs", 0, 2 * m), integer(b, f"{name}: pairs", 0, 2 * m)
        need(a < b, f"{name}: pairs are not of two different parts in order")
        weight = integer(N, f"{name}: pairs", 0, limit) * total
        F[a, b] -= weight
        F[b, a] -= weight
    # In coordinates y = (Z_0, Z_w) and u, v = B u: Z_s = Z_w - T u.
    T = space.products(problem.grid[points])  # (m, r)
    y, s = slice(0, 1 + m), slice(1 + m, 1 + 2 * m)
    S = np.zeros((1 + m + space.size, 1 + m + space.size), dtype=object)
    S[y, y] = F[y, y]
    S[y, 1 : 1 + m] += F[y, s]
    S[1 : 1 + m, y] += F[s, y]
    S[1 : 1 + m, 1 : 1 + m] += F[s, s]
    across = F[y, s].copy()
    across[1:] += F[s, s]
    S[y, 1 + m :] = -matmul(across, T)
    S[1 + m :, y] = S[y, 1 + m :].T
    S[1 + m :, 1 + m :] = space.norm(2 * total * lam << (2 * k))
    if F[s, s].any():
        S[1 + m :, 1 + m :] += matmul(T.T, matmul(F[s, s], T))
    need(positive_semidefinite(S), f"{name}: the bound is larger than upper")
    return f"{len(pairs)} products"
