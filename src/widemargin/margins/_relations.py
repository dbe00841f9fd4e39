"""Which values a two-layer network of any width can take on given points: all of them, up to exact linear relations.

A relation is a set of weights lam with sum_i lam_i phi(v . x_i) = 0 for all v, so sum_i lam_i f(x_i) = 0 for every f.
relu(t) = (t + |t|) / 2 and relu(t)^2 = (t^2 + t |t|) / 2, and the functions |v . u| (v . u |v . u|) of different lines
are linearly independent. So all relations come from points on one ray, and from lines with points on both sides of 0,
where only the linear (quadratic) parts can be dependent. A leaky ReLU has the parts of relu(t), with other factors, and so the
same relations. Everything here is rational arithmetic on the doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .door import Limits

LOOK = 2048  # numbers between two looks at the clock
Weights = dict[int, Fraction]


@dataclass(frozen=True)
class Relations:
    """`free` points can take any values together; each other point has a relation, integers, to these and earlier ones.

    `obstruction` is a relation that y breaks: no function takes the values y. `reason` says which.
    """

    free: np.ndarray
    relations: list[tuple[int, dict[int, int]]]
    obstruction: dict[int, int] | None
    reason: str = ""
    complete: bool = True  # whether all points were looked at

    def saved(self) -> list[dict[str, Any]]:
        return [{"point": i, "weights": [[j, w] for j, w in weights.items()]} for i, weights in self.relations]


def find(X: np.ndarray, y: np.ndarray, degree: int = 1, limits: Limits | None = None) -> Relations:
    """Relations of the rows of X (n, D); `y` (n,) are the values they are tested against. `Late` where the time is over."""
    values = y.tolist()
    on_rays: list[tuple[int, dict[int, int]]] = []
    relations: list[tuple[int, dict[int, int]]] = []
    obstruction: dict[int, int] | None = None
    reason = ""

    def note(to: list[tuple[int, dict[int, int]]], point: int, weights: Weights, why: str) -> None:
        nonlocal obstruction, reason
        scale = math.lcm(*(w.denominator for w in weights.values()))
        whole = {i: int(w * scale) for i, w in weights.items() if w}
        common = math.gcd(*whole.values())
        whole = {i: w // common for i, w in whole.items()}
        to.append((point, whole))
        if obstruction is None and sum(w * Fraction(values[i]) for i, w in whole.items()) != 0:
            obstruction, reason = whole, why

    rays: dict[tuple[tuple[int, ...], int], tuple[int, Fraction]] = {}
    look = max(1, LOOK // X.shape[1])
    for i, row in enumerate(map(np.ndarray.tolist, X)):
        if limits is not None and i % look == look - 1:
            limits.check()
        if not any(row):
            why = f"point {i} is the origin, where every function vanishes, but its target is not 0"
            note(on_rays, i, {i: Fraction(1)}, why)
            continue
        line, size = _line(row)
        key = line, 1 if size > 0 else -1
        if key not in rays:
            rays[key] = i, abs(size)
            continue
        j, other = rays[key]
        ratio = (abs(size) / other) ** degree  # phi(v . x_i) = ratio phi(v . x_j)
        if ratio == 1:
            why = f"points {j} and {i} are equal but have different targets"
        else:
            why = f"points {j} and {i} lie on one ray, where every function is homogeneous, and their targets are not"
        note(on_rays, i, {i: Fraction(1), j: -ratio}, why)
    basis: list[tuple[int, list[Fraction], Weights]] = []  # (pivot, reduced row, the relation it stands for)
    for line, sign in list(rays):
        if limits is not None and basis:
            limits.check()
        if sign < 0 or (line, -1) not in rays:
            continue
        (p, a), (m, b) = rays[line, 1], rays[line, -1]
        # degree 1: phi(p) / a - phi(m) / b = v . u; degree 2: phi(p) / a^2 + phi(m) / b^2 = (v . u)^2
        weights: Weights = {p: 1 / a**degree, m: (-1 if degree == 1 else 1) / b**degree}
        u = [Fraction(v) for v in line]
        part = u if degree == 1 else [u[r] * u[s] for r in range(len(u)) for s in range(r, len(u))]
        for pivot, reduced, combination in basis:
            factor = part[pivot]
            if factor:
                part = [v - factor * w for v, w in zip(part, reduced)]
                for i, w in combination.items():
                    weights[i] = weights.get(i, Fraction(0)) - factor * w
        lead = next((r for r, v in enumerate(part) if v), None)
        if lead is None:
            what = "f(x) - f(-x) is linear" if degree == 1 else "f(x) + f(-x) is a quadratic form"
            why = f"for x and -x, {what}, and the targets at points {p}, {m} and others are not; a bias may help"
            note(relations, m, weights, why)
        else:
            size = part[lead]
            basis.append((lead, [v / size for v in part], {i: w / size for i, w in weights.items()}))
    relations += on_rays
    related = {i for i, _ in relations}
    free = np.array([i for i in range(len(X)) if i not in related], dtype=int)
    return Relations(free, relations, obstruction, reason)


def _line(row: list[float]) -> tuple[tuple[int, ...], Fraction]:
    """The primitive integer vector u on the line of the row, first nonzero entry positive, and t with row = t u."""
    ratios = [v.as_integer_ratio() for v in row]
    top = max(b for _, b in ratios)
    whole = [a * (top // b) for a, b in ratios]
    common = math.gcd(*whole)
    if next(v for v in whole if v) < 0:
        common = -common
    return tuple(v // common for v in whole), Fraction(common, top)
