"""Coordinates of the points: a basis of their span, opposite pairs, directions in which they are round."""

from __future__ import annotations

import numpy as np

THIN = 100.0  # condition number of the points from which half of the local searches start from whitened directions


def reduce_rank(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X (n, D) in an orthonormal basis (D, r) of its row space; X itself where that space is everything."""
    n, D = X.shape
    _, size, Vt = np.linalg.svd(X, full_matrices=False)
    r = max(1, int((size > size[0] * 1e-13 * max(n, D)).sum()))
    if r == D:
        return np.ascontiguousarray(X), np.eye(D)
    return X @ Vt[:r].T, Vt[:r].T


def whitening(X: np.ndarray) -> np.ndarray | None:
    """(r, r) that maps normal rows z to directions v with normal scores X v (n,), if the points X (n, r) are close to a subspace.

    Seen from such points nearly all directions have the same few patterns: of small points with a bias, all or none are active.
    """
    _, size, Vt = np.linalg.svd(X, full_matrices=False)
    return Vt / size[:, None] if size[0] > THIN * size[-1] else None


def opposite_pairs(X: np.ndarray) -> np.ndarray:
    """(k, 2) indices of rows with x_j = -x_i exactly, each row in at most one pair."""
    X = X + 0.0
    where = {row.tobytes(): i for i, row in enumerate(X)}
    found = [(i, where.get((0.0 - row).tobytes(), -1)) for i, row in enumerate(X)]
    return np.array([(i, j) for i, j in found if i < j], dtype=int).reshape(-1, 2)
