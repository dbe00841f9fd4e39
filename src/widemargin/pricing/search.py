"""Local search for the pricing problem: many starts at once, on the unit sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from .boxed import shortest


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


def climb(X: Tensor, c: Tensor, V: Tensor, rounds: int = 3) -> tuple[Tensor, Tensor]:
    """Local maxima near the rows of V (m, d), kinks included, and their values: few dimensions, relu.

    With the active points of positive weight held, the objective is bounded below by the concave function
    sum_{active} c_i x_i . v - sum_{c_i < 0} |c_i| relu(x_i . v), equal at the present v; its maximum over |v| <= 1 is the
    length of the shortest vector over slopes, and lies in that vector's direction. So no round goes down.
    """
    plus = c > 0
    size = X.norm(dim=1).clamp_min(1e-300)
    rows, weight = (X / size[:, None])[~plus], (c * size)[~plus]
    value = (V @ X.T).clamp_min(0) @ c
    if len(rows) == 0:
        rows, weight = X.new_zeros(1, X.shape[1]), c.new_zeros(1)
    low, high = weight.expand(len(V), -1), torch.zeros(len(V), len(weight), dtype=V.dtype, device=V.device)
    unit = float(weight.abs().max()) or 1.0
    for _ in range(rounds):
        held = ((V @ X[plus].T > 0).to(V.dtype) * c[plus]) @ X[plus]
        b = shortest(rows, held, low, high, low / 2, unit)
        W = held + b @ rows
        W = W / W.norm(dim=1, keepdim=True).clamp_min(1e-300)
        new = (W @ X.T).clamp_min(0) @ c
        up = new > value
        V, value = torch.where(up[:, None], W, V), torch.where(up, new, value)
    return V, value
