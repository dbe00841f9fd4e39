"""Pairs of points of different classes: those that are looked at, and the nearest of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from .door import EPS, Door, Late, equal_rows

NEAREST = 300  # pairs that a linear program looks at
ALL_PAIRS, FEW_PAIRS, PACE = (
    2_000_000,
    10_000,
    2e7,
)  # most and fewest pairs in play, and how many are worked through in a second
TREE_RANK = 12  # dimensions up to which a tree finds nearest points faster than a look at all of them
SAMPLE = 5000  # points that a basis is made of
CHOICE = 0.3  # of the time that may go by before the points in play are chosen
WIDE = 16  # columns from which on the time for a pair grows with them


@dataclass(frozen=True)
class Pairs:
    """Pairs (a, b) of a row of A (label +1) and one of B (label -1), in k coordinates that span all differences."""

    A: np.ndarray  # (n+, k)
    B: np.ndarray  # (n-, k)
    basis: np.ndarray  # (k, d): coordinates c are basis @ (x - mean)
    plus: np.ndarray  # the index of each row of A in the data
    minus: np.ndarray
    X: np.ndarray  # (n, d), scaled

    @staticmethod
    def of(door: Door, chosen: np.ndarray) -> Pairs:
        """Of the points `chosen`."""
        X, y = door.X, door.y[chosen]
        plus, minus = chosen[y > 0], chosen[y < 0]
        C = X[chosen] - X[chosen].mean(axis=0)
        _, s, V = np.linalg.svd(C[:: max(1, len(C) // SAMPLE)], full_matrices=False)
        k = max(1, int((s > s.max() * max(C.shape) * EPS).sum()))
        basis = V[:k] if k < X.shape[1] else np.eye(X.shape[1])
        C = C @ basis.T  # (n, k)
        return Pairs(C[y > 0], C[y < 0], basis, plus, minus, X)

    @property
    def k(self) -> int:
        return self.A.shape[1]

    def squares(self, L: np.ndarray | None = None) -> np.ndarray:
        """||L z||^2 of all differences z, (n+, n-); L (r, k), or the distances of the points themselves."""
        if L is None:
            return cdist(self.X[self.plus], self.X[self.minus], "sqeuclidean")
        return cdist(self.A @ L.T, self.B @ L.T, "sqeuclidean")

    def inner(self, M: np.ndarray) -> np.ndarray:
        """<M, z z'> of all differences, fast and with more rounding than `squares`."""
        AM, BM = self.A @ M, self.B @ M
        own = (AM * self.A).sum(axis=1)[:, None] + (BM * self.B).sum(axis=1)
        return (own - 2 * (AM @ self.B.T)).clip(0)

    @staticmethod
    def order(values: np.ndarray, most: int = NEAREST) -> np.ndarray:
        """(m, 2) positions of the smallest entries, increasing."""
        flat = values.ravel()
        index = np.argpartition(flat, most)[:most] if most < flat.size else np.arange(flat.size)
        index = index[np.argsort(flat[index], kind="stable")]
        return np.column_stack(np.unravel_index(index, values.shape))

    def z(self, at: np.ndarray) -> np.ndarray:
        return self.A[at[:, 0]] - self.B[at[:, 1]]  # (m, k)

    def names(self, at: np.ndarray) -> list[tuple[int, int]]:
        """The indices in the data of pairs."""
        return [(int(self.plus[a]), int(self.minus[b])) for a, b in at]


def in_play(door: Door) -> np.ndarray:
    """Points whose pairs are looked at: all where these are few, else those nearest to the other class, as many of each."""
    plus, minus = np.flatnonzero(door.y > 0), np.flatnonzero(door.y < 0)
    pace = ALL_PAIRS if math.isinf(door.deadline) else PACE * door.limits.step()
    most = int(min(max(pace, FEW_PAIRS), ALL_PAIRS, door.limits.memory / 200))
    # A basis of the points, and matrices of as many rows and columns as it has, must fit into a step, too.
    n, D = door.X.shape
    span = door.limits.largest(n, lambda m: 20.0 * m * D * min(m, D), lambda m: 4.0 * m * D)
    if span < n:
        most = min(most, max(1, span // 2) ** 2)
    if len(plus) * len(minus) <= most and n <= span:
        return np.arange(n)
    each = max(1, math.isqrt(most))
    sizes = [min(len(side), max(each, min(most // len(other), span))) for side, other in ((plus, minus), (minus, plus))]
    try:
        part = replace(door, limits=door.limits.first(CHOICE))
        near = [nearest(door.X[side], door.X[other], part)[0] for side, other in ((plus, minus), (minus, plus))]
        chosen = [side[np.argsort(apart, kind="stable")[:k]] for side, apart, k in zip((plus, minus), near, sizes)]
    except Late:
        chosen = [side[np.random.default_rng(0).permutation(len(side))[:k]] for side, k in zip((plus, minus), sizes)]
    return np.sort(np.concatenate(chosen))


def nearest(A: np.ndarray, B: np.ndarray, door: Door) -> tuple[np.ndarray, np.ndarray]:
    """The distance of each row of A (n, k) to the nearest row of B (m, k), and which that is; `Late` where the time is over."""
    limits = door.limits
    distance, index = np.empty(len(A)), np.empty(len(A), dtype=np.int64)
    if A.shape[1] <= TREE_RANK and len(B) > 200:
        if limits.largest(len(B), lambda m: 2000.0 * m, lambda m: 4.0 * m * A.shape[1]) < len(B):
            raise Late
        # Equal points, which no plane of a tree divides, are all looked at by every query that comes to them.
        some, each = np.unique(equal_rows(A), return_inverse=True)
        others = np.unique(equal_rows(B))
        tree = cKDTree(B[others])
        for block in limits.blocks(len(some), max(2000, len(others))):  # a query may come to all points
            distance[block], index[block] = tree.query(A[some[block]])
        return distance[each], others[index[each]]
    for block in limits.blocks(len(A), max(len(B), len(B) * A.shape[1] // WIDE)):
        squares = cdist(A[block], B, "sqeuclidean")
        index[block] = squares.argmin(axis=1)
        distance[block] = np.sqrt(np.take_along_axis(squares, index[block, None], 1)[:, 0])
    return distance, index
