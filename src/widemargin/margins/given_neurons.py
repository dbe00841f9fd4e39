"""The margin of finitely many given neurons with l1 outer weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from widemargin.spaces import as_space
from widemargin.types import Certificate, Dataset, Measure

from . import programs, rows
from .answers import solves
from .door import EPS, Door, Limits, Progress, enter, nothing_left, product, twins
from .kernel_machines import unit_directions
from .qp import Progress as Steps
from .qp import Tell

QUICK = 100_000  # features up to which a linear program is done in no time
EARLY, NEAR = 0.25, 0.1  # share of the time, and gap, of the margin in Euclidean norm, for when it is not
LP_WORK = 400  # operations for each entry of a linear program's matrix that pass before it looks at the clock


@solves()
def frozen(
    data: Dataset,
    directions: int | ArrayLike,
    *,
    bias: bool = False,
    activation: str = "relu",
    seed: int = 0,
    tol: float = 1e-6,
    time_limit: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Largest margin of signed measures on given directions (convention M1 restricted to them), as a linear program.

        margin = max_{||a||_1 <= 1} min_i sum_j z_ij a_j = min_{q in simplex} max_j |sum_i q_i z_ij|

    z_ij = y_i phi(v_j . x_i) / ||v_j||^k, k the degree of phi; or `directions` many uniform v_j drawn with `seed`.
    The atoms of the primal are rows of `directions`, unchanged.

    Reference: Chizat and Bach (2020), Proposition 6 (M6 of balanced neurons is half of this).

    `directions` is (m, D), D = d, or d + 1 with `bias`.

    >>> import widemargin as wm
    >>> xor = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1])
    >>> cert = wm.margins.frozen(xor, xor.X)  # z = diag(y) sqrt(2)
    >>> abs(cert.lower - 2**0.5 / 4) < 1e-6, cert.verify(xor).ok
    (True, True)
    """
    door = enter(data, as_space(activation, bias=bias), tol, time_limit, progress, memory=memory)
    V, drawn = unit_directions(directions, door, seed)
    twin, problem = twins(door), Neurons(door, V)
    stats: dict[str, Any] = {"seed": seed if drawn else None}
    primal, zero, stopped, lower = None, "", "", 0.0
    if twin is None:
        early = None
        if len(door.y) * len(V) > QUICK and not math.isinf(door.deadline):
            early = problem.in_euclidean_norm(door.limits.first(EARLY), NEAR)
        if early is not None and not early.stopped and nothing_left(early.upper, early.q, problem.size):
            solved = early  # a linear program would find nothing else
        else:
            solved = _better(rows.solve(problem, tol), early)
            if solved.lower <= 0 and not solved.stopped:
                other = problem.in_euclidean_norm(door.limits, tol)
                solved = replace(_better(solved, other), stopped="" if other.lower > 0 else other.stopped)
        q, lower, upper, stopped = solved.q, solved.lower, solved.upper, solved.stopped
        if solved.predictor is not None:
            primal, stats["atoms"] = solved.predictor, len(solved.predictor.mass)
        if lower <= 0 and nothing_left(upper, q, problem.size) and not stopped:
            zero = f"the features are not separable up to rounding ({upper / problem.size.max():.1g} of their size)"
    else:
        q, zero = twin
        some = np.flatnonzero(q)
        problem.Z = problem.features(some)
        upper = problem.upper(some, q[some]) if (q[some] @ problem.Z).any() else 0.0
    if zero or lower <= 0:
        primal = None
    return door.certificate(
        "frozen",
        (lower, upper),
        q,
        degree=door.space.degree,
        convention="M1",
        stopped=stopped,
        zero=zero,
        primal=primal,
        extra={"directions": V.tolist()},
        stats=stats,
    )


def _better(best: rows.Best, other: rows.Best | None) -> rows.Best:
    """The better bound of each kind, and how the search `best` ended."""
    if other is not None and other.lower > best.lower:
        best = replace(best, predictor=other.predictor, lower=other.lower)
    if other is not None and other.upper < best.upper:
        best = replace(best, q=other.q, upper=other.upper)
    return best


class Neurons(rows.Rows):
    """The linear program over the neurons V (m, D); the predictor is a measure of some of them."""

    def __init__(self, door: Door, V: np.ndarray):
        self.V, self.degree = V, door.space.degree
        super().__init__(door, len(door.y), door.y, door.size**self.degree)
        self.length = np.linalg.norm(V, axis=1) ** self.degree
        self.blur = EPS * (self.degree * (V.shape[1] + 4) + 4)  # of one feature, relative to size

    def features(self, index: Any) -> np.ndarray:
        door = self.door
        return np.asarray(door.space.phi(door.X[index] @ self.V.T) / self.length * door.y[index, None])  # (k, m)

    def solve(self, rows: np.ndarray, tol: float, tell: Tell | None) -> tuple[Any, Steps]:
        self.Z = self.features(rows)
        left = None if math.isinf(self.door.deadline) else self.door.limits.left()
        a, q, stopped = programs.matrix_game(self.Z, left)
        return self.measure(a), Steps(tol, q=q, steps=1, method="linear program", stopped=stopped)

    def measure(self, a: np.ndarray) -> Measure:
        keep = np.flatnonzero(a)
        return Measure(self.V[keep], a[keep] / self.length[keep], self.door.space.activation, self.door.bias)

    def in_euclidean_norm(self, limits: Limits, tol: float) -> rows.Best:
        """What is best under ||a||_2 <= 1, with its bounds under ||a||_1 <= 1.

        It is found in little time, and may separate points beside which a program has too few digits.
        """
        door, size = replace(self.door, limits=limits), self.size * math.sqrt(len(self.V))
        square = rows.Features(door, self.features, len(self.V), labels=door.y, size=size, blur=self.blur * size)
        found = rows.solve(square, tol)
        measure = self.measure(np.zeros(len(self.V)) if found.predictor is None else found.predictor)
        margins = self.judged(measure)
        lower = 0.0 if margins is None else max(0.0, float(margins.min()))
        some = np.flatnonzero(found.q)
        self.Z = self.features(some)
        return replace(found, predictor=measure, lower=lower, upper=self.upper(some, found.q[some]))

    def upper(self, rows: np.ndarray, q: np.ndarray) -> float:
        sums, e = product(self.Z.T, q)
        upper = float(np.abs(sums).max()) + (e + self.blur) * float(q @ self.size[rows])
        return upper * (1 + 2 * EPS * (len(q) + 4)) / float(q.sum())

    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        door, m = self.door, len(predictor.mass)
        if m == 0:
            return np.zeros(len(door.y[block]))
        scores, e = product(door.space.phi(door.X[block] @ predictor.theta.T), predictor.mass)
        margins = scores * door.y[block] / predictor.norm - (e + 2 * self.blur) * self.size[block]
        return np.asarray(margins - np.abs(margins) * EPS * (2 * m + self.degree * self.V.shape[1] + 8))

    def width(self, predictor: Any) -> int:
        return 2 * len(predictor.mass)

    def most(self) -> int:
        m = len(self.V)
        return self.door.limits.largest(self.n, lambda k: LP_WORK * k * m, lambda k: 10.0 * k * m)
