"""Kernels of random neurons in closed form, of points as the neurons see them: a bias is a last coordinate 1 in X and Z.

For uniform v on the unit sphere of R^D, t the angle between x and z and c = cos t,

    E relu(v.x) relu(v.z)     = |x| |z| J1 / (2 pi D),              J1 = sin t + (pi - t) cos t
    E relu(v.x)^2 relu(v.z)^2 = |x|^2 |z|^2 J2 / (2 pi D (D + 2)),  J2 = 3 sin t cos t + (pi - t)(1 + 2 cos^2 t)

(the arc-cosine kernels of order 1 and 2, divided by E|w|^2 = D and E|w|^4 = D (D + 2) of a standard Gaussian w), and the kernel
of the gradients of a network at its initial weights,

    ntk = outer + inner,   outer = the first of these,   inner = x.z (pi - t) / (2 pi).

Each function takes X (n, D) and Z (k, D) and returns (n, k); Z = X when left out.
"""

from __future__ import annotations

import math

import numpy as np

STEEP = 0.9  # cosine beyond which the angle is taken from differences


def relu(X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
    c, r, p, D = _cosines(X, Z)
    for row in range(len(c)):  # one row at a time: temporaries stay in cache
        c[row] = _j1(c[row]) * ((p * r[row]) / (2 * np.pi * D))
    return c


def srelu(X: np.ndarray, Z: np.ndarray | None = None) -> np.ndarray:
    c, r, p, D = _cosines(X, Z)
    for row in range(len(c)):
        c[row] = _j2(c[row]) * ((p * r[row]) ** 2 / (2 * np.pi * D * (D + 2)))
    return c


def ntk(X: np.ndarray, Z: np.ndarray | None = None, part: str = "total") -> np.ndarray:
    """`part`: "outer", "inner", or "total", their sum."""
    outer = relu(X, X if Z is None else Z) if part != "inner" else 0.0
    return np.asarray(outer + (_inner(X, X if Z is None else Z) if part != "outer" else 0.0))


def _inner(X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """x.z (pi - t) / (2 pi); near 0 and pi, where arccos loses digits, t is taken from |u - v| and |u + v|."""
    K = X @ Z.T
    top = max(float(np.abs(X).max()), float(np.abs(Z).max()), 1e-300)
    U, V = (A / top / np.linalg.norm(A / top, axis=1, keepdims=True).clip(1e-300) for A in (X, Z))
    cosines = U @ V.T
    for i, (row, c) in enumerate(zip(U, cosines)):
        t = np.arccos(c.clip(-1, 1))
        near = np.flatnonzero(np.abs(c) > STEEP)
        if len(near):
            v = V[near]
            t[near] = 2 * np.arctan2(np.linalg.norm(row - v, axis=1), np.linalg.norm(row + v, axis=1))
        K[i] *= (math.pi - t) / (2 * math.pi)
    return K


def _cosines(X: np.ndarray, Z: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Cosines (n, k) of all angles, the norms of both sides, and D."""
    u, r = _units(X)
    v, p = (u, r) if Z is None else _units(Z)
    return np.clip(u @ v.T, -1.0, 1.0), r, p, u.shape[1]


def _units(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows divided by their norms, and the norms; rows of zeros stay zero. Neither overflows nor underflows."""
    top = np.abs(X).max(axis=1)
    scaled = X / np.where(top > 0, top, 1)[:, None]
    size = np.linalg.norm(scaled, axis=1)
    return scaled / np.where(top > 0, size, 1)[:, None], size * top


# J1 and J2 are smooth in c up to the ends (dJ1/dc = pi - t, dJ2/dc = 4 (sin t + (pi - t) c)), so the cosine, and not
# the angle, is the stable variable: an error e in c moves J1 by at most pi e, although t itself may move by sqrt(e).


def _j1(c: np.ndarray) -> np.ndarray:
    return (np.sqrt((1 - c) * (1 + c)) + np.arccos(-c) * c).clip(0)


def _j2(c: np.ndarray) -> np.ndarray:
    return (3 * np.sqrt((1 - c) * (1 + c)) * c + np.arccos(-c) * (1 + 2 * c * c)).clip(0)
