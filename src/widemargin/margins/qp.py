"""min q'Kq over the simplex: the nearest point to the origin in a convex hull, for kernel and linear margins.

`solve(K)` takes the Gram matrix, `solve_factor(Z)` takes Z with K = Z Z' and costs n m^2 instead of n^3 per step. Both
first rescale K to unit diagonal maximum and return weights q; callers evaluate both bounds from q by the definition.

Strictly definite K: block principal pivoting (Judice and Pires) on the equivalent min a'Ka/2 - sum a, a >= 0, whose
solution on a guessed support is one linear solve; guesses come from nested random subsets, each twice the one before.
Otherwise, or where pivoting cycles: a primal-dual interior point method with Mehrotra's corrector.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

VANISHED, NEARLY = 1e-30, 1e-12  # squares of mixtures of points of size 1: nothing is left, and perhaps nothing
TORCH_FROM = 100  # from this size on, products and factors of K use torch

Solver = Callable[[np.ndarray], np.ndarray]
Tell = Callable[[float, float, str], None]  # lower, upper, message


@dataclass
class Progress:
    """The best weights so far, by the relative gap 1 - min(Kq) / q'Kq, and the clock."""

    tol: float
    deadline: float = np.inf
    q: np.ndarray = field(default_factory=lambda: np.zeros(0))
    gap: float = np.inf
    value: float = np.inf
    steps: int = 0
    method: str = ""
    stopped: str = ""  # "", time-limit, interrupted
    tell: Tell | None = None  # called with the bounds of the best weights after every step,
    unit: float = 1.0  # in units of the caller

    def offer(self, q: np.ndarray, Kq: np.ndarray, method: str) -> bool:
        """Keep q if it is better; true when the goal is reached (or the value is zero up to rounding)."""
        self.steps += 1
        value = float(q @ Kq)
        gap = 1 - float(Kq.min()) / value if value > 0 else np.inf
        if gap < min(self.gap, 1) or (self.gap >= 1 and value < self.value):
            self.q, self.gap, self.value, self.method = q, gap, value, method
        if self.tell is not None:
            upper = self.unit * math.sqrt(max(self.value, 0.0))
            self.tell((1 - min(self.gap, 1.0)) * upper, upper, f"step {self.steps}, {self.method}")
        return self.gap <= self.tol

    @property
    def unfinished(self) -> bool:
        return self.gap > self.tol and self.value > VANISHED

    @property
    def late(self) -> bool:
        if time.perf_counter() > self.deadline:
            self.stopped = "time-limit"
        return bool(self.stopped)


def solve(K: np.ndarray, tol: float, deadline: float = np.inf, tell: Tell | None = None) -> Progress:
    """Weights q for a symmetric positive semidefinite K (n, n) with a positive diagonal."""
    scale = float(K.diagonal().max())
    n = len(K)
    work = K if 0.25 <= scale <= 4 else K / scale
    progress = _start(n, tol, deadline, tell, 1.0 if work is K else math.sqrt(scale))
    try:
        progress.offer(progress.q, _times(work, progress.q), "start")
        if progress.unfinished and not _nested_pivoting(work, progress) and not progress.late:
            _interior_point(n, lambda q: _times(work, q), lambda e: _dense_solver(work, e), progress)
    except KeyboardInterrupt:
        progress.stopped = "interrupted"
    return progress


def solve_factor(Z: np.ndarray, tol: float, deadline: float = np.inf, tell: Tell | None = None) -> Progress:
    """Weights q for K = Z Z', Z (n, m)."""
    n, m = Z.shape
    scale = float(np.linalg.norm(Z, axis=1).max())
    if m >= n > 300:  # one Gram matrix is cheaper, and accurate unless the value is tiny
        progress = solve(Z @ Z.T, tol, deadline, tell)
        if (progress.gap <= tol and progress.value > 1e-6) or progress.stopped:
            return progress
    work = Z / scale if m < max(n, 300) else linalg.qr(Z.T / scale, mode="r", check_finite=False)[0][:n].T
    progress = _start(n, tol, deadline, tell, scale)
    try:
        progress.offer(progress.q, work @ (progress.q @ work), "start")
        if progress.unfinished:
            _interior_point(n, lambda q: work @ (q @ work), lambda e: _factor_solver(work, e), progress)
            _polish(work, progress)
            _mix_to_zero(work, progress)
    except KeyboardInterrupt:
        progress.stopped = "interrupted"
    return progress


def direction(Z: np.ndarray, found: Progress, tol: float) -> np.ndarray:
    """u with min_i z_i . u / ||u|| as large as possible: sum_i q_i z_i, or the solution of z_i . u = 1 on the support.

    The second loses only eps / margin instead of eps / margin^2 (relative to unit points) to rounding. It takes long; where there
    is no time for it, `found` says so.
    """
    q = found.q
    u = q @ Z
    scores = Z @ u
    index = np.flatnonzero(q > 1e-7 * q.max())
    if scores.min() >= (1 - tol) * (u @ u) or len(index) * Z.shape[1] > 1_000_000 or found.late:
        return u
    with np.errstate(over="ignore", under="ignore"):  # what does not fit is not taken
        other = linalg.lstsq(Z[index], np.ones(len(index)), check_finite=False)[0]
    if not np.isfinite(other).all() or not other.any():
        return u
    u, other = (v / (np.abs(v).max() or 1.0) for v in (u, other))  # of any length
    return max(u, other, key=lambda v: float((Z @ v).min() / np.linalg.norm(v)) if v.any() else -np.inf)


def _start(n: int, tol: float, deadline: float, tell: Tell | None, unit: float) -> Progress:
    return Progress(tol=max(tol, 1e-14), deadline=deadline, q=np.full(n, 1 / n), tell=tell, unit=unit)


# --- block principal pivoting ---------------------------------------------------------------------------------------


def _nested_pivoting(K: np.ndarray, progress: Progress) -> bool:
    """Pivoting on nested random subsets; true when it solved the whole problem."""
    n = len(K)
    order = np.random.default_rng(0).permutation(n)
    sizes = [n]
    while sizes[-1] > 400:
        sizes.append(sizes[-1] // 2)
    alpha = np.zeros(n)
    for size in reversed(sizes):
        part = np.sort(order[:size]) if size < n else np.arange(n)
        sub = K if size == n else K[np.ix_(part, part)]
        support = alpha[part] > 0
        if support.any():
            support |= _times(sub, alpha[part]) < 1
        else:
            support[:] = True
        solved = _pivot(sub, support, progress, whole=size == n)
        if solved is None:
            return False
        alpha[:] = 0
        alpha[part] = solved
    return True


def _pivot(K: np.ndarray, support: np.ndarray, progress: Progress, whole: bool) -> np.ndarray | None:
    """a >= 0 with (Ka)_i >= 1, and = 1 where a_i > 0; None when it cycles or K is singular on the support."""
    n, fewest, patience = len(K), len(K) + 1, 4
    goal = min(0.1 * progress.tol, 1e-9)
    while not progress.late:
        index = np.flatnonzero(support)
        block = K.take(index, axis=0).take(index, axis=1) if len(index) < n else K.copy()
        try:
            a = _factorize(block, 1e-13)(np.ones(len(index)))
        except linalg.LinAlgError:
            return None
        size = np.abs(a).max()
        if not size < 1e12:
            return None
        raw = np.zeros(n)
        raw[index] = a
        alpha = raw.clip(0)
        Kraw = _times(K, raw)
        if whole and alpha.any():
            total = alpha.sum()
            if progress.offer(alpha / total, (_times(K, alpha) if (a < 0).any() else Kraw) / total, "pivoting"):
                return alpha
        wrong = Kraw < 1 - goal
        wrong[index] = a < -1e-12 * size
        count = int(wrong.sum())
        if count == 0:
            return alpha
        patience = 4 if count < fewest else patience - 1
        fewest = min(fewest, count)
        if patience < 0:
            return None
        support = support ^ wrong
        if not support.any():
            return None
    return None


# --- interior point -------------------------------------------------------------------------------------------------


def _interior_point(n: int, times: Solver, prepare: Callable[[np.ndarray], Solver], progress: Progress) -> None:
    """Kq - rho - s = 0, sum q = 1, q s = mu, mu -> 0. `prepare(e)` returns a solver for K + diag(e)."""
    q = np.full(n, 1 / n)
    Kq = times(q)
    rho = float(Kq.min()) - 0.1 * float(np.abs(Kq).max())
    s = Kq - rho
    ones = np.ones(n)
    stalled = 0
    for _ in range(100):
        if progress.late:
            return
        residual, missing, mu = Kq - rho - s, 1 - q.sum(), float(q @ s) / n
        try:
            inverse = prepare(s / q)
        except linalg.LinAlgError:
            return
        along = inverse(ones)  # d q / d rho

        def step(
            r: np.ndarray,
            residual: np.ndarray = residual,
            missing: float = missing,
            inverse: Solver = inverse,
            along: np.ndarray = along,
            q: np.ndarray = q,
            s: np.ndarray = s,
        ) -> tuple[np.ndarray, float, np.ndarray]:
            dq = inverse(r / q - residual)
            drho = float((missing - dq.sum()) / along.sum())
            dq = dq + drho * along
            return dq, drho, (r - s * dq) / q

        dq, drho, ds = step(-q * s)
        length = min(_room(q, dq), _room(s, ds), 1.0)
        centre = (float((q + length * dq) @ (s + length * ds)) / n / mu) ** 3
        dq, drho, ds = step(centre * mu - q * s - dq * ds)
        length = min(0.995 * min(_room(q, dq), _room(s, ds)), 1.0)
        if not np.isfinite(length) or not np.isfinite(dq).all() or not np.isfinite(ds).all():
            return
        q, rho, s = q + length * dq, rho + length * drho, s + length * ds
        Kq = times(q)
        weights = q / q.sum()
        before = progress.gap
        if progress.offer(weights, Kq / q.sum(), "interior point") or not progress.unfinished:
            return
        stalled = stalled + 1 if progress.gap >= before and mu < 1e-12 else 0
        if stalled >= 8 or mu < 1e-34:
            return


def _room(x: np.ndarray, dx: np.ndarray) -> float:
    """The longest step that keeps x + step dx >= 0."""
    down = dx < 0
    return float((-x[down] / dx[down]).min()) if down.any() else np.inf


def _dense_solver(K: np.ndarray, e: np.ndarray) -> Solver:
    A = K.copy()
    A.flat[:: len(A) + 1] += e
    return _factorize(A, 1e-16)


def _factor_solver(Z: np.ndarray, e: np.ndarray) -> Solver:
    """(Z Z' + diag(e))^-1 by Woodbury's formula, with one step of refinement."""
    w = 1 / e
    inner = _factorize(np.eye(Z.shape[1]) + (Z.T * w) @ Z, 0.0)

    def once(b: np.ndarray) -> np.ndarray:
        b = w * b
        return b - w * (Z @ inner(b @ Z))

    def refined(b: np.ndarray) -> np.ndarray:
        x = once(b)
        return x + once(b - Z @ (x @ Z) - e * x)

    return refined


def _times(K: np.ndarray, x: np.ndarray) -> np.ndarray:
    """K @ x, in torch's threads: two thread pools that take turns slow each other down several times on few cores."""
    if len(K) < TORCH_FROM:
        return K @ x
    import torch

    return torch.mv(torch.from_numpy(K), torch.from_numpy(x)).numpy()


def _factorize(A: np.ndarray, ridge: float) -> Solver:
    """A solver for A + ridge I, symmetric positive definite; A is overwritten. LinAlgError when it is not definite."""
    n = len(A)
    A.flat[:: n + 1] += ridge
    if n < TORCH_FROM:
        factor = linalg.cho_factor(A, lower=True, overwrite_a=True, check_finite=False)
        return lambda b: linalg.cho_solve(factor, b, check_finite=False)
    import torch

    L, info = torch.linalg.cholesky_ex(torch.from_numpy(A))
    if int(info):
        raise linalg.LinAlgError("not positive definite")
    return lambda b: torch.cholesky_solve(torch.from_numpy(b)[:, None], L)[:, 0].numpy()


def _polish(Z: np.ndarray, progress: Progress) -> None:
    """Solve again on the support that the interior point method found (at most m + 1 points in general position)."""
    q = progress.q
    Kq = Z @ (q @ Z)
    slack = (Kq - Kq.min()) / max(float(q @ Kq), 1e-300)
    for cut in (1e-3, 1e-6):
        index = np.flatnonzero((q > cut * q.max()) | (slack < cut * 1e-3))
        if progress.late or not 0 < len(index) <= 2 * Z.shape[1] + 2:
            continue
        S = Z[index]
        if not np.isfinite(S).all():  # LAPACK ends in an error
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is left out
            u = linalg.lstsq(S, np.ones(len(index)), check_finite=False)[0]
            if not np.isfinite(u).all():
                continue
            weights = linalg.lstsq(S.T, u, check_finite=False)[0]
        if not np.isfinite(weights).all() or weights.sum() <= 0:
            continue
        trial = np.zeros_like(q)
        trial[index] = weights.clip(0)
        trial /= trial.sum()
        progress.offer(trial, Z @ (trial @ Z), "interior point, polished")


def _mix_to_zero(Z: np.ndarray, progress: Progress) -> None:
    """Weights whose mixture is 0 to the last digits, near those whose mixture is nearly 0.

    The interior point method has half of the digits where a point without weight lies on the boundary too, as in tables of few
    different rows: the weights that prove a margin of 0 exactly would not be seen in them.
    """
    q = progress.q
    if not VANISHED < progress.value < NEARLY or progress.late:
        return
    for cut in (1e-3, 1e-6):
        index = np.flatnonzero(q > cut * q.max())
        S, trial = Z[index], np.zeros_like(q)
        trial[index] = (q[index] - linalg.lstsq(S.T, q[index] @ S, check_finite=False)[0]).clip(0)
        if trial.any() and progress.offer(
            trial / trial.sum(), Z @ (trial @ Z) / trial.sum(), "interior point, to zero"
        ):
            return
