"""Local search for the pricing problem, many starts at once on the unit sphere; shortest vectors, which give its exact steps."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor

from .points import Points

STEPS = 26  # of `shortest`, whose numbers these are
LEAST_COMPLEMENTARITY = 1e-15  # complementarity, relative to where it began, at which steps would only add rounding
SHRINK = 0.1  # of the complementarity in a step
INSIDE = 0.995  # of the way to the boundary


def maxima(
    points: Points, X: Tensor, c: np.ndarray, V: Tensor, steps: int, climbers: int, until: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Local maxima from the rows of V (m, r), best first, and their values; X (n, r) are the points where to search.

    Exact ones from the best `climbers` starts, if any: what gradient steps leave out is little, but columns that are off by it
    come again and again.
    """
    weights, rest = points.as_relu(c)
    weight, linear = (torch.as_tensor(a, device=X.device) for a in (weights, rest @ points.X))
    V, value = ascend(X, weight, V, steps, linear=linear, until=until)
    order = torch.argsort(-value)
    if climbers and time.perf_counter() < until:
        on = weight != 0
        V, value = climb(X[on], weight[on], V[order[:climbers]], linear=linear, until=until)
        order = torch.argsort(-value)
    return V[order], value[order]


def ascend(
    X: Tensor,
    c: Tensor,
    V: Tensor,
    steps: int = 50,
    degree: int = 1,
    linear: Tensor | None = None,
    until: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """Ascend sum_i c_i relu(v . x_i)^degree + linear . v from every row of V (m, d); each start has its own step, halved on
    failure."""
    linear = X.new_zeros(X.shape[1]) if linear is None else linear
    V = V / V.norm(dim=1, keepdim=True).clamp_min(1e-300)
    h = (V @ X.T).clamp_min(0)  # (m, n)
    value = h.pow(degree) @ c + V @ linear
    step = torch.ones(len(V), 1, dtype=V.dtype, device=V.device)
    for _ in range(steps):
        if time.perf_counter() > until:
            break
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


def climb(
    X: Tensor, c: Tensor, V: Tensor, rounds: int = 3, linear: Tensor | None = None, until: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Local maxima of sum_i c_i relu(v . x_i) + linear . v near the rows of V (m, d), kinks included, and their values: few
    dimensions. No round begins after `until`.

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
        if time.perf_counter() > until:
            break
        held = ((V @ X[plus].T > 0).to(V.dtype) * c[plus]) @ X[plus] + linear
        b = shortest(rows, held, low, high, low / 2, unit)
        W = held + b @ rows
        W = W / W.norm(dim=1, keepdim=True).clamp_min(1e-300)
        new = (W @ X.T).clamp_min(0) @ c + W @ linear
        up = new > value
        V, value = torch.where(up[:, None], W, V), torch.where(up, new, value)
    return V, value


def shortest(
    rows: Tensor, linear: Tensor, low: Tensor, high: Tensor, start: Tensor, unit: float, steps: int = STEPS
) -> Tensor:
    """Minimise |linear + sum_i b_i row_i| over boxes, many at a time: b (B, k) with low <= b <= high (B, k), nearly optimal.

    rows are (k, r) or (B, k, r), and linear (r,) or (B, r). An interior-point method: a step costs one system of the order of
    the vectors' dimension, and their number hardly depends on how the rows lie. Projected gradients need thousands of steps where
    rows are nearly parallel.

    `unit` is the size of a typical b. Where low = high, b is that. Bounds may be infinite on one side. `start` is what comes
    back where nothing shorter is found.
    """
    width = high - low
    fixed = ~(width > 0)
    ones = torch.ones_like(low)
    has_low, has_high = torch.isfinite(low) & ~fixed, torch.isfinite(high) & ~fixed
    room = torch.where(torch.isfinite(width), 0.1 * width, 0.1 * unit * ones)
    b = torch.where(
        fixed, low, torch.zeros_like(low).clamp(low + room, high - room)
    )  # far inside: `start` may be at the wall
    l = torch.where(has_low, b - low, ones)
    u = torch.where(has_high, high - b, ones)
    many = rows.dim() == 3
    mul = (lambda x: (x[:, None, :] @ rows)[:, 0]) if many else (lambda x: x @ rows)  # (B, k) -> (B, r)
    dot = (lambda x: (rows @ x[:, :, None])[:, :, 0]) if many else (lambda x: x @ rows.T)  # (B, r) -> (B, k)
    g = linear + mul(b)
    scale = unit * g.norm(dim=1, keepdim=True).clamp_min(1e-300)
    z, y = torch.where(has_low, scale / l, 0.0), torch.where(has_high, scale / u, 0.0)
    count = (has_low.sum(1, keepdim=True) + has_high.sum(1, keepdim=True)).clamp_min(1)
    first = (z * l + y * u).sum(1, keepdim=True) / count
    best = torch.clamp(start, low, high)
    length = (linear + mul(best)).norm(dim=1)
    r = rows.shape[-1]
    eye = torch.eye(r, device=b.device, dtype=b.dtype)
    for _ in range(steps):
        size = g.norm(dim=1)
        better = size < length
        best, length = torch.where(better[:, None], b, best), torch.where(better, size, length)
        mean = (z * l + y * u).sum(1, keepdim=True) / count
        going = mean > LEAST_COMPLEMENTARITY * first
        mu = SHRINK * mean
        into, out = torch.where(has_low, mu / l, 0.0), torch.where(has_high, mu / u, 0.0)
        right = -dot(g) + into - out
        inverse = torch.where(fixed, 0.0, 1 / (z / l + y / u).clamp_min(1e-280))  # (B, k)
        # (D + R R')^-1 by the r x r matrix I + R' D^-1 R
        weighted = rows * inverse[:, :, None]  # (B, k, r)
        small = eye + weighted.mT @ rows
        step = inverse * right
        factor, _ = torch.linalg.cholesky_ex(small)
        inner = torch.cholesky_solve(mul(step)[:, :, None], factor)[:, :, 0]
        step = step - inverse * dot(inner)
        dz = torch.where(has_low, into - z - z / l * step, 0.0)
        dy = torch.where(has_high, out - y + y / u * step, 0.0)
        primal = INSIDE / torch.maximum(
            torch.where(has_low, -step / l, 0.0), torch.where(has_high, step / u, 0.0)
        ).amax(1, keepdim=True).clamp_min(INSIDE)
        dual = INSIDE / torch.maximum(-dz / z.clamp_min(1e-290) * has_low, -dy / y.clamp_min(1e-290) * has_high).amax(
            1, keepdim=True
        ).clamp_min(INSIDE)
        primal, dual = primal * going, dual * going
        b, z, y = b + primal * step, z + dual * dz, y + dual * dy
        # not b - low: its digits are lost long before the last step
        l, u = torch.where(has_low, l + primal * step, ones), torch.where(has_high, u - primal * step, ones)
        g = linear + mul(b)
    better = g.norm(dim=1) < length
    return torch.clamp(torch.where(better[:, None], b, best), low, high)
