"""The best masses of given neurons: a smooth loss and an l1 norm, to high accuracy.

    minimise over a, b   sum_i w_i loss(y_i, (Z a)_i + b) + lam |a|_1 + (ridge / 2) b^2

by Newton's method: each step minimises the quadratic model with the l1 norm exactly, by an active set, and a line search looks at
the objective itself. Columns that are not used and do not ask for it cost one product with Z.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from widemargin.margins.door import EPS

from .losses import Loss

STEPS, PLACES = 100, 8
ARMIJO = 1e-4
ROUNDING, NO_FALL = 1e-15, 1e-12  # of the objective: its error at the least, and a fall that is nothing


@dataclass(frozen=True)
class Points:
    """What a master sees of the data: n points with targets y and weights w, a decay lam of the masses, and an output bias."""

    y: np.ndarray
    w: np.ndarray
    lam: float
    offset: bool  # whether there is an output bias
    ridge: float  # its decay, 0 where it is free

    def objective(self, loss: Loss, t: np.ndarray, norm: float, b: float) -> float:
        return float(self.w @ loss.value(self.y, t)) + self.lam * norm + 0.5 * self.ridge * b * b

    def pull(self, loss: Loss, t: np.ndarray) -> np.ndarray:
        """The dual weights c (n,) of a network with outputs t."""
        return self.w * loss.pull(self.y, t)


def fit(
    points: Points,
    loss: Loss,
    Z: np.ndarray,
    a: np.ndarray,
    b: float,
    tol: float = 1e-10,
    until: float = math.inf,
) -> tuple[np.ndarray, float]:
    """Masses (m,) and output bias from the start a, b: every slope within tol * lam of what an optimum has, unless
    the clock says `until` before."""
    y, w, lam = points.y, points.w, points.lam
    a, n = a.copy(), len(y)
    t = Z @ a + b
    value = points.objective(loss, t, float(np.abs(a).sum()), b)
    damping, small = 0.0, 0
    rounding = max(ROUNDING, EPS * math.sqrt(n))  # a line search that does not know it ends in steps of nothing
    for number in range(STEPS):
        if number and time.perf_counter() > until:
            break
        c = points.pull(loss, t)
        slope = -(Z.T @ c)  # of the loss
        slope_b = points.ridge * b - float(c.sum()) if points.offset else 0.0
        off = np.where(a != 0, np.abs(slope + lam * np.sign(a)), (np.abs(slope) - lam).clip(0))
        if max(float(off.max(initial=0.0)) / lam, abs(slope_b) / float(np.abs(c).sum() or 1.0)) <= tol:
            break
        use = np.flatnonzero((a != 0) | (np.abs(slope) > lam))
        J = np.hstack([Z[:, use], np.ones((n, 1))]) if points.offset else Z[:, use]
        H = (J * (w * loss.curvature(y, t))[:, None]).T @ J
        x, penalty = a[use], np.full(len(use), lam)
        g = slope[use]
        if points.offset:
            H[-1, -1] += points.ridge
            x, penalty, g = np.append(x, b), np.append(penalty, 0.0), np.append(g, slope_b)
        least = 1e-6 * lam * float(np.abs(J).max(initial=0.0))
        diagonal = H.diagonal().copy()
        H[np.diag_indices_from(H)] += 1e-12 * diagonal + np.maximum(damping, np.where(diagonal > least, 0.0, least))
        step = l1_quadratic(H, H @ x - g, penalty, x, until) - x
        model = float(g @ step) + float(penalty @ (np.abs(x + step) - np.abs(x)))
        moved, rate = J @ step, 1.0
        while True:
            new = x + rate * step
            norm = float(penalty @ np.abs(new)) / lam
            b_new = float(new[-1]) if points.offset else 0.0
            reached = points.objective(loss, t + rate * moved, norm, b_new)
            if reached <= value + ARMIJO * rate * model + rounding * value or rate < 1e-9:
                break
            rate /= 2
        small += abs(model) <= NO_FALL * value
        if small > 4:  # these steps are for the slopes: the objective does not see them
            break
        if rate < 0.2:  # the model is poor, as where the loss has no curvature
            damping = max(30 * damping, least)
        elif rate == 1:
            damping = 0.1 * damping if damping > least else 0.0
        if not reached < value + 2 * rounding * value:
            continue
        a[use], b, value = new[: len(use)], b_new, reached
        t = Z @ a + b
    return a, b


def constant(points: Points, loss: Loss, tol: float = 1e-10) -> float:
    """The output bias of the best network without neurons. For labels there are two points, however many have each."""
    if loss.labels:
        sides = np.array([-1.0, 1.0])
        points = replace(points, y=sides, w=np.array([points.w[points.y == side].sum() for side in sides]))
    return fit(points, loss, np.zeros((len(points.y), 0)), np.zeros(0), 0.0, tol)[1]


def l1_quadratic(
    H: np.ndarray, q: np.ndarray, penalty: np.ndarray, x: np.ndarray, until: float = math.inf
) -> np.ndarray:
    """The minimum of x' H x / 2 - q . x + penalty . |x|, from the start x, by the signs of its entries (feature-sign search)."""
    unit = np.sqrt(H.diagonal())
    unit[unit == 0] = 1.0
    start = x
    H, q, penalty, x = H / unit / unit[:, None], q / unit, penalty / unit, x * unit  # of unit diagonal
    if not all(np.isfinite(part).all() for part in (H, q, penalty, x)):
        return start  # sizes that floats do not hold together: there is no step
    free = penalty == 0
    sign = np.sign(x)
    for _ in range(20 * len(x) + 20):
        if time.perf_counter() > until:
            break
        active = np.flatnonzero(free | (sign != 0))
        for _ in range(2 * len(active) + 2):
            if not len(active):
                break
            A = H[np.ix_(active, active)]
            try:
                new = linalg.cho_solve(linalg.cho_factor(A, check_finite=False), (q - penalty * sign)[active])
            except linalg.LinAlgError:
                new = np.linalg.lstsq(A, (q - penalty * sign)[active], rcond=None)[0]
            old, s, f = x[active], sign[active], free[active]
            wrong = ~f & (new * s < 0)
            if not wrong.any():
                x[active] = new
                sign[active] = np.where(f, 0, np.where(new == 0, 0, s))
                break
            # The best of some places along the way where an entry changes its sign, the first of them and the end included.
            with np.errstate(divide="ignore", invalid="ignore"):
                rates = np.where(wrong, old / (old - new), 1.0)
            best, places = (np.inf, 1.0), np.unique(np.append(rates.clip(0, 1), 1.0))
            for rate in places[np.unique(np.linspace(0, len(places) - 1, PLACES).round().astype(int))]:
                z = old + rate * (new - old)
                z = np.where(wrong & (np.abs(rates - rate) < 1e-15), 0.0, z)
                value = 0.5 * float(z @ A @ z) - float(q[active] @ z) + float(penalty[active] @ np.abs(z))
                best = min(best, (value, rate))
            z = old + best[1] * (new - old)
            z = np.where(wrong & (np.abs(rates - best[1]) < 1e-15), 0.0, z)
            x[active] = z
            sign[active] = np.where(f, 0, np.sign(z))
            active = np.flatnonzero(free | (sign != 0))
        rest = q - H @ x
        blur = EPS * (
            np.abs(q) + np.abs(H) @ np.abs(x)
        )  # of `rest`: beside a tiny penalty signs that it decides go in circles
        off = np.where((sign == 0) & ~free, np.abs(rest) - penalty - blur, -np.inf)
        j = int(off.argmax())
        if not off[j] > 1e-12 * penalty[j]:
            break
        sign[j] = np.sign(rest[j])
    return x / unit
