"""The terms of one pricing problem, as the trees and the quadratic bounds see them, and what a tree knows in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ACTIVE, INACTIVE, FREE = 1, 0, -1  # what a node knows about the sign of v . x_i


@dataclass
class Priced:
    """What is known about one side: value <= maximum <= bound."""

    value: float
    bound: float
    nodes: int
    found: Tensor  # (k, r) good unit directions, best first
    log: Any  # the tree, for the proof; None where it was too large to keep
    aborted: bool = False
    hard: bool = False  # whether linear bounds of signs were not enough


class Terms:
    """sum_i c_i relu(v . x_i) + linear . v; `rows` are the points with c != 0 (positive first), then the symmetry's roots."""

    def __init__(self, X: Tensor, c: Tensor, roots: Tensor | None = None, linear: Tensor | None = None):
        self.linear = X.new_zeros(X.shape[1]) if linear is None else linear  # a term linear . v of the objective
        points = torch.nonzero(c).flatten()
        points = points[torch.argsort((c[points] < 0).to(torch.int8), stable=True)]
        self.points, self.c = points, c[points]
        self.positive = int((self.c > 0).sum())
        self.X = X[points]  # (n', d)
        self.rows = self.X if roots is None or len(roots) == 0 else torch.cat([self.X, roots])
        size = self.rows.norm(dim=1).clamp_min(1e-300)
        self.unit, self.size = self.rows / size[:, None], size
        self.typical = float((self.c.abs() * size[: len(self.c)]).max()) if len(self.c) else 1.0
        self.lipschitz = (torch.linalg.matrix_norm(self.unit, 2) ** 2).clamp_min(1.0)  # less only if all rows are 0
        p = self.positive
        self.cp, self.xp, self.rp = self.c[:p], self.X[:p], size[:p]

    def kappa(self, sign: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """sum_i max over the allowed t of c_i relu(t) - a_i t^2 - b_i t, for any a (B, n') and b (B, rows)."""
        p, n = self.positive, len(self.c)
        size, total = self.size[:n], torch.zeros_like(a)
        up, down = torch.ones_like(a, dtype=torch.bool), torch.ones_like(a, dtype=torch.bool)
        up[:, :p], down[:, :p] = sign != INACTIVE, sign != ACTIVE
        for allowed, gain in ((up, self.c - b[:, :n]), (down, b[:, :n])):
            bowl = gain.clamp_min(0) ** 2 / (4 * a.clamp_min(1e-300))
            most = torch.where(a > 0, bowl, gain * size - a * size**2)
            total = torch.where(allowed, torch.maximum(total, most), total)
        return total.sum(1)
