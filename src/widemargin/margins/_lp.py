"""Matrix games as linear programs: the only caller of the LP solver here."""

from __future__ import annotations

import numpy as np


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
    values, duals, stopped = _maximise_last(A, n, time_limit)
    a = values[:m].clip(0) - values[m:-1].clip(0)
    q = np.abs(duals[:n])
    return a, q / q.sum() if q.sum() > 0 else np.full(n, 1 / n), stopped


def _maximise_last(A: np.ndarray, n: int, time_limit: float | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Maximise the last variable with A[:n] x >= 0, A[n] x <= 1, the others >= 0: values, row duals, how it stopped."""
    rows, columns = A.shape
    try:
        import highspy
    except ImportError:
        return _maximise_with_scipy(A, n, time_limit)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = np.eye(columns)[-1] * -1.0
    lp.col_lower_ = np.concatenate([np.zeros(columns - 1), [-highspy.kHighsInf]])
    lp.col_upper_ = np.full(columns, highspy.kHighsInf)
    lp.row_lower_ = np.concatenate([np.zeros(n), [-highspy.kHighsInf]])
    lp.row_upper_ = np.concatenate([np.full(n, highspy.kHighsInf), [1.0]])
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
    if time_limit is not None:
        solver.setOptionValue("time_limit", max(time_limit, 0.01))
    solver.passModel(lp)
    solver.run()
    solution = solver.getSolution()
    stopped = "time-limit" if solver.getModelStatus() == highspy.HighsModelStatus.kTimeLimit else ""
    values, duals = np.array(solution.col_value), np.array(solution.row_dual)
    if len(values) != columns or len(duals) != rows:
        return np.zeros(columns), np.zeros(rows), stopped or "stalled"
    return values, duals, stopped


def _maximise_with_scipy(A: np.ndarray, n: int, time_limit: float | None) -> tuple[np.ndarray, np.ndarray, str]:
    from scipy.optimize import linprog

    rows, columns = A.shape
    signed = np.vstack([-A[:n], A[n:]])
    options: dict[str, float] = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    if time_limit is not None:
        options["time_limit"] = max(time_limit, 0.01)
    limits = [(0, None)] * (columns - 1) + [(None, None)]
    result = linprog(-np.eye(columns)[-1], signed, np.eye(rows)[n], bounds=limits, method="highs", options=options)
    stopped = {0: "", 1: "time-limit"}.get(result.status, "stalled")
    if result.x is None:
        return np.zeros(columns), np.zeros(rows), stopped or "stalled"
    return result.x, result.ineqlin.marginals, stopped
