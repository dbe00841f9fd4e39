"""Largest margins of matrices U (K, D) in the spectral and in the nuclear norm, by a primal-dual interior point method.

Rows z_p (P, K D) are the pairs of `multiclass_linear`: <z_p, U> is the margin of one pair, and M(q) = sum_p q_p z_p as a matrix.
Each problem is a semidefinite program in S and X of size K + D, with the blocks 11, 12, 21, 22 (Vandenberghe and Boyd 1996):

    spectral    max t,  <z_p, U> - t = s_p >= 0,  S = [[I, U], [U', I]];   2 X_12 = -M(q),  sum q = 1,  min tr X
    nuclear     min sigma,  S = [[sigma I, M], [M', sigma I]],  sum q = 1;   U = -2 X_12,  <z_p, U> - t = s_p >= 0,  tr X = 1

The path X S = mu I, q_p s_p = mu is followed by Mehrotra's predictor and corrector in the direction of Helmberg, Kojima and
Monteiro, dX = -X + mu Y - sym(X dS Y), Y = S^-1. On V = dS_12 it acts through one matrix of size K D,

    T(V) = X_11 V Y_22 + Y_11 V X_22 + X_12 V' Y_12 + Y_12 V' X_12.

What comes back is U and q, which callers evaluate: nothing here is a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg

from .door import Limits, equal_rows

NEAR = 0.98  # of the way to the boundary
MOST = 80  # steps
NO_LIMITS = Limits(0.0, np.inf, np.inf)
Done = Callable[[np.ndarray, np.ndarray], bool]  # of U (K, D) and q (P,)


def solve(
    Z: np.ndarray, K: int, norm: str, done: Done, limits: Limits = NO_LIMITS
) -> tuple[np.ndarray, np.ndarray, int, str]:
    """U (K, D), q (P,) in the simplex, steps, and how it stopped ("", time-limit, stalled), for rows Z (P, K D)."""
    P, D = len(Z), Z.shape[1] // K
    Z = Z.reshape(P, K, D)
    # Rows of a pair sum to 0, so that what all classes share adds to the norm of U alone: K - 1 rows are left.
    apart = linalg.qr(np.eye(K)[:, 1:] - np.eye(K)[:, :-1], mode="economic")[0]  # (K, K - 1)
    points = Z[np.arange(P), np.abs(Z).max(axis=2).argmax(axis=1)]  # (P, D), up to signs
    points *= np.sign(np.take_along_axis(points, np.abs(points).argmax(axis=1)[:, None], 1))
    points = points[np.unique(equal_rows(points))]
    m = (K - 1) * min(D, len(points))
    if limits.largest(m, lambda m: m**3 + 4.0 * P * m * m + P**3, lambda m: 8.0 * m * m + 4.0 * P * (m + P)) < m:
        return np.zeros((K, D)), np.full(P, 1 / P), 0, "time-limit"
    # likewise, what lies across all points
    span = np.eye(D) if len(points) >= D else linalg.qr(points.T, mode="economic", check_finite=False)[0]  # (D, r)
    Z = np.einsum("kl,pkr->plr", apart, Z @ span).reshape(P, -1)
    scale = float(np.linalg.norm(Z, axis=1).max())
    path = (_Spectral if norm == "spectral" else _Nuclear)(Z / scale, K - 1)
    steps, stopped = 0, "stalled"
    while steps < MOST:
        steps += 1
        if limits.late():
            stopped = "time-limit"
            break
        try:
            good = path.step()
        except (linalg.LinAlgError, ValueError):  # rounding: what there is is the answer
            break
        if done(apart @ path.U @ span.T, path.q / path.q.sum()):
            stopped = ""
            break
        if not good:
            break
    return apart @ path.U @ span.T, path.q / path.q.sum(), steps, stopped


def _room(x: np.ndarray, dx: np.ndarray) -> float:
    """The longest step, at most 1, that keeps x + step dx positive."""
    down = dx < 0
    return min(1.0, NEAR * float((-x[down] / dx[down]).min())) if down.any() else 1.0


def _definite_room(X: np.ndarray, dX: np.ndarray) -> float:
    """The longest step, at most 1, that keeps X + step dX positive definite."""
    L = linalg.cholesky(X, lower=True, check_finite=False)
    inner = linalg.solve_triangular(L, dX, lower=True, check_finite=False)
    inner = linalg.solve_triangular(L, inner.T, lower=True, check_finite=False)
    least = float(linalg.eigvalsh(inner, subset_by_index=[0, 0], check_finite=False)[0])
    return min(1.0, -NEAR / least) if least < 0 else 1.0


def _sym(A: np.ndarray) -> np.ndarray:
    return (A + A.T) / 2


class _Path:
    """X, S (K + D, K + D) and q, s (P,); a subclass knows the problem."""

    U: np.ndarray

    def __init__(self, Z: np.ndarray, K: int) -> None:
        self.Z, self.K, self.D, self.P = Z, K, Z.shape[1] // K, len(Z)
        self.size = K + self.D
        self.q, self.s = np.full(self.P, 1 / self.P), np.ones(self.P)
        self.X = np.eye(self.size) / self.size

    def off(self, V: np.ndarray) -> np.ndarray:
        """[[0, V], [V', 0]] of V (K D,)."""
        S = np.zeros((self.size, self.size))
        S[: self.K, self.K :] = V.reshape(self.K, self.D)
        return S + S.T

    def block(self, A: np.ndarray) -> np.ndarray:
        """A_12 as a vector (K D,)."""
        return A[: self.K, self.K :].ravel()

    def operator(self, Y: np.ndarray) -> np.ndarray:
        """T as a matrix (K D, K D)."""
        K, X = self.K, self.X
        T = np.einsum("ij,ab->iajb", X[:K, :K], Y[K:, K:]) + np.einsum("ij,ab->iajb", Y[:K, :K], X[K:, K:])
        cross = np.einsum("ib,ja->iajb", X[:K, K:], Y[:K, K:])
        T += cross + cross.transpose(2, 3, 0, 1)
        return T.reshape(K * self.D, K * self.D)

    def step(self) -> bool:
        """Predictor, corrector, and the step itself; False where it no longer moves."""
        self.Y = linalg.cho_solve(linalg.cho_factor(self.S, check_finite=False), np.eye(self.size))
        self.prepare()
        count = self.size + self.P
        mu = (float((self.X * self.S).sum()) + float(self.q @ self.s)) / count
        nothing = np.zeros_like(self.X), np.zeros(self.P)
        first = self.move(0.0, *nothing)
        a, b = self.lengths(first)
        after = float(((self.X + b * first["X"]) * (self.S + a * first["S"])).sum())
        dq, ds = (b, a) if self.q_is_dual else (a, b)
        after += float((self.q + dq * first["q"]) @ (self.s + ds * first["s"]))
        centre = max(0.0, after / count / mu) ** 3
        second = _sym(first["X"] @ first["S"] @ self.Y), first["q"] * first["s"]
        last = self.move(centre * mu, *second)
        a, b = self.lengths(last)
        self.take(last, a, b)
        return max(a, b) > 1e-6 and mu > 1e-30

    def lengths(self, change: dict[str, Any]) -> tuple[float, float]:
        """How far S and what goes with it may move, and how far X and what goes with it."""
        own, other = ("s", "q") if self.q_is_dual else ("q", "s")
        a = min(_definite_room(self.S, change["S"]), _room(getattr(self, own), change[own]))
        b = min(_definite_room(self.X, change["X"]), _room(getattr(self, other), change[other]))
        return a, b

    # of the problem
    S: np.ndarray
    q_is_dual = True  # whether q goes with X

    def prepare(self) -> None:
        raise NotImplementedError

    def move(self, mu: float, R: np.ndarray, r: np.ndarray) -> dict[str, Any]:
        """The direction towards X S = mu I, q s = mu; R and r are the second order terms of both."""
        raise NotImplementedError

    def take(self, change: dict[str, Any], a: float, b: float) -> None:
        raise NotImplementedError


class _Spectral(_Path):
    def __init__(self, Z: np.ndarray, K: int) -> None:
        super().__init__(Z, K)
        self.U, self.t = np.zeros((K, self.D)), -1.0
        self.S = np.eye(self.size)

    def prepare(self) -> None:
        self.w = self.q / self.s
        self.along = self.w @ self.Z
        A = self.operator(self.Y) + (self.Z.T * self.w) @ self.Z
        self.factor = linalg.cho_factor(A, check_finite=False)
        self.ahead = linalg.cho_solve(self.factor, self.along, check_finite=False)

    def move(self, mu: float, R: np.ndarray, r: np.ndarray) -> dict[str, Any]:
        aim = (mu - r) / self.s  # q + dq = aim - w ds
        right = 2 * self.block(mu * self.Y - R) + aim @ self.Z
        x = linalg.cho_solve(self.factor, right, check_finite=False)
        # v = x + dt ahead;  sum aim - along . v + sum w dt = 1
        dt = float((1 - aim.sum() + self.along @ x) / (self.w.sum() - self.along @ self.ahead))
        v = x + dt * self.ahead
        dS, ds = self.off(v), self.Z @ v - dt
        dX = -self.X + mu * self.Y - R - _sym(self.X @ dS @ self.Y)
        return {"U": v.reshape(self.U.shape), "t": dt, "S": dS, "s": ds, "X": dX, "q": aim - self.w * ds - self.q}

    def take(self, change: dict[str, Any], a: float, b: float) -> None:
        self.U, self.t = self.U + a * change["U"], self.t + a * change["t"]
        self.S, self.s = np.eye(self.size) + self.off(self.U.ravel()), self.s + a * change["s"]
        self.X, self.q = self.X + b * change["X"], self.q + b * change["q"]


class _Nuclear(_Path):
    q_is_dual = False

    def __init__(self, Z: np.ndarray, K: int) -> None:
        super().__init__(Z, K)
        self.sigma, self.t = 2.0, -1.0
        self._look()

    def _look(self) -> None:
        self.S = self.sigma * np.eye(self.size) + self.off(self.q @ self.Z)
        self.U = -2 * self.block(self.X).reshape(self.K, self.D)

    def prepare(self) -> None:
        Z, q, s = self.Z, self.q, self.s
        T, w = self.operator(self.Y), q / s
        both = self.X @ self.Y
        self.trace, self.mixed = float(np.trace(both)), Z @ self.block(both + both.T)  # (P,)
        if len(Z) <= Z.shape[1]:  # (diag(s / q) + Z T Z')^-1
            A = Z @ T @ Z.T
            A.flat[:: self.P + 1] += 1 / w
            factor = linalg.cho_factor(A, check_finite=False)
            self.inverse: Callable[[np.ndarray], np.ndarray] = lambda r: linalg.cho_solve(factor, r, check_finite=False)
        else:
            C = Z @ linalg.cholesky(T, lower=True, check_finite=False)  # (P, K D)
            A = (C.T * w) @ C
            A.flat[:: len(A) + 1] += 1
            factor = linalg.cho_factor(A, check_finite=False)

            def once(r: np.ndarray) -> np.ndarray:
                scaled = (r.T * w).T
                return scaled - ((C @ linalg.cho_solve(factor, C.T @ scaled, check_finite=False)).T * w).T

            def refined(r: np.ndarray) -> np.ndarray:
                x = once(r)
                for _ in range(2):
                    x = x + once(r - (x.T / w).T - C @ (C.T @ x))
                return x

            self.inverse = refined
        self.ahead, self.one = self.inverse(np.column_stack([self.mixed, np.ones(self.P)])).T

    def move(self, mu: float, R: np.ndarray, r: np.ndarray) -> dict[str, Any]:
        Z, q, s = self.Z, self.q, self.s
        aim = (mu - r) / q  # s + ds = aim - s dq / q
        x = self.inverse(aim + 2 * (Z @ self.block(mu * self.Y - R)))
        # dq = x - ahead dsigma + one t;  mixed . dq + trace dsigma = mu tr Y - tr R - 1;  1'dq = 1 - sum q
        right = [mu * float(np.trace(self.Y)) - float(np.trace(R)) - 1 - self.mixed @ x, 1 - q.sum() - x.sum()]
        small = np.array(
            [[self.trace - self.mixed @ self.ahead, self.mixed @ self.one], [-self.ahead.sum(), self.one.sum()]]
        )
        dsigma, t = np.linalg.solve(small, right)
        dq = x - dsigma * self.ahead + t * self.one
        dS = dsigma * np.eye(self.size) + self.off(dq @ Z)
        dX = -self.X + mu * self.Y - R - _sym(self.X @ dS @ self.Y)
        return {"sigma": dsigma, "t": t - self.t, "S": dS, "q": dq, "X": dX, "s": aim - s * dq / q - s}

    def take(self, change: dict[str, Any], a: float, b: float) -> None:
        self.sigma, self.q = self.sigma + a * change["sigma"], self.q + a * change["q"]
        self.X, self.s, self.t = self.X + b * change["X"], self.s + b * change["s"], self.t + b * change["t"]
        self._look()
