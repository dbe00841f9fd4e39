"""Four ReLUs that fit MT's distribution D, and their margin (Lemma D.1)."""

from __future__ import annotations

import math

import numpy as np

from widemargin.types import Measure

L1_MARGIN = math.sqrt(2) / 4  # of D in any dimension, Lemma D.1


def four_relus(d: int) -> Measure:
    """(relu(u.x) + relu(-u.x) - relu(w.x) - relu(-w.x))/4, u, w = (e_1 +- e_2)/sqrt 2: margin sqrt(2)/4 on D (Lemma D.1)."""
    theta = np.zeros((4, d))
    theta[:, :2] = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]]) / math.sqrt(2)
    return Measure(theta, np.array([1.0, 1.0, -1.0, -1.0]) / 4)
