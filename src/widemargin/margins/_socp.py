"""The best network over given activation patterns as a cone program: margins, interpolation; and over neurons, for classes.

A neuron with activation pattern P (which points it is positive on) and output sign s is linear in its weights w on the data,
s relu(x_i . w) = s P_i x_i . w, as long as w stays in the pattern's cone (a leaky ReLU has its slope where P_i is 0). So over
K patterns, with f_i the value sum_k s_k P_ik x_i . w_k at point i, both problems are convex:

    max gamma   s.t.   y_i f_i >= gamma (margin), or f_i = gamma y_i (interpolation),
                       sum_k ||w_k|| <= 1,   (2 P_ik - 1) x_i . w_k >= 0.

The dual weights q of the first constraints are what the pricing problem needs. A column generation over single neurons
crawls because every neuron still has to move inside its cone; here that motion is solved for exactly. An interior-point
solver also returns a q in the middle of the optimal face, which stabilises the sequence of duals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Master:
    W: np.ndarray  # (K, d) weights, one neuron per pattern
    q: np.ndarray  # (n,) dual weights: in the simplex (margin), or of any signs with q . y = 1 (interpolation)
    gamma: float  # the solver's value; callers evaluate W and q themselves
    ok: bool


def solve(
    X: np.ndarray,
    y: np.ndarray,
    patterns: np.ndarray,
    signs: np.ndarray,
    *,
    slope: float = 0.0,
    interpolate: bool = False,
    directions: np.ndarray | None = None,
    near: int | None = None,
    tol: float = 1e-10,
    time_limit: float = 60.0,
) -> Master:
    """Solve over `patterns` (K, n) with output signs (K,), for points X (n, d) and targets y (n,).

    `near` limits the cone constraints per pattern to that many points, those closest to the pattern's boundary as seen
    from the best known neuron `directions` (K, d) inside it. Callers evaluate the true network, so a missing constraint
    costs a little of the lower bound and never its validity.
    """
    import clarabel  # where used: the package must import on machines without it

    n, d = X.shape
    K = len(patterns)
    columns = K * d + K + 1  # w, their norms, gamma
    labelled, target = (X, y) if interpolate else (y[:, None] * X, np.ones(n))
    gated = (signs[:, None] * np.where(patterns, 1.0, slope))[:, :, None] * labelled[None]  # (K, n, d)
    fit = np.hstack([-gated.transpose(1, 0, 2).reshape(n, K * d), np.zeros((n, K)), target[:, None]])
    total = np.zeros((1, columns))
    total[0, K * d : K * d + K] = 1
    chosen = np.tile(np.arange(n), (K, 1))  # (K, k)
    if directions is not None and near is not None and near < n:
        depth = np.where(patterns, 1, -1) * (directions @ X.T) / np.linalg.norm(X, axis=1)  # (K, n), negative outside
        chosen = np.argpartition(depth, near, axis=1)[:, :near]
    k = chosen.shape[1]
    side = np.where(np.take_along_axis(patterns, chosen, 1), -1.0, 1.0)[:, :, None] * X[chosen]  # (K, k, d)
    at = (np.arange(K)[:, None, None] * d + np.arange(d) + np.zeros((1, k, 1), int)).ravel()
    inside = sparse.csc_matrix((side.ravel(), (np.repeat(np.arange(K * k), d), at)), shape=(K * k, columns))
    index = np.concatenate([(K * d + np.arange(K))[:, None], np.arange(K * d).reshape(K, d)], 1).ravel()
    norms = sparse.csc_matrix((-np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), columns))
    A = sparse.vstack([sparse.csc_matrix(fit), sparse.csc_matrix(total), inside, norms]).tocsc()
    b, c = np.zeros(A.shape[0]), np.zeros(columns)
    b[n], c[-1] = 1, -1
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = tol
    settings.tol_feas = min(tol, 1e-8)
    kinds = [
        clarabel.ZeroConeT(n) if interpolate else clarabel.NonnegativeConeT(n),
        clarabel.NonnegativeConeT(1 + K * k),
        *[clarabel.SecondOrderConeT(d + 1)] * K,
    ]
    solution = clarabel.DefaultSolver(sparse.csc_matrix((columns, columns)), c, A, b, kinds, settings).solve()
    x, z = np.array(solution.x), np.array(solution.z)
    q = z[:n] if interpolate else z[:n].clip(0)
    if not (np.isfinite(x).all() and np.isfinite(q).all() and q @ target > 0.5):
        return Master(np.zeros((K, d)), np.full(n, 1 / n), 0.0, False)
    return Master(x[: K * d].reshape(K, d), q / (q @ target), float(x[-1]), True)


def solve_classes(
    X: np.ndarray, y: np.ndarray, V: np.ndarray, K: int, time_limit: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """The best outer weights W (m, K) of the neurons V (m, d), sum_j |w_j| <= 1, and the dual weights q (n, K), or None.

    max gamma   s.t.   sum_j relu(v_j . x_i) (w_{j, y_i} - w_{j, k}) >= gamma,   sum_j t_j <= 1,   |w_j| <= t_j
    """
    import clarabel  # where used: the package must import on machines without it

    n, m = len(X), len(V)
    H = (X @ V.T).clip(0)  # (n, m)
    points, others = np.nonzero(np.arange(K) != y[:, None])
    P = len(points)
    fit = np.zeros((P, m, K))
    rows = np.arange(P)
    fit[rows, :, y[points]] = -H[points]
    fit[rows, :, others] = H[points]
    top = np.hstack([fit.reshape(P, m * K), np.zeros((P, m)), np.ones((P, 1))])
    total = np.hstack([np.zeros(m * K), np.ones(m), [0.0]])[None]
    index = np.hstack([m * K + np.arange(m)[:, None], np.arange(m * K).reshape(m, K)]).ravel()
    norms = sparse.csc_matrix((-np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), m * K + m + 1))
    A = sparse.vstack([sparse.csc_matrix(np.vstack([top, total])), norms]).tocsc()
    b, c = np.zeros(A.shape[0]), np.zeros(A.shape[1])
    b[P], c[-1] = 1, -1
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = 1e-9
    kinds = [clarabel.NonnegativeConeT(P + 1), *[clarabel.SecondOrderConeT(K + 1)] * m]
    solution = clarabel.DefaultSolver(sparse.csc_matrix((len(c), len(c))), c, A, b, kinds, settings).solve()
    x, z = np.array(solution.x), np.array(solution.z)[:P].clip(0)
    if not (np.isfinite(x).all() and np.isfinite(z).all() and z.sum() > 0.5):
        return np.zeros((m, K)), None
    q = np.zeros((n, K))
    q[points, others] = z
    return x[: m * K].reshape(m, K), q / q.sum()
