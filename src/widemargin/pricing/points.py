"""A pricing problem as all ways to a bound see it: points and their symmetries, terms once there are weights, and the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

ACTIVE, INACTIVE, FREE = 1, 0, -1  # what a node knows about the sign of v . x_i
THIN = 100.0  # condition number of the points from which half of the local searches start from whitened directions
NEAR_BITS = 50  # of a basis that holds the points but for rounding
FRAME_BITS = 8  # of the frame's entries, beside those that the condition of the points needs
EXACT_RANK = 3e7  # operations in integers up to which the rank is looked at in exact arithmetic: a third of a second
CHECKED = 2**24  # entries of a matrix in all columns that a checker takes, besides four times those of the points
SPAN, DIGITS = 512, 2**15  # points whose span it takes instead; bits of all, where some are sums of others,
WORK = 2**25  # and these times the square of their rank
SYMMETRIC_DIMENSION = 24  # largest in which symmetries are looked for
# A reflection that moves the points by less, relative to their size, is left out. If it moves none, as x_j <-> x_k does where
# these are equal in all points, its root is orthogonal to their span: in a basis of the span the root is rounding noise.
STILL = 1e-9
SMALLEST = 1e-100  # length that points of length 0 are given: its square must be no 0


class Points:
    """X0 (n, D) distinct points, entries about 1, and X (n, r), the same in an orthonormal basis (D, r) of their span.

    `scale` is the power of two that the proofs' integers are multiplied with to meet the data; far from 1 (`far`) quadratic
    bounds and symmetries are left out, whose integers would not fit. `slope` is that of a leaky ReLU: then weights c are those of
    phi(t) = relu(t) - slope relu(-t), and `as_relu` and `folded` turn the problem into one of relu and a linear term.
    `faint` points have entries so small that the signs of u . x_i cannot be told. Proofs take `memory` bytes at most, nearly.
    """

    def __init__(
        self,
        X0: np.ndarray,
        y: np.ndarray | None,
        shift: int,
        device: torch.device,
        basis: np.ndarray,
        slope: float = 0.0,
        faint: bool = False,
        memory: float = math.inf,
    ):
        self.slope, self.memory = slope, memory
        self.beat: Callable[[], None] | None = None  # called again and again in long proofs
        self.X0, self.y, self.shift, self.device, self.basis = X0, y, shift, device, basis
        self.X = X0 @ basis if len(basis) > basis.shape[1] else np.ascontiguousarray(X0)
        self.n, self.r = self.X.shape
        self.far = abs(shift) >= 20
        self.faint = faint
        self.scale = 1.0 if self.far else 2.0**shift
        self.Xt = torch.as_tensor(self.X, device=device)

    @cached_property
    def condition(self) -> float:
        size = np.linalg.svd(self.X, compute_uv=False)
        return float(size[0] / size[-1]) if size[-1] > 0 else math.inf

    @cached_property
    def mirrors(self) -> np.ndarray:
        return opposite_pairs(self.X0)  # (k, 2)

    @cached_property
    def symmetry(self) -> Symmetry | None:
        return None if self.far or self.y is None else find_symmetry(self.X0, self.y)

    @property
    def roots(self) -> np.ndarray:
        """(k, D) integers: reflections of the labelled points."""
        return self.symmetry.roots if self.symmetry is not None else np.zeros((0, self.X0.shape[1]), dtype=int)

    @cached_property
    def frame(self) -> np.ndarray | None:
        """(r, D) integers for the tree over cones, if there are any that fit."""
        return integer_frame(self.X0, self.basis)

    @cached_property
    def flat(self) -> bool:
        """Whether the points span r dimensions exactly: else, up to rounding, no sum of them vanishes that a proof could show."""
        D = self.X0.shape[1]
        return self.r == D or (self.n * D * min(self.n, D) <= EXACT_RANK and rank_modulo(self.X0) <= self.r)

    @cached_property
    def quadratic(self) -> bool:
        """Whether a checker takes quadratic bounds: of very many columns it must see the span of the points."""
        n, D = self.X0.shape
        if CHECKED + 4 * n * D >= (D + 1) ** 2 or n == self.r <= SPAN:
            return not self.far
        sizes = np.frexp(self.X0[self.X0 != 0])[1]
        bits = 2 * (53 + int(np.ptp(sizes))) + D.bit_length()
        return not self.far and n * bits <= min(DIGITS, WORK / max(self.r, 1) ** 2) and self.flat

    def as_relu(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights of relu, and those of the linear rest: phi(t) = (1 - slope) relu(t) + slope t."""
        return (1 - self.slope) * c, self.slope * c

    def folded(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same with opposite points made one, c_j relu(-t) = c_j relu(t) - c_j t."""
        c, linear = self.as_relu(c)
        i, j = self.mirrors.T
        linear[j] += c[j]
        c[i], c[j] = c[i] + c[j], 0.0
        return c, linear

    def cleaned(self, q: np.ndarray) -> np.ndarray:
        """Dual weights q >= 0: tiny entries to zero (fewer branchings), averaged over the symmetry, summing to one."""
        q = np.where(q > 1e-9 * q.max(), q, 0.0)
        if self.symmetry is not None:
            q = self.symmetry.average(q)
        return q / q.sum()

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.device)


class Terms:
    """sum_i c_i relu(v . x_i) + linear . v; `rows` are the points with c != 0 (positive first), then the symmetry's roots."""

    def __init__(self, X: Tensor, c: Tensor, roots: Tensor | None = None, linear: Tensor | None = None):
        self.linear = X.new_zeros(X.shape[1]) if linear is None else linear  # a term linear . v of the objective
        points = torch.nonzero(c).flatten()
        points = points[torch.argsort((c[points] < 0).to(torch.int8), stable=True)]
        self.points, self.c = points, c[points]
        self.positive = int((self.c > 0).sum())
        self.X = X[points]  # (n', d)
        self.rows = self.X if roots is None or len(roots) == 0 else torch.cat([self.X, roots])
        size = self.rows.norm(dim=1).clamp_min(SMALLEST)
        self.unit, self.size = self.rows / size[:, None], size
        self.typical = float((self.c.abs() * size[: len(self.c)]).max()) if len(self.c) else 1.0
        self.lipschitz = (torch.linalg.matrix_norm(self.unit, 2) ** 2).clamp_min(1.0)  # less only if all rows are 0
        p = self.positive
        self.cp, self.xp, self.rp = self.c[:p], self.X[:p], size[:p]
        self.signed = self.xp.any(1)  # (p,) a point that is 0 has weight, but no sign

    def kappa(self, sign: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """sum_i max over the allowed t of c_i relu(t) - a_i t^2 - b_i t, for any a (B, n') and b (B, rows)."""
        p, n = self.positive, len(self.c)
        size, total = self.size[:n], torch.zeros_like(a)
        up, down = torch.ones_like(a, dtype=torch.bool), torch.ones_like(a, dtype=torch.bool)
        up[:, :p], down[:, :p] = sign != INACTIVE, sign != ACTIVE
        for allowed, gain in ((up, self.c - b[:, :n]), (down, b[:, :n])):
            bowl = gain.clamp_min(0) ** 2 / (4 * a.clamp_min(1e-300))
            most = torch.where(a > 0, bowl, gain * size - a * size**2)
            total = torch.where(allowed, torch.maximum(total, most), total)
        return total.sum(1)


@dataclass
class Priced:
    """What is known about one side: value <= maximum <= bound."""

    value: float
    bound: float
    nodes: int
    directions: Tensor  # (k, r) good unit directions, best first
    log: Any  # the tree, for the proof; None where it was too large to keep
    aborted: bool = False
    hard: bool = False  # whether linear bounds of signs were not enough


def reduce_rank(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X (n, D) in an orthonormal basis (D, r) of its row space; X itself where that space is everything.

    Beside far larger points small ones look like rounding. So the points are looked at with length 1, too.
    """
    n, D = X.shape
    length = np.abs(X).max(axis=1, keepdims=True)
    r, Vt = 0, np.zeros((0, D))
    for rows in (X, X / np.where(length > 0, length, 1.0)):
        _, size, V = np.linalg.svd(rows, full_matrices=False)
        rank = max(1, int((size > size[0] * 1e-13 * max(n, D)).sum()))
        if rank > r:
            r, Vt = rank, V
        if r == D:
            return np.ascontiguousarray(X), np.eye(D)
        if r == n:
            break
    return X @ Vt[:r].T, Vt[:r].T


def whitening(X: np.ndarray) -> np.ndarray | None:
    """(r, r) that maps normal rows z to directions v with normal scores X v (n,), if the points X (n, r) are close to a subspace.

    Seen from such points nearly all directions have the same few patterns: of small points with a bias, all or none are active.
    """
    _, size, Vt = np.linalg.svd(X, full_matrices=False)
    return Vt / np.maximum(size, 1e-18 * size[0])[:, None] if size[0] > THIN * size[-1] else None


def opposite_pairs(X: np.ndarray) -> np.ndarray:
    """(k, 2) indices of rows with x_j = -x_i exactly, each row in at most one pair."""
    X = X + 0.0
    alone: dict[bytes, list[int]] = {}  # rows that wait for their opposite
    pairs = []
    for j, row in enumerate(X):
        waiting = alone.get((0.0 - row).tobytes())
        if waiting and row.any():
            pairs.append((waiting.pop(), j))
        else:
            alone.setdefault(row.tobytes(), []).append(j)
    return np.array(sorted(pairs), dtype=int).reshape(-1, 2)


def integer_frame(X: np.ndarray, basis: np.ndarray) -> np.ndarray | None:
    """(r, D) integers whose rows span those of X (n, D), up to rounding, such that X frame' is round: all directions alike."""
    (n, D), r = X.shape, basis.shape[1]
    if r < D:
        span = exact_span(X, r)
        if span is None:  # of lower rank up to rounding: near the points' span, which a proof counts
            span = np.rint(basis.T * 2.0**NEAR_BITS).astype(np.int64).astype(object)
    else:
        span = np.eye(D).astype(object)
    Y = X @ span.T.astype(np.float64)  # (n, r)
    values, Q = np.linalg.eigh(Y.T @ Y / n)
    if not values[0] > 1e-24 * values[-1]:
        return None
    white = (Q / np.sqrt(values)) @ Q.T  # symmetric: as close to the axes as can be
    bits = FRAME_BITS + math.ceil(0.5 * math.log2(values[-1] / values[0]))
    top = float(np.abs(white).max())
    whole = np.rint(white / top * 2.0**bits).astype(np.int64).astype(object)
    return whole @ span


def exact_span(X: np.ndarray, r: int) -> np.ndarray | None:
    """(r, D) small integers, a basis of the row space of X, if that space has one: columns that depend on others exactly."""
    D = X.shape[1]
    rows: list[list[Fraction]] = []
    pivots: list[int] = []
    for x in X:
        row = [Fraction(float(v)) for v in x]
        for pivot, other in zip(pivots, rows):
            if row[pivot]:
                factor = row[pivot]
                row = [a - factor * b for a, b in zip(row, other)]
        lead = max(range(D), key=lambda k: abs(row[k]))
        if not row[lead]:
            continue
        if len(rows) == r:
            return None  # of full rank but for rounding
        row = [a / row[lead] for a in row]
        rows = [[a - other[lead] * b for a, b in zip(other, row)] for other in rows]
        rows.append(row)
        pivots.append(lead)
        # Nothing small: stop here, as long fractions would be reduced by every further point.
        long = (v.denominator > 1 << 40 or abs(v.numerator) > 1 << 60 for other in rows for v in other)
        if len(rows) == r and any(long):
            return None
    if len(rows) < r:
        return None
    out = np.zeros((r, D), dtype=object)
    for k, row in enumerate(rows):
        common = math.lcm(*(v.denominator for v in row))
        if common > 1 << 20:
            return None
        out[k] = [int(v * common) for v in row]
    return out


@dataclass(frozen=True)
class Symmetry:
    """Reflections of the coordinates that map a data set onto itself, up to one sign for all labels.

    Sampled data has none; full cubes and other designed sets have many, and without them a tree repeats itself once per image.
    Candidates are x_j -> -x_j, x_j <-> x_k and x_j <-> -x_k: with roots e_j, e_j - e_k, e_j + e_k.
    """

    roots: np.ndarray  # (R, D) integers, simple roots of the reflections that keep every label
    rho: np.ndarray  # (D,) integers with rho . root > 0
    orbit: np.ndarray  # (n,) points with one number are images of each other, labels all kept or all flipped

    def average(self, q: np.ndarray) -> np.ndarray:
        """q averaged over orbits: the dual objective is convex and invariant, so this never raises it."""
        size = np.bincount(self.orbit)
        return (np.bincount(self.orbit, q) / size)[self.orbit]


def find_symmetry(X: np.ndarray, y: np.ndarray) -> Symmetry | None:
    """The symmetry of the labelled points (distinct rows), or None if there is none worth using."""
    n, D = X.shape
    if D > SYMMETRIC_DIMENSION or n < 4:
        return None
    X = X + 0.0  # -0.0 and 0.0 are one number
    position = {row.tobytes(): i for i, row in enumerate(X)}
    values = np.sort(np.abs(X), axis=0)
    kept, images = [], []
    for j in range(D):
        for k in range(j, D):
            if j != k and not np.array_equal(values[:, j], values[:, k]):
                continue
            for sign in (1,) if j == k else (1, -1):
                root = np.zeros(D, dtype=int)
                root[j] = 1
                if j != k:
                    root[k] = -sign
                if np.linalg.norm(X @ root) <= STILL * np.linalg.norm(X):
                    continue
                image = X.copy()
                if j == k:
                    image[:, j] = -X[:, j]
                else:
                    image[:, j], image[:, k] = sign * X[:, k], sign * X[:, j]
                image += 0.0
                to = [position.get(row.tobytes(), -1) for row in image]
                if min(to) < 0:
                    continue
                same = y[to] * y
                if np.ptp(same) != 0:
                    continue
                images.append(to)
                if same[0] > 0:
                    kept.append(root)
    if not images:
        return None
    rho = np.array([3**D - 3**j + (D - j) for j in range(D)], dtype=object) if D < 12 else None
    rho = np.array([(D - j) * 1000 + j * j for j in range(D)]) if rho is None else rho.astype(np.int64)
    roots = [r if r @ rho > 0 else -r for r in kept if r @ rho != 0]
    return Symmetry(_simple(roots, D), rho, _orbits(np.array(images)))


def _simple(roots: list[np.ndarray], D: int) -> np.ndarray:
    """Drop roots that are nonnegative combinations of others: the chamber and the group stay the same."""
    from scipy.optimize import nnls

    left = list(roots)
    for root in roots:
        others = [r for r in left if not np.array_equal(r, root)]
        if others and nnls(np.array(others, dtype=float).T, root.astype(float))[1] < 1e-9:
            left = others
    return np.array(left, dtype=int).reshape(-1, D)


def _orbits(images: np.ndarray) -> np.ndarray:
    label = np.arange(images.shape[1])
    while True:
        new = np.minimum(label, label[images].min(axis=0))
        np.minimum.at(new, images.ravel(), np.broadcast_to(new, images.shape).ravel())
        if np.array_equal(new, label):
            return np.unique(label, return_inverse=True)[1]
        label = new


def rank_modulo(X: np.ndarray, prime: int = 2**31 - 1) -> int:
    """The rank of X modulo a prime: never more than in exact arithmetic, and less with odds of about 1 to `prime`."""
    mantissa, exponent = np.frexp(X)
    powers, where = np.unique(exponent - 53, return_inverse=True)
    power = np.array([pow(2, int(e), prime) for e in powers])[where.reshape(X.shape)]
    M = np.ldexp(mantissa, 53).astype(np.int64) % prime * power % prime  # (n, D)
    rank = 0
    for column in range(M.shape[1]):
        at = np.flatnonzero(M[rank:, column])
        if not len(at):
            continue
        M[[rank, rank + at[0]]] = M[[rank + at[0], rank]]
        M[rank] = M[rank] * pow(int(M[rank, column]), -1, prime) % prime
        M[rank + 1 :] = (M[rank + 1 :] - M[rank + 1 :, column, None] * M[rank] % prime) % prime
        rank += 1
        if rank == len(M):
            break
    return rank
