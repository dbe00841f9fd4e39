"""Local search for the pricing problem: many starts at once, on the unit sphere."""

from __future__ import annotations

import torch
from torch import Tensor


def ascend(X: Tensor, c: Tensor, V: Tensor, steps: int = 50, degree: int = 1) -> tuple[Tensor, Tensor]:
    """Ascend sum_i c_i relu(v . x_i)^degree from every row of V (m, d); each start has its own step, halved on failure."""
    V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
    h = (V @ X.T).clamp_min(0)  # (m, n)
    value = h.pow(degree) @ c
    step = torch.ones(len(V), 1, dtype=V.dtype, device=V.device)
    for _ in range(steps):
        slope = (h > 0).to(V.dtype) if degree == 1 else 2 * h
        G = (slope * c) @ X
        W = V + step * G / G.norm(dim=1, keepdim=True).clamp_min(1e-300)
        W = W / W.norm(dim=1, keepdim=True).clamp_min(1e-300)
        h_new = (W @ X.T).clamp_min(0)
        new = h_new.pow(degree) @ c
        up = new > value
        V, h = torch.where(up[:, None], W, V), torch.where(up[:, None], h_new, h)
        value = torch.where(up, new, value)
        step = torch.where(up[:, None], step * 1.5, step * 0.5)
    return V, value
