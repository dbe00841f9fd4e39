"""Reflections of the coordinates that map a data set onto itself, up to one sign for all labels.

Sampled data has none; full cubes and other designed sets have many, and without them a tree repeats itself once per image.
Candidates are x_j -> -x_j, x_j <-> x_k and x_j <-> -x_k: with roots e_j, e_j - e_k, e_j + e_k.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_DIMENSION = 24
# A reflection that moves the points by less, relative to their size, is left out. If it moves none, as x_j <-> x_k does where
# these are equal in all points, its root is orthogonal to their span: in a basis of the span the root is rounding noise.
STILL = 1e-9


@dataclass(frozen=True)
class Symmetry:
    roots: np.ndarray  # (R, D) integers, simple roots of the reflections that keep every label
    rho: np.ndarray  # (D,) integers with rho . root > 0
    orbit: np.ndarray  # (n,) points with one number are images of each other, labels all kept or all flipped

    def average(self, q: np.ndarray) -> np.ndarray:
        """q averaged over orbits: the dual objective is convex and invariant, so this never raises it."""
        size = np.bincount(self.orbit)
        return (np.bincount(self.orbit, q) / size)[self.orbit]


def find(X: np.ndarray, y: np.ndarray) -> Symmetry | None:
    """The symmetry of the labelled points (distinct rows), or None if there is none worth using."""
    n, D = X.shape
    if D > MAX_DIMENSION or n < 4:
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
