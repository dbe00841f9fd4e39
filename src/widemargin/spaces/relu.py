"""ReLU and squared ReLU features, with their kernels in closed form (`widemargin.kernels`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from widemargin import kernels

from .base import Space


@dataclass(frozen=True)
class ReLU(Space):
    """phi(t) = max(0, t)."""

    bias: bool = False
    activation = "relu"
    degree: ClassVar[int] = 1

    def phi(self, t: Any) -> Any:
        return t.clip(0)

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        return kernels.relu(self.extend(X), None if Z is None else self.extend(Z))


@dataclass(frozen=True)
class SReLU(Space):
    """phi(t) = max(0, t)^2."""

    bias: bool = False
    activation = "srelu"
    degree: ClassVar[int] = 2

    def phi(self, t: Any) -> Any:
        t = t.clip(0)
        return t * t

    def kernel(self, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
        return kernels.srelu(self.extend(X), None if Z is None else self.extend(Z))
