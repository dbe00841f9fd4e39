"""The points of a pricing problem: what does not depend on the weights."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from . import symmetry

THIN = 100.0  # condition number of the points from which half of the local searches start from whitened directions
NEAR_BITS = 50  # of a basis that holds the points but for rounding
FRAME_BITS = 8  # of the frame's entries, beside those that the condition of the points needs


class Points:
    """X0 (n, D) distinct points, entries about 1, and X (n, r), the same in an orthonormal basis (D, r) of their span.

    `scale` is the power of two that the proofs' integers are multiplied with to meet the data; far from 1 (`far`) quadratic
    bounds and symmetries are left out, whose integers would not fit. `slope` is that of a leaky ReLU: then weights c are those of
    phi(t) = relu(t) - slope relu(-t), and `as_relu` and `folded` turn the problem into one of relu and a linear term.
    """

    def __init__(
        self,
        X0: np.ndarray,
        y: np.ndarray | None,
        shift: int,
        device: torch.device,
        basis: np.ndarray,
        slope: float = 0.0,
    ):
        self.slope = slope
        self.X0, self.y, self.shift, self.device, self.basis = X0, y, shift, device, basis
        self.X = X0 @ basis if len(basis) > basis.shape[1] else np.ascontiguousarray(X0)
        self.n, self.r = self.X.shape
        self.far = abs(shift) >= 20
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
    def symmetry(self) -> symmetry.Symmetry | None:
        return None if self.far or self.y is None else symmetry.find(self.X0, self.y)

    @property
    def roots(self) -> np.ndarray:
        """(k, D) integers: reflections of the labelled points."""
        return self.symmetry.roots if self.symmetry is not None else np.zeros((0, self.X0.shape[1]), dtype=int)

    @cached_property
    def frame(self) -> np.ndarray | None:
        """(r, D) integers for the tree over cones, if there are any that fit."""
        return integer_frame(self.X0, self.basis)

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
