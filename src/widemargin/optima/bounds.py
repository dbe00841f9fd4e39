"""The two bounds in numbers: objectives of networks from above, those that dual weights prove from below, rounding included."""

from __future__ import annotations

import math

import numpy as np

from widemargin.margins.door import EPS
from widemargin.types import Measure

from .losses import Loss
from .master import Points
from .problem import Problem


def above(problem: Problem, network: Measure, b: float) -> float:
    """The objective of a network in units of the door, rounding included."""
    door, points = problem.door, problem.points
    m = len(network.mass)
    norm = network.norm
    t = (door.X @ network.theta.T).clip(0) @ network.mass + b
    error = 4 * EPS * (door.X.shape[1] + m + 8) * (norm * door.size + abs(b) + np.abs(points.y))
    error = error if m else np.zeros_like(error)  # a constant is what it is
    value = float(points.w @ problem.loss.value_above(points.y, t, error))
    value += points.lam * norm + 0.5 * points.ridge * b * b
    return value * (1 + EPS * (door.X.shape[0] + m + door.X.shape[1] + 64))


def dual_below(points: Points, loss: Loss, c: np.ndarray, theta: float) -> float:
    """What the weights theta c prove, theta at most 1, rounding included."""
    total = min(theta, 1.0) * math.fsum(
        c
    )  # that of the weights as they are: products of each may not cancel as they do
    c = min(theta, 1.0) * (1 - 8 * EPS) * c
    on = c != 0
    s, w, y = c[on] / points.w[on], points.w[on], points.y[on]
    size = np.abs(s) * (1 + np.abs(y) + np.abs(s) + np.abs(np.log(np.abs(s))))  # of the terms of the dual
    if loss.name == "logistic":
        size = size + np.abs(np.log1p(-np.minimum(np.abs(s), 1 - EPS)))
    error = EPS * (32 * float(w @ size) + len(c) * float(np.abs(w * loss.dual(y, s)).sum()))
    # divided first, as the square of a tiny sum is 0
    square = squared(total / math.sqrt(2 * points.ridge)) * (1 + 32 * EPS) if points.ridge else 0.0
    return math.fsum(w * loss.dual(y, s)) - error - square


def power_of(c: np.ndarray) -> int:
    """The power of two that weights c are divided by where they are priced and saved."""
    return max(math.frexp(float(np.abs(c).sum()))[1], -1000)  # 2^1000 is a float


def dual_value(points: Points, loss: Loss, c: np.ndarray) -> float:
    on = points.w > 0
    value = float(points.w[on] @ loss.dual(points.y[on], c[on] / points.w[on]))
    total = float(c.sum())
    return value - (squared(total / math.sqrt(2 * points.ridge)) if points.ridge else 0.0)


def squared(x: float) -> float:
    """x^2, infinite where it is beyond every double: `**` raises an exception there."""
    return x * x
