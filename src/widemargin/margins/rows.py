"""Margins of many points from some of them: weights on a few points prove a bound for all, and a predictor is judged at all.

    margin = max_f min_i m_i(f) <= max_f sum_i q_i m_i(f)   for all weights q, those of a few points too.

So a problem of any size is solved for points in play; those at which its predictor does worst join in, until the bounds meet or
the time is over. Small problems have all their points in play from the start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import qp
from .door import EPS, Door, Late, bounds_factor, nothing_left, product
from .qp import Progress as Steps
from .qp import Tell

AT_ONCE = 2000  # points up to which all are in play at once where a step allows it
START, JOIN = 400, 200  # points in play at first, and how many may join at least
MANY = 2**20  # points or pairs of which some are looked at, where the first ones are chosen
PATIENCE = 4  # rounds without a better bound once no more points can join


@dataclass
class Best:
    """Bounds of a margin, with the weights on all points and the predictor that show them."""

    q: np.ndarray  # (n,)
    predictor: Any = None  # None: none was judged to be good at all points
    lower: float = -math.inf
    upper: float = math.inf
    stopped: str = ""
    stats: dict[str, Any] = field(default_factory=dict)


class Rows(ABC):
    """One margin as this file sees it: rows are the points, or what else has a weight each."""

    def __init__(self, door: Door, n: int, labels: np.ndarray, size: np.ndarray):
        self.door, self.n, self.labels, self.size = door, n, labels, size

    @abstractmethod
    def solve(self, rows: np.ndarray, tol: float, tell: Tell | None) -> tuple[Any, Steps]:
        """A predictor, and the weights q (k,) of the points `rows` with how they were found."""

    @abstractmethod
    def upper(self, rows: np.ndarray, q: np.ndarray) -> float:
        """What q proves, rounding included; `rows` are those of the last `solve`."""

    @abstractmethod
    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        """At most the margins of a predictor at the points of a block, rounding included."""

    @abstractmethod
    def width(self, predictor: Any) -> int:
        """Numbers that a row takes while it is judged."""

    @abstractmethod
    def most(self) -> int:
        """How many points may be in play: memory, and one step of the clock."""

    def first(self, count: int) -> np.ndarray:
        """About `count` points to begin with, in order."""
        return first_rows(self.labels, count)

    def judged(self, predictor: Any) -> np.ndarray | None:
        """The margins (n,) of a predictor; None where the time is over before all are known."""
        margins = np.empty(self.n)
        try:
            for block in self.door.limits.blocks(self.n, self.width(predictor)):
                margins[block] = self.judge(predictor, block)
        except Late:
            return None
        return margins


def in_play(problem: Rows, operations: Callable[[int], float], numbers: Callable[[int], float]) -> int:
    """How many points may be in play: all where half of the time is enough for them, as parts may never come as far; otherwise as
    many as one step of the clock allows."""
    limits, n = problem.door.limits, problem.n
    if 8 * numbers(n) <= limits.memory and limits.affords(operations(n)):
        return n
    return limits.largest(n, operations, numbers)


def first_rows(labels: np.ndarray, count: int) -> np.ndarray:
    """About `count` points, at least one of each label and as many of each as of any other where there are."""
    rng, n = np.random.default_rng(0), len(labels)
    if n <= MANY:
        order = rng.permutation(n)
    else:  # pairs of points and classes may be millions, of which a few are enough
        first = _first_of_each(labels)
        order = np.append(rng.choice(n, max(MANY, 2 * count)), first)
        order = order[np.sort(np.unique(order, return_index=True)[1])]
    known = order[np.argsort(labels[order], kind="stable")]  # label after label
    parts = np.split(known, np.flatnonzero(np.diff(labels[known])) + 1)
    share = max(1, count // len(parts))
    chosen = np.concatenate([part[:share] for part in parts])
    rest = np.setdiff1d(order[: 2 * count], chosen)[: max(0, count - len(chosen))]
    return np.sort(np.append(chosen, rest))


def _first_of_each(labels: np.ndarray) -> np.ndarray:
    """The number of one point of each label."""
    if labels.dtype.kind != "i" or labels.min() < 0:
        return np.unique(labels, return_index=True)[1]
    one = np.full(labels.max() + 1, -1)  # classes are numbered; sorting millions takes as long as the search
    one[labels] = np.arange(len(labels))
    return one[one >= 0]


def solve(problem: Rows, tol: float, tell: Tell | None = None) -> Best:
    """Bounds that are `tol` apart where that can be had, with rounding, time and memory as they are."""
    door, n = problem.door, problem.n
    most = min(n, problem.most())
    rows = np.arange(n) if most == n <= AT_ONCE else problem.first(min(START, most))
    best, rounds, stuck = Best(np.zeros(n)), 0, 0
    while True:
        rounds += 1
        try:
            predictor, steps = problem.solve(rows, tol / 4, tell)
        except Late:  # not in the first round, which is small
            best.stopped = "time-limit"
            break
        better = False
        upper = problem.upper(rows, steps.q)
        if upper < best.upper or rounds == 1:
            better = upper < best.upper * (1 - 1e-9)
            best.q, best.upper = np.zeros(n), upper
            best.q[rows] = steps.q
        best.stats = {"steps": steps.steps, "method": steps.method}
        best.stopped = steps.stopped
        margins = problem.judged(predictor) if steps.stopped != "interrupted" or len(rows) == n else None
        if margins is None:
            best.stopped = best.stopped or "time-limit"
            break
        lower = float(margins.min())
        if lower > best.lower:
            better |= lower > max(best.lower, 0.0) * (1 + 1e-9)
            best.lower, best.predictor = lower, predictor
        stuck = 0 if better else stuck + 1
        if len(rows) == n or best.stopped or best.lower >= (1 - tol) * best.upper:
            break
        if nothing_left(best.upper, best.q, problem.size):
            break
        if door.limits.late():
            best.stopped = "time-limit"
            break
        if stuck > PATIENCE:
            best.stopped = "stalled"
            break
        rows = following(problem, rows, steps.q, margins, most, tol)
        if tell is not None:
            try:
                tell(best.lower, best.upper, f"round {rounds}, {len(rows)} of {n} in play")
            except KeyboardInterrupt:
                best.stopped = "interrupted"
                break
    best.lower = max(best.lower, 0.0)
    best.stats |= {"rounds": rounds, "in_play": len(rows)}
    return best


def following(problem: Rows, rows: np.ndarray, q: np.ndarray, margins: np.ndarray, most: int, tol: float) -> np.ndarray:
    """The points in play next: those with weight, and those at which the last predictor does worst."""
    least = float(margins[rows].min())
    outside = np.ones(problem.n, dtype=bool)
    outside[rows] = False
    below = np.flatnonzero(outside & (margins < least - tol / 8 * abs(least)))
    support = rows[q > 1e-9 * q.max()]
    join = max(JOIN, len(rows))
    if len(below) == 0:  # rounding
        below = np.flatnonzero(outside)
    below = below[np.argsort(margins[below], kind="stable")][:join]
    kept = rows if len(rows) + len(below) <= most else support
    room = max(most - len(kept), most // 4)
    kept = (
        kept if len(kept) + min(len(below), room) <= most else kept[np.argsort(-q[np.isin(rows, kept)])][: most - room]
    )
    return np.union1d(kept, below[:room])


class Features(Rows):
    """Predictors z . u with |u| <= 1 over features z_i (m,) of the points, labels included: margin = min_q |sum_i q_i z_i|.

    `features` gives those (k, m) of points (an index or a slice); size_i >= |z_i| up to rounding, and the features of point i are
    off by a vector of length `blur`_i at most. The predictor is u.
    """

    def __init__(
        self,
        door: Door,
        features: Callable[[Any], np.ndarray],
        m: int,
        *,
        labels: np.ndarray,
        size: np.ndarray,
        blur: np.ndarray | float = 0.0,
    ):
        super().__init__(door, len(size), labels, size)
        self.features, self.m, self.blur = features, m, np.broadcast_to(blur, len(size))

    def solve(self, rows: np.ndarray, tol: float, tell: Tell | None) -> tuple[Any, Steps]:
        self.Z = self.features(rows)
        empty = np.flatnonzero(~self.Z.any(axis=1))
        if len(empty):  # no predictor does anything there
            return np.zeros(self.m), Steps(tol, q=np.eye(1, len(rows), int(empty[0]))[0], method="zero")
        steps = qp.solve_factor(self.Z, tol, self.door.deadline, tell)
        return qp.direction(self.Z, steps, 2 * tol), steps

    def upper(self, rows: np.ndarray, q: np.ndarray) -> float:
        upper = bounds_factor(self.Z, self.size[rows], np.zeros(self.m), q)[1]
        return upper + float(q @ self.blur[rows]) / float(q.sum()) * (1 + 8 * EPS)

    def judge(self, predictor: Any, block: slice) -> np.ndarray:
        scores, e = product(self.features(block), predictor)
        margins = scores / (float(np.linalg.norm(predictor)) or 1.0) - (e + 4 * EPS) * self.size[block]
        margins -= self.blur[block]
        return np.asarray(margins - np.abs(margins) * EPS * (self.m + 8))

    def width(self, predictor: Any) -> int:
        return 2 * self.m

    def most(self) -> int:
        def operations(k: int) -> float:
            short, long = sorted((k, self.m))
            return 2.0 * short * short * long + short**3

        return in_play(self, operations, lambda k: 4.0 * k * self.m + 6.0 * min(k, self.m) ** 2 + 20.0 * k)
