"""What a margin solver asks of a feature space: all that an activation is, in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from widemargin.errors import InputError


class Space(ABC):
    """Features phi(theta . x) of unit directions theta; with `bias` every point is extended by a last coordinate 1."""

    bias: bool
    degree: ClassVar[int]  # phi(c t) = c^degree phi(t) for c > 0
    # phi(t) = relu(t)^degree - slope relu(-t): the pricing problem is one of relu(t)^degree and a linear term (`pricing.Points`)
    slope: float = 0.0

    @property
    @abstractmethod
    def activation(self) -> str:
        """Its name, in certificates too: the checker has a rule for each."""

    def extend(self, X: ArrayLike) -> np.ndarray:
        """X (n, d) as the features see it: (n, D), D = d or d + 1."""
        return extend(X, self.bias)

    @abstractmethod
    def phi(self, t: Any) -> Any:
        """The activation, entry by entry, of an array or a tensor."""

    def features(self, theta: ArrayLike, X: ArrayLike) -> np.ndarray:
        """phi(theta_j . x_i): (n, m) for theta (m, D), which need not be unit."""
        extended, theta = self.extend(X), np.atleast_2d(np.asarray(theta, dtype=np.float64))
        if theta.shape[1] != extended.shape[1]:
            bias = "the bias coordinate included" if self.bias else "no bias coordinate"
            raise InputError(f"directions have {theta.shape[1]} entries but points have {extended.shape[1]} ({bias})")
        return self.phi(extended @ theta.T)  # (n, m)

    @abstractmethod
    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        """E phi(v . x_i) phi(v . z_j) over uniform v on the unit sphere of R^D: (n, k); Z = X when left out."""


def extend(X: ArrayLike, bias: bool) -> np.ndarray:
    """X (n, d) as it is, or with a last coordinate 1."""
    X = np.asarray(X, dtype=np.float64)
    if X.ndim != 2:
        raise InputError(f"points must have two dimensions (points, features), not {X.ndim}")
    return np.hstack([X, np.ones((len(X), 1))]) if bias else X


def sphere(m: int, D: int, seed: int = 0) -> np.ndarray:
    """m independent uniform unit vectors of R^D: (m, D)."""
    if m < 1 or D < 1:
        raise InputError(f"sphere needs at least one direction and one dimension, not m={m}, D={D}")
    v = np.random.default_rng(seed).standard_normal((m, D))
    return v / np.linalg.norm(v, axis=1, keepdims=True)
