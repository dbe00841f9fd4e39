"""The best mixture of given units: the linear program over the simplex."""

from __future__ import annotations

import numpy as np


def best_mixture(Z: np.ndarray) -> np.ndarray | None:
    """p >= 0 (m,) with sum 1 and the largest min_i (Z p)_i, Z (n, m), up to the tolerance of the solver; None where it gives up.

    The margin of p may be negative. What p is worth is for the caller to evaluate.
    """
    from scipy.optimize import linprog

    n, m = Z.shape
    A = np.hstack([-Z / (np.abs(Z).max() or 1.0), np.ones((n, 1))])  # t - (Z p)_i <= 0
    mass = np.append(np.ones(m), 0.0)[None]
    limits = [(0, None)] * m + [(None, None)]
    exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solution = linprog(-np.eye(m + 1)[-1], A, np.zeros(n), mass, [1.0], bounds=limits, method="highs", options=exact)
    if solution.x is None or not solution.x[:-1].clip(0).sum() > 0:
        return None
    p = solution.x[:-1].clip(0)
    return p / p.sum()
