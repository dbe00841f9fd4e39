"""Ascent on a whole network's margin, for problems too large for the cone program: a particle flow with a soft minimum."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor


def polish(
    X: Tensor,
    y: Tensor,
    W: Tensor,
    s: Tensor,
    *,
    deadline: float,
    steps: int = 2000,
    report: Callable[[Tensor], None] | None = None,
) -> tuple[float, Tensor, Tensor]:
    """Raise min_i y_i sum_k s_k relu(W_k . x_i) / sum_k ||W_k|| by Adam on the soft minimum at falling temperatures.

    `report` sees the best weights every 100 steps.
    Returns the best margin met, its W (m, d), and the softmax weights q (n,) at the end, which approximate the dual.
    """
    W = W.clone().requires_grad_(True)
    size = float(W.detach().norm(dim=1).mean())
    optimizer = torch.optim.Adam([W], lr=0.03 * size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4 * size)
    best, best_W, q = -torch.inf, W.detach().clone(), torch.full_like(y, 1 / len(y))
    margin = (y * ((X @ W.detach().T).clamp_min(0) @ s)) / W.detach().norm(dim=1).sum()
    start = max(float(margin.std(correction=0)), 1e-3 * float(margin.abs().mean()), 1e-12)
    for step in range(steps):
        temperature = start * 0.3 * (1e-3 ** (step / steps))
        margin = y * ((X @ W.T).clamp_min(0) @ s) / W.norm(dim=1).sum()  # (n,)
        lowest = float(margin.detach().min())
        if lowest > best:
            best, best_W = lowest, W.detach().clone()
        loss = torch.logsumexp(-margin / temperature, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if report is not None and step % 100 == 99:
            report(best_W)
        if step % 20 == 0 and time.perf_counter() > deadline:
            break
    q = torch.softmax(-margin.detach() / temperature, 0)
    return best, best_W, q
