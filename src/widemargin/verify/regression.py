"""The least norm of a function with f(x_i) = y_i for all i: kinds l1-regression (two-layer networks) and
l2-regression (a kernel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from .exact import (
    ROOT_BITS,
    column,
    integers,
    matmul,
    objects,
    positive_semidefinite,
    ray,
    root_up,
    sqrt_up,
    squares,
)
from .kernels import Kernel, kernel
from .neuron import both_sides
from .reading import (
    BITS,
    LARGEST,
    POINTS,
    Problem,
    Refused,
    integer,
    listed,
    need,
    network_values,
    number,
    rows_of,
    show,
    vector,
)

ESTIMATE = "is an estimate and was not checked"


def regression(
    problem: Problem,
    payload: Mapping[str, Any],
    lower: Fraction,
    upper: Fraction,
    done: list[tuple[str, str]],
    stage: list[str],
) -> bool:
    """Both bounds, or that no function takes the values y. Whether they are about a kernel matrix that was not
    computed from the data.
    """
    n, kind, extra = len(problem.y), payload["kind"], payload["extra"]
    need(kind != "l1-regression" or problem.is_relu, "format: no rule to check this activation")
    stage[0] = "dual"
    lam, bits = vector(payload.get("dual"), n, "dual")
    inner = Fraction(sum(a * b for a, b in zip(problem.y, lam)), 1 << (problem.ky + bits))  # y . lam
    done.append(("dual", f"{sum(w != 0 for w in lam)} of {n} weights are not zero"))
    proof = payload.get("proof")
    need(isinstance(proof, Mapping), "lower bound: the proof is not an object")
    assert isinstance(proof, Mapping)
    none = payload["status"] == "no-interpolation" and payload["proved"]
    K = None
    if kind == "l2-regression" and not (none and _known_space(payload)):
        K = kernel(problem, payload)
    given = K is not None and K.given
    if none:
        stage[0] = "lower bound"
        need(upper == Fraction(LARGEST), "lower <= upper: upper must be the largest float where nothing interpolates")
        need(inner != 0, "lower bound: the targets do not break the relation")
        relation = _is_relation(problem, {i: w for i, w in enumerate(lam) if w}, K)
        need(relation, "lower bound: the weights are not a relation of the points")
        done.append(
            ("lower bound", "infinity: the targets break a relation that holds for every function of the space")
        )
        return given
    show_lower, show_upper = (
        _l1_rule(problem, extra, lam, bits) if K is None else _l2_rule(problem, extra, lam, bits, K)
    )
    stage[0] = "lower bound"
    if lower <= 0:
        done.append(("lower bound", f"{show(lower)}, no norm is smaller"))
    else:
        need(proof.get("type") not in (None, "omitted"), "lower bound: the proof is not stored in this certificate")
        done.append(("lower bound", f"{show(lower)} {show_lower(lower, inner, proof)}"))
    stage[0] = "upper bound"
    if not payload["proved"]:
        done.append(("upper bound", f"{show(upper)} {ESTIMATE}"))
        return given
    free = _free_points(problem, extra, K)
    done.append(("upper bound", f"{show(upper)} {show_upper(upper, free, payload)}"))
    return given


def _known_space(payload: Mapping[str, Any]) -> bool:
    """Whether extra.kernel names the space of the activation, whose relations need no kernel matrix.

    Certificates of activation srelu said relu here, before the checker knew the kernel of srelu.
    """
    return payload["extra"].get("kernel") in ("relu", payload["activation"])


def _is_relation(problem: Problem, c: Mapping[int, int], K: Kernel | None) -> bool:
    """Whether sum_i c_i f(x_i) = 0 for every f of the space: for a stored matrix K c = 0, else sum_i c_i phi(v . x_i)
    = 0 for all v.
    """
    if K is None or not K.given:
        return _vanishes(problem, c)
    index = list(c)
    return not matmul(K.block(range(K.n), index)[0], column([c[i] for i in index])).any()


def _vanishes(problem: Problem, c: Mapping[int, int]) -> bool:
    """Whether sum_i c_i phi(v . x_i) = 0 for all v. True is proved.

    relu(t) = (t + |t|) / 2 and relu(t)^2 = (t^2 + t |t|) / 2: it is enough that sum_i c_i x_i (or sum_i c_i x_i x_i')
    is zero, and that on each line through 0 the sum of the other parts is. A leaky ReLU has the same two parts as relu,
    with other factors.
    """
    lines: dict[tuple[int, ...], int] = {}
    used = [i for i, weight in c.items() if weight and problem.grid[i].any()]
    for i in used:
        row = problem.grid[i].tolist()
        u, g = ray(row), math.gcd(*row)
        if next(v for v in u if v) < 0:
            u, g = tuple(-v for v in u), -g
        lines[u] = lines.get(u, 0) + c[i] * (abs(g) if problem.degree == 1 else g * abs(g))
    X, w = problem.grid[used].astype(object), column([c[i] for i in used])
    if problem.degree == 1:
        total = matmul(w.T, X)
    elif len(used) < problem.D:  # X' W X = 0 if and only if G W G = 0, G = X X': its range is that of X'
        G = matmul(X, X.T)
        total = matmul(G, w * G)
    else:
        total = matmul(X.T, w * X)
    return not any(lines.values()) and not total.any()


def _free_points(problem: Problem, extra: Mapping[str, Any], K: Kernel | None) -> list[int]:
    """The points without a relation; right values at these, and at earlier ones, imply that of each other point."""
    n, related = len(problem.y), set[int]()
    stored = []
    for j, item in enumerate(listed(extra.get("relations", []), "upper bound: extra.relations")):
        name = f"upper bound: relation {j}"
        need(isinstance(item, Mapping), f"{name}: not an object")
        point = integer(item.get("point"), name, 0, n - 1)
        need(point not in related, f"{name}: its point has one already")
        related.add(point)
        c: dict[int, int] = {}
        for pair in listed(item.get("weights"), name):
            i, w = listed(pair, name, 2)
            integer(i, name, 0, n - 1)
            c[i] = c.get(i, 0) + integer(w, name, -(1 << BITS), 1 << BITS)
        need(c.get(point, 0) != 0, f"{name}: its point has no weight")
        need(sum(w * problem.y[i] for i, w in c.items()) == 0, f"{name}: the targets break it")
        stored.append((name, point, c))
    known = set(range(n)) - related
    for name, point, c in stored:
        need(all(not w or i in known or i == point for i, w in c.items()), f"{name}: it uses a later point")
        need(_is_relation(problem, c, K), f"{name}: it does not hold for all functions")
        known.add(point)
    return sorted(set(range(n)) - related)


_Bounds = tuple[
    Callable[[Fraction, Fraction, Mapping[str, Any]], str], Callable[[Fraction, list[int], Mapping[str, Any]], str]
]


def _l1_rule(problem: Problem, extra: Mapping[str, Any], lam: list[int], bits: int) -> _Bounds:
    """Lower: with U >= max over |v| <= 1 of |sum_i lam_i relu(v . x_i)|, an interpolating f has y . lam <= U norm(f),
    so lower U <= y . lam.

    Upper: the norm of `primal`, rounded up, plus that of a second network which takes its exact residuals at the free
    points (`_repair`).
    """

    def lower(bound: Fraction, inner: Fraction, proof: Mapping[str, Any]) -> str:
        most = number(proof.get("maximum"), "lower bound: proof.maximum")
        need(most > 0, "lower bound: proof.maximum is not positive")
        both_sides(problem, lam, 1 << bits, most, proof, "lower bound")
        need(bound * most <= inner, "lower bound: y . lam is smaller than lower times the maximum")
        return f"is proved by the dual weights and {proof['type']}"

    def upper(bound: Fraction, free: list[int], payload: Mapping[str, Any]) -> str:
        primal = payload.get("primal")
        need(isinstance(primal, Mapping), "upper bound: no primal is stored")
        assert isinstance(primal, Mapping)
        theta, kt = rows_of(primal.get("theta"), problem.D, "upper bound: primal.theta")
        mass, km = vector(primal.get("mass"), len(theta), "upper bound: primal.mass")
        norm = Fraction(sum(abs(m) * sqrt_up(s) for m, s in zip(mass, squares(theta))), 1 << (ROOT_BITS + kt + km))
        values = network_values(problem, theta, column(mass))[:, 0].tolist()
        residuals = [
            abs(Fraction(problem.y[i], 1 << problem.ky) - Fraction(values[i], 1 << (problem.k + kt + km))) for i in free
        ]
        cost = Fraction(0)
        if any(residuals):
            cost = _repair(problem, free, residuals, extra)
        need(norm + cost <= bound, "upper bound: the norm of the network, residual included, is larger")
        return f"is the norm of {len(mass)} neurons, of which at most {show(cost)} makes their values exact"

    return lower, upper


def _repair(problem: Problem, free: list[int], residuals: list[Fraction], extra: Mapping[str, Any]) -> Fraction:
    """A norm with which neurons of extra.frame can take any values of at most these sizes at the free points.

    S_ij = relu(v_j . x_i) 2^-(a_i + b_j) on the integer grids, 2^b_j >= |v_j|. For a matrix R (a floating-point inverse
    of S, a guess) with |S R - I| = delta < 1 in the norm max_k sum_i, S R is invertible and S w = r has the solution
    w = R (S R)^-1 r with |w|_1 <= |R| |r|_1 / (1 - delta); neuron j with w_j costs at most |w_j|.
    """
    need(len(free) <= POINTS, f"upper bound: exact values at more than {POINTS} points are not checked")
    frame, _ = rows_of(extra.get("frame"), problem.D, "upper bound: extra.frame", len(free))
    a = [(math.isqrt(s) + 1).bit_length() for s in squares(problem.grid[free])]
    b = [(math.isqrt(s) + 1).bit_length() for s in squares(frame)]
    H = matmul(problem.grid[free], frame.T)
    H = np.where(H > 0, H, 0).tolist()
    top = max(a) + max(b)
    rows = [[v << (top - ai - bj) for v, bj in zip(row, b)] for row, ai in zip(H, a)]
    S = np.array([[v / (1 << top) for v in row] for row in rows])
    try:
        R = np.linalg.inv(S)
    except np.linalg.LinAlgError:
        raise Refused("upper bound: the frame is singular") from None
    need(bool(np.isfinite(R).all()), "upper bound: the frame is singular")
    whole, k = integers(R)
    m = len(free)
    E = matmul(objects(rows, m, m), whole.astype(object))
    unit = 1 << (top + k)
    for i in range(m):
        E[i, i] -= unit
    delta = Fraction(max(int(v) for v in abs(E).sum(axis=0)), unit)
    need(delta < 1, "upper bound: the frame is too close to singular")
    size = Fraction(max(int(v) for v in abs(whole.astype(object)).sum(axis=0)), 1 << k)
    total = sum(r * Fraction(1 << problem.k, 1 << ai) for r, ai in zip(residuals, a))
    return size * total / (1 - delta)


def _l2_rule(problem: Problem, extra: Mapping[str, Any], lam: list[int], bits: int, K: Kernel) -> _Bounds:
    """Lower: an interpolating f has y . b = <f, sum_j b_j k(x_j, .)> <= |f| sqrt(b' K b), so lower sqrt(b' K b) <= y
    . b.

    Upper: f = sum_j b_j k(x_j, .) has norm sqrt(b' K b) and residuals e at the free points; with K >= s I there, s >
    0, a function with exactly the values e has norm at most |e| / sqrt(s). Norms are rounded up; s is compared with
    the low ends of the enclosure of K.
    """
    down, up = K.product(lam)  # low and high ends of K lam, times least .. most
    norm2 = Fraction(max(K.quadratic(lam, (down, up)), 0)) / K.least / 4**bits

    def lower(bound: Fraction, inner: Fraction, proof: Mapping[str, Any]) -> str:
        need(proof.get("type") == "dual", "lower bound: this kind needs proof.type = dual")
        need(inner >= 0 and inner**2 >= bound**2 * norm2, "lower bound: y . b / sqrt(b' K b) is smaller")
        need(norm2 > 0, "lower bound: b is zero")
        return f"is proved by the dual weights{K.note}"

    def upper(bound: Fraction, free: list[int], payload: Mapping[str, Any]) -> str:
        missing = Fraction(0)
        for i in free:
            target = Fraction(problem.y[i], 1 << problem.ky)
            ends = [Fraction(v, 1 << bits) / c for v in (down[i], up[i]) for c in (K.least, K.most)]
            missing += max(abs(target - v) for v in ends) ** 2
        cost = Fraction(0)
        if missing:
            smallest = number(extra.get("smallest"), "upper bound: extra.smallest")
            need(smallest > 0, "upper bound: extra.smallest is not positive")
            need(len(free) <= POINTS, f"upper bound: exact values at more than {POINTS} points are not checked")
            S, width = K.submatrix(free)
            for i in range(len(free)):
                S[i, i] -= math.ceil(smallest * K.most) + width
            need(positive_semidefinite(S), "upper bound: extra.smallest is not shown to bound the eigenvalues")
            cost = root_up(missing / smallest)
        need(root_up(norm2) + cost <= bound, "upper bound: the norm, residual included, is larger")
        return f"is the norm of sum_j b_j k(x_j, .), of which at most {show(cost)} makes its values exact{K.note}"

    return lower, upper
