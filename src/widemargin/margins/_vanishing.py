"""When every network of squared ReLU units has margin 0: the weights that show it, and their proof."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np

from .door import Door, cancelling_weights, integer_weights, lines, on_rays, shared_lines, twins

NULL_POINTS = 8  # a proof that the margin is 0 lists all sign patterns of so many points


def zero_margin(door: Door) -> tuple[np.ndarray, dict[str, Any], float, str] | None:
    """Weights, proof, upper bound and reason where the margin is 0 and that can be proved.

    relu(t)^2 = (t^2 + t |t|) / 2, and the functions t |t| of different lines through 0 are linearly independent. With
    x_i = a_i u on its line, sum_i c_i relu(v . x_i)^2 = 0 for all v if and only if sum_i c_i a_i |a_i| = 0 on each line
    and sum_i c_i x_i x_i' = 0.
    """
    X, y, upper = door.X, door.y, 0.0
    twin = twins(door)
    if twin is not None:
        q, reason = twin
        if (q > 0).sum() == 1:
            return q, {"type": "eigen", "sides": [{"sign": s, "lam": 0} for s in (1, -1)]}, 0.0, reason
    else:
        weights = null_weights(door)
        if weights is None:
            weights = same_ray(door)
            if weights is None:
                return None
            upper = 1e-11 * float(weights @ door.size**2)  # the weights are right up to rounding only
        q = weights
        some = np.flatnonzero(q)
        text = ", ".join(map(str, some[:6])) + (" ..." if len(some) > 6 else "")
        reason = f"every network of squared ReLU units averages to zero over points {text}"
    if X.shape[1] <= 2:
        return q, {"type": "enumeration"}, upper, reason
    points = np.flatnonzero(q)
    if len(points) > NULL_POINTS or (twin is None and upper == 0 and X.shape[1] > 12):
        return None
    if not np.array_equal(np.ldexp(X[points], door.shift), door.exact(points)):
        return None  # the scaled points have lost digits
    sides = [null_tree(X, s * y * q / q.sum(), points, twin is not None) | {"sign": s} for s in (1, -1)]
    return q, {"type": "eigen-tree", "sides": sides}, upper, reason


def same_ray(door: Door) -> np.ndarray | None:
    """Weights on two points x and a x, a > 0 exactly, with different labels: f(a x) = a^2 f(x) for every network f."""
    y = door.y
    for ray, size in on_rays(door, shared_lines(door, y)[1]):
        plus, minus = np.flatnonzero(y[ray] > 0)[:20], np.flatnonzero(y[ray] < 0)[:20]
        for g, h in itertools.product(plus, minus):
            a, b = ([Fraction(v) for v in row] for row in door.exact(ray[[g, h]]).tolist())
            lead = max(range(len(a)), key=lambda k: abs(a[k]))
            if all(x * b[lead] == z * a[lead] for x, z in zip(a, b)):
                q = np.zeros(len(y))
                q[ray[g]], q[ray[h]] = size[h] ** 2, size[g] ** 2
                return q / q.sum()
    return None


def null_weights(door: Door) -> np.ndarray | None:
    """Integer weights q >= 0 with sum_i q_i y_i relu(v . x_i)^2 = 0 for all v, exactly, if such are found."""
    X, y, D = door.X, door.y, door.X.shape[1]
    lead = np.take_along_axis(X, np.abs(X).argmax(1)[:, None], 1)[:, 0]
    line, mixed = shared_lines(door, y * np.sign(lead))  # which way along its line
    if not mixed or D > 40:
        return None
    index = np.sort(np.concatenate(mixed))
    if len(index) > 2000:
        return None
    P, sign, along = X[index], y[index], np.sign(lead[index])
    i, j = np.triu_indices(D)
    size = (P**2).sum(1)
    names = np.array([line[group[0]] for group in mixed])
    odd = (line[index][None] == names[:, None]) * (sign * along * size)  # (lines, k)
    A = np.vstack([(sign[:, None] * P[:, i] * P[:, j]).T, odd])
    weights = cancelling_weights(A, door.limits, "highs-ds")
    if weights is None:
        return None
    q = np.zeros(len(y))
    q[index] = weights
    whole = integer_weights(q)
    return whole if whole is not None and vanishes(door, whole * y) else None


def vanishes(door: Door, c: np.ndarray) -> bool:
    """Whether sum_i c_i relu(v . x_i)^2 = 0 for all v, in exact arithmetic."""
    D = door.X.shape[1]
    even = [Fraction(0)] * (D * (D + 1) // 2)
    odd: dict[tuple[Fraction, ...], Fraction] = {}
    index = np.flatnonzero(c)
    for i, x in zip(index, door.exact(index).tolist()):
        weight, row = Fraction(float(c[i])), [Fraction(v) for v in x]
        even = [e + weight * row[a] * row[b] for e, (a, b) in zip(even, zip(*np.triu_indices(D)))]
        lead = next((x for x in row if x), Fraction(1))
        key = tuple(x / lead for x in row)
        odd[key] = odd.get(key, Fraction(0)) + weight * lead * abs(lead)
    return not any(even) and not any(odd.values())


def null_tree(X: np.ndarray, c: np.ndarray, points: np.ndarray, equal: bool) -> dict[str, Any]:
    """All sign patterns of `points`, where sum_i c_i relu(v . x_i)^2 vanishes: the proof of the bound 0.

    A pattern that some v has gives A = 0. In any other, two points of one line contradict each other; their product is
    a negative multiple of u u' that takes away what the pattern has too much on that line. For two `equal` points all
    numbers are exact, and what is too little is filled up as well, so that A = 0 everywhere.
    """
    P, m, shift = X[points], len(points), 60
    line = lines(P)
    leaves = []
    for pattern in itertools.product((1, -1), repeat=m):
        triples = []
        for l in np.unique(line):
            members = np.flatnonzero(line == l)
            a = P[members] @ (P[members[0]] / np.linalg.norm(P[members[0]]))
            s, weight = np.array(pattern)[members], c[points[members]] * a**2
            excess = float(weight[s > 0].sum() - weight[a > 0].sum())
            agree, differ = np.flatnonzero(s * a > 0), np.flatnonzero(s * a < 0)
            if len(agree) == 0 or len(differ) == 0 or excess == 0 or (excess < 0 and not equal):
                continue
            g, h = agree[0], differ[0] if excess > 0 else agree[0]
            k = abs(excess) / float(abs(a[g] * a[h])) * 2.0**shift
            triples.append([int(members[g]), int(members[h]), int(k) if equal else math.ceil(k * (1 + 1e-12)) + 1])
        leaves.append(triples)
    tree = [-1]
    for k in reversed(range(m)):
        tree = [k, *tree, *tree]
    return {"shift": shift, "points": points.tolist(), "tree": tree, "leaves": leaves}
