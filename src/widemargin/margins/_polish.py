"""Ascent on a whole network's margin with a soft minimum: a solve's first networks, and all of those of large problems."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
HOTTEST, COLDEST = 0.3, 3e-4  # temperatures, in units of the spread of the margins at the start
CHECK = 10  # steps between looks at the clock


class SoftMargin:
    """m_i = y_i sum_k s_k phi(W_k . x_i) / sum_k ||W_k|| and the gradient of its soft minimum, in buffers made once.

    With p = softmax(-m / T), S = sum_k ||W_k||, and phi' = 1 where its argument is positive and `slope` where it is negative,

        d (-log sum_i exp(-m_i / T)) / d W_k = (s_k sum_i p_i y_i phi'(W_k . x_i) x_i - (p . m) W_k / ||W_k||) / (S T).
    """

    def __init__(self, X: Tensor, y: Tensor, s: Tensor, slope: float = 0.0):
        self.X, self.y, self.s, self.slope = X, y, s, slope  # (n, d), (n,), (m,)
        self.yX, self.Z = y[:, None] * X, torch.empty_like(X)  # (n, d)
        self.H = X.new_empty(len(X), len(s))  # (n, m)
        self.margin, self.p = torch.empty_like(y), torch.full_like(y, 1 / len(y))  # (n,)

    def margins(self, W: Tensor) -> Tensor:
        """The margins (n,) of W (m, d), in a buffer that the next call overwrites."""
        leaky_relu(torch.mm(self.X, W.T, out=self.H), self.slope, inplace=True)
        self.size = torch.linalg.vector_norm(W, dim=1, keepdim=True)  # (m, 1)
        self.total = self.size.sum()
        return torch.mv(self.H, self.s, out=self.margin).mul_(self.y).div_(self.total)

    def gradient(self, W: Tensor, temperature: float, out: Tensor) -> Tensor:
        """The gradient (m, d) at the W of the last call of `margins`, which this may follow once; p is kept."""
        torch.softmax(self.margin / -temperature, 0, out=self.p)
        scale = temperature * self.total
        torch.mul(self.yX, (self.p / scale)[:, None], out=self.Z)
        torch.mm(leaky_relu(self.H.sign_(), -self.slope, inplace=True).T, self.Z, out=out).mul_(self.s[:, None])
        shrink = self.size.clamp_(min=1e-300).mul_(scale / -(self.p @ self.margin))  # infinite where p . m = 0
        return out.addcdiv_(W, shrink)


def polish(
    X: Tensor,
    y: Tensor,
    W: Tensor,
    s: Tensor,
    *,
    slope: float = 0.0,
    deadline: float,
    steps: int = 2000,
    report: Callable[[Tensor], None] | None = None,
) -> tuple[float, Tensor, Tensor]:
    """Raise min_i y_i sum_k s_k phi(W_k . x_i) / sum_k ||W_k|| by Adam on the soft minimum at falling temperatures.

    Temperature and step length fall with the share of the steps taken or of the time spent, whichever is larger, so that
    a deadline that comes early still finds a finished ascent. `report` sees the best weights every 100 steps.
    Returns the best margin met, its W (m, d), and the softmax weights q (n,) at the end, which approximate the dual.
    """
    began = time.perf_counter()
    W = W.clone()
    soft = SoftMargin(X, y, s, slope)
    size = float(W.norm(dim=1).mean())
    margin = soft.margins(W)
    start = max(float(margin.std(correction=0)), 1e-3 * float(margin.abs().mean()), 1e-12)
    mean, square, G, root = (torch.zeros_like(W) for _ in range(4))
    best, best_W, spent = -math.inf, W.clone(), 0.0
    for step in range(steps):
        if step % CHECK == 0 and math.isfinite(deadline):
            spent = (time.perf_counter() - began) / max(deadline - began, 1e-9)
            if spent > 1 and step > 0:
                break
        share = max(step / steps, min(spent, 1.0) if spent > 0.1 else 0.0)  # only the steps count unless time is short
        margin = soft.margins(W)
        lowest = float(margin.min())
        if lowest > best:
            best = lowest
            best_W.copy_(W)
        soft.gradient(W, start * HOTTEST * (COLDEST / HOTTEST) ** share, G)
        mean.lerp_(G, 1 - BETA1)
        square.mul_(BETA2).addcmul_(G, G, value=1 - BETA2)
        length = size * (1e-4 + 0.015 * (1 + math.cos(math.pi * share)))
        late = math.sqrt(1 - BETA2 ** (step + 1))
        torch.sqrt(square, out=root).add_(EPSILON * late)
        W.addcdiv_(mean, root, value=length * late / (1 - BETA1 ** (step + 1)))
        if report is not None and step % 100 == 99:
            report(best_W)
    return best, best_W, soft.p
