"""The ascent on the soft minimum of a network's margins: its gradient, what it returns, and its clock."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from widemargin.data import parity
from widemargin.margins._polish import SoftMargin, polish

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def problem(n: int, d: int, m: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(n + d + m)
    X, W = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    y, s = np.sign(rng.standard_normal(n)), np.resize([1.0, -1.0], m)
    return tuple(torch.as_tensor(a, device=device) for a in (X, y, W, s))


def margins(X: torch.Tensor, y: torch.Tensor, W: torch.Tensor, s: torch.Tensor, slope: float = 0.0) -> torch.Tensor:
    return y * (torch.nn.functional.leaky_relu(X @ W.T, slope) @ s) / W.norm(dim=1).sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "d", "m"), [(1, 1, 1), (7, 3, 4), (20, 6, 50), (40, 30, 8)])
@pytest.mark.parametrize(("temperature", "slope"), [(1.0, 0.0), (1e-2, 0.0), (1e-2, 0.3)])
def test_the_gradient_is_that_of_autograd(n: int, d: int, m: int, temperature: float, slope: float, device: str):
    X, y, W, s = problem(n, d, m, device)
    soft, G = SoftMargin(X, y, s, slope), torch.empty_like(W)
    for scale in (1.0, 3.0):  # the second time with buffers in use
        V = (scale * W).requires_grad_(True)
        torch.testing.assert_close(soft.margins(V.detach()), margins(X, y, V, s, slope).detach())
        (-torch.logsumexp(-margins(X, y, V, s, slope) / temperature, 0)).backward()
        torch.testing.assert_close(soft.gradient(V.detach(), temperature, G), V.grad, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(soft.p, torch.softmax(-margins(X, y, V, s, slope) / temperature, 0).detach())


def test_dead_and_zero_neurons_do_not_spoil_the_gradient():
    X, y, W, s = problem(6, 3, 5)
    X = X.abs()
    W[0], W[1] = 0.0, -1.0
    soft = SoftMargin(X, y, s)
    soft.margins(W)
    assert soft.gradient(W, 0.1, torch.empty_like(W)).isfinite().all()
    silent = torch.full_like(W, -1.0)  # f = 0, so that p . m = 0
    soft.margins(silent)
    assert (soft.gradient(silent, 0.1, torch.empty_like(W)) == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_ascent_nears_the_margin_of_a_parity(device: str):
    data = parity(4, k=2, marginal="full")
    _, _, W, s = problem(data.n, data.d, 30)
    before, seen = W.clone(), []
    arguments = tuple(torch.as_tensor(a, device=device) for a in (data.X.copy(), data.y.copy(), W, s))
    best, best_W, q = polish(*arguments, deadline=math.inf, steps=1500, report=lambda V: seen.append(V.clone()))
    X, y, _, s = arguments
    assert float(margins(X, y, best_W, s).min()) == pytest.approx(best, rel=1e-12)
    assert 0.999 / math.sqrt(32) < best <= 1 / math.sqrt(32)  # 1 / sqrt(8 d), in closed form
    assert float(q.sum()) == pytest.approx(1) and (q >= 0).all()
    lowest = [float(margins(X, y, V, s).min()) for V in seen]
    assert len(seen) == 15 and lowest == sorted(lowest)
    assert torch.equal(before, W)


def test_a_deadline_is_kept_and_still_finds_a_cooled_network():
    X, y, W, s = problem(40, 60, 50)
    start = time.perf_counter()
    best, best_W, _ = polish(X, y, W, s, deadline=start + 0.3, steps=10**6)
    assert time.perf_counter() - start < 3
    assert best > 0 and float(margins(X, y, best_W, s).min()) == pytest.approx(best, rel=1e-12)
    assert math.isfinite(polish(X, y, W, s, deadline=start, steps=100)[0])  # no time at all: the first steps
