"""Shortest vectors over boxes, many at a time: minimise |linear + sum_i b_i row_i| with low <= b <= high.

An interior-point method: a step costs one system of the order of the vectors' dimension, and their number hardly depends on how
the rows lie. Projected gradients need thousands of steps where rows are nearly parallel.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 26
LAST = 1e-15  # complementarity, relative to where it began, at which steps would only add rounding
SHRINK = 0.1  # of the complementarity in a step
INSIDE = 0.995  # of the way to the boundary


def shortest(
    rows: Tensor, linear: Tensor, low: Tensor, high: Tensor, start: Tensor, unit: float, steps: int = STEPS
) -> Tensor:
    """b (B, k) inside the box low, high (B, k), nearly optimal, for rows (k, r) or (B, k, r) and linear (r,) or (B, r).

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
        going = mean > LAST * first
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
