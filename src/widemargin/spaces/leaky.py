"""Leaky ReLU features: everything the package knows about them, but for the checker's own rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from widemargin import kernels
from widemargin.errors import InputError

from .base import Space

SLOPE = 0.01  # as in torch


@dataclass(frozen=True)
class LeakyReLU(Space):
    """phi(t) = max(0, t) - slope max(0, -t) = (1 - slope) max(0, t) + slope t, 0 <= slope < 1."""

    bias: bool = False
    slope: float = SLOPE
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.slope < 1:
            raise InputError(f"the slope of a leaky ReLU must lie from 0 to below 1, not {self.slope!r}")
        object.__setattr__(self, "slope", abs(float(self.slope)))  # no -0.0

    @property
    def activation(self) -> str:
        return "leaky" if self.slope == SLOPE else f"leaky:{self.slope!r}"

    def phi(self, t: Any) -> Any:
        return t.clip(0) + self.slope * t.clip(None, 0)

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        """(1 - slope)^2 that of ReLU + slope x . z / D: E relu(v . x) v . z = x . z / (2 D)."""
        X = self.extend(X)
        Z = None if Z is None else self.extend(Z)
        line = X @ (X if Z is None else Z).T
        return (1 - self.slope) ** 2 * kernels.relu(X, Z) + self.slope / X.shape[1] * line
