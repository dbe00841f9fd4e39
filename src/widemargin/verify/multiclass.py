"""Margins over several classes: kinds linear-multiclass and f1-multiclass.

Dual weights are n rows of K numbers q_ij >= 0 with q_ij = 0 for j = y_i, and g_i = sum_j q_ij (e_{y_i} - e_j). For
every f of norm at most 1, min_i (f_{y_i} - max_{j != y_i} f_j)(x_i) <= sum_i g_i . f(x_i). For networks that is at
most max over |u| = 1 of |F(u)|, F(u) = sum_i g_i relu(u . x_i). The proofs of f1-multiclass take integer vectors g
(n, K) and show |F(u)| <= bound total 2^k |u| for all u on the integer grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import numpy as np

from .exact import ROOT_BITS, column, copositive, independent, matmul, objects, ray, sqrt_up, squares
from .norms import in_norm, norm_of
from .reading import BLOCK, Problem, Rules, classes, integer, listed, need, network_values, number, only_dual, rows_of
from .tree import relu_tree

LAMBDA = 64  # multipliers of cones are integers over this
W_BITS = 8  # vertices of covers are integers over 2^W_BITS
VERTEX_BITS = 4096  # of the entries of a vertex of a cone


def dual_vectors(problem: Problem, weights: list[int]) -> np.ndarray:
    """g (n, K) in units of the weights."""
    n, K = len(problem.y), classes(problem)
    g = -objects([weights[i * K : (i + 1) * K] for i in range(n)], n, K)
    for i, label in enumerate(problem.y):
        need(g[i, label] == 0, f"dual: row {i} has a weight on its own class")
        g[i, label] = -sum(g[i].tolist())
    return g


def _least_gaps(problem: Problem, scores: np.ndarray) -> list[int]:
    """f_{y_i} - max_{j != y_i} f_j for integer scores (n, K)."""
    return [
        row[label] - max(v for j, v in enumerate(row) if j != label) for label, row in zip(problem.y, scores.tolist())
    ]


# The norms of linear-multiclass, and their conventions.
NORMS = {"frobenius": "MT2-linear"} | {norm: f"MT2-linear-{norm}" for norm in ("max", "spectral", "nuclear", "l1")}


def linear_multiclass(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """(U_{y_i} - U_j) . x_i >= lower |U|_F for all i and j != y_i; |sum_i g_i x_i'|_F <= upper. Both are compared as
    squares; other norms than Frobenius' have rules of their own.
    """
    K, norm = classes(problem), norm_of(payload, "frobenius", NORMS)
    if norm != "frobenius":
        return in_norm(
            problem,
            norm,
            lambda: rows_of(payload["extra"].get("U"), problem.D, "lower bound: extra.U", K)[0],
            lambda U: _least_gaps(problem, matmul(problem.grid, U.T)),
            lambda weights: matmul(dual_vectors(problem, weights).T, problem.grid),
        )

    def lower(bound: Fraction) -> str:
        U, _ = rows_of(payload["extra"].get("U"), problem.D, "lower bound: extra.U", K)
        norm2 = sum(squares(U))
        need(norm2 > 0, "lower bound: U is zero")
        wanted = bound**2 * norm2 * 4**problem.k
        for i, v in enumerate(_least_gaps(problem, matmul(problem.grid, U.T))):
            need(v >= 0 and v * v >= wanted, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by U"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        only_dual(proof)
        norm2 = sum(squares(matmul(dual_vectors(problem, weights).T, problem.grid)))
        need(norm2 <= (bound * total * 2**problem.k) ** 2, "upper bound: the norm of sum g_i x_i' is larger")
        return "is proved by the dual weights"

    return Rules(lower, upper)


def f1_multiclass(problem: Problem, payload: Mapping[str, Any]) -> Rules:
    """(f_{y_i} - f_j)(x_i) >= lower N, N = sum_j |outer_j| |theta_j| rounded up (lower > 0); |F(u)| <= upper |u| by
    one of four proofs.
    """
    K = classes(problem)
    need(problem.is_relu, "format: no rule to check this activation")

    def lower(bound: Fraction) -> str:
        extra = payload["extra"]
        theta, _ = rows_of(extra.get("theta"), problem.D, "lower bound: extra.theta")
        outer, _ = rows_of(extra.get("outer"), K, "lower bound: extra.outer", len(theta))
        norm = sum(sqrt_up(a * b) for a, b in zip(squares(theta), squares(outer)))
        need(norm > 0, "lower bound: the network is zero")
        wanted = (bound.numerator * norm) << problem.k
        scale = bound.denominator << ROOT_BITS
        for i, v in enumerate(_least_gaps(problem, network_values(problem, theta, outer))):
            need(v * scale >= wanted, f"lower bound: point {i}", "its margin is below lower")
        return f"is reached at all {len(problem.y)} points by {len(theta)} neurons"

    def upper(bound: Fraction, weights: list[int], total: int, proof: Mapping[str, Any]) -> str:
        kind = proof.get("type")
        need(isinstance(kind, str) and kind in VECTOR_PROOFS, "upper bound: no such proof type for several classes")
        assert isinstance(kind, str)
        said = VECTOR_PROOFS[kind](problem, dual_vectors(problem, weights), total, bound, proof)
        return f"is proved by {kind}" + (f" ({said})" if said else "")

    return Rules(lower, upper)


def _cells(
    entries: Sequence[Any], roots: Iterator[list[tuple[int, ...]]], name: str
) -> Iterator[list[tuple[int, ...]]]:
    """The leaves of a forest of splits in preorder: -1, or [k, l, s] for a new vertex 2^s v_k + v_l (v_k + 2^-s v_l)."""
    left = iter(entries)
    for root in roots:
        stack = [root]
        while stack:
            cone = stack.pop()
            entry = next(left, None)
            need(entry is not None, f"{name}: the tree ends too early")
            if type(entry) is int and entry == -1:
                yield cone
                continue
            k, l, s = listed(entry, f"{name}: a split", 3)
            k, l = (integer(v, f"{name}: a split", 0, len(cone) - 1) for v in (k, l))
            s = integer(s, f"{name}: a split", -1000, 1000)
            need(k != l, f"{name}: a split of one vertex")
            a, b = 1 << max(s, 0), 1 << max(-s, 0)
            middle = tuple(a * v + b * w for v, w in zip(cone[k], cone[l]))
            need(max(v.bit_length() for v in middle) <= VERTEX_BITS, f"{name}: the numbers of a vertex are too large")
            stack.append([*cone[:k], middle, *cone[k + 1 :]])
            stack.append([*cone[:l], middle, *cone[l + 1 :]])
    need(next(left, None) is None, f"{name}: the tree has too many entries")


def _vector_norm(problem: Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """relu(t) = (t + |t|) / 2, and points on one line through 0 share |u . x| / |x|."""
    lines: dict[tuple[int, ...], np.ndarray] = {}
    for vector, row in zip(g, problem.grid.tolist()):
        if any(row):
            u = ray(row)
            if next(v for v in u if v) < 0:
                u = tuple(-v for v in u)
            lines[u] = lines.get(u, 0 * vector) + vector * math.gcd(*row)
    most = sqrt_up(sum(squares(matmul(g.T, problem.grid))))
    most += sum(sqrt_up(int((v * v).sum()) * sum(x * x for x in u)) for u, v in lines.items())
    need(most <= 2 * bound * total * 2 ** (problem.k + ROOT_BITS), "norm: the bound is larger than upper")
    return ""


def _vector_enumeration(problem: Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """Between neighbouring directions a, b orthogonal to points F is linear: F(s a + t b) = s F(a) + t F(b), s, t >= 0."""
    need(problem.D <= 2, "enumeration: needs at most two dimensions")
    rows = [(row[0], row[1] if problem.D == 2 else 0) for row in problem.grid.tolist()]
    items = [(v, x) for v, x in zip(g.tolist(), rows) if any(v) and any(x)]
    at: dict[tuple[int, int], list[int]] = {
        d: [] for d in ((1, 0), (0, 1), (-1, 0), (0, -1))
    }  # directions in which a point becomes zero, and the axes, so that every arc is shorter than half a turn
    for i, (_, x) in enumerate(items):
        e, f = ray(x)
        at.setdefault((-f, e), []).append(i)
        at.setdefault((f, -e), []).append(i)

    def order(a: tuple[int, int], b: tuple[int, int]) -> int:
        half = [0 if d[1] > 0 or (d[1] == 0 and d[0] > 0) else 1 for d in (a, b)]
        cross = a[0] * b[1] - a[1] * b[0]
        return half[0] - half[1] or (-1 if cross > 0 else int(cross < 0))

    directions = sorted(at, key=cmp_to_key(order))
    limit = (bound * total * 2**problem.k) ** 2
    active = [False] * len(items)
    M = np.zeros((2, g.shape[1]), dtype=object)  # F(u) = u' M on the arc

    def switch(i: int, on: bool) -> None:
        if active[i] != on:
            active[i] = on
            vector, x = items[i]
            M[:] += (1 if on else -1) * np.outer(np.array(x, dtype=object), np.array(vector, dtype=object))

    first, second = directions[:2]
    for i, (_, x) in enumerate(items):
        switch(i, x[0] * (first[0] + second[0]) + x[1] * (first[1] + second[1]) > 0)
    for j, a in enumerate(directions):
        b = directions[(j + 1) % len(directions)]
        for i in at[a]:  # crossing a: the points orthogonal to it change sides
            x = items[i][1]
            switch(i, x[0] * b[0] + x[1] * b[1] > 0)
        Fa, Fb = ((v[0] * M[0] + v[1] * M[1]).tolist() for v in (a, b))
        aa, ab, bb = (
            limit * (p[0] * q[0] + p[1] * q[1]) - sum(v * w for v, w in zip(P, Q))
            for p, P, q, Q in ((a, Fa, a, Fa), (a, Fa, b, Fb), (b, Fb, b, Fb))
        )
        need(aa >= 0 and bb >= 0 and (ab >= 0 or ab * ab <= aa * bb), "enumeration: the maximum is larger than upper")
    return f"{len(directions)} arcs"


def _vector_cones(problem: Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """On a cone u = sum_k a_k v_k, a >= 0: |w . F(u)| <= sum_k a_k A_k, and the part of F(u) across w is at most the
    length of sum_k a_k F(v_k) across w plus sum_k a_k e_k / |w|, so that the leaf is proved if

        bound^2 |w|^2 (v_k . v_l) - [ A_k A_l + |w|^2 F_k . F_l - (w . F_k)(w . F_l) + p_k e_l + e_k p_l + e_k e_l ]

    is copositive (docs/certificates.md has A, e, p). The roots in e and p are rounded up; all their factors are >= 0.
    """
    D, K = problem.D, g.shape[1]
    tree = listed(proof.get("tree"), "cones: tree")
    need(D <= 12, "cones: needs few dimensions")
    need(len(tree) >= 2**D, "cones: the tree ends too early")  # every root needs an entry
    roots = (
        [tuple(sign * (j == k) for j in range(D)) for k, sign in enumerate(signs)]
        for signs in itertools.product((1, -1), repeat=D)
    )
    cones = _cells(tree, roots, "cones")
    leaves = listed(proof.get("leaves"), "cones: leaves")
    used = [i for i in range(len(g)) if g[i].any()]
    place = {i: j for j, i in enumerate(used)}
    X, G = problem.grid[used].astype(object), g[used]
    GG = squares(G)
    numerator, denominator = bound.numerator * total << problem.k, bound.denominator
    seen: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def at(v: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """u . x_i (n,) and F(u) (K,) at u = v."""
        if len(seen) * len(used) > BLOCK:
            seen.clear()
        if v not in seen:
            t = (X * np.array(v, dtype=object)).sum(axis=1)
            seen[v] = t, (np.where(t > 0, t, 0)[:, None] * G).sum(axis=0)
        return seen[v]

    count = 0
    for j, cone in enumerate(cones):
        name, count = f"cones, leaf {j}", j + 1
        need(j < len(leaves), "cones: there are too few leaves")
        leaf = leaves[j]
        corners = [at(v) for v in cone]
        tau = objects([t.tolist() for t, _ in corners], D, len(used))
        F = objects([f.tolist() for _, f in corners], D, K)
        w = F.sum(axis=0)
        if not w.any():
            w[:2] = 1, -1
        ww = int((w * w).sum())
        s, along = (G * w).sum(axis=1), (F * w).sum(axis=1)
        free = [i for i in range(len(used)) if (tau[:, i] > 0).any() and (tau[:, i] < 0).any()]
        lam = [LAMBDA // 2] * len(used)
        for entry in listed(leaf, name):
            i, value = listed(entry, name, 2)
            need(type(i) is int and i in place, f"{name}: no such point")
            lam[place[i]] = integer(value, f"{name}: multiplier", 0, LAMBDA)
        # in units of 2^-(ROOT_BITS): A bounds |w . F|, e the free points across w, p |F(v_k)| across w
        alpha, beta, e = along * LAMBDA, -along, np.zeros(D, dtype=object)
        for i in free:
            plus, minus = np.where(tau[:, i] > 0, tau[:, i], 0), np.where(tau[:, i] < 0, -tau[:, i], 0)
            rest = plus if plus.sum() <= minus.sum() else minus
            if s[i] < 0:
                alpha = alpha - s[i] * (lam[i] * plus + (LAMBDA - lam[i]) * minus)
            else:
                beta = beta + s[i] * rest
            e = e + sqrt_up(ww * GG[i] - int(s[i]) ** 2) * rest
        A = np.maximum(alpha, beta * LAMBDA)
        FF = matmul(F, F.T)
        p = np.array([sqrt_up(ww * int(FF[k, k]) - int(along[k]) ** 2) for k in range(D)], dtype=object)
        whole, unit = 1 << (2 * ROOT_BITS), LAMBDA * LAMBDA
        V = objects(cone, D, D)
        cross = np.outer(p, e) + np.outer(e, p) + np.outer(e, e)
        B = whole * (np.outer(A, A) + unit * (ww * FF - np.outer(along, along))) + unit * cross
        C = (whole * unit * ww * numerator**2) * matmul(V, V.T) - denominator**2 * B
        need(copositive(C), f"{name}: its bound is larger than upper")
    need(count == len(leaves), "cones: there are too many leaves")
    return f"{count} cones"


def _vector_cover(problem: Problem, g: np.ndarray, total: int, bound: Fraction, proof: Mapping[str, Any]) -> str:
    """The cones of vectors w_k cover R^K, or all z with sum 0 where all g_i are such. If sum_i (w_k . g_i) relu(u . x_i)
    <= b_k for all unit u, then z = F(u) = sum_k a_k w_k has |z|^2 <= sum_k a_k b_k, so |z| <= bound if
    bound^2 (w_k . w_l) - b_k b_l is copositive, for every cone.
    """
    K, tree = g.shape[1], listed(proof.get("tree"), "cover: tree")
    flat = not any(sum(row) for row in g.tolist())
    r = K - 1 if flat else K
    need(len(tree) >= 2**r, "cover: the tree ends too early")  # every root needs an entry
    basis: list[list[int]] = []
    for row in listed(proof.get("basis"), "cover: basis", r):
        basis.append([integer(v, "cover: basis", -(1 << 30), 1 << 30) for v in listed(row, "cover: basis", K)])
        need(not flat or sum(basis[-1]) == 0, "cover: a vector of the basis does not sum to zero")
    need(independent(basis), "cover: the basis is not linearly independent")
    roots = (
        [tuple(sign * v for v in row) for row, sign in zip(basis, signs)]
        for signs in itertools.product((1, -1), repeat=r)
    )
    cones = _cells(tree, roots, "cover")
    known: dict[tuple[int, ...], Fraction] = {}
    for j, item in enumerate(listed(proof.get("vertices"), "cover: vertices")):
        name = f"cover, vertex {j}"
        need(isinstance(item, Mapping) and isinstance(item.get("side"), Mapping), f"{name}: not an object")
        w = [integer(v, name, -(1 << 60), 1 << 60) for v in listed(item.get("w"), name, K)]
        most = number(item.get("maximum"), f"{name}: maximum")
        need(most >= 0, f"{name}: maximum is negative")
        c = [int(v) for v in matmul(g, column(w))[:, 0]]
        relu_tree(problem, c, total << W_BITS, most, item["side"], name)
        known[tuple(w)] = most
    count = 0
    for j, cone in enumerate(cones):
        name, count = f"cover, cone {j}", j + 1
        need(all(w in known for w in cone), f"{name}: a vertex has no proof")
        b = [known[w] for w in cone]
        bits = max(v.denominator for v in [*b, bound])
        bounds = column([int(v * bits) << W_BITS for v in b])
        W, top = objects(cone, r, K), int(bound * bits)
        C = top * top * matmul(W, W.T) - bounds @ bounds.T
        need(copositive(C), f"{name}: its bound is larger than upper")
    return f"{count} cones, {len(known)} scalar proofs"


_VectorProof = Callable[[Problem, np.ndarray, int, Fraction, Mapping[str, Any]], str]


VECTOR_PROOFS: dict[str, _VectorProof] = {
    "norm": _vector_norm,
    "enumeration": _vector_enumeration,
    "cones": _vector_cones,
    "cover": _vector_cover,
}
