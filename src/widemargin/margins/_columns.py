"""The linear program of the F1 solver over single neurons: one HiGHS model that grows as columns arrive."""

from __future__ import annotations

import numpy as np


class ColumnLP:
    """max gamma  s.t.  Z a >= gamma,  sum a <= 1,  a >= 0, with columns added and the last basis kept.

    With `target` (n,): Z a = gamma target instead, and the dual q has any signs with q . target = 1.
    """

    def __init__(self, n: int, target: np.ndarray | None = None):
        import highspy

        self.n, self.size, self.target = n, 0, target
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self.highs.setOptionValue(name, 1e-10)  # relative to a margin of about 1: gaps of 1e-6 are asked for
        self.highs.setOptionValue("simplex_strategy", 4)  # primal simplex: new columns keep the basis primal feasible
        infinity = highspy.kHighsInf
        none = np.array([], dtype=np.int32), np.array([], dtype=np.float64)
        self.highs.addRow(-infinity, 1.0, 0, *none)  # sum a <= 1
        for _ in range(n):
            self.highs.addRow(0.0, infinity if target is None else 0.0, 0, *none)
        gamma = np.full(n, -1.0) if target is None else -target
        self.highs.addCol(-1.0, -infinity, infinity, n, np.arange(1, n + 1, dtype=np.int32), gamma)

    def add_points(self, Z: np.ndarray) -> None:
        """New rows Z (m, k) of the columns there are."""
        import highspy

        for z in Z:
            index = np.append(0, np.flatnonzero(z) + 1).astype(np.int32)
            self.highs.addRow(0.0, highspy.kHighsInf, len(index), index, np.append(-1.0, z[index[1:] - 1]))
        self.n += len(Z)

    def add(self, Z: np.ndarray) -> None:
        """New columns Z (n, k): y_i s_k phi(v_k . x_i)."""
        import highspy

        infinity = highspy.kHighsInf
        for z in Z.T:
            index = np.append(0, np.flatnonzero(z) + 1).astype(np.int32)
            self.highs.addCol(0.0, 0.0, infinity, len(index), index, np.append(1.0, z[index[1:] - 1]))
        self.size += Z.shape[1]

    def solve(self, time_limit: float = 60.0) -> tuple[np.ndarray, np.ndarray]:
        """a (k,) and q (n,) in the simplex; callers evaluate both."""
        self.highs.setOptionValue("time_limit", float(self.highs.getRunTime() + max(time_limit, 0.05)))
        self.highs.run()
        solution = self.highs.getSolution()
        a = np.array(solution.col_value)[1:].clip(0)
        dual = np.array(solution.row_dual)[1:]
        if self.target is not None:
            good = len(a) == self.size and len(dual) == self.n and abs(dual @ self.target) > 0.5
            return (a, dual / (dual @ self.target)) if good else (np.zeros(self.size), np.zeros(self.n))
        q = np.abs(dual)
        if len(a) != self.size or not q.sum() > 0:
            return np.zeros(self.size), np.full(self.n, 1 / self.n)
        return a, q / q.sum()


class ScipyLP:
    """The same with scipy, for machines without highspy: solved anew each time."""

    def __init__(self, n: int, target: np.ndarray | None = None):
        self.Z, self.target = np.zeros((n, 0)), target

    def add(self, Z: np.ndarray) -> None:
        self.Z = np.hstack([self.Z, Z])

    def add_points(self, Z: np.ndarray) -> None:
        self.Z = np.vstack([self.Z, Z])

    def solve(self, time_limit: float = 60.0) -> tuple[np.ndarray, np.ndarray]:
        from scipy.optimize import linprog

        n, k = self.Z.shape
        if self.target is not None:
            result = linprog(
                np.append(np.zeros(k), -1.0),
                np.append(np.ones(k), 0.0)[None],
                [1.0],
                np.hstack([self.Z, -self.target[:, None]]),
                np.zeros(n),
                bounds=[(0, None)] * k + [(None, None)],
                method="highs",
                options={"time_limit": max(time_limit, 0.05)},
            )
            dual = np.zeros(n) if result.x is None else result.eqlin.marginals
            if abs(dual @ self.target) < 0.5:
                return np.zeros(k), np.zeros(n)
            return result.x[:-1].clip(0), dual / (dual @ self.target)
        A = np.vstack([np.hstack([-self.Z, np.ones((n, 1))]), np.append(np.ones(k), 0.0)[None]])
        result = linprog(
            np.append(np.zeros(k), -1.0),
            A,
            np.eye(n + 1)[n],
            bounds=[(0, None)] * k + [(None, None)],
            method="highs",
            options={"time_limit": max(time_limit, 0.05)},
        )
        if result.x is None:
            return np.zeros(k), np.full(n, 1 / n)
        q = np.maximum(-result.ineqlin.marginals[:n], 0)
        return result.x[:-1].clip(0), q / q.sum() if q.sum() > 0 else np.full(n, 1 / n)


def column_lp(n: int, target: np.ndarray | None = None) -> ColumnLP | ScipyLP:
    try:
        return ColumnLP(n, target)
    except ImportError:
        return ScipyLP(n, target)


def new_directions(V: np.ndarray, known: np.ndarray, near: float, apart: float, most: int) -> np.ndarray:
    """Up to `most` rows of V (best first) farther than `near` from all of `known` and than `apart` from each other (squares)."""
    fresh: list[np.ndarray] = []
    for v in V:
        if len(known) and ((known - v) ** 2).sum(axis=1).min() <= near:
            continue
        if fresh and ((np.array(fresh) - v) ** 2).sum(axis=1).min() <= apart:
            continue
        fresh.append(v)
        if len(fresh) == most:
            break
    return np.array(fresh).reshape(-1, V.shape[1])
