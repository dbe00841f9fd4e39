"""Neurons that move: Newton steps on a network's own weights, kinks included.

A network is f(x) = sum_k s_k relu(W_k . x) + b with objective  sum_i w_i loss(y_i, f(x_i)) + lam sum_k |W_k| + (ridge / 2) b^2.
In a step the loss is its quadratic model, the norms are exact, and a neuron's value at a point is one of three things:

- linear, on the side where the point is now, for most points;
- linear, too, where the kink is concave (s_k c_i > 0, c the dual weights): there the model lies above the objective;
- a variable u >= 0, u >= W_k . x_i where the kink is convex (s_k c_i < 0) and the step may reach it. Best neurons lie in such
  kinks as a rule, and there a step ends exactly in them.

Each step is a quadratic program with second-order cones; a line search looks at the objective itself.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from scipy import sparse

from widemargin.margins.door import speed
from widemargin.margins.programs import solve_cones

from .losses import Loss
from .master import Points

VARIABLES, MOST_KINKS = 1500, 400  # more of them take seconds
AGAIN = 3  # times a step may be worked out again with the kinks that it crossed
LEAST = 0.3  # seconds on the real clock that a program is given: one that is cut short ends elsewhere every time
KINKS = 6  # of a neuron, besides one for each dimension, that are there from the start


def slide(
    points: Points, loss: Loss, X: np.ndarray, W: np.ndarray, s: np.ndarray, b: float, time_limit: float
) -> tuple[np.ndarray, float, float] | None:
    """One step for points X (n, r) from neurons W (K, r) with output signs s: new W and b, and by how much the objective fell.

    None where no step was found.
    """
    (n, r), K = X.shape, len(W)
    if not K or K * r > VARIABLES:
        return None
    T = X @ W.T  # (n, K)
    t = T.clip(0) @ s + b
    size = np.linalg.norm(W, axis=1)
    value = points.objective(loss, t, float(size.sum()), b)
    c = points.pull(loss, t)
    convex = s * c[:, None] < 0  # (n, K) convex kinks
    length = np.linalg.norm(X, axis=1)
    near = np.where(convex, np.abs(T) / (length[:, None] * size).clip(1e-300), np.inf)
    count = min(n, r + KINKS)
    kink = np.zeros((n, K), dtype=bool)
    first = np.argpartition(near, count - 1, axis=0)[:count]
    kink[first, np.arange(K)] = True
    kink &= convex & (near < 0.1)
    new, until = None, time.perf_counter() + time_limit
    for _ in range(AGAIN):
        left = until - time.perf_counter()
        if 2.0 * n * (K * r + kink.sum()) ** 2 > (left + LEAST) * speed():  # a product of matrices looks at no clock
            break
        new = _model(points, loss, _Now(X, W, s, b, T, t, c), kink, left)
        if new is None:
            return None
        crossed = convex & ~kink & ((X @ new[0].T > 0) != (T > 0)) & new[0].any(axis=1)
        if not crossed.any() or kink.sum() + crossed.sum() > MOST_KINKS:
            break
        kink |= crossed
    if new is None:
        return None
    rate = 1.0
    for _ in range(12):
        V, offset = W + rate * (new[0] - W), b + rate * (new[1] - b)
        reached = points.objective(loss, (X @ V.T).clip(0) @ s + offset, float(np.linalg.norm(V, axis=1).sum()), offset)
        if reached < value:
            return V, offset, value - reached
        rate /= 2
    return None


class _Now(NamedTuple):
    """The network where a step begins, and what it does to the points."""

    X: np.ndarray  # (n, r)
    W: np.ndarray  # (K, r)
    s: np.ndarray  # (K,)
    b: float
    T: np.ndarray  # (n, K) values before the kink
    t: np.ndarray  # (n,) outputs
    c: np.ndarray  # (n,) how the losses pull at them


def _model(
    points: Points, loss: Loss, network: _Now, kink: np.ndarray, time_limit: float
) -> tuple[np.ndarray, float] | None:
    """The minimum of the model: new W and b."""
    import clarabel  # where used: the package must import on machines without it

    X, W, s, b, T, t, c = network
    (n, r), K = X.shape, len(W)
    gate = ((T > 0) & ~kink) * s  # (n, K)
    at, of = np.nonzero(kink)
    q = len(at)
    J = np.zeros((n, K * r + q + 1))
    J[:, : K * r] = (gate[:, :, None] * X[:, None, :]).reshape(n, K * r)
    J[at, K * r + np.arange(q)] = s[of]
    J[:, -1] = points.offset
    now = np.concatenate([W.ravel(), T[at, of].clip(0), [b]])
    J, now = (J, now) if points.offset else (J[:, :-1], now[:-1])
    with np.errstate(over="ignore", invalid="ignore"):
        H = (J * (points.w * loss.curvature(points.y, t))[:, None]).T @ J
        g = -(J.T @ c)
    if points.offset:
        H[-1, -1] += points.ridge
        g[-1] += points.ridge * b
    with np.errstate(over="ignore", invalid="ignore"):
        g = g - H @ now
    # In units in which the decay is 1 and the neurons are about 1, and an output bias has a curvature of 1.
    unit = float(np.linalg.norm(W, axis=1).max()) or 1.0
    scale = points.lam * unit
    m = len(now)  # then the norms, K of them
    units = np.full(m, unit)
    if points.offset:
        units[-1] = math.sqrt(scale / float(H[-1, -1])) if H[-1, -1] > 0 else unit
    with np.errstate(over="ignore", invalid="ignore"):
        H, g = H * units * units[:, None] / scale, g * units / scale
    if not (np.isfinite(H).all() and np.isfinite(g).all()):
        return None
    P = sparse.block_diag([sparse.csc_matrix(np.triu(H)), sparse.csc_matrix((K, K))], format="csc")
    cost = np.append(g, np.ones(K))
    up = sparse.csc_matrix((-np.ones(q), (np.arange(q), K * r + np.arange(q))), shape=(q, m + K))  # u >= 0
    rows = np.repeat(np.arange(q), r)
    columns = (of[:, None] * r + np.arange(r)).ravel()
    above = up + sparse.csc_matrix((X[at].ravel(), (rows, columns)), shape=(q, m + K))  # u >= W x
    index = np.hstack([m + np.arange(K)[:, None], np.arange(K * r).reshape(K, r)]).ravel()
    norms = sparse.csc_matrix((-np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), m + K))
    A = sparse.vstack([up, above, norms], format="csc")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, LEAST)
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
    kinds = [clarabel.NonnegativeConeT(2 * q)] * (q > 0) + [clarabel.SecondOrderConeT(r + 1)] * K
    solution = solve_cones(P, cost, A, np.zeros(A.shape[0]), kinds, settings)
    x = units * np.array(solution.x)[:m]
    if not np.isfinite(x).all():
        return None
    new = x[: K * r].reshape(K, r)
    new[np.linalg.norm(new, axis=1) < 1e-9 * unit] = 0.0
    return new, float(x[m - 1]) if points.offset else 0.0
