"""The batch-normalised features of a first network."""

from __future__ import annotations

import numpy as np

from widemargin.margins.batchnorm_networks import initial_weights
from widemargin.types import Dataset


def features(points: Dataset, m: int, seed: int, trial: int) -> tuple[np.ndarray, np.ndarray]:
    """z_ij = y_i relu(<v_j / N(v_j), xbar_i>) (n, m) and the outer weights a (m,) of a first network."""
    V, a = initial_weights(m, points.d, seed, trial)
    P = (points.X - points.X.mean(axis=0)) @ V.T
    return points.signs()[:, None] * (P / np.sqrt((P * P).mean(axis=0))).clip(0), a
