"""The losses of several outputs: the cross-entropy of classes, and the squared loss of several targets (docs/optima.md).

Both bring the same to the master (`groups`) and to the solver (`several_outputs`): values and slopes at outputs t (n, K), the
best output bias, dual weights q (n, K) as they are saved, the vectors g (n, K) that these are, and the objective that they prove.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, special

from widemargin.margins.door import BLOCK, EPS
from widemargin.pricing.several import vectors

from .losses import CLASSES

GRID = 38  # saved weights are multiples of 2^-GRID, so that w . g_i is exact for small integer w
ROUNDING = 1e-15  # of the objective: its error, at the least
LONGEST = 4.0  # step of a Newton method in an output bias
SQUARED = 1e-8  # a step whose square is nothing
FALLS = 1000  # steps to the best constant, which takes them one by one where a class has next to no weight


class Outputs:
    """What a master sees of the data: n points with weights w, a decay lam of the masses, and an output bias."""

    loss: str
    outputs: str  # what there is one for each of
    K: int
    w: np.ndarray  # (n,)
    lam: float
    offset: bool  # whether there is an output bias
    ridge: float  # its decay, 0 where it is free

    @property
    def balanced(self) -> bool:
        """Whether dual vectors must sum to zero."""
        return self.offset and not self.ridge

    @property
    def frame(self) -> np.ndarray:
        """(K, r) an orthonormal basis of the outputs that the best networks have."""
        raise NotImplementedError

    def losses(self, t: np.ndarray) -> np.ndarray:
        """(n,) of outputs t (n, K)."""
        raise NotImplementedError

    def losses_above(self, t: np.ndarray, unit: float, reach: np.ndarray) -> np.ndarray:
        """At least the losses at outputs that are within unit * reach (n,) of t."""
        raise NotImplementedError

    def pull(self, t: np.ndarray) -> np.ndarray:
        """The dual vectors (n, K) of a network with outputs t: minus the slopes of its losses."""
        raise NotImplementedError

    def curvature(self, J: np.ndarray, t: np.ndarray) -> np.ndarray:
        """The second derivative of the loss in the weights (p, r), in `frame`, of the columns of J (n, p): (p r, p r)."""
        raise NotImplementedError

    def best_offset(self, t: np.ndarray) -> np.ndarray:
        """The free output bias (K,) that is best for outputs t (n, K)."""
        raise NotImplementedError

    def constant(self) -> np.ndarray:
        """The output bias (K,) of the best network without neurons: no matrix of all outputs, of which there may be thousands."""
        raise NotImplementedError

    def dual_weights(self, t: np.ndarray) -> tuple[np.ndarray, int]:
        """Those of a network with outputs t as they can be saved, q / 2^power with a sum between 1/2 and 1, and the power."""
        raise NotImplementedError

    def vectors(self, q: np.ndarray) -> np.ndarray:
        """The g (n, K) of saved weights q."""
        raise NotImplementedError

    def terms(self, z: np.ndarray, at: slice) -> tuple[float, float]:
        """sum_i inf_t [w_i loss + g_i . t] for the vectors g of weights z of the points `at`, and the size of what it adds up."""
        raise NotImplementedError

    def objective(self, t: np.ndarray, norm: float, b: np.ndarray) -> float:
        return float(self.w @ self.losses(t)) + self.lam * norm + 0.5 * self.ridge * float(b @ b)

    def proved(self, q: np.ndarray, theta: float, power: int) -> tuple[float, float]:
        """What the weights theta 2^power q prove where they are feasible, and the size of its terms."""
        parts = [self.terms(np.ldexp(theta * q[at], power), at) for at in _blocks(q)]
        value, size = (math.fsum(column) for column in zip(*parts))
        if self.ridge:
            # Of q the sum is exact, that of z is not; and it is divided first, as the square of a tiny number is 0.
            total = np.ldexp(theta * self.vectors(q).sum(axis=0), power) / math.sqrt(2 * self.ridge)
            square = float(total @ total)
            value, size = value - square, size + square
        return value, size


def forward(X: np.ndarray, V: np.ndarray, A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Those (n, K) of neurons V (m, d) at the points X (n, d); without neurons one row that stands for all."""
    return (X @ V.T).clip(0) @ A + b if len(V) else np.broadcast_to(b, (len(X), len(b)))


def _once(t: np.ndarray) -> np.ndarray:
    """The one row (1, K) of a network without neurons, else t (n, K): there may be millions of points times classes."""
    return t[:1] if t.strides[0] == 0 else t


def cross_entropy(t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n,) of outputs t (n, K) and classes y."""
    t = _once(t)
    top = t.max(axis=1, keepdims=True)  # (n, 1)
    return np.log(np.exp(t - top).sum(axis=1)) + (top[:, 0] - t[np.arange(len(t)) if len(t) == len(y) else 0, y])


@dataclass(frozen=True)
class ClassPoints(Outputs):
    """Classes y = 0, ..., K-1 with the cross-entropy. Saved weights are q_ij >= 0, the share of class j != y_i."""

    y: np.ndarray  # (n,) integers
    K: int
    w: np.ndarray
    lam: float
    offset: bool
    ridge: float

    loss, outputs = CLASSES, "classes"

    @property
    def frame(self) -> np.ndarray:
        return linalg.null_space(np.ones((1, self.K)))  # a constant in all outputs changes nothing

    def grouped(self) -> ClassPoints:
        """A point of each class, which ask the same of a constant as all."""
        return replace(self, y=np.arange(self.K), w=np.bincount(self.y, self.w, self.K))

    def losses(self, t: np.ndarray) -> np.ndarray:
        return cross_entropy(t, self.y)

    def losses_above(self, t: np.ndarray, unit: float, reach: np.ndarray) -> np.ndarray:
        return self.losses(t) + 8 * unit * (reach + 1)  # it moves by 2 max_k |dt_k| at most

    def pull(self, t: np.ndarray) -> np.ndarray:
        """g_i = w_i (e_{y_i} - softmax(t_i))."""
        g = -self.w[:, None] * special.softmax(t, axis=1)
        rows = np.arange(len(t))
        g[rows, self.y] = 0.0
        g[rows, self.y] = -g.sum(axis=1)  # no digits are lost where the own class is nearly sure
        return g

    def curvature(self, J: np.ndarray, t: np.ndarray) -> np.ndarray:
        P, (n, p), Q = special.softmax(t, axis=1), J.shape, self.frame
        H = np.zeros((p, self.K, p, self.K))
        some = max(1, BLOCK // (p * self.K))
        for at in (slice(k, k + some) for k in range(0, n, some)):
            JP = (J[at, :, None] * P[at, None, :]).reshape(-1, p * self.K)
            H -= (JP.T @ (JP * self.w[at, None])).reshape(H.shape)
        for k in range(self.K):  # of one class with itself apart: no digits are lost where it is nearly sure
            H[:, k, :, k] = (J * (self.w * P[:, k] * (1 - P[:, k]))[:, None]).T @ J
        return np.einsum("akbl,kc,ld->acbd", H, Q, Q, optimize=True).reshape(p * Q.shape[1], -1)

    def best_offset(self, t: np.ndarray) -> np.ndarray:
        """By Newton's method. Third derivatives are no larger than second ones: an error that is small is squared by a step."""
        if len(t) > self.K and (t == t[0]).all():
            return self.grouped().best_offset(t[: self.K])
        if (t == t[0]).all() and (self.y == np.arange(self.K)).all() and self.w.min() > 0:
            # The shares of the classes; Newton's method would take a quarter of a minute for thousands of them.
            b = np.log(self.w) - t[0]
            return np.asarray(b - b.mean())
        b, Q = np.zeros(self.K), self.frame
        rounding = max(ROUNDING, EPS * math.sqrt(len(t)))
        for _ in range(50):
            slope = self.pull(t + b).sum(axis=0)
            P = special.softmax(t + b, axis=1)
            H = np.diag(self.w @ P) - (P * self.w[:, None]).T @ P  # `curvature` of a bias, in one product
            step = Q @ np.linalg.lstsq(Q.T @ H @ Q, slope @ Q, rcond=1e-12)[0]
            # No further than its model of the loss is good for: beyond, the loss may be so flat that the next step is endless.
            rate, value = min(1.0, LONGEST / max(np.abs(step).max(), 1e-300)), float(self.w @ self.losses(t + b))
            while rate > 1e-9 and float(self.w @ self.losses(t + b + rate * step)) > value * (1 + rounding):
                rate /= 2
            if rate <= 1e-9:
                break
            b = b + rate * step
            if np.abs(step).max() <= SQUARED * (rate == 1):
                break
        return b

    def constant(self) -> np.ndarray:
        """By Newton's method where there is a decay: the curvature is diagonal but for the square of p, and steps sum to zero."""
        b = np.zeros(self.K)
        if not self.ridge:
            return self.best_offset(np.zeros((len(self.y), self.K))) if self.offset else b
        w = self.grouped().w
        total = float(w.sum())

        def value(b: np.ndarray) -> float:
            others, top = np.exp(b - b.max()), int(b.argmax())
            others[top] = 0.0  # no digits are lost where one class is nearly sure
            losses = b[top] - b + np.log1p(others.sum())
            return float(w @ losses) + 0.5 * self.ridge * float(b @ b)

        for _ in range(FALLS):
            p = special.softmax(b)
            down, slack = w - total * p - self.ridge * b, total * p + self.ridge
            step = (down - p * float((down / slack).sum() / (p / slack).sum())) / slack
            rate, now = min(1.0, LONGEST / max(np.abs(step).max(), 1e-300)), value(b)
            while rate > 1e-9 and value(b + rate * step) > now * (1 + ROUNDING):
                rate /= 2
            if rate <= 1e-9:
                break
            b = b + rate * step
            if value(b) >= now * (1 - ROUNDING):
                break
        return b

    def dual_weights(self, t: np.ndarray) -> tuple[np.ndarray, int]:
        shown = _once(t)
        if self.balanced:  # with the best output bias the vectors sum to zero up to rounding
            shown = shown + self.best_offset(t)
        q = self.w[:, None] * special.softmax(shown, axis=1)  # (n, K)
        q[np.arange(len(q)), self.y] = 0.0
        power = _power(q)
        whole = np.floor(np.ldexp(q, GRID - power, out=q), out=q)
        if self.balanced:
            most = np.floor(np.ldexp(self.w, GRID - power)).clip(max=2.0**60).astype(np.int64)
            whole = balanced(whole, self.y, most)
        return np.ldexp(whole, -GRID, out=whole), power

    def vectors(self, q: np.ndarray) -> np.ndarray:
        return vectors(q, self.y)

    def terms(self, z: np.ndarray, at: slice) -> tuple[float, float]:
        """sum_i w_i H(z_i / w_i), with what is left for the own class."""
        on = self.w[at] > 0
        w = self.w[at][on]
        p = z[on] / w[:, None]
        own = (1 - p.sum(axis=1)).clip(0)
        value = float(w @ (special.entr(p).sum(axis=1) + special.entr(own)))
        # every z log(w / z) errs by some roundings of z (1 + |log|), and there are K of them that sum to w
        return value, float(w.sum()) * (1 + math.log(self.K)) + abs(value)


@dataclass(frozen=True)
class TargetPoints(Outputs):
    """Targets y in R^K with the squared loss |y - t|^2 / 2. Saved weights are the vectors g themselves."""

    y: np.ndarray  # (n, K)
    w: np.ndarray
    lam: float
    offset: bool
    ridge: float

    loss, outputs = "squared", "targets"

    @property
    def K(self) -> int:  # type: ignore[override]
        return self.y.shape[1]

    @property
    def frame(self) -> np.ndarray:
        return np.eye(self.K)

    def losses(self, t: np.ndarray) -> np.ndarray:
        return 0.5 * ((self.y - t) ** 2).sum(axis=1)

    def losses_above(self, t: np.ndarray, unit: float, reach: np.ndarray) -> np.ndarray:
        off = np.linalg.norm(self.y - t, axis=1)
        return 0.5 * (off + 8 * unit * (reach + off)) ** 2

    def pull(self, t: np.ndarray) -> np.ndarray:
        return self.w[:, None] * (self.y - t)

    def curvature(self, J: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.kron((J * self.w[:, None]).T @ J, np.eye(self.K))

    def best_offset(self, t: np.ndarray) -> np.ndarray:
        rest = self.y - t
        first = rest[self.w.argmax()]  # where all are equal, this is it to the last bit
        return first + self.w @ (rest - first) / float(self.w.sum())

    def constant(self) -> np.ndarray:
        if not self.offset:
            return np.zeros(self.K)
        total = float(self.w.sum())
        return self.best_offset(np.zeros_like(self.y)) * (total / (total + self.ridge))

    def dual_weights(self, t: np.ndarray) -> tuple[np.ndarray, int]:
        if self.balanced:
            t = t + self.best_offset(t)
        g = self.pull(t)
        power = _power(g)
        whole = np.rint(np.ldexp(g, GRID - power)).astype(np.int64)
        on = np.flatnonzero(self.w > 0)
        for k in range(self.K if self.balanced else 0):  # what is left of the sums goes to all points
            each, rest = divmod(int(whole[:, k].sum()), len(on))
            whole[on, k] -= each
            whole[on[:rest], k] -= 1
        return np.ldexp(whole.astype(np.float64), -GRID), power

    def vectors(self, q: np.ndarray) -> np.ndarray:
        return q

    def terms(self, z: np.ndarray, at: slice) -> tuple[float, float]:
        """sum_i g_i . y_i - |g_i|^2 / (2 w_i)."""
        w, products = self.w[at], z * self.y[at]
        on = w > 0
        square = float(((z[on] ** 2).sum(axis=1) / (2 * w[on])).sum())
        return float(products.sum()) - square, float(np.abs(products).sum()) + square


def _blocks(q: np.ndarray) -> list[slice]:
    """Rows that fit into a cache together: of all at once, each step of a sum would be an array of its own."""
    some = max(1, BLOCK // q.shape[1])
    return [slice(k, k + some) for k in range(0, len(q), some)]


def _power(q: np.ndarray) -> int:
    """The power of two that weights are divided by where they are priced and saved."""
    total = math.fsum(float(np.abs(q[at]).sum()) for at in _blocks(q))
    return math.frexp(total)[1] if total > 0 else 0


def balanced(whole: np.ndarray, y: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Whole numbers (n, K) with rows up to `most`, changed a little so that the vectors g_i sum to zero: a class gives what it
    takes. They are changed in place.

    To move d from class a to b, weights of points of a on b fall, the largest first, or weights of points of b on a rise.
    """
    K = whole.shape[1]
    of = [np.flatnonzero(y == k) for k in range(K)]
    sums = [int(whole[of[k]].sum()) - int(whole[:, k].sum()) for k in range(K)]
    while any(sums):
        a, b = int(np.argmax(sums)), int(np.argmin(sums))
        left = amount = min(sums[a], -sums[b])
        # Rounding leaves little to move: the first of each kind takes it nearly always.
        for i in of[a][np.argsort(-whole[of[a], b])].tolist():
            part = min(left, int(whole[i, b]))
            if part <= 0:
                break
            whole[i, b] -= part
            left -= part
        for i in of[b][np.argsort(whole[of[b]].sum(axis=1) - most[of[b]])].tolist():
            part = min(left, int(most[i]) - int(whole[i].sum()))
            if part <= 0:
                break
            whole[i, a] += part
            left -= part
        if left:
            return np.zeros_like(whole)
        sums[a] -= amount
        sums[b] += amount
    return whole
