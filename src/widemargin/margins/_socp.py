"""The master problem of the F1 solver: the best network over a pool of activation patterns. The only caller of the cone solver.

A neuron with activation pattern P (which points it is positive on) and output sign s is linear in its weights w on the data:
s relu(x_i . w) = s P_i x_i . w, as long as w stays in the pattern's cone. So over K patterns the margin is a convex problem,

    max gamma   s.t.   sum_k s_k y_i P_ik x_i . w_k >= gamma  (all i),   sum_k ||w_k|| <= 1,   (2 P_ik - 1) x_i . w_k >= 0,

whose dual weights q of the first constraints are what the pricing problem needs. A column generation over single neurons
crawls because every neuron still has to move inside its cone; here that motion is solved for exactly. An interior-point
solver also returns a q in the middle of the optimal face, which stabilises the sequence of duals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Master:
    W: np.ndarray  # (K, d) weights, one neuron per pattern
    q: np.ndarray  # (n,) dual weights in the simplex
    gamma: float  # the solver's value; callers evaluate W and q themselves
    ok: bool


def solve(
    X: np.ndarray,
    y: np.ndarray,
    patterns: np.ndarray,
    signs: np.ndarray,
    directions: np.ndarray,
    near: int,
    tol: float,
    time_limit: float,
    threads: int = 1,
) -> Master:
    """Solve the master over `patterns` (K, n) with output signs (K,).

    `near` limits the cone constraints per pattern to that many points, those closest to the pattern's boundary as seen
    from the best known neuron `directions` (K, d) inside it; callers evaluate the true network, so a
    missing constraint costs a little of the
    lower bound and never its validity.
    """
    import clarabel
    from scipy import sparse

    n, d = X.shape
    K = len(patterns)
    columns = K * d + K + 1  # w, their norms, gamma
    gated = (signs[:, None] * patterns)[:, :, None] * (y[:, None] * X)[None]  # (K, n, d)
    margin = np.hstack([-gated.transpose(1, 0, 2).reshape(n, K * d), np.zeros((n, K)), np.ones((n, 1))])
    total = np.zeros((1, columns))
    total[0, K * d : K * d + K] = 1
    side = np.where(patterns, -1.0, 1.0)  # (K, n)
    chosen = _closest(X, directions, near)  # (K, near)
    cone = -np.take_along_axis(-side, chosen, 1)[:, :, None] * X[chosen]  # (K, near, d)
    k = chosen.shape[1]
    cones_block = sparse.csc_matrix(
        (
            cone.ravel(),
            (
                np.repeat(np.arange(K * k), d),
                (np.arange(K)[:, None, None] * d + np.arange(d) + np.zeros((1, k, 1), int)).ravel(),
            ),
        ),
        shape=(K * k, columns),
    )
    index = np.concatenate([(K * d + np.arange(K))[:, None], np.arange(K * d).reshape(K, d)], 1).ravel()
    norms = sparse.csc_matrix((-np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), columns))
    A = sparse.vstack([sparse.csc_matrix(margin), sparse.csc_matrix(total), cones_block, norms]).tocsc()
    b = np.zeros(A.shape[0])
    b[n] = 1
    c = np.zeros(columns)
    c[-1] = -1
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = threads
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = tol
    settings.tol_feas = min(tol, 1e-8)
    kinds = [clarabel.NonnegativeConeT(n + 1 + K * k)] + [clarabel.SecondOrderConeT(d + 1)] * K
    solution = clarabel.DefaultSolver(sparse.csc_matrix((columns, columns)), c, A, b, kinds, settings).solve()
    x, z = np.array(solution.x), np.array(solution.z)
    q = z[:n].clip(0)
    ok = bool(np.isfinite(x).all() and np.isfinite(q).all() and q.sum() > 0.5)
    if not ok:
        return Master(np.zeros((K, d)), np.full(n, 1 / n), 0.0, False)
    return Master(x[: K * d].reshape(K, d), q / q.sum(), float(x[-1]), True)


def _closest(X: np.ndarray, directions: np.ndarray, near: int) -> np.ndarray:
    n = len(X)
    if near >= n:
        return np.broadcast_to(np.arange(n), (len(directions), n)).copy()
    depth = np.abs(directions @ X.T) / np.linalg.norm(X, axis=1)  # (K, n)
    return np.argpartition(depth, near, axis=1)[:, :near]
