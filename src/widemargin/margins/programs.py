"""The programs between rounds of pricing: linear ones over neurons, cone programs over activation patterns and for classes.

Over patterns: a neuron with activation pattern P (which points it is positive on) and output sign s is linear in its weights w
on the data, s relu(x_i . w) = s P_i x_i . w, as long as w stays in the pattern's cone (a leaky ReLU has its slope where P_i is
0). So over K patterns, with f_i the value sum_k s_k P_ik x_i . w_k at point i, both problems are convex:

    max gamma   s.t.   y_i f_i >= gamma (margin), or f_i = gamma y_i (interpolation),
                       sum_k ||w_k|| <= 1,   (2 P_ik - 1) x_i . w_k >= 0.

The dual weights q of the first constraints are what the pricing problem needs. A column generation over single neurons
crawls because every neuron still has to move inside its cone; here that motion is solved for exactly. An interior-point
solver also returns a q in the middle of the optimal face, which stabilises the sequence of duals.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

AWAITED = 1.0  # seconds that a cone program which was interrupted may take to end by itself
WRITING = 1.5e-7  # seconds for an entry of a program, to write it down
SMALL = 100_000  # entries of a program that is begun whatever the time is


def solve_cones(*program: Any) -> Any:
    """The solution of a cone program, (P, q, A, b, cones, settings) of clarabel, in a thread of its own.

    In its code nothing hears Ctrl-C, and a large program takes a minute. One that was interrupted ends at its own time limit.
    """
    import clarabel  # where used: the package must import on machines without it

    found: list[Any] = []

    def work() -> None:
        try:
            found.append(clarabel.DefaultSolver(*program).solve())
        except BaseException as error:  # those of Rust are no Exception
            found.append(error)

    thread = threading.Thread(target=work, name="widemargin cones", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there is no room for one
        work()
    try:
        while thread.is_alive():
            thread.join(0.2)  # a signal that another thread was given is heard here only now and then
    except KeyboardInterrupt:
        thread.join(AWAITED)  # else it might end while Python does
        raise
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


class ColumnLP:
    """max gamma  s.t.  Z a >= gamma,  sum a <= 1,  a >= 0, with columns added and the last basis kept.

    With `target` (n,): Z a = gamma target instead, and the dual q has any signs with q . target = 1.
    """

    def __init__(self, n: int, target: np.ndarray | None = None):
        import highspy  # where used: the package must import on machines without it

        self.n, self.size, self.target, self.infinity = n, 0, target, highspy.kHighsInf
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self.highs.setOptionValue(name, 1e-10)  # relative to a margin of about 1: gaps of 1e-6 are asked for
        self.highs.setOptionValue("simplex_strategy", 4)  # primal simplex: new columns keep the basis primal feasible
        infinity = self.infinity
        none = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
        self.highs.addRow(-infinity, 1.0, 0, *none)  # sum a <= 1
        for _ in range(n):
            self.highs.addRow(0.0, infinity if target is None else 0.0, 0, *none)
        gamma = np.full(n, -1.0) if target is None else -target
        self.highs.addCol(-1.0, -infinity, infinity, n, np.arange(1, n + 1, dtype=np.int32), gamma)

    def add_points(self, Z: np.ndarray) -> None:
        """New rows Z (m, k) of the columns there are."""
        for z in Z:
            index = np.append(0, np.flatnonzero(z) + 1).astype(np.int32)
            self.highs.addRow(0.0, self.infinity, len(index), index, np.append(-1.0, z[index[1:] - 1]))
        self.n += len(Z)

    def add(self, Z: np.ndarray) -> None:
        """New columns Z (n, k): y_i s_k phi(v_k . x_i)."""
        for z in Z.T:
            index = np.append(0, np.flatnonzero(z) + 1).astype(np.int32)
            self.highs.addCol(0.0, 0.0, self.infinity, len(index), index, np.append(1.0, z[index[1:] - 1]))
        self.size += Z.shape[1]

    def solve(self, time_limit: float = 60.0) -> tuple[np.ndarray, np.ndarray]:
        """a (k,) and q (n,) in the simplex; callers evaluate both."""
        self.highs.setOptionValue("time_limit", float(self.highs.getRunTime() + max(time_limit, 0.05)))
        self.highs.run()
        solution = self.highs.getSolution()
        a = np.array(solution.col_value)[1:].clip(0)
        dual = np.array(solution.row_dual)[1:]
        found = _are_numbers(a, self.size) and _are_numbers(dual, self.n)
        if self.target is not None:
            found = found and abs(dual @ self.target) > 0.5
            return (a, dual / (dual @ self.target)) if found else (np.zeros(self.size), np.zeros(self.n))
        q = np.abs(dual)
        if not found or not q.sum() > 0:
            return np.zeros(self.size), np.full(self.n, 1 / self.n)
        return a, q / q.sum()


def _are_numbers(values: np.ndarray, count: int) -> bool:
    """Whether a solver has numbers for all: where it is stopped it may have none, or infinite ones."""
    return len(values) == count and bool(np.isfinite(values).all())


def matrix_game(Z: np.ndarray, time_limit: float | None = None) -> tuple[np.ndarray, np.ndarray, str]:
    """max_{||a||_1 <= 1} min_i (Z a)_i for Z (n, m), and its dual min_{q in simplex} max_j |(Z' q)_j|.

    Returns a (m,), q (n,) and how it stopped: "", "time-limit", or "stalled" where the solver gave up. a and q are
    approximate: callers evaluate them.
    """
    n, m = Z.shape
    scale = float(np.abs(Z).max()) or 1.0
    # Variables p, r >= 0 (a = p - r) and t free: maximise t with Z p - Z r - t >= 0 and sum p + sum r <= 1.
    A = np.zeros((n + 1, 2 * m + 1))
    A[:n, :m] = Z / scale
    A[:n, m:-1] = -A[:n, :m]
    A[:n, -1], A[n, :-1] = -1, 1
    values, duals, stopped = maximise_last(A, n, (0.0, np.inf), time_limit)
    a = values[:m].clip(0) - values[m:-1].clip(0)
    q = np.abs(duals[:n])
    return a, q / q.sum() if q.sum() > 0 else np.full(n, 1 / n), stopped


def maximise_last(
    A: np.ndarray, n: int, between: tuple[float, float], time_limit: float | None
) -> tuple[np.ndarray, np.ndarray, str]:
    """Maximise the last variable with A[:n] x >= 0, A[n:] x <= 1 and the other variables in between.

    Returns values and row duals, zeros where there are none, and how it stopped: "", "time-limit" or "stalled".
    """
    import highspy  # where used: the package must import on machines without it

    began = time.perf_counter()
    rows, columns = A.shape
    late = np.zeros(columns), np.zeros(rows), "time-limit"
    if time_limit is not None and A.size > SMALL and WRITING * A.size > time_limit:
        return late
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = np.append(np.zeros(columns - 1), -1.0)
    lp.col_lower_ = np.append(np.full(columns - 1, between[0]), -np.inf)
    lp.col_upper_ = np.append(np.full(columns - 1, between[1]), np.inf)
    lp.row_lower_ = np.append(np.zeros(n), np.full(rows - n, -np.inf))
    lp.row_upper_ = np.append(np.full(n, np.inf), np.ones(rows - n))
    present = A.T != 0  # (columns, rows)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], present.sum(axis=1).cumsum()])
    lp.a_matrix_.index_ = np.nonzero(present)[1]
    lp.a_matrix_.value_ = A.T[present]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        solver.setOptionValue(name, 1e-10)
    solver.passModel(lp)
    if time_limit is not None:
        left = time_limit - (time.perf_counter() - began)
        if left <= 0 and A.size > SMALL:
            return late
        solver.setOptionValue("time_limit", max(left, 0.01))
    solver.run()
    solution = solver.getSolution()
    stopped = "time-limit" if solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit else ""
    values, duals = np.array(solution.col_value), np.array(solution.row_dual)
    if not (_are_numbers(values, columns) and _are_numbers(duals, rows)):
        return np.zeros(columns), np.zeros(rows), stopped or "stalled"
    return values, duals, stopped


@dataclass(frozen=True)
class Master:
    W: np.ndarray  # (K, d) weights, one neuron per pattern
    q: np.ndarray  # (n,) dual weights: in the simplex (margin), or of any signs with q . y = 1 (interpolation)
    gamma: float  # the solver's value; callers evaluate W and q themselves
    ok: bool


def solve_patterns(
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
    solution = solve_cones(sparse.csc_matrix((columns, columns)), c, A, b, kinds, settings)
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
    # Each row has entries at two classes of each neuron: of a hundred classes all others are 0.
    first = K * np.arange(m)
    places = np.hstack([first + y[points, None], first + others[:, None], np.full((P, 1), m * K + m)])
    values = np.hstack([-H[points], H[points], np.ones((P, 1))])
    starts = np.arange(P + 1) * (2 * m + 1)
    top = sparse.csr_matrix((values.ravel(), places.ravel(), starts), shape=(P, m * K + m + 1))
    top.eliminate_zeros()
    total = np.hstack([np.zeros(m * K), np.ones(m), [0.0]])[None]
    index = np.hstack([m * K + np.arange(m)[:, None], np.arange(m * K).reshape(m, K)]).ravel()
    norms = sparse.csc_matrix((-np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), m * K + m + 1))
    A = sparse.vstack([top, sparse.csr_matrix(total), norms]).tocsc()
    A.sort_indices()
    b, c = np.zeros(A.shape[0]), np.zeros(A.shape[1])
    b[P], c[-1] = 1, -1
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.time_limit = max(time_limit, 0.1)
    settings.tol_gap_abs = settings.tol_gap_rel = 1e-9
    kinds = [clarabel.NonnegativeConeT(P + 1), *[clarabel.SecondOrderConeT(K + 1)] * m]
    solution = solve_cones(sparse.csc_matrix((len(c), len(c))), c, A, b, kinds, settings)
    x, z = np.array(solution.x), np.array(solution.z)[:P].clip(0)
    if not (np.isfinite(x).all() and np.isfinite(z).all() and z.sum() > 0.5):
        return np.zeros((m, K)), None
    q = np.zeros((n, K))
    q[points, others] = z
    return x[: m * K].reshape(m, K), q / q.sum()
