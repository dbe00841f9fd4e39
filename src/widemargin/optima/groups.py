"""The best masses of given neurons with several outputs: the cross-entropy and a norm for each neuron, to high accuracy.

    minimise over A (m, K), b (K,)
    sum_i w_i [log sum_k exp(t_ik) - t_{i, y_i}] + lam sum_j |A_j| + (ridge / 2) |b|^2,   t = Z A + b

by Newton's method: each step minimises the quadratic model of the loss with the norms as they are, a cone program over the
neurons that are not zero and those that ask to be, and a line search looks at the objective itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse, special

STEPS = 50
ENTER = 40  # neurons that come in at once, at most
ARMIJO = 1e-4
ROUNDING, NO_FALL = 1e-15, 1e-14  # of the objective: its error, and a fall that is nothing


def cross_entropy(t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n,) of outputs t (n, K) and classes y."""
    return special.logsumexp(t, axis=1) - t[np.arange(len(t)), y]


@dataclass(frozen=True)
class ClassPoints:
    """What a master sees of the data: n points with classes y and weights w, a decay lam of the masses, and an output bias."""

    y: np.ndarray  # (n,) integers
    K: int
    w: np.ndarray
    lam: float
    offset: bool  # whether there is an output bias
    ridge: float  # its decay, 0 where it is free

    def losses(self, t: np.ndarray) -> np.ndarray:
        """(n,) cross-entropies of outputs t (n, K)."""
        return cross_entropy(t, self.y)

    def objective(self, t: np.ndarray, norm: float, b: np.ndarray) -> float:
        return float(self.w @ self.losses(t)) + self.lam * norm + 0.5 * self.ridge * float(b @ b)

    def pull(self, t: np.ndarray) -> np.ndarray:
        """g_i = w_i (e_{y_i} - softmax(t_i)), (n, K)."""
        g = -self.w[:, None] * special.softmax(t, axis=1)
        rows = np.arange(len(t))
        g[rows, self.y] = 0.0
        g[rows, self.y] = -g.sum(axis=1)  # no digits are lost where the own class is nearly sure
        return g


def curvature(points: ClassPoints, J: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The second derivative of the loss in the weights (p, K) of the columns of J (n, p): (p K, p K)."""
    P, p, K = special.softmax(t, axis=1), J.shape[1], points.K
    H = np.zeros((p, K, p, K))
    for k in range(K):
        for l in range(k, K):
            H[:, k, :, l] = H[:, l, :, k] = (J * (points.w * P[:, k] * ((k == l) - P[:, l]))[:, None]).T @ J
    return H.reshape(p * K, p * K)


def best_offset(points: ClassPoints, t: np.ndarray) -> np.ndarray:
    """The free output bias (K,) that is best for outputs t (n, K), by Newton's method."""
    b, ones = np.zeros(points.K), np.ones((len(t), 1))
    for _ in range(50):
        slope = points.pull(t + b).sum(axis=0)
        H = curvature(points, ones, t + b)
        step = np.linalg.lstsq(H, slope, rcond=1e-12)[0]  # adding a constant to all outputs changes nothing
        rate, value = 1.0, float(points.w @ points.losses(t + b))
        while rate > 1e-6 and float(points.w @ points.losses(t + b + rate * step)) > value * (1 + ROUNDING):
            rate /= 2
        b = b + rate * step
        if np.abs(step).max() <= 1e-14 * (1 + np.abs(b).max()):
            break
    return b


def fit(
    points: ClassPoints, Z: np.ndarray, A: np.ndarray, b: np.ndarray, time_limit: float = math.inf, tol: float = 1e-8
) -> tuple[np.ndarray, np.ndarray]:
    """Masses (m, K) and output bias (K,) from the start A, b: every slope within tol * lam of what an optimum has."""
    lam, until = points.lam, time.perf_counter() + time_limit
    A, b = A - A.mean(axis=1, keepdims=True), b - b.mean()
    t = Z @ A + b
    value = points.objective(t, float(np.linalg.norm(A, axis=1).sum()), b)
    damping = 0.0
    for step in range(STEPS):
        g = points.pull(t)
        slope = Z.T @ g  # (m, K), of minus the loss
        size, steep = np.linalg.norm(A, axis=1), np.linalg.norm(slope, axis=1)
        on = size > 0
        toward = A / np.where(on, size, 1.0)[:, None]
        off = np.where(on, np.linalg.norm(slope - lam * toward, axis=1), steep - lam)
        slope_b = (g.sum(axis=0) - points.ridge * b) if points.offset else np.zeros(points.K)
        worst = max(float(off.max(initial=0.0)) / lam, float(np.abs(slope_b).max()) / float(np.abs(g).sum() or 1.0))
        if worst <= tol or (step and time.perf_counter() > until):
            break
        new = np.flatnonzero(~on & (steep > lam))
        use = np.concatenate([np.flatnonzero(on), new[np.argsort(-steep[new])[:ENTER]]])
        found = _model(points, Z[:, use], A[use], b, t, g, damping, until - time.perf_counter())
        if found is None:
            break
        to, offset = found
        move, move_b = to - A[use], offset - b
        fall = -float((slope[use] * move).sum() + slope_b @ move_b)  # of the loss, to first order
        fall += lam * float(np.linalg.norm(to, axis=1).sum() - size[use].sum())
        moved, rate, reached = Z[:, use] @ move + move_b, 1.0, math.inf
        while rate > 1e-9:
            norm = float(np.linalg.norm(A[use] + rate * move, axis=1).sum())
            reached = points.objective(t + rate * moved, norm, b + rate * move_b)
            if reached <= value + ARMIJO * rate * min(fall, 0.0):
                break
            rate /= 2
        if not reached < value - NO_FALL * value:
            break  # the objective does not see such steps
        A[use], b, value = A[use] + rate * move, b + rate * move_b, reached
        damping = max(10 * damping, 1e-3) if rate < 0.2 else 0.1 * damping if damping > 1e-9 else 0.0
        t = Z @ A + b
    return A, b


def _model(
    points: ClassPoints,
    Z: np.ndarray,
    A: np.ndarray,
    b: np.ndarray,
    t: np.ndarray,
    g: np.ndarray,
    damping: float,
    time_limit: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The minimum of the quadratic model of the loss with the norms as they are. All rows sum to 0, as the best do."""
    import clarabel  # where used: the package must import on machines without it

    n, m, K = len(Z), len(A), points.K
    Q = linalg.null_space(np.ones((1, K)))  # (K, K - 1)
    J = np.hstack([Z, np.ones((n, 1))]) if points.offset else Z
    p = J.shape[1]
    if not p:
        return A, b
    x = np.vstack([A, b]) @ Q if points.offset else A @ Q
    H = np.einsum("akbl,kc,ld->acbd", curvature(points, J, t).reshape(p, K, p, K), Q, Q, optimize=True)
    H = H.reshape(p * (K - 1), -1)
    down = J.T @ g @ Q
    if points.offset:
        H[m * (K - 1) :, m * (K - 1) :] += points.ridge * np.eye(K - 1)
        down[m] -= points.ridge * b @ Q
    # In units in which slopes and masses are about 1, and an output bias has a curvature of 1.
    force = max(points.lam, float(np.linalg.norm(down[:m], axis=1).max(initial=0.0)))
    unit = max(float(np.linalg.norm(A, axis=1).max(initial=0.0)), force / float(H.diagonal().max()))
    scale = force * unit
    units = np.full(p * (K - 1), unit)
    if points.offset:
        units[m * (K - 1) :] = np.sqrt(scale / H.diagonal()[m * (K - 1) :].clip(1e-300))
    H = H * units * units[:, None] / scale
    H[np.diag_indices_from(H)] += (1e-12 + damping) * H.diagonal().max()
    now = x.ravel() / units
    cost = np.append(-down.ravel() * units / scale - H @ now, np.full(m, points.lam / force))
    P = sparse.block_diag([sparse.csc_matrix(np.triu(H)), sparse.csc_matrix((m, m))], format="csc")
    size, most = p * (K - 1), m * K
    index = np.hstack([size + np.arange(m)[:, None], np.arange(m * (K - 1)).reshape(m, K - 1)]).ravel()
    cones = sparse.csc_matrix((-np.ones(most), (np.arange(most), index)), shape=(most, size + m))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    kinds = [clarabel.SecondOrderConeT(K)] * m
    solution = clarabel.DefaultSolver(P, cost, cones, np.zeros(most), kinds, settings).solve()
    found = (units * np.array(solution.x)[:size]).reshape(p, K - 1) @ Q.T
    if not np.isfinite(found).all():
        return None
    to = found[:m]
    to[np.linalg.norm(to, axis=1) < 1e-8 * unit] = 0.0
    return to, found[m] if points.offset else b
