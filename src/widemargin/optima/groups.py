"""The best masses of given neurons with several outputs: a smooth loss and a norm for each neuron, to high accuracy.

    minimise over A (m, K), b (K,)   sum_i w_i loss(y_i, t_i) + lam sum_j |A_j| + (ridge / 2) |b|^2,   t = Z A + b

by Newton's method: each step minimises the quadratic model of the loss with the norms as they are, a cone program over the
neurons that are not zero and those that ask to be, and a line search looks at the objective itself.
"""

from __future__ import annotations

import bisect
import math
import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from widemargin.margins.door import speed
from widemargin.margins.programs import solve_cones

from .outputs import Outputs

STEPS = 50
ENTER = 40  # neurons that come in at once, at most
ARMIJO = 1e-4
NO_FALL = 1e-14  # of the objective: a fall that is nothing
POLISH, MOST_POLISHED = 10, 400  # steps for the slopes, and numbers in the masses up to which they are taken
MOST_THERE, CONES = 10_000, 20  # neurons of a step, and operations for each number of its curvatures and masses, about
DROPPED = 0.0, 1e-6, 1e-4, 1e-2  # of the largest mass: what is less may be what a cone program left


def fit(
    points: Outputs, Z: np.ndarray, A: np.ndarray, b: np.ndarray, time_limit: float = math.inf, tol: float = 1e-8
) -> tuple[np.ndarray, np.ndarray]:
    """Masses (m, K) and output bias (K,) from the start A, b: every slope within tol * lam of what an optimum has."""
    lam, until = points.lam, time.perf_counter() + time_limit
    frame = points.frame
    A, b = A @ frame @ frame.T, b @ frame @ frame.T
    t = Z @ A + b
    value = points.objective(t, float(np.linalg.norm(A, axis=1).sum()), b)
    damping = 0.0
    for step in range(STEPS):
        now = _slopes(points, Z, A, b)
        if now.worst <= tol or (step and time.perf_counter() > until):
            return A, b
        on, steep = A.any(axis=1), np.linalg.norm(now.pull, axis=1)
        new = np.flatnonzero(~on & (steep > lam))
        power = speed() * (until - time.perf_counter()) if math.isfinite(until) else math.inf
        room = _room(len(Z), frame.shape[1], power) - int(on.sum()) - points.offset
        if room < 0:  # of hundreds of classes a step takes seconds
            return A, b
        use = np.concatenate([np.flatnonzero(on), new[np.argsort(-steep[new])[: min(ENTER, room)]]])
        model = _model(points, Z[:, use], A[use], b, t, now.g, damping, until - time.perf_counter())
        if model is None:
            break
        to, offset = model
        move, move_b, size = to - A[use], offset - b, np.linalg.norm(A[use], axis=1)
        fall = -float((now.pull[use] * move).sum() + now.pull_b @ move_b)  # of the loss, to first order
        fall += lam * float(np.linalg.norm(to, axis=1).sum() - size.sum())
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
    return _polished(points, Z, A, b, tol, until)


@dataclass(frozen=True)
class Slopes:
    """Dual vectors g (n, K), what they ask of each neuron (m, K) and of the output bias (K,), and how far that is from an
    optimum, in units of lam."""

    g: np.ndarray
    pull: np.ndarray
    pull_b: np.ndarray
    worst: float


def _slopes(points: Outputs, Z: np.ndarray, A: np.ndarray, b: np.ndarray) -> Slopes:
    g = points.pull(Z @ A + b)
    pull = Z.T @ g  # of minus the loss
    size = np.linalg.norm(A, axis=1)
    toward = A / np.where(size > 0, size, 1.0)[:, None]
    off = np.where(
        size > 0, np.linalg.norm(pull - points.lam * toward, axis=1), np.linalg.norm(pull, axis=1) - points.lam
    )
    pull_b = (g.sum(axis=0) - points.ridge * b) if points.offset else np.zeros(points.K)
    worst = max(float(off.max(initial=0.0)) / points.lam, float(np.abs(pull_b).max()) / float(np.abs(g).sum() or 1.0))
    return Slopes(g, pull, pull_b, worst)


def _polished(
    points: Outputs, Z: np.ndarray, A: np.ndarray, b: np.ndarray, tol: float, until: float
) -> tuple[np.ndarray, np.ndarray]:
    """Masses whose slopes are nearer to those of an optimum, if there are: a cone program ends when the objective has its digits,
    slopes have half as many then, and neurons that should have no mass have some."""
    best = now = _slopes(points, Z, A, b)
    kept, size = (A, b), np.linalg.norm(A, axis=1)
    for share in DROPPED:
        if best.worst <= tol or time.perf_counter() > until:
            break
        to, there = np.where((size > share * size.max(initial=0.0))[:, None], A, 0.0), b
        then = now if share == 0 else _slopes(points, Z, to, there)
        for _ in range(POLISH):
            moved = _newton(points, Z, to, there, then)
            new = _slopes(points, Z, *moved) if moved is not None else then
            if moved is None or not new.worst < then.worst:
                break
            (to, there), then = moved, new
            if then.worst <= tol or time.perf_counter() > until:
                break
        if then.worst < best.worst:
            best, kept = then, (to, there)
    return kept


def _newton(
    points: Outputs, Z: np.ndarray, A: np.ndarray, b: np.ndarray, now: Slopes
) -> tuple[np.ndarray, np.ndarray] | None:
    """A step for the neurons that have mass, where the objective is smooth; None where they are many, or there is nothing."""
    Q, on = points.frame, np.flatnonzero(A.any(axis=1))
    r, m = Q.shape[1], len(on)
    if m * r > MOST_POLISHED or not (m or points.offset):
        return None
    J = np.hstack([Z[:, on], np.ones((len(Z), 1))]) if points.offset else Z[:, on]
    H = points.curvature(J, Z @ A + b)
    size = np.linalg.norm(A[on], axis=1)
    toward = A[on] / size[:, None] @ Q  # (m, r)
    for j in range(m):
        part = slice(j * r, (j + 1) * r)
        H[part, part] += points.lam / size[j] * (np.eye(r) - np.outer(toward[j], toward[j]))
    right = now.pull[on] @ Q - points.lam * toward
    if points.offset:
        H[m * r :, m * r :] += points.ridge * np.eye(r)
        right = np.vstack([right, now.pull_b @ Q])
    if not np.isfinite(H).all() or not np.isfinite(right).all():
        return None
    step = np.linalg.lstsq(H, right.ravel(), rcond=1e-13)[0].reshape(-1, r) @ Q.T
    to = A.copy()
    to[on] += step[:m]
    to[on[(to[on] * A[on]).sum(axis=1) <= 0]] = 0.0  # it would turn round: it has no mass
    return to, b + step[m] if points.offset else b


def _room(n: int, r: int, power: float) -> int:
    """How many neurons with r outputs the model of `n` points may have, to be solved by so many operations."""
    return bisect.bisect(range(1, MOST_THERE + 1), power, key=lambda p: (p * r) ** 2 * (2.0 * n + CONES * p * r))


def _model(
    points: Outputs,
    Z: np.ndarray,
    A: np.ndarray,
    b: np.ndarray,
    t: np.ndarray,
    g: np.ndarray,
    damping: float,
    time_limit: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The minimum of the quadratic model of the loss with the norms as they are, over outputs in the `frame`."""
    import clarabel  # where used: the package must import on machines without it

    n, m, Q = len(Z), len(A), points.frame  # (K, r)
    r = Q.shape[1]
    J = np.hstack([Z, np.ones((n, 1))]) if points.offset else Z
    p = J.shape[1]
    if not p:
        return A, b
    x = np.vstack([A, b]) @ Q if points.offset else A @ Q
    H = points.curvature(J, t)
    down = J.T @ g @ Q
    if points.offset:
        H[m * r :, m * r :] += points.ridge * np.eye(r)
        down[m] -= points.ridge * b @ Q
    # In units in which slopes and masses are about 1, and an output bias has a curvature of 1.
    force = max(points.lam, float(np.linalg.norm(down[:m], axis=1).max(initial=0.0)))
    curved = float(H.diagonal().max())
    if not curved > 0:  # every class is sure beyond all doubles
        return None
    unit = max(float(np.linalg.norm(A, axis=1).max(initial=0.0)), force / curved)
    scale = force * unit
    units = np.full(p * r, unit)
    if points.offset:
        units[m * r :] = np.sqrt(scale / H.diagonal()[m * r :].clip(1e-300))
    H = H * units * units[:, None] / scale
    if not np.isfinite(H).all():
        return None
    H[np.diag_indices_from(H)] += (1e-12 + damping) * H.diagonal().max()
    now = x.ravel() / units
    cost = np.append(-down.ravel() * units / scale, np.full(m, points.lam / force))  # in the step: nothing cancels
    P = sparse.block_diag([sparse.csc_matrix(np.triu(H)), sparse.csc_matrix((m, m))], format="csc")
    size, most = p * r, m * (r + 1)
    index = np.hstack([size + np.arange(m)[:, None], np.arange(m * r).reshape(m, r)]).ravel()
    cones = sparse.csc_matrix((-np.ones(most), (np.arange(most), index)), shape=(most, size + m))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    kinds = [clarabel.SecondOrderConeT(r + 1)] * m
    at = np.hstack([np.zeros((m, 1)), now[: m * r].reshape(m, r)]).ravel()
    solution = solve_cones(P, cost, cones, at, kinds, settings)
    solved = (units * (now + np.array(solution.x)[:size])).reshape(p, r) @ Q.T
    if not np.isfinite(solved).all():
        return None
    to = solved[:m]
    to[np.linalg.norm(to, axis=1) < 1e-8 * unit] = 0.0
    return to, solved[m] if points.offset else b
