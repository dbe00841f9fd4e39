"""Largest margins of linear predictors A (K, D) in other norms than the Euclidean one; K = 1 for two classes.

    margin = max_{N(A) <= 1} min_p <z_p, A> = min_{q in simplex} N*(sum_p q_p z_p)

z_p (K D,) are the points y_i x_i, or the pairs (e_{y_i} - e_j) x_i'. Linear programs for the largest entry and for the sum of
entries, an interior point method for singular values (`barrier`). Few rows matter, at most as many as A has entries and one:
they are found by adding those that the last answer treats worst. What the solvers say is evaluated on all rows: A gives the
lower bound and q the upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from widemargin.kinds import MATRIX_NORMS, VECTOR_NORMS
from widemargin.types import InputError, show

from . import barrier
from .door import EPS, Limits, svd_work
from .programs import maximise_last
from .rows import Best

DUAL = {"l1": "max", "max": "l1", "linf": "l1", "spectral": "nuclear", "nuclear": "spectral"}
ALL = 400  # rows up to which a program takes all at once
FIRST = 200  # rows of the first program otherwise, and at least so many new ones in a round
ROUNDS = 60
ROW_WORK = 100.0  # operations for each number of the rows of a program, at least

Tell = Callable[[float, float, str], None]


def check_norm(norm: object, known: Mapping[str, str]) -> None:
    """An InputError unless `norm` is one of those of a vector, or of a matrix."""
    if not isinstance(norm, str) or norm not in known:
        vector = known is VECTOR_NORMS
        other, whose = (
            (MATRIX_NORMS, "matrix U of several classes") if vector else (VECTOR_NORMS, "vector u of two classes")
        )
        hint = f"; {norm} is a norm of the {whose}" if isinstance(norm, str) and norm in other else ""
        raise InputError(f"norm must be one of {', '.join(known)}, not {show(norm)}{hint}")


def size(A: np.ndarray, norm: str) -> float:
    """The norm of A (K, D), rounded up."""
    if norm in ("max", "linf"):
        return float(np.abs(A).max())
    if norm == "l1":
        return float(np.abs(A).sum()) * (1 + EPS * (A.size + 2))
    values = np.linalg.svd(A, compute_uv=False)
    value = float(values[0] if norm == "spectral" else values.sum())
    return value * (1 + EPS * (16 * sum(A.shape) + 64))


@dataclass
class Rows:
    """The rows z_p: some of them as an array (k, K D), and the values <z_p, A> of all (P,) with what they may be off."""

    count: int
    shape: tuple[int, int]  # (K, D)
    some: Callable[[np.ndarray], np.ndarray]
    values: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    weighted: Callable[[np.ndarray], tuple[np.ndarray, float]]  # sum_p q_p z_p (K, D), and what an entry may be off


@dataclass
class Solved:
    """The best predictor A (K, D) and weights q (P,) so far, with the bounds that they give."""

    A: np.ndarray
    q: np.ndarray
    lower: float = -np.inf
    upper: float = np.inf
    rounds: int = 0
    rows: int = 0
    steps: int = 0
    stopped: str = ""

    def closed(self, tol: float) -> bool:
        return self.upper <= 0 or self.lower >= (1 - tol) * self.upper


def largest(rows: Rows, norm: str, tol: float, limits: Limits, tell: Tell | None = None) -> Solved:
    """The largest margin in a norm; both bounds hold whenever it ends."""
    n, width = rows.count, rows.shape[0] * rows.shape[1]
    room = limits.largest(n, lambda k: ROW_WORK * k * width, lambda k: 6.0 * k * width)
    best = Solved(np.zeros(rows.shape), np.full(n, 1 / n))
    _offer(
        rows, np.arange(n), norm, rows.weighted(best.q)[0], best.q, best
    )  # some bounds, however little time there is
    if n <= min(ALL, room):
        chosen = np.arange(n)
    else:
        chosen = np.unique(np.linspace(0, n - 1, min(FIRST, room)).astype(int))
    try:
        for best.rounds in range(1, ROUNDS + 1):
            before = best.lower, best.upper
            q, A = _round(rows, chosen, norm, tol, limits, best)
            best.rows = len(chosen)
            if tell is not None:
                tell(best.lower, best.upper, f"round {best.rounds}, {len(chosen)} rows")
            if len(chosen) < n and (limits.late() or len(chosen) >= room):
                best.stopped = "time-limit"
            if best.closed(tol) or best.stopped == "time-limit":
                break
            if best.lower <= 0 and norm in (
                "spectral",
                "nuclear",
            ):  # weights that cancel are a vertex, which an inner path rounds
                _offer(
                    rows,
                    chosen,
                    norm,
                    A,
                    _program(rows.some(chosen), "max", min(limits.left(), 1e9))[1],
                    best,
                )
            again = _next(rows, chosen, q, A, tol, stuck=(best.lower, best.upper) == before)
            if again is None:
                break
            chosen = again
    except KeyboardInterrupt:
        best.stopped = "interrupted"
    if best.closed(tol):
        best.stopped = ""
    return best


def _round(
    rows: Rows, chosen: np.ndarray, norm: str, tol: float, limits: Limits, best: Solved
) -> tuple[np.ndarray, np.ndarray]:
    """Solve for the chosen rows and offer what comes out; weights and predictor of the last look at them."""
    Z, K = rows.some(chosen), rows.shape[0]
    last: list[tuple[np.ndarray, np.ndarray]] = []

    def offer(A: np.ndarray, q: np.ndarray) -> bool:
        last.append((q, A))
        _offer(rows, chosen, norm, A, q, best)
        return best.closed(tol / 4)

    if norm in ("spectral", "nuclear"):
        reach = float(np.linalg.norm(Z, axis=1).max())
        best_A, most, best_q, least = np.zeros(rows.shape), -np.inf, np.zeros(len(chosen)), np.inf

        def done(A: np.ndarray, q: np.ndarray) -> bool:
            nonlocal best_A, most, best_q, least
            length, outer = size(A, norm), size((q @ Z).reshape(A.shape), DUAL[norm])
            inner = float((Z @ A.ravel()).min()) / length if length > 0 else 0.0  # 0 where rows cancel exactly
            if inner > most:
                best_A, most = A, inner
            if outer < least:
                best_q, least = q, outer
            return most >= (1 - max(tol / 16, 1e-12)) * least or least < 1e-13 * reach

        _, _, steps, stopped = barrier.solve(Z, K, norm, done, limits)
        best.steps += steps
        offer(best_A, best_q)
        if not steps and not limits.late():  # no room for its matrices: what a program knows that has none
            A, q, _ = _program(Z, "max", min(limits.left(), 1e9))
            offer(A.reshape(rows.shape), q)
    else:
        A, q, stopped = _program(Z, norm, min(max(0.0, limits.left()), 1e9))
        if not offer(A.reshape(rows.shape), q):
            for other, weights in _polished(Z, norm, A, q, limits):
                offer(other.reshape(rows.shape), weights)
            last.append(last[0])  # which rows are missing is seen from the program's own answer
    best.stopped = stopped
    return last[-1]


def _next(rows: Rows, chosen: np.ndarray, q: np.ndarray, A: np.ndarray, tol: float, stuck: bool) -> np.ndarray | None:
    """The rows of the next round: those that are worst treated join those that count. None where nothing is left to try."""
    values = rows.values(A)[0]
    level = float(values[chosen].min())
    below = values < level - abs(level) * tol / 8
    below[chosen] = False
    worse = np.flatnonzero(below)
    most = max(FIRST, len(chosen) // 2)
    new = worse[np.argsort(values[worse])[:most]]
    if len(new):
        return np.union1d(chosen, new)
    # All rows are satisfied, so that what is missing are digits: a program over the rows that count has more of them.
    slack = values[chosen] - level
    count = (q > 1e-5 * q.max()) | (slack <= 1e-5 * abs(level))
    return None if stuck or count.all() else chosen[count]


def offer_also(rows: Rows, norm: str, other: Best, best: Solved) -> None:
    """What another method found, the Euclidean one: it separates points beside which the digits of a program are too few."""
    if other.predictor is not None:
        _offer(rows, np.arange(rows.count), norm, other.predictor.reshape(rows.shape), other.q, best)
    if best.lower <= 0 and other.stopped:
        best.stopped = other.stopped  # whether it separates them was not found out


def _offer(rows: Rows, chosen: np.ndarray, norm: str, A: np.ndarray, q: np.ndarray, best: Solved) -> None:
    if np.isfinite(A).all() and A.any():
        A = A / np.abs(A).max()
        values, off = rows.values(A)
        least = float((values - off).min())
        lower = least / size(A, norm) * (1 - 4 * EPS) if least > 0 else least / float(np.abs(A).max())
        if lower > best.lower:
            best.A, best.lower = A, lower
    if np.isfinite(q).all() and q.sum() > 0:
        whole = np.zeros(rows.count)
        whole[chosen] = q / q.sum()
        M, error = rows.weighted(whole)
        dual = DUAL[norm]
        upper = size(M, dual) + error * (M.size if dual in ("l1", "nuclear") else 1 if dual == "max" else M.size**0.5)
        upper = upper / float(whole.sum()) * (1 + 2 * EPS * rows.count + 8 * EPS)
        if upper < best.upper:
            best.q, best.upper = whole, upper


# ---------------------------------------------------------------- linear programs


def _program(Z: np.ndarray, norm: str, time_limit: float) -> tuple[np.ndarray, np.ndarray, str]:
    """max t with Z a >= t, and |a_j| <= 1 or sum_j |a_j| <= 1: a (m,), q (k,), how it stopped."""
    k, m = Z.shape
    Z = Z / (float(np.abs(Z).max()) or 1.0)
    box = norm != "l1"
    # Columns a in the box, or a = p - r with p, r >= 0 and sum p + sum r <= 1; then t.
    A = np.hstack([Z if box else np.hstack([Z, -Z]), -np.ones((k, 1))])
    if not box:
        A = np.vstack([A, np.append(np.ones(2 * m), 0.0)])
    values, duals, stopped = maximise_last(A, k, (-1.0, 1.0) if box else (0.0, np.inf), time_limit)
    duals = np.abs(duals)
    if not duals[:k].sum() > 0:
        return np.zeros(m), np.full(k, 1 / k), stopped or "stalled"
    a = values[:m] if box else values[:m] - values[m : 2 * m]
    return a, duals[:k] / duals[:k].sum(), stopped


def _polished(
    Z: np.ndarray, norm: str, a: np.ndarray, q: np.ndarray, limits: Limits
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same vertex from its equations: what is tight stays so, and the digits that the program left out come back."""
    tight = np.flatnonzero(q > 1e-9 * q.max())
    rows = Z[tight] / (float(np.abs(Z).max()) or 1.0)
    s = len(tight)
    if norm == "l1":
        used = np.flatnonzero(np.abs(a) > 1e-9 * np.abs(a).max())
        signs = np.sign(a[used])
        # rows a = t, signs . a = 1;  signs_j (rows' q)_j = t, sum q = 1
        left = np.block([[rows[:, used], -np.ones((s, 1))], [signs, np.zeros(1)]])
        right = np.block([[rows[:, used].T * signs[:, None], -np.ones((len(used), 1))], [np.ones(s), np.zeros(1)]])
        first, second = np.append(np.zeros(s), 1.0), np.append(np.zeros(len(used)), 1.0)
        fixed = np.zeros_like(a)
    else:
        used = np.flatnonzero(np.abs(a) < 1 - 1e-9)
        fixed = np.where(np.abs(a) < 1 - 1e-9, 0.0, np.sign(a))
        # rows a = t with the others at the walls;  (rows' q)_j = 0 for a_j within, sum q = 1
        left = np.hstack([rows[:, used], -np.ones((s, 1))])
        right = np.vstack([rows[:, used].T, np.ones(s)])
        first, second = -rows @ fixed, np.append(np.zeros(len(used)), 1.0)
    if not limits.affords(4 * svd_work(*left.shape)):
        return []
    try:
        x = linalg.lstsq(left, first, check_finite=False)[0][: len(used)]
        y = linalg.lstsq(right, second, check_finite=False)[0][:s]
    except (linalg.LinAlgError, ValueError):
        return []
    other, weights = fixed.copy(), np.zeros_like(q)
    other[used] = x
    weights[tight] = y.clip(0)
    return [(other if norm == "l1" else other.clip(-1, 1), weights)]
