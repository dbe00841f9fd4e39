"""ReLU and squared ReLU features, with their kernels in closed form.

For uniform v on the unit sphere of R^D, t the angle between x and z and c = cos t,

    E relu(v.x) relu(v.z)     = |x| |z| J1 / (2 pi D),              J1 = sin t + (pi - t) cos t
    E relu(v.x)^2 relu(v.z)^2 = |x|^2 |z|^2 J2 / (2 pi D (D + 2)),  J2 = 3 sin t cos t + (pi - t)(1 + 2 cos^2 t)

(the arc-cosine kernels of order 1 and 2, divided by E|w|^2 = D and E|w|^4 = D (D + 2) of a standard Gaussian w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .base import Space


@dataclass(frozen=True)
class ReLU(Space):
    """phi(t) = max(0, t)."""

    bias: bool = False
    activation: ClassVar[str] = "relu"
    degree: ClassVar[int] = 1

    def phi(self, t: np.ndarray) -> np.ndarray:
        return t.clip(0)

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        c, r, p, D = _cosines(self, X, Z)
        for row in range(len(c)):  # one row at a time: temporaries stay in cache
            c[row] = _j1(c[row]) * ((p * r[row]) / (2 * np.pi * D))
        return c


@dataclass(frozen=True)
class SReLU(Space):
    """phi(t) = max(0, t)^2."""

    bias: bool = False
    activation: ClassVar[str] = "srelu"
    degree: ClassVar[int] = 2

    def phi(self, t: np.ndarray) -> np.ndarray:
        t = t.clip(0)
        return t * t

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        c, r, p, D = _cosines(self, X, Z)
        for row in range(len(c)):
            c[row] = _j2(c[row]) * ((p * r[row]) ** 2 / (2 * np.pi * D * (D + 2)))
        return c


def _cosines(space: Space, X: ArrayLike, Z: ArrayLike | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Cosines (n, k) of all angles, the norms of both sides, and D."""
    u, r = _units(space.extend(X))
    v, p = (u, r) if Z is None else _units(space.extend(Z))
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
