"""Local search for the pricing problem: many starts at once, on the unit sphere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .boxed import shortest
from .points import Points


def maxima(points: Points, X: Tensor, c: np.ndarray, V: Tensor, steps: int, climbers: int) -> tuple[Tensor, Tensor]:
    """Local maxima from the rows of V (m, r), best first, and their values; X (n, r) are the points where to search.

    Exact ones from the best `climbers` starts, if any: what gradient steps leave out is little, but columns that are off by it
    come again and again.
    """
    weights, rest = points.as_relu(c)
    weight, linear = (torch.as_tensor(a, device=X.device) for a in (weights, rest @ points.X))
    V, value = ascend(X, weight, V, steps, linear=linear)
    order = torch.argsort(-value)
    if climbers:
        on = weight != 0
        V, value = climb(X[on], weight[on], V[order[:climbers]], linear=linear)
        order = torch.argsort(-value)
    return V[order], value[order]


def ascend(
    X: Tensor, c: Tensor, V: Tensor, steps: int = 50, degree: int = 1, linear: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Ascend sum_i c_i relu(v . x_i)^degree + linear . v from every row of V (m, d); each start has its own step, halved on
    failure."""
    linear = X.new_zeros(X.shape[1]) if linear is None else linear
    V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
    h = (V @ X.T).clamp_min(0)  # (m, n)
    value = h.pow(degree) @ c + V @ linear
    step = torch.ones(len(V), 1, dtype=V.dtype, device=V.device)
    for _ in range(steps):
        slope = (h > 0).to(V.dtype) if degree == 1 else 2 * h
        G = (slope * c) @ X + linear
        W = V + step * G / G.norm(dim=1, keepdim=True).clamp_min(1e-300)
        W = W / W.norm(dim=1, keepdim=True).clamp_min(1e-300)
        h_new = (W @ X.T).clamp_min(0)
        new = h_new.pow(degree) @ c + W @ linear
        up = new > value
        V, h = torch.where(up[:, None], W, V), torch.where(up[:, None], h_new, h)
        value = torch.where(up, new, value)
        step = torch.where(up[:, None], step * 1.5, step * 0.5)
    return V, value


def climb(X: Tensor, c: Tensor, V: Tensor, rounds: int = 3, linear: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Local maxima of sum_i c_i relu(v . x_i) + linear . v near the rows of V (m, d), kinks included, and their values: few
    dimensions.

    With the active points of positive weight held, the objective is bounded below by the concave function
    linear . v + sum_{active} c_i x_i . v - sum_{c_i < 0} |c_i| relu(x_i . v), equal at the present v; its maximum over |v| <= 1
    is the length of the shortest vector over slopes, and lies in that vector's direction. So no round goes down.
    """
    linear = X.new_zeros(X.shape[1]) if linear is None else linear
    plus = c > 0
    size = X.norm(dim=1).clamp_min(1e-300)
    rows, weight = (X / size[:, None])[~plus], (c * size)[~plus]
    value = (V @ X.T).clamp_min(0) @ c + V @ linear
    if len(rows) == 0:
        rows, weight = X.new_zeros(1, X.shape[1]), c.new_zeros(1)
    low, high = weight.expand(len(V), -1), torch.zeros(len(V), len(weight), dtype=V.dtype, device=V.device)
    unit = float(weight.abs().max()) or 1.0
    for _ in range(rounds):
        held = ((V @ X[plus].T > 0).to(V.dtype) * c[plus]) @ X[plus] + linear
        b = shortest(rows, held, low, high, low / 2, unit)
        W = held + b @ rows
        W = W / W.norm(dim=1, keepdim=True).clamp_min(1e-300)
        new = (W @ X.T).clamp_min(0) @ c + W @ linear
        up = new > value
        V, value = torch.where(up[:, None], W, V), torch.where(up, new, value)
    return V, value
