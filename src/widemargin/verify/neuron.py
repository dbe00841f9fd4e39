"""One neuron: proofs of  max over |v| <= 1 of sum_i c_i phi(v . x_i) <= bound,  without branching.

Each takes integer weights c (c_i / total are the signed dual weights, or any weights) and shows on the integer grid
X, for all |v| <= 1,

    sum_i c_i phi(v . X_i) <= bound total 2^(degree k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np

from .cones import relu_cones
from .exact import ROOT_BITS, column, matmul, positive_semidefinite, ray, sqrt_up, squares
from .products import products
from .reading import BITS, Problem, as_relu, differences, integer, listed, need, number, sides_of, signed
from .span import span
from .sphere import sphere
from .tree import eigen_tree, relu_tree


def norm_bound(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    """relu(t) = (t + |t|) / 2, and points on one line through 0 share |v . u|, u a unit vector on the line:

        sum_i c_i relu(v . x_i) <= |sum_i c_i x_i| / 2 + sum_lines max(0, sum_{i on the line} c_i |x_i|) / 2.

    Both roots are rounded up, and both have factors >= 0.
    """
    lines: dict[tuple[int, ...], int] = {}
    for weight, row in zip(c, problem.grid.tolist()):
        if weight and any(row):
            u = ray(row)
            g = math.gcd(*row)
            if next(v for v in u if v) < 0:
                u = tuple(-v for v in u)
            lines[u] = lines.get(u, 0) + weight * g
    mean = squares(matmul(column(c).T, problem.grid))[0]
    most = sqrt_up(mean) + sum(b * sqrt_up(sum(v * v for v in u)) for u, b in lines.items() if b > 0)
    limit = 2 * bound * total * 2 ** (problem.k + ROOT_BITS)
    need(most <= limit, f"{name}: the norm bound is larger than upper")
    return f"{len(lines)} lines"


def gram_below(problem: Problem, weights: list[int], index: list[int], total: int, limit: Fraction) -> bool:
    """Whether sum_i (w_i / total) x_i x_i' <= limit I, w_i > 0, limit >= 0 (limit = 0 needs x_i = 0).

    The same as diag(limit total / w_i) - X X' >= 0, and after multiplication by w_i on both sides an integer matrix.
    For more points than dimensions the D x D matrix is used, with the factors w_i / limit of the subtracted terms
    rounded up.
    """
    X = problem.grid[index]
    n, D = X.shape
    if n == 0 or limit == 0:
        return not any(any(row) for row in X.tolist())

    def small() -> bool:
        w = column(weights)
        S = -limit.denominator * (w * w.T) * matmul(X, X.T)
        for j, weight in enumerate(weights):
            S[j, j] += weight * limit.numerator * total << (2 * problem.k)
        return positive_semidefinite(S)

    if n <= D:
        return small()
    # total 4^k 2^bits I - sum_i ceil(2^bits w_i / limit) X_i X_i'
    largest = max(weights) / limit
    bits = max(0, 160 + largest.denominator.bit_length() - largest.numerator.bit_length())
    rounded = [-((-w * limit.denominator << bits) // limit.numerator) for w in weights]
    S = -matmul(X.T, column(rounded) * X.astype(object))
    for j in range(D):
        S[j, j] += total << (2 * problem.k + bits)
    return positive_semidefinite(S) or (n <= 12 and small())


def pairing(problem: Problem, weights: list[int], total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """relu(s) - relu(t) <= relu(s - t): points of the two classes in pairs p = (i, j), y_i = 1, y_j = -1, d = x_i - x_j.

    With T_p >= 0 and a_p > 0, T relu(t) <= T t / 2 + a t^2 + T^2 / (16 a). What q and the pairs differ by, rest_i, is at
    most |rest_i| |x_i|. So on the unit ball the objective of side +1 is at most

        sum_p T_p^2 / (16 a_p) + sum_i |rest_i| |x_i| + v' M v + g . v,   M = sum_p a_p d_p d_p',   g = sum_p T_p d_p / 2,

    and side -1 has -g instead of g, which is the same at -v. With e = bound - the first two sums - lam this is at most
    `bound` if and only if [[lam I - M, -g/2], [-g'/2, e]] is positive semidefinite (lam >= 0), which is looked at on the
    span of the points.
    """
    n, k, limit = len(weights), problem.k, 1 << BITS
    s = integer(proof.get("shift"), "pairing: shift", 0, 1024)
    lam = integer(proof.get("lam"), "pairing: lam", 0, limit)
    rest, h = [w << s for w in weights], [0] * n
    kappa, factors = Fraction(0), []
    pairs = listed(proof.get("pairs"), "pairing: pairs")
    for entry in pairs:
        i, j, T, a = listed(entry, "pairing: pairs", 4)
        i, j = (integer(v, "pairing: pairs", 0, n - 1) for v in (i, j))
        T, a = integer(T, "pairing: pairs", 0, limit), integer(a, "pairing: pairs", 1, limit)
        need(problem.y[i] > 0 > problem.y[j], "pairing: pairs are not of a point with label +1 and one with label -1")
        for at, sign in ((i, 1), (j, -1)):
            rest[at] -= T * total
            h[at] += sign * T
        factors.append((i, j, a))
        kappa += Fraction(T * T, a << (s + 4))
    lengths = [sqrt_up(square) for square in squares(problem.grid)]  # 2^(ROOT_BITS + k) |x_i|, rounded up
    kappa += Fraction(sum(abs(r) * l for r, l in zip(rest, lengths)), total << (s + ROOT_BITS + k))
    space = span(problem, problem.grid, 1, "pairing")
    flat = replace(problem, grid=space.products(problem.grid))  # (n, r)
    S = np.zeros((space.size + 1, space.size + 1), dtype=object)
    S[:-1, :-1] = space.norm(lam << (2 * k)) - differences(flat, factors)  # in units of 2^-(s + 2k)
    g = matmul(column(h).T, flat.grid)[0]  # 2 g in units of 2^-(s + k)
    S[:-1, -1] = S[-1, :-1] = -(g << k)  # four times the entry, and so the corner sixteen times
    S[-1, -1] = math.floor(16 * (bound - kappa - Fraction(lam, 1 << s)) * (1 << (s + 2 * k)))
    need(positive_semidefinite(S), "pairing: the bound is larger than upper")
    return f"{len(pairs)} pairs"


def eigen(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    """relu(t)^2 <= t^2 where c_i > 0, and the other terms are at most 0: lam I >= sum_{c_i > 0} c_i x_i x_i' with lam
    <= bound.
    """
    lam = number(side.get("lam"), f"{name}: lam")
    need(0 <= lam <= bound, f"{name}: lam is negative or larger than upper")
    plus = [i for i, v in enumerate(c) if v > 0]
    good = gram_below(problem, [c[i] for i in plus], plus, total, lam)
    need(good, f"{name}: lam is not shown to be an upper bound of the eigenvalues")
    return f"{len(plus)} points"


def enumeration(problem: Problem, c: list[int], total: int, bound: Fraction, side: Mapping[str, Any], name: str) -> str:
    """All candidates for a maximum. relu in three dimensions: see sphere.py. At most two dimensions: all arcs between
    neighbouring directions orthogonal to points, where the active points do not change.

    relu: the sum is g . v, whose maximum over the arc is |g| if g lies on it and else lies at an end. srelu: it is v'
    M v, and limit |v|^2 - v' M v >= 0 for v = s a + t b, s, t >= 0, holds if and only if its coefficients have aa, bb
    >= 0 and ab >= 0 or ab^2 <= aa bb. Nothing is rounded.
    """
    if problem.D == 3 and problem.degree == 1:
        return sphere(problem, c, total, bound, name)
    need(problem.D <= 2, f"{name}: needs at most two dimensions (three for relu)")
    rows = [(row[0], row[1] if problem.D == 2 else 0) for row in problem.grid.tolist()]
    items = [(w, x) for w, x in zip(c, rows) if w and any(x)]
    at: dict[tuple[int, ...], list[tuple[int, tuple[int, int]]]] = {
        d: [] for d in ((1, 0), (0, 1), (-1, 0), (0, -1))
    }  # directions in which a point becomes zero, and the axes, so that every arc is shorter than half a turn
    for w, x in items:
        e, f = ray(x)
        at.setdefault((-f, e), []).append((w, x))
        at.setdefault((f, -e), []).append((w, x))

    def half(d: tuple[int, ...]) -> int:
        return 0 if d[1] > 0 or (d[1] == 0 and d[0] > 0) else 1

    def order(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if half(a) != half(b):
            return half(a) - half(b)
        cross = a[0] * b[1] - a[1] * b[0]
        return -1 if cross > 0 else int(cross < 0)

    directions = sorted(at, key=cmp_to_key(order))
    limit = bound * total * 2 ** (problem.degree * problem.k)
    scale, top = limit.denominator, limit.numerator  # sum <= top / scale
    first, second = directions[0], directions[1]
    middle = (first[0] + second[0], first[1] + second[1])
    sums = [0, 0, 0]  # degree 1: the gradient; degree 2: the matrix (xx, xy, yy)

    def toggle(w: int, x: tuple[int, int]) -> None:
        if problem.degree == 1:
            sums[0] += w * x[0]
            sums[1] += w * x[1]
        else:
            sums[0] += w * x[0] * x[0]
            sums[1] += w * x[0] * x[1]
            sums[2] += w * x[1] * x[1]

    for w, x in items:
        if x[0] * middle[0] + x[1] * middle[1] > 0:
            toggle(w, x)
    for j, a in enumerate(directions):
        b = directions[(j + 1) % len(directions)]
        if j:  # crossing a: the points orthogonal to it change sides
            for w, x in at[a]:
                entering = x[0] * b[0] + x[1] * b[1] > 0
                toggle(w if entering else -w, x)
        if problem.degree == 1:
            g0, g1 = sums[0], sums[1]
            value = g0 * a[0] + g1 * a[1]
            good = value <= 0 or (value * scale) ** 2 <= top * top * (a[0] ** 2 + a[1] ** 2)
            inside = a[0] * g1 - a[1] * g0 >= 0 and g0 * b[1] - g1 * b[0] >= 0
            good = good and (not inside or (g0 * g0 + g1 * g1) * scale * scale <= top * top)
        else:
            xx, xy, yy = (v * scale for v in sums)

            def form(p: tuple[int, ...], q: tuple[int, ...], m: tuple[int, int, int] = (xx, xy, yy)) -> int:
                quadratic = m[0] * p[0] * q[0] + m[1] * (p[0] * q[1] + p[1] * q[0]) + m[2] * p[1] * q[1]
                return top * (p[0] * q[0] + p[1] * q[1]) - quadratic

            aa, ab, bb = form(a, a), form(a, b), form(b, b)
            good = aa >= 0 and bb >= 0 and (ab >= 0 or ab * ab <= aa * bb)
        need(good, f"{name}: the maximum is larger than upper")
    return f"{len(directions)} arcs"


_Proof = Callable[[Problem, list[int], int, Fraction, Mapping[str, Any], str], str]
PROOFS: dict[int, dict[str, _Proof]] = {
    1: {
        "norm": norm_bound,
        "products": products,
        "tree": relu_tree,
        "cones": relu_cones,
        "enumeration": enumeration,
    },
    2: {"eigen": eigen, "eigen-tree": eigen_tree, "enumeration": enumeration},
}


def both_sides(problem: Problem, c: list[int], total: int, bound: Fraction, proof: Mapping[str, Any], what: str) -> str:
    """Both sides, c and -c, of a proof in the table; of a `mixed` one each side names its own type."""
    problem, c, total = as_relu(problem, c, total)
    table, kind = PROOFS[problem.degree], proof.get("type")
    allowed = isinstance(kind, str) and (kind in table or (kind == "mixed" and problem.degree == 1))
    need(allowed, f"{what}: no such proof type for this activation")
    if kind in ("norm", "enumeration"):
        sides: Mapping[int, Mapping[str, Any]] = {1: {"type": kind}, -1: {"type": kind}}
    else:
        sides = sides_of(proof, str(kind))
    said = []
    for sign in (1, -1):
        own = sides[sign].get("type") if kind == "mixed" else kind
        need(isinstance(own, str) and own in table, f"{what}: a side has no such proof type")
        assert isinstance(own, str)
        said.append(table[own](problem, [sign * v for v in c], total, bound, sides[sign], f"{own} side {signed(sign)}"))
    return f"{kind}" + ("" if not said[0] else f" (side +1: {said[0]}, side -1: {said[1]})")
