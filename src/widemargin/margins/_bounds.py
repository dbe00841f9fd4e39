"""Upper bounds of the F1 margin that need no tree, and the test for margin 0."""

from __future__ import annotations

import numpy as np

from . import _door


def lines(X: np.ndarray) -> np.ndarray:
    """(n,) equal numbers for points on one line through 0 (up to rounding)."""
    size = np.linalg.norm(X, axis=1, keepdims=True)
    unit = X / np.where(size > 0, size, 1)
    lead = np.take_along_axis(unit, np.abs(unit.round(9)).argmax(1)[:, None], 1)
    return np.unique((unit * np.sign(lead)).round(10) + 0.0, axis=0, return_inverse=True)[1].ravel()


def not_separable(door: _door.Door) -> tuple[np.ndarray, str] | None:
    """Weights q (integers where possible) under which sum_i q_i y_i relu(v . x_i) = 0 for all v, if there are any.

    relu(t) = (t + |t|) / 2, and |v . x| of different lines are linearly independent. So the margin is 0 if and only if some
    q has sum_i q_i y_i x_i = 0 and, on each line, sum_i q_i y_i ||x_i|| = 0: a linear program over the lines with both labels.
    A leaky ReLU is ((1 + slope) t + (1 - slope) |t|) / 2: the same q.
    """
    line, y = lines(door.X), door.y
    mixed: list[np.int64] = [l for l in np.flatnonzero(np.bincount(line) > 1) if len(set(y[line == l])) > 1]
    index = np.flatnonzero(np.isin(line, mixed))
    if len(index) == 0:
        return None
    pair = opposite_labels_on_a_ray(door, line, mixed)
    if pair is not None:
        return pair
    from scipy.optimize import linprog

    X, sign = door.X[index], y[index]
    onto = (line[index][None] == np.array(mixed)[:, None]) * (sign * door.size[index])  # (lines, k)
    A = np.vstack([(sign[:, None] * X).T, onto, np.ones((1, len(index)))])
    b = np.append(np.zeros(len(A) - 1), 1.0)
    result = linprog(np.zeros(len(index)), A_eq=A, b_eq=b, bounds=(0, None), method="highs")
    if result.status != 0:
        return None
    q = np.zeros(len(y))
    q[index] = result.x.clip(0)
    whole = _door.integer_weights(q)
    if whole is None or not _door.vanishes(door.X, whole * y, linear=False):
        return None
    some = np.flatnonzero(whole)
    text = ", ".join(map(str, some[:6])) + (" ..." if len(some) > 6 else "")
    return whole, (
        f"every two-layer network averages to zero over points {text}: for x and -x, f(x) - f(-x) is linear; "
        "a bias may help"
    )


def opposite_labels_on_a_ray(
    door: _door.Door, line: np.ndarray, mixed: list[np.int64]
) -> tuple[np.ndarray, str] | None:
    """Points x and a x, a > 0, with different labels: weights a and 1 cancel, as a relu(v . x) = relu(v . a x)."""
    for l in mixed:
        index = np.flatnonzero(line == l)
        lead = int(np.abs(door.X[index[0]]).argmax())
        size = door.X[index, lead]  # the points are multiples of each other, in the ratio of these
        for sign in (1, -1):
            ray = index[np.sign(size) == sign]
            plus, minus = ray[door.y[ray] > 0], ray[door.y[ray] < 0]
            if len(plus) and len(minus):
                i, j = int(plus[0]), int(minus[0])
                q = np.zeros(len(door.y))
                q[i], q[j] = abs(door.X[j, lead]), abs(door.X[i, lead])
                if _door.vanishes(door.X, q * door.y, linear=False):
                    return (
                        q,
                        f"points {i} and {j} lie on one ray from the origin but have different labels; a bias may help",
                    )
    return None


def norm(X: np.ndarray, c: np.ndarray, slope: float = 0.0) -> float:
    """A bound of |sum_i c_i phi(v . x_i)|, |v| = 1, rounded up: phi(t) = ((1 + slope) t + (1 - slope) |t|) / 2, and |t|
    counts on one side only."""
    size = np.linalg.norm(X, axis=1)
    part = max(float(c.clip(0) @ size), float((-c).clip(0) @ size))
    return ((1 + slope) * float(np.linalg.norm(c @ X)) + (1 - slope) * part) / 2 * (1 + 1e-12) + 1e-14 * float(
        np.abs(c) @ size
    )
